package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const head = `syntax = "proto3";
package x.v1;
option go_package = "x/v1;xv1";
`

const sound = head + `
// S serves.
service S {
  // Get gets.
  rpc Get(GetRequest) returns (GetResponse);
}

// GetRequest asks.
message GetRequest {
  // Labels.
  map<string, string> some_labels = 1;
}

// GetResponse answers.
message GetResponse {}
`

// sources lays files below a new directory and returns it.
func sources(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// wantError runs and looks for each of the texts in the error; none means that
// there must be no error.
func wantError(t *testing.T, dir string, check bool, texts ...string) {
	t.Helper()
	err := run(t.Context(), dir, check)
	if len(texts) == 0 && err != nil {
		t.Fatal(err)
	}
	for _, text := range texts {
		if err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("error %v lacks %q", err, text)
		}
	}
}

func TestCheckComparesWithWhatGenWrites(t *testing.T) {
	t.Parallel()
	dir := sources(t, map[string]string{"x/v1/a.proto": sound})
	code := filepath.Join(dir, "x/v1/a.pb.go")

	wantError(t, dir, true, "x/v1/a.pb.go")
	if _, err := os.Stat(code); err == nil {
		t.Fatal("-check wrote a file")
	}
	wantError(t, dir, false)
	wantError(t, dir, true)

	if err := os.WriteFile(code, []byte("package xv1\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	wantError(t, dir, true, "x/v1/a.pb.go")
}

func TestCodeWithoutSourceIsNoticedAndRemoved(t *testing.T) {
	t.Parallel()
	dir := sources(t, map[string]string{"x/v1/a.proto": sound, "x/v1/gone.pb.go": "package xv1\n"})

	wantError(t, dir, true, "x/v1/gone.pb.go")
	wantError(t, dir, false)
	wantError(t, dir, true)
}

func TestMistakesAreNamedWithTheirPlace(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		file, content string
		want          []string
	}{
		"no source":          {"x/v1/a.txt", "", []string{"no .proto file"}},
		"syntax":             {"x/v1/a.proto", head + "message {}", []string{"x/v1/a.proto:4:"}},
		"unknown type":       {"x/v1/a.proto", head + "// M is.\nmessage M {\n  // F is.\n  N f = 1;\n}", []string{"x/v1/a.proto:7:3"}},
		"unused import":      {"x/v1/a.proto", head + `import "google/protobuf/struct.proto";`, []string{"x/v1/a.proto:4:1"}},
		"wrong directory":    {"x/a.proto", sound, []string{"x/a.proto", "belongs into x/v1/"}},
		"proto2":             {"x/v1/a.proto", strings.Replace(head, "proto3", "proto2", 1), []string{"is not proto3"}},
		"no comment":         {"x/v1/a.proto", head + "message M {\n  bool f = 1;\n}", []string{"a.proto:4:1: M has no comment", "a.proto:5:3: f has no comment"}},
		"names":              {"x/v1/a.proto", head + "// M is.\nmessage m {\n  // F is.\n  bool aB = 1;\n}", []string{"m does not match", "aB does not match"}},
		"enum":               {"x/v1/a.proto", head + "enum E {\n  E_UNSET = 0;\n}", []string{"E is an enum"}},
		"shared messages":    {"x/v1/a.proto", sound + "\n// T is.\nservice T {\n  // Put puts.\n  rpc Put(GetRequest) returns (GetResponse);\n}", []string{"Put uses x.v1.GetRequest in place of PutRequest", "Put uses x.v1.GetResponse in place of PutResponse"}},
		"nested, no comment": {"x/v1/a.proto", head + "// M is.\nmessage M {\n  message N {}\n}", []string{"N has no comment"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := sources(t, map[string]string{c.file: c.content})
			wantError(t, dir, false, c.want...)
			if left, err := find(dir, generated); err != nil || len(left) > 0 {
				t.Errorf("wrote %v (%v) in spite of mistakes", left, err)
			}
		})
	}
}
