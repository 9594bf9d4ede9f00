package main

import (
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
)

// TestDeploymentsSetWhatThereIs compares the variables and commands in deploy/
// and docs/ with those that the programs have.
func TestDeploymentsSetWhatThereIs(t *testing.T) {
	known := map[string]bool{ // of the client and of commands that workers run
		"FLEXIQ_SERVER": true, "FLEXIQ_TOKEN": true, "FLEXIQ_CA_FILE": true, "FLEXIQ_METRICS_NAMESPACES": true,
		"FLEXIQ_JOB_ID": true, "FLEXIQ_TASK": true, "FLEXIQ_ATTEMPT": true, "FLEXIQ_NAMESPACE": true, "FLEXIQ_": true,
	}
	var cli commands
	parser, err := newParser(&cli, io.Discard, io.Discard, func(int) {})
	if err != nil {
		t.Fatal(err)
	}
	var visit func(n *kong.Node)
	visit = func(n *kong.Node) {
		for _, f := range n.Flags {
			for _, env := range f.Envs {
				known[env] = true
			}
		}
		for _, child := range n.Children {
			visit(child)
		}
	}
	visit(parser.Model.Node)
	variable := regexp.MustCompile(`FLEXIQ_[A-Z_]*`)
	files := 0
	for _, root := range []string{"../../deploy", "../../docs"} {
		err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() {
				return err
			}
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			files++
			for _, name := range variable.FindAllString(string(text), -1) {
				if !known[name] && !strings.HasPrefix(name, "FLEXIQ_TEST_") {
					t.Errorf("%s names %s, which no program reads", path, name)
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if files < 8 {
		t.Fatalf("only %d files were read", files)
	}
}
