package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"
)

// env is what rows share: where data lies, the program under test, and what
// must be undone.
type env struct {
	opts    options
	dir     string // for everything of this run
	flexiqd string // the program
	log     func(format string, args ...any)
	undos   []func() error
}

func newEnv(ctx context.Context, o options) (_ *env, err error) {
	e := &env{opts: o, log: stderrLog()}
	if e.dir, err = os.MkdirTemp(o.dir, "flexiq-bench-"); err != nil {
		return nil, err
	}
	// PostgreSQL's files belong to another user when this process is root's.
	if err := os.Chmod(e.dir, 0o755); err != nil {
		return nil, err
	}
	if memoryBacked(e.dir) {
		e.log("%s is kept in memory: figures say nothing about a disk; choose another folder with -dir or TMPDIR", e.dir)
	}
	e.flexiqd = filepath.Join(e.dir, "flexiqd")
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", e.flexiqd, "./cmd/flexiqd")
	build.Dir = o.source
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, errors.Join(fmt.Errorf("build flexiqd: %w\n%s", err, out), os.RemoveAll(e.dir))
	}
	return e, nil
}

// stderrLog tells of progress, with the time since the start.
func stderrLog() func(format string, args ...any) {
	start := time.Now()
	return func(format string, args ...any) {
		fmt.Fprintf(os.Stderr, "%5.0fs  %s\n", time.Since(start).Seconds(), fmt.Sprintf(format, args...))
	}
}

// later remembers what to undo when the row ends, last things first.
func (e *env) later(f func() error) { e.undos = append(e.undos, f) }

func (e *env) undo() error {
	var errs []error
	for _, f := range slices.Backward(e.undos) {
		errs = append(errs, f())
	}
	e.undos = nil
	return errors.Join(errs...)
}

func (e *env) close() error { return errors.Join(e.undo(), os.RemoveAll(e.dir)) }

// rounds and the length of one, by the kind of run.
func (e *env) rounds() int { return 3 }

func (e *env) length(full time.Duration) time.Duration {
	if e.opts.quick {
		full = max(full/4, 1500*time.Millisecond)
	}
	if e.opts.length > 0 {
		return min(full, e.opts.length)
	}
	return full
}

// scale shrinks an amount of jobs for a quick run.
func (e *env) scale(full int) int {
	if e.opts.quick {
		full /= 5
	}
	if e.opts.jobs > 0 {
		return min(full, e.opts.jobs)
	}
	return full
}
