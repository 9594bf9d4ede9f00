package retention

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"flexiq/pkg/lease"
	"flexiq/pkg/store"
	"flexiq/pkg/testkit"
)

// crew is the retention processes of a test and what they said.
type crew struct {
	f    *fixture
	nats *server.Server
	like child // what each is told, but its name
	hand map[string]*hand

	mu      sync.Mutex
	leader  *hand // who began to lead last, and its term
	term    int64
	rows    map[int64]int64 // deleted by term, as the processes say
	steps   int             // deletes that did something
	refused int             // deletes that came too late
	untold  map[int64]int64 // rows that may have been deleted besides, by term
}

// newCrew starts three processes.
func newCrew(f *fixture, like child) *crew {
	f.Helper()
	c := &crew{f: f, nats: testkit.NATS(f.T), like: like, hand: map[string]*hand{}, rows: map[int64]int64{}, untold: map[int64]int64{}}
	c.like.Database = f.in
	for i := range 3 {
		c.spawn(fmt.Sprint("process ", i))
	}
	return c
}

// hand is one process.
type hand struct {
	crew *crew
	name string
	cmd  *exec.Cmd
	in   io.WriteCloser
	link *link
	read chan struct{} // closed when it said its last
	held chan struct{} // tells that it waits right before a delete
	term int64         // that it led under last
}

func (c *crew) spawn(name string) {
	c.f.Helper()
	h := &hand{crew: c, name: name, link: newLink(c.f.T, c.nats.Addr().String()), read: make(chan struct{}), held: make(chan struct{}, 1)}
	told := c.like
	told.NATS, told.Name = "nats://"+h.link.address(), name
	text, err := json.Marshal(told)
	c.f.must(err)
	h.cmd = exec.Command(os.Args[0])
	h.cmd.Env = append(os.Environ(), childVariable+"="+string(text))
	h.cmd.Stderr = os.Stderr
	h.in, err = h.cmd.StdinPipe()
	c.f.must(err)
	out, err := h.cmd.StdoutPipe()
	c.f.must(err)
	c.f.must(h.cmd.Start())
	go func() {
		defer close(h.read)
		for lines := json.NewDecoder(out); ; {
			var l said
			if lines.Decode(&l) != nil {
				return
			}
			c.hear(h, l)
		}
	}()
	c.f.Cleanup(h.kill)
	c.hand[name] = h
}

func (c *crew) hear(h *hand, l said) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if l.Held {
		h.held <- struct{}{}
	}
	if l.Leads > 0 {
		h.term = l.Leads
	}
	if l.Leads > c.term {
		c.leader, c.term = h, l.Leads
	}
	if l.Rows > 0 {
		c.rows[l.Term] += l.Rows
		c.steps++
	}
	if l.Refused {
		c.refused++
	}
	if l.Unknown {
		c.untold[l.Term] += childRows
	}
}

// missed notes that a process could not tell of its last delete any more.
func (c *crew) missed(h *hand) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.untold[h.term] += childRows
}

func (c *crew) state() (leader *hand, term int64, steps int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.leader, c.term, c.steps
}

func (h *hand) signal(s syscall.Signal) {
	h.crew.f.Helper()
	h.crew.f.must(h.cmd.Process.Signal(s))
}

// kill ends the process; twice is safe.
func (h *hand) kill() { h.end(func() { _ = h.cmd.Process.Signal(syscall.SIGKILL) }) }

// leave lets the process end by itself.
func (h *hand) leave() { h.end(func() { _ = h.in.Close() }) }

func (h *hand) end(how func()) {
	if h.cmd.ProcessState == nil {
		how()
		<-h.read
		_ = h.cmd.Wait()
		h.link.close()
	}
}

func (h *hand) say(line string) {
	h.crew.f.Helper()
	_, err := io.WriteString(h.in, line+"\n")
	h.crew.f.must(err)
}

// freeze stops the process. On SQLite it does so right before a delete: stopped in
// the middle of one it would hold the file's lock, and everybody's writes with it.
func (h *hand) freeze() {
	if h.crew.f.in.Kind == "sqlite" {
		h.say("hold")
		for wait := time.Tick(time.Second); ; {
			select {
			case <-h.held:
			case <-wait: // it had deleted everything before it heard
				h.crew.f.shed(trialNamespace, childRows)
				continue
			}
			break
		}
	}
	h.signal(syscall.SIGSTOP)
}

func (h *hand) thaw() {
	h.signal(syscall.SIGCONT)
	if h.crew.f.in.Kind == "sqlite" {
		h.say("go")
	}
}

// way is a way to disturb a leader, and to let it be again.
type way struct {
	name          string
	disturb, heal func(h *hand)
}

