package testkit

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// judged is a test that may fail without failing the one around it.
type judged struct {
	testing.TB
	failed   bool
	cleanups []func()
}

func (j *judged) Cleanup(f func())      { j.cleanups = append(j.cleanups, f) }
func (j *judged) Errorf(string, ...any) { j.failed = true }
func (j *judged) Failed() bool          { return j.failed }
func (j *judged) Skipped() bool         { return false }
func (j *judged) end()                  { j.cleanups[0]() }
func (j *judged) read(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		j.Fatal(err)
	}
	return string(text)
}

// TestSoakArtifact: an artifact says unfinished, then what was found and whether
// all of it held.
func TestSoakArtifact(t *testing.T) {
	root, err := moduleFolder()
	if err != nil {
		t.Fatal(err)
	}
	for name, holds := range map[string]bool{"PASS": true, "FAIL": false} {
		t.Run(name, func(t *testing.T) {
			j := &judged{TB: t}
			folder := filepath.Join(t.TempDir(), "results")
			path := filepath.Join(folder, "itself.txt")
			s := startSoak(j, root, folder, "itself", "what an artifact says")
			if text := j.read(path); !strings.HasSuffix(text, "\nUNFINISHED\n") {
				t.Errorf("at the start it ends in %q", text)
			}
			s.Figure("rows", "%d", 3)
			s.Durations("waits", []time.Duration{3 * time.Second, time.Second, 2 * time.Second})
			s.Check(holds, "3 rows of 3")
			j.end()
			text := j.read(path)
			for _, want := range []string{"itself: what an artifact says\n", "\ncommit ", "\nmachine ", "rows                     3\n", "p50 2s, p99 2s, most 3s of 3", "3 rows of 3", "\n" + name + "\n"} {
				if !strings.Contains(text, want) {
					t.Errorf("it lacks %q:\n%s", want, text)
				}
			}
		})
	}
}
