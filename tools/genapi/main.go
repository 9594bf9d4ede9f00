// Command genapi turns the protobuf sources below a directory into Go code: a
// protobuf compiler written in Go and protoc-gen-go, linked into one program.
// It needs nothing but Go, and builds in seconds where a general tool takes
// minutes.
//
// Usage: genapi [-check] DIR
//
// Each x.proto gives an x.pb.go beside it. With -check nothing is written, and
// the exit status is 1 when a file on disk is not the one that would be.
// Either way the sources are held to the rules of the interface first; see
// [lint].
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
)

func main() {
	check := flag.Bool("check", false, "write nothing; fail when generated code differs")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: genapi [-check] DIR")
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() != 1 {
		flag.Usage()
		os.Exit(2)
	}
	if err := run(context.Background(), flag.Arg(0), *check); err != nil {
		fmt.Fprintln(os.Stderr, "genapi:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, dir string, check bool) error {
	files, err := compile(ctx, dir)
	if err != nil {
		return err
	}
	if err := lint(files); err != nil {
		return err
	}
	code, err := generate(files)
	if err != nil {
		return err
	}
	if check {
		return compare(dir, code)
	}
	return write(dir, code)
}
