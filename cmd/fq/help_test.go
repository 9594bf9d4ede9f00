package main

import (
	"testing"

	"github.com/alecthomas/kong"
)

// Every command, argument and flag says what it is for.
func TestEverythingHasHelp(t *testing.T) {
	parser, err := kong.New(new(commands), durations())
	if err != nil {
		t.Fatal(err)
	}
	flags := 0
	err = kong.Visit(parser.Model, func(node kong.Visitable, next kong.Next) error {
		switch n := node.(type) {
		case *kong.Node:
			if n.Help == "" {
				t.Errorf("%s has no help", n.FullPath())
			}
		case *kong.Flag:
			flags++
			if n.Help == "" {
				t.Errorf("--%s has no help", n.Name)
			}
		case *kong.Value:
			if n.Help == "" {
				t.Errorf("<%s> has no help", n.Name)
			}
		}
		return next(nil)
	})
	if err != nil {
		t.Fatal(err)
	}
	if flags < 20 {
		t.Errorf("only %d flags were looked at", flags)
	}
}
