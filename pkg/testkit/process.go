package testkit

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// process is a server's process, which ends with the test binary at the latest.
type process struct {
	cmd    *exec.Cmd
	exited chan error
	output *lockedBuffer
}

// startProcess starts a command. Its output is kept, to be shown when it ends
// by itself.
func startProcess(cmd *exec.Cmd) (*process, error) {
	p := &process{cmd: cmd, exited: make(chan error, 1), output: &lockedBuffer{}}
	cmd.Stdout, cmd.Stderr = p.output, p.output
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	dieWithParent(cmd.SysProcAttr)
	started := make(chan error)
	go func() {
		// The parent whose end the server is told of is this thread.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			p.exited <- cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

// gone reports whether the process ended, and how.
func (p *process) gone() error {
	select {
	case err := <-p.exited:
		p.exited <- err
		return fmt.Errorf("the server ended: %v\n%s", err, p.output)
	default:
		return nil
	}
}

// stop sends a signal and waits for the end. Nil is a process that was never started.
func (p *process) stop(how syscall.Signal, patience time.Duration) error {
	if p == nil {
		return nil
	}
	if err := p.cmd.Process.Signal(how); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case err := <-p.exited:
		p.exited <- err
		return nil
	case <-time.After(patience):
		return fmt.Errorf("the server with pid %d does not stop\n%s", p.cmd.Process.Pid, p.output)
	}
}
