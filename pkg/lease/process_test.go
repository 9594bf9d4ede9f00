package lease

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
)

// process is a candidate in a process of its own.
type process struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.Writer
	out *bufio.Scanner
}

// spawn starts a candidate and waits until it leads.
func spawn(t *testing.T, srv *server.Server) *process {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), childURL+"="+srv.ClientURL())
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &process{t: t, cmd: cmd, in: in, out: bufio.NewScanner(out)}
	t.Cleanup(p.kill)
	p.hear("leading")
	return p
}

// hear reads one line.
func (p *process) hear(want string) {
	p.t.Helper()
	if !p.out.Scan() || !strings.Contains(p.out.Text(), want) {
		p.t.Fatalf("the process says %q (%v), want %q", p.out.Text(), p.out.Err(), want)
	}
}

func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// kill ends the process at once; twice is safe.
func (p *process) kill() {
	if p.cmd.ProcessState == nil {
		_ = p.cmd.Process.Kill() // it may have ended by itself
		_ = p.cmd.Wait()         // which tells that it was killed
	}
}

// A frozen leader does not know that it was. The question is put to it while
// it is frozen, so that it is the first thing it does when it thaws.
func TestAFrozenLeaderFindsItsLeaseOver(t *testing.T) {
	t.Parallel()
	srv := serve(t, t.TempDir(), -1)
	p := spawn(t, srv)
	p.signal(syscall.SIGSTOP)
	h := newHouse(t, srv, childTTL)
	h.join("successor")
	h.next()
	if _, err := fmt.Fprintln(p.in, "may you act?"); err != nil {
		t.Fatal(err)
	}
	p.signal(syscall.SIGCONT)
	p.hear("guard: " + ErrLost.Error())
}

func TestAKilledLeaderIsSucceeded(t *testing.T) {
	t.Parallel()
	srv := serve(t, t.TempDir(), -1)
	h := newHouse(t, srv, childTTL)
	for range 2 {
		p := spawn(t, srv)
		p.kill()
		c := h.join("successor")
		h.nextOf(c)
		c.stop()
	}
	bucket := h.bucket()
	until(t, "no key is left", func() bool { return free(t, bucket) })
}
