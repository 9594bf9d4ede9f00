package main

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"flexiq/pkg/testkit"
)

var (
	hasVersion = regexp.MustCompile(`^the store has version \d+\n`)
	ofStore    = regexp.MustCompile(`version of the store +\d+\n`)
	firstStep  = regexp.MustCompile(`0001 +initial +applied `)
	keepsData  = regexp.MustCompile(`would delete every job|has no way back|no step to take back`)
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
				if text := migrate("up", exitOK); !hasVersion.MatchString(text) {
					t.Errorf("up: %q", text)
				}
			}
			text := migrate("status", exitOK)
			for _, want := range []*regexp.Regexp{ofStore, firstStep} {
				if !want.MatchString(text) {
					t.Errorf("status: %s, want it to match %q", text, want)
				}
			}
			// Steps are taken back until one comes that would lose something.
			for range 100 {
				status, stdout, stderr := command(t, append([]string{"migrate", "down"}, at...)...)
				if status == exitOK {
					continue
				}
				if !keepsData.MatchString(stderr) {
					t.Errorf("down: status %d, %q%q", status, stdout, stderr)
				}
				break
			}
			migrate("up", exitOK)
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
