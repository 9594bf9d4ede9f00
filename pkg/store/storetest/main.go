package storetest

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"

	"go.uber.org/goleak"

	"flexiq/pkg/store"
)

// partVariable holds a part of the suite, as JSON, that a process plays which
// the suite started.
const partVariable = "FLEXIQ_STORETEST_PART"

// Main is the TestMain of a backend's tests: it runs them and fails on leaked
// goroutines. The cases with several processes start the test's own binary
// again; there Main plays the part of that process, and runs no test. A backend
// that has to stop something before the leak check wraps its *testing.M.
func Main(m goleak.TestingM, b Backend) {
	if text := os.Getenv(partVariable); text != "" {
		if err := play(b, text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	// Two thousand random operations are enough for every run of the tests. The
	// command line, which is read later, may ask for more; a failure is repeated
	// by the seed that it prints.
	for name, value := range map[string]string{"rapid.checks": "40", "rapid.steps": "50", "rapid.nofailfile": "true"} {
		if err := flag.Set(name, value); err != nil {
			panic(err)
		}
	}
	goleak.VerifyTestMain(m)
}

// part is what one process does with a store.
type part struct {
	Role      string
	Address   string
	Namespace string
	First     int // the number of its first job id
	Calls     int
	Jobs      int // in a call
}

// report is a line that a process writes. The first one says that it is ready;
// it then waits for a line before it begins.
type report struct {
	Admitted []string // ids of the jobs of one call
	Peak     int64    // the most running jobs seen
	Finished int      // jobs completed
}

// roles are what a process can be.
var roles = map[string]func(context.Context, store.Store, part, func(report) error) error{
	"enqueue":  playEnqueue,
	"work":     playWork,
	"hold":     playHold,
	"override": playOverride,
	"replay":   playReplay,
}

func play(b Backend, text string) error {
	var p part
	if err := json.Unmarshal([]byte(text), &p); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), caseTimeout)
	defer cancel()
	s, err := b.Open(ctx, p.Address, nil)
	if err != nil {
		return err
	}
	defer s.Close()
	out := json.NewEncoder(os.Stdout)
	if err := out.Encode(report{}); err != nil {
		return err
	}
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		return err
	}
	return roles[p.Role](ctx, s, p, func(r report) error { return out.Encode(r) })
}

// process is a part that is being played.
type process struct {
	f      *fixture
	cmd    *exec.Cmd
	begin  io.WriteCloser
	out    *json.Decoder
	killed bool
}

// process starts a part and waits until it is ready.
func (f *fixture) process(p part) *process {
	f.Helper()
	if f.backend.InProcess {
		f.Skip("other processes cannot open this store")
	}
	p.Address = f.address
	text, err := json.Marshal(p)
	f.ok(err)
	exe, err := os.Executable()
	f.ok(err)
	cmd := exec.CommandContext(f.ctx, exe, "-test.run=^$")
	cmd.Env = append(os.Environ(), partVariable+"="+string(text))
	cmd.Stderr = os.Stderr
	begin, err := cmd.StdinPipe()
	f.ok(err)
	out, err := cmd.StdoutPipe()
	f.ok(err)
	f.ok(cmd.Start())
	proc := &process{f: f, cmd: cmd, begin: begin, out: json.NewDecoder(out)}
	f.Cleanup(proc.kill)
	proc.next()
	return proc
}

// start lets the part begin.
func (p *process) start() {
	p.f.Helper()
	_, err := p.begin.Write([]byte("\n"))
	p.f.ok(err)
}

// next reads the next report.
func (p *process) next() report {
	p.f.Helper()
	var r report
	if err := p.out.Decode(&r); err != nil {
		p.f.Fatalf("a process gave no report: %v", err)
	}
	return r
}

// rest reads all reports to the end, and wants the process to end well.
func (p *process) rest() []report {
	p.f.Helper()
	reports := p.drain()
	if p.killed {
		p.f.Fatal("the process was killed")
	}
	p.killed = true
	if err := p.cmd.Wait(); err != nil {
		p.f.Fatalf("a process failed: %v", err)
	}
	return reports
}

// drain reads what is left of the reports. The last line of a killed process
// may be cut.
func (p *process) drain() []report {
	p.f.Helper()
	var out []report
	for {
		var r report
		switch err := p.out.Decode(&r); {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return out
		case err != nil:
			p.f.Fatalf("a report cannot be read: %v", err)
		}
		out = append(out, r)
	}
}

// kill ends the process without a word, and waits for it.
func (p *process) kill() {
	if p.killed {
		return
	}
	p.killed = true
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

// realNow is a clock some time ahead of the stores' own.
func realNow(ahead time.Duration) func() time.Time {
	return func() time.Time { return time.Now().Add(ahead) }
}
