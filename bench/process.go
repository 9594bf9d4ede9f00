package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// process is a server that this run has started.
type process struct {
	cmd    *exec.Cmd
	exited chan struct{}
	output *tail
}

// startProcess starts a command, which ends with this process at the latest.
func startProcess(cmd *exec.Cmd) (*process, error) {
	p := &process{cmd: cmd, exited: make(chan struct{}), output: &tail{}}
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
			_ = cmd.Wait() // how it ended is told by its output
			close(p.exited)
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

// await waits until ready says so.
func (p *process) await(ctx context.Context, what string, patience time.Duration, ready func() error) error {
	end := time.Now().Add(patience)
	for {
		err := ready()
		if err == nil {
			return nil
		}
		select {
		case <-p.exited:
			return fmt.Errorf("%s ended:\n%s", what, p.output)
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(end) {
			return errors.Join(fmt.Errorf("%s does not answer: %w\n%s", what, err, p.output), p.stop(syscall.SIGKILL))
		}
	}
}

// stop sends a signal and waits; what does not obey is killed.
func (p *process) stop(how syscall.Signal) error {
	if err := p.cmd.Process.Signal(how); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	const patience = 30 * time.Second
	select {
	case <-p.exited:
		return nil
	case <-time.After(patience):
	}
	if err := p.cmd.Process.Kill(); err != nil {
		return err
	}
	<-p.exited
	return fmt.Errorf("%s had to be killed\n%s", filepath.Base(p.cmd.Path), p.output)
}

// tail keeps the end of what a server writes.
type tail struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	const most = 16 << 10
	if t.buf.Len() > most {
		t.buf.Next(t.buf.Len() - most/2)
	}
	return t.buf.Write(p)
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.buf.String()
}

func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port), nil
}

// unprivileged is who runs PostgreSQL, which refuses to be root's; nil: this
// process's own user will do.
func unprivileged() (*syscall.Credential, error) {
	if os.Getuid() != 0 {
		return nil, nil
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		return nil, fmt.Errorf("PostgreSQL does not run as root: %w", err)
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return nil, err
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return nil, err
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid), NoSetGroups: true}, nil
}

// cpuOf is the processor time of a process and of its children, those that have
// ended included, as /proc tells it in hundredths of a second. 0 where there is
// no /proc.
func cpuOf(pid int) time.Duration {
	ticks := ticksOf(pid, true)
	children, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	for child := range strings.FieldsSeq(string(children)) {
		if id, err := strconv.Atoi(child); err == nil {
			ticks += ticksOf(id, false)
		}
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}

func ticksOf(pid int, withEnded bool) int64 {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(raw), ") ")
	fields := strings.Fields(rest) // from the third of proc(5) on: utime is the 14th
	sum := int64(0)
	for i := 11; i < len(fields) && (i < 13 || withEnded && i < 15); i++ {
		n, _ := strconv.ParseInt(fields[i], 10, 64)
		sum += n
	}
	return sum
}

// residentOf is the memory of a process in MiB.
func residentOf(pid int) (float64, error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(raw)) {
		if value, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kib, err := strconv.ParseFloat(strings.Fields(value)[0], 64)
			return kib / 1024, err
		}
	}
	return 0, errors.New("the kernel does not tell")
}
