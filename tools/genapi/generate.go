package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/bufbuild/protocompile"
	"github.com/bufbuild/protocompile/linker"
	"github.com/bufbuild/protocompile/protoutil"
	"github.com/bufbuild/protocompile/reporter"
	"google.golang.org/protobuf/cmd/protoc-gen-go/internal_gengo"
	"google.golang.org/protobuf/compiler/protogen"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/pluginpb"
)

const (
	source    = ".proto"
	generated = ".pb.go"
)

// compile reads all sources below dir. Every mistake is reported, with its
// position; a warning (an unused import) counts as one.
func compile(ctx context.Context, dir string) (linker.Files, error) {
	names, err := find(dir, source)
	if err != nil {
		return nil, err
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("no %s file below %s", source, dir)
	}
	var mistakes []error
	collect := func(err reporter.ErrorWithPos) { mistakes = append(mistakes, err) }
	compiler := protocompile.Compiler{
		Resolver:       protocompile.WithStandardImports(&protocompile.SourceResolver{ImportPaths: []string{dir}}),
		Reporter:       reporter.NewReporter(func(err reporter.ErrorWithPos) error { collect(err); return nil }, collect),
		SourceInfoMode: protocompile.SourceInfoStandard,
		MaxParallelism: 1, // mistakes in the order of the sources
	}
	files, err := compiler.Compile(ctx, names...)
	if len(mistakes) > 0 {
		return nil, errors.Join(mistakes...)
	}
	return files, err
}

// generate returns the Go code of the files by its name relative to the
// sources' directory.
func generate(files linker.Files) (map[string][]byte, error) {
	request := &pluginpb.CodeGeneratorRequest{Parameter: proto.String("paths=source_relative")}
	seen := map[string]bool{}
	for _, f := range files {
		request.FileToGenerate = append(request.FileToGenerate, f.Path())
		request.ProtoFile = appendWithImports(request.ProtoFile, f, seen)
	}
	plugin, err := protogen.Options{}.New(request)
	if err != nil {
		return nil, err
	}
	plugin.SupportedFeatures = internal_gengo.SupportedFeatures
	for _, f := range plugin.Files {
		if f.Generate {
			internal_gengo.GenerateFile(plugin, f)
		}
	}
	response := plugin.Response()
	if response.Error != nil {
		return nil, errors.New(response.GetError())
	}
	code := make(map[string][]byte, len(response.GetFile()))
	for _, f := range response.GetFile() {
		code[f.GetName()] = []byte(f.GetContent())
	}
	return code, nil
}

// appendWithImports keeps the order that a generator expects: a file after all
// that it imports.
func appendWithImports(to []*descriptorpb.FileDescriptorProto, f protoreflect.FileDescriptor, seen map[string]bool) []*descriptorpb.FileDescriptorProto {
	if seen[f.Path()] {
		return to
	}
	seen[f.Path()] = true
	imports := f.Imports()
	for i := range imports.Len() {
		to = appendWithImports(to, imports.Get(i).FileDescriptor, seen)
	}
	return append(to, protoutil.ProtoFromFileDescriptor(f))
}

func write(dir string, code map[string][]byte) error {
	stale, err := leftOver(dir, code)
	if err != nil {
		return err
	}
	for _, name := range stale {
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	for name, content := range code {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o644); err != nil {
			return err
		}
	}
	return nil
}

func compare(dir string, code map[string][]byte) error {
	differing, err := leftOver(dir, code)
	if err != nil {
		return err
	}
	for name, want := range code {
		have, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if !bytes.Equal(have, want) {
			differing = append(differing, name)
		}
	}
	if len(differing) == 0 {
		return nil
	}
	slices.Sort(differing)
	return fmt.Errorf("not what the sources give: %s; run `make gen`", strings.Join(differing, ", "))
}

// leftOver names the generated files on disk that no source gives any more.
func leftOver(dir string, code map[string][]byte) ([]string, error) {
	names, err := find(dir, generated)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(names, func(name string) bool { return code[name] != nil }), nil
}

// find names the files below dir with a suffix, relative to dir, with slashes,
// sorted.
func find(dir, suffix string) ([]string, error) {
	var names []string
	err := fs.WalkDir(os.DirFS(dir), ".", func(name string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() && strings.HasSuffix(name, suffix) {
			names = append(names, name)
		}
		return err
	})
	return names, err
}