var ways = []way{
	{"SIGSTOP", (*hand).freeze, (*hand).thaw},
	{"SIGKILL", func(h *hand) { h.kill(); h.crew.missed(h) }, func(h *hand) { h.crew.spawn(h.name) }},
	{"cut off from NATS", func(h *hand) { h.link.set(true) }, func(h *hand) { h.link.set(false) }},
	{"cut off from the store", func(h *hand) { h.say("off") }, func(h *hand) { h.say("on") }},
}

// trial is what the crew's processes sweep: one namespace with a ceiling, flooded
// in each round.
type trial struct {
	*crew
	ledger   func() ledger
	patience time.Duration // with what must happen
}

const (
	trialNamespace = "gantry"
	trialCeiling   = 40
	trialFlood     = 300
)

func newTrial(f *fixture, like child, patience time.Duration) *trial {
	f.Helper()
	read := f.in.record(f.T, store.DeadLetters)
	f.limit(trialNamespace, dead(trialCeiling))
	return &trial{crew: newCrew(f, like), ledger: read, patience: patience}
}

// await waits for something that a process does, and tells how long it took.
func (t *trial) await(what string, so func() bool) time.Duration {
	t.f.Helper()
	began := time.Now()
	for tick := time.Tick(5 * time.Millisecond); !so(); <-tick {
		if time.Since(began) > t.patience {
			t.f.Fatalf("not within %s: %s", t.patience, what)
		}
	}
	return time.Since(began)
}

func (t *trial) trimmed() bool { return t.f.dead(trialNamespace) == trialCeiling }

// round disturbs the leader in the middle of a trim and wants another to take
// over and to reach the ceiling. It tells how long both took.
func (t *trial) round(w way) (led, trimmed time.Duration) {
	t.f.Helper()
	t.await("somebody leads before: "+w.name, func() bool { h, _, _ := t.state(); return h != nil })
	_, _, before := t.state()
	t.f.shed(trialNamespace, trialFlood)
	t.await("the leader is at it: "+w.name, func() bool { _, _, n := t.state(); return n >= before+3 })
	leader, term, _ := t.state()
	w.disturb(leader)
	led = t.await("another leads after: "+w.name, func() bool { h, now, _ := t.state(); return now > term && h != leader })
	trimmed = led + t.await("the ceiling is reached after: "+w.name, t.trimmed)
	w.heal(leader)
	return led, trimmed
}

// finish wants the sweeps to go on with everybody well again, ends the processes,
// and compares what they said with the database's own record.
func (t *trial) finish() ledger {
	t.f.Helper()
	t.f.shed(trialNamespace, 50)
	t.await("sweeps go on", t.trimmed)
	for _, h := range t.hand {
		h.leave() // and hear its last words
	}
	l := t.ledger()
	if y := l.of[trialNamespace]; y.fewest != trialCeiling || y.disorder > 0 {
		t.f.Errorf("%d rows were left at one time, the ceiling is %d; %d were deleted before an older one", y.fewest, trialCeiling, y.disorder)
	}
	if l.stray > 0 {
		t.f.Errorf("%d rows were deleted by a leader of an older term", l.stray)
	}
	for term, n := range l.rows {
		if told := t.rows[term]; n < told || n > told+t.untold[term] {
			t.f.Errorf("%d rows were deleted while term %d was the newest; its leader says %d, and %d at most are not told", n, term, told, t.untold[term])
		}
	}
	if u := t.f.usage(trialNamespace); u.Dead != trialCeiling {
		t.f.Errorf("usage %+v", u)
	}
	t.f.emptyBucket(t.nats)
	return l
}

// emptyBucket wants nothing to stay in the lease bucket, not even markers.
func (f *fixture) emptyBucket(s *server.Server) {
	f.Helper()
	conn, js := connect(f.T, s)
	defer conn.Close()
	kv, err := js.KeyValue(f.Context(), lease.DefaultBucket)
	f.must(err)
	testkit.Eventually(f.T, "the lease bucket is empty", func() bool {
		status, err := kv.Status(f.Context())
		f.must(err)
		return status.Values() == 0
	})
}

// TestThreeProcesses disturbs the leader of three in the middle of a trim, in
// each way a few times, and wants another to take over, the ceiling to be reached
// exactly, and, by the database's own record, no row to be deleted under a term
// that was not the newest.
func TestThreeProcesses(t *testing.T) {
	everywhere(t, func(f *fixture) {
		trial := newTrial(f, child{
			Tick: 200 * time.Millisecond, Lease: 1500 * time.Millisecond, Call: 500 * time.Millisecond, Patience: time.Second,
		}, testkit.Patience)
		for range 2 {
			for _, w := range ways {
				trial.round(w)
			}
		}
		trial.finish()
	})
}
