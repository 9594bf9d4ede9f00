package main

import (
	"errors"
	"fmt"
	"path"
	"regexp"
	"strings"

	"github.com/bufbuild/protocompile/linker"
	"google.golang.org/protobuf/reflect/protoreflect"
)

var (
	snake = regexp.MustCompile(`^[a-z][a-z0-9]*(_[a-z0-9]+)*$`)
	camel = regexp.MustCompile(`^([A-Z][a-z0-9]*)+$`)
)

// lint holds the sources to the rules of the interface:
//
//   - a file stands in the directory of its package, and is proto3;
//   - messages, services and methods are CamelCase, fields snake_case;
//   - each of them, and each field, has a comment;
//   - method M takes MRequest and answers MResponse, which no other method uses;
//   - there are no enums: values that may grow are strings on this wire.
func lint(files linker.Files) error {
	var l linter
	for _, f := range files {
		l.file(f)
	}
	return errors.Join(l.broken...)
}

type linter struct {
	broken []error
}

func (l *linter) report(d protoreflect.Descriptor, format string, args ...any) {
	at := d.ParentFile().SourceLocations().ByDescriptor(d)
	l.broken = append(l.broken, fmt.Errorf("%s:%d:%d: %s %s", d.ParentFile().Path(),
		at.StartLine+1, at.StartColumn+1, d.Name(), fmt.Sprintf(format, args...)))
}

func (l *linter) file(f protoreflect.FileDescriptor) {
	if want := strings.ReplaceAll(string(f.Package()), ".", "/"); path.Dir(f.Path()) != want {
		l.broken = append(l.broken, fmt.Errorf("%s: package %s belongs into %s/", f.Path(), f.Package(), want))
	}
	if f.Syntax() != protoreflect.Proto3 {
		l.broken = append(l.broken, fmt.Errorf("%s: is not proto3", f.Path()))
	}
	l.enums(f.Enums())
	l.messages(f.Messages())
	for i := range f.Services().Len() {
		service := f.Services().Get(i)
		l.named(service, camel)
		for j := range service.Methods().Len() {
			l.method(service.Methods().Get(j))
		}
	}
}

func (l *linter) messages(all protoreflect.MessageDescriptors) {
	for i := range all.Len() {
		m := all.Get(i)
		if m.IsMapEntry() {
			continue
		}
		l.named(m, camel)
		l.enums(m.Enums())
		l.messages(m.Messages())
		for j := range m.Fields().Len() {
			l.named(m.Fields().Get(j), snake)
		}
	}
}

func (l *linter) enums(all protoreflect.EnumDescriptors) {
	for i := range all.Len() {
		l.report(all.Get(i), "is an enum; use a string")
	}
}

func (l *linter) method(m protoreflect.MethodDescriptor) {
	l.named(m, camel)
	for _, end := range []struct {
		message protoreflect.MessageDescriptor
		want    protoreflect.Name
	}{
		{m.Input(), m.Name() + "Request"},
		{m.Output(), m.Name() + "Response"},
	} {
		if end.message.Name() != end.want || end.message.ParentFile().Package() != m.ParentFile().Package() {
			l.report(m, "uses %s in place of %s", end.message.FullName(), end.want)
		}
	}
}

func (l *linter) named(d protoreflect.Descriptor, form *regexp.Regexp) {
	if !form.MatchString(string(d.Name())) {
		l.report(d, "does not match %s", form)
	}
	comment := d.ParentFile().SourceLocations().ByDescriptor(d).LeadingComments
	if strings.TrimSpace(comment) == "" {
		l.report(d, "has no comment")
	}
}
