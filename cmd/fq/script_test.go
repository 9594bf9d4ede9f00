package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"go.uber.org/goleak"
)

// TestMain makes the test binary the command fq for scripts, and looks for
// goroutines that outlive the tests.
func TestMain(m *testing.M) {
	testscript.Main(leakless{m}, map[string]func(){"fq": main})
}

type leakless struct{ m *testing.M }

func (l leakless) Run() int {
	code := l.m.Run()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	return code
}

// TestScripts runs testdata/script against the real services, each script
// against its own, once over each door.
func TestScripts(t *testing.T) {
	for _, door := range []string{"nats", "http"} {
		t.Run(door, func(t *testing.T) {
			t.Parallel()
			testscript.Run(t, testscript.Params{
				Dir:                 "testdata/script",
				RequireExplicitExec: true,
				RequireUniqueNames:  true,
				Setup: func(env *testscript.Env) error {
					b := newBackend(env.T().(testing.TB))
					env.Vars = append(env.Vars, b.environ(door)...)
					env.Vars = append(env.Vars, "DOOR="+door, "XDG_CONFIG_HOME="+env.WorkDir+"/config", "HOME="+env.WorkDir)
					return nil
				},
				Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
					"runs": runs, "exits": exits, "keep": keep, "lines": countLines,
				},
				Condition: func(cond string) (bool, error) {
					if cond == "nats" || cond == "http" {
						return cond == door, nil
					}
					return false, fmt.Errorf("unknown condition %q", cond)
				},
			})
		})
	}
}

// runs fq ARGS...: fq succeeds. It runs in the test's process, which is much
// faster than "exec fq", without standard input and in another folder than the
// script's.
func runs(ts *testscript.TestScript, neg bool, args []string) {
	if neg {
		ts.Fatalf("use: exits CODE fq ARGS...")
	}
	exits(ts, false, append([]string{"0"}, args...))
}

// exits CODE fq ARGS...: fq ends with this exit code; see runs.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 || args[1] != "fq" {
		ts.Fatalf("usage: exits CODE fq ARGS...")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	code := run(context.Background(), args[2:], ts.Getenv, strings.NewReader(""), ts.Stdout(), ts.Stderr())
	if code != want {
		ts.Fatalf("fq %s: exit code %d, want %d", strings.Join(args[2:], " "), code, want)
	}
}

// keep NAME: keeps what was printed last, without the line feed, in a variable.
func keep(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: keep NAME")
	}
	ts.Setenv(args[0], strings.TrimSuffix(ts.ReadFile("stdout"), "\n"))
}

// lines N FILE: the file has so many lines.
func countLines(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: lines N FILE")
	}
	if got := strings.Count(ts.ReadFile(args[1]), "\n"); strconv.Itoa(got) != args[0] {
		ts.Fatalf("%s has %d lines, want %s", args[1], got, args[0])
	}
}
