package retention

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"

	"zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"

	"flexiq/pkg/testkit"
)

// crew is the retention processes of a test and what they said.
type crew struct {
	f      *fixture
	nats   string // address of the server
	mu     sync.Mutex
	leader *hand // who began to lead last, and its term
	term   int64
	rows   map[int64]int64 // deleted by term, as the processes say
	steps  int             // deletes that did something
}

// hand is one process.
type hand struct {
	crew *crew
	name string
	cmd  *exec.Cmd
	in   io.WriteCloser
	link *link
	read chan struct{} // closed when it said its last
}

func (c *crew) spawn(name string) *hand {
	c.f.Helper()
	h := &hand{crew: c, name: name, link: newLink(c.f.T, c.nats), read: make(chan struct{})}
	text, err := json.Marshal(child{Path: c.f.path, URL: "nats://" + h.link.address(), Name: name})
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
	return h
}

func (c *crew) hear(h *hand, l said) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if l.Leads > c.term {
		c.leader, c.term = h, l.Leads
	}
	if l.Rows > 0 {
		c.rows[l.Term] += l.Rows
		c.steps++
	}
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
func (h *hand) kill() {
	if h.cmd.ProcessState == nil {
		_ = h.cmd.Process.Signal(syscall.SIGKILL)
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

// link is the way of one process to NATS, which can be cut without a word.
type link struct {
	l    net.Listener
	to   string
	wg   sync.WaitGroup
	mu   sync.Mutex
	cut  bool
	open map[net.Conn]bool
}

func newLink(t *testing.T, to string) *link {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	k := &link{l: l, to: to, open: map[net.Conn]bool{}}
	k.wg.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", to)
			if err != nil || !k.keep(in, out) {
				in.Close()
				continue
			}
			k.wg.Go(func() { k.pipe(out, in) })
			k.wg.Go(func() { k.pipe(in, out) })
		}
	})
	return k
}

func (k *link) address() string { return k.l.Addr().String() }

// keep notes two ends; not while the link is cut.
func (k *link) keep(ends ...net.Conn) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, c := range ends {
		if k.cut {
			c.Close()
			continue
		}
		k.open[c] = true
	}
	return !k.cut
}

func (k *link) pipe(to, from net.Conn) {
	_, _ = io.Copy(to, from) // until one side is closed
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, c := range []net.Conn{to, from} {
		c.Close()
		delete(k.open, c)
	}
}

func (k *link) set(cut bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.cut = cut; cut {
		for c := range k.open {
			c.Close()
		}
	}
}

func (k *link) close() {
	k.l.Close()
	k.set(true)
	k.wg.Wait()
}

// records makes the store itself keep, for each deleted dead letter, the newest
// term at that moment and how many rows were left.
const records = `
	CREATE TABLE deletes (term INTEGER NOT NULL, left_over INTEGER NOT NULL);
	CREATE TRIGGER dead_letters_recorded AFTER DELETE ON dead_letters BEGIN
		INSERT INTO deletes SELECT (SELECT max(term) FROM terms), (SELECT count(*) FROM dead_letters WHERE ns = OLD.ns);
	END;`

// recorded reads the store's own record: rows deleted by term, and the fewest
// that were ever left.
func (f *fixture) recorded() (byTerm map[int64]int64, fewest int64) {
	f.Helper()
	c, err := sqlite.OpenConn(f.path, sqlite.OpenReadOnly)
	f.must(err)
	defer c.Close()
	c.SetBusyTimeout(10 * time.Second)
	byTerm, fewest = map[int64]int64{}, -1
	f.must(sqlitex.Execute(c, `SELECT term, count(*), min(left_over) FROM deletes GROUP BY term`, &sqlitex.ExecOptions{
		ResultFunc: func(st *sqlite.Stmt) error {
			byTerm[st.ColumnInt64(0)] = st.ColumnInt64(1)
			if n := st.ColumnInt64(2); fewest < 0 || n < fewest {
				fewest = n
			}
			return nil
		}}))
	return byTerm, fewest
}

// TestThreeProcesses disturbs the leader of three in the middle of a trim, in
// each way, and wants another to take over, the ceiling to be reached exactly,
// and, by the store's own record, no row to be deleted under a term that was not
// the newest.
func TestThreeProcesses(t *testing.T) {
	f := newFixture(t)
	const ns, ceiling, flood = "gantry", 40, 300
	f.limit(ns, dead(ceiling))
	c, err := sqlite.OpenConn(f.path, sqlite.OpenReadWrite)
	f.must(err)
	c.SetBusyTimeout(10 * time.Second)
	f.must(sqlitex.ExecuteScript(c, records, nil))
	f.must(c.Close())
	srv := testkit.NATS(t)
	k := &crew{f: f, nats: srv.Addr().String(), rows: map[int64]int64{}}
	hands := map[string]*hand{}
	for i := range 3 {
		name := fmt.Sprint("process ", i)
		hands[name] = k.spawn(name)
	}
	killed := map[int64]bool{} // terms whose leader's last words may be lost
	ways := []struct {
		name          string
		disturb, heal func(h *hand, term int64)
	}{
		{"SIGSTOP", func(h *hand, _ int64) { h.signal(syscall.SIGSTOP) }, func(h *hand, _ int64) { h.signal(syscall.SIGCONT) }},
		{"SIGKILL", func(h *hand, term int64) { killed[term] = true; h.kill() }, func(h *hand, _ int64) { hands[h.name] = k.spawn(h.name) }},
		{"cut off from NATS", func(h *hand, _ int64) { h.link.set(true) }, func(h *hand, _ int64) { h.link.set(false) }},
		{"cut off from the store", func(h *hand, _ int64) { h.say("off") }, func(h *hand, _ int64) { h.say("on") }},
	}
	for _, way := range ways {
		testkit.Eventually(t, "somebody leads before: "+way.name, func() bool { h, _, _ := k.state(); return h != nil })
		_, _, before := k.state()
		f.shed(ns, flood)
		testkit.Eventually(t, "the leader is at it: "+way.name, func() bool { _, _, n := k.state(); return n >= before+3 })
		leader, term, _ := k.state()
		way.disturb(leader, term)
		testkit.Eventually(t, "another leads after: "+way.name, func() bool { h, now, _ := k.state(); return now > term && h != leader })
		testkit.Eventually(t, "the ceiling is reached after: "+way.name, func() bool {
			u, err := f.Usage(t.Context(), []string{ns})
			f.must(err)
			return u[0].Dead == ceiling
		})
		way.heal(leader, term)
	}
	// Everybody is well again and sweeps go on.
	f.shed(ns, 50)
	testkit.Eventually(t, "sweeps go on", func() bool {
		u, err := f.Usage(t.Context(), []string{ns})
		f.must(err)
		return u[0].Dead == ceiling
	})
	for _, h := range hands {
		h.kill() // and hear its last words
	}
	byTerm, fewest := f.recorded()
	if fewest != ceiling {
		t.Errorf("%d rows were left at one time, the ceiling is %d", fewest, ceiling)
	}
	k.mu.Lock()
	saidRows := maps.Clone(k.rows)
	k.mu.Unlock()
	for term, n := range byTerm {
		if said := saidRows[term]; said > n || said < n && !killed[term] {
			t.Errorf("%d rows were deleted while term %d was the newest; its leader says %d", n, term, said)
		}
	}
	if f.usage(ns).Dead != ceiling {
		t.Errorf("usage %+v", f.usage(ns))
	}
}
