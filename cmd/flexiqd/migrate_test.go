package main

import (
	"path/filepath"
	"strings"
	"testing"

	"flexiq/pkg/testkit"
)

func TestMigrateOnEveryBackend(t *testing.T) {
	for name, args := range map[string]func(t *testing.T) []string{
		"sqlite": func(t *testing.T) []string {
			return []string{"--store=sqlite:" + filepath.Join(t.TempDir(), "a", "store.db")}
		},
		"postgres": func(t *testing.T) []string {
			url, schema := testkit.PostgresSchema(t)
			return []string{"--store=" + url, "--pg-schema=" + schema}
		},
		"redis": func(t *testing.T) []string { return []string{"--store=" + testkit.StartRedis(t).URL()} },
	} {
		t.Run(name, func(t *testing.T) {
			home(t)
			at := args(t)
			migrate := func(verb string, want int) string {
				t.Helper()
				status, stdout, stderr := command(t, append([]string{"migrate", verb}, at...)...)
				if status != want {
					t.Fatalf("migrate %s: status %d, want %d: %s%s", verb, status, want, stdout, stderr)
				}
				return stdout + stderr
			}
			if name == "sqlite" {
				migrate("status", exitError) // there is no file
			} else if text := migrate("status", exitOK); !strings.Contains(text, "missing") {
				t.Errorf("before: %s", text)
			}
			migrate("down", exitError)
			for range 2 {
				if text := migrate("up", exitOK); !strings.HasPrefix(text, "the store has version 1\n") {
					t.Errorf("up: %q", text)
				}
			}
			text := migrate("status", exitOK)
			for _, want := range []string{"version of the store            1\n", "0001  initial  applied  "} {
				if !strings.Contains(text, want) {
					t.Errorf("status: %s, want it to contain %q", text, want)
				}
			}
			want := map[string]string{"redis": "no step to take back"}[name]
			if want == "" {
				want = "would delete every job"
			}
			if text := migrate("down", exitError); !strings.Contains(text, want) {
				t.Errorf("down: %q, want %q", text, want)
			}
		})
	}
}

func TestMigrateUsage(t *testing.T) {
	home(t)
	for _, args := range [][]string{{"migrate"}, {"migrate", "sideways"}, {"migrate", "status", "--store=mysql:x"}} {
		if status, _, stderr := command(t, args...); status != exitUsage {
			t.Errorf("%v: status %d, %q", args, status, stderr)
		}
	}
}
