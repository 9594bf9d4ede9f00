package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"flexiq/pkg/client"
	"flexiq/pkg/job"
)

// What a command's exit code means, and how much of what it prints is kept.
const (
	exitDead   = 100
	errorBytes = 4 << 10
	// killAfter is how long a command may go on after it was told to end, less
	// than a stopping worker waits for its handlers.
	killAfter = time.Second
)

// command runs jobs as child processes.
type command struct {
	line string
	env  func() []string
}

// run is the handler of every task. The job's input is on the child's standard
// input; exit code 0 completes the job with the standard output as its result,
// 100 makes it dead, anything else fails with the end of the standard error.
func (c command) run(ctx context.Context, t *client.Task) error {
	cmd := exec.CommandContext(ctx, "sh", "-c", c.line)
	cmd.Env = append(c.env(),
		"FLEXIQ_JOB_ID="+t.ID(), "FLEXIQ_TASK="+t.Name(), "FLEXIQ_ATTEMPT="+strconv.Itoa(t.Attempt()),
		"FLEXIQ_NAMESPACE="+t.Job().GetNamespace())
	cmd.Stdin = bytes.NewReader(t.Input())
	var out headBuffer
	var tail tailBuffer
	cmd.Stdout, cmd.Stderr = &out, &tail
	ownGroup(cmd)
	cmd.Cancel = func() error { return endGroup(cmd) }
	cmd.WaitDelay = killAfter
	err := cmd.Run()
	killGroup(cmd) // what it left behind, or would not end
	if errors.Is(err, exec.ErrWaitDelay) && cmd.ProcessState.ExitCode() == 0 {
		err = nil // only a grandchild still held a pipe open
	}
	if cause := context.Cause(ctx); err != nil && cause != nil {
		return fmt.Errorf("%w: %s", cause, tail.or(err))
	}
	if err == nil {
		if out.bytes == nil {
			return nil
		}
		return t.SetResult(out.bytes)
	}
	failure := errors.New(tail.or(err))
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == exitDead {
		return client.Dead(failure)
	}
	return failure
}

// headBuffer keeps the beginning of what is written: as much as a result holds.
type headBuffer struct{ bytes []byte }

func (b *headBuffer) Write(p []byte) (int, error) {
	room := job.MaxResult - len(b.bytes)
	b.bytes = append(b.bytes, p[:min(room, len(p))]...)
	return len(p), nil
}

// tailBuffer keeps the end of what is written.
type tailBuffer struct{ bytes []byte }

func (b *tailBuffer) Write(p []byte) (int, error) {
	b.bytes = append(b.bytes, p[max(0, len(p)-errorBytes):]...)
	if n := len(b.bytes); n > 2*errorBytes {
		b.bytes = append(b.bytes[:0], b.bytes[n-errorBytes:]...)
	}
	return len(p), nil
}

// or is the text without the line feeds at its end, or when nothing was
// written the error's.
func (b *tailBuffer) or(err error) string {
	if len(b.bytes) == 0 {
		return err.Error()
	}
	return strings.TrimRight(string(b.bytes[max(0, len(b.bytes)-errorBytes):]), "\n")
}
