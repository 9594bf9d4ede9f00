package retention

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"flexiq/pkg/fault"
	"flexiq/pkg/store"
	"flexiq/pkg/testkit"
)

// process is one process that takes part in the election.
type process struct {
	svc  *Service
	conn *nats.Conn
	stop context.CancelFunc
	done chan error
}

func connect(t *testing.T, s *server.Server) (*nats.Conn, jetstream.JetStream) {
	t.Helper()
	return connectTo(t, s.ClientURL())
}

func connectTo(t *testing.T, urls string) (*nats.Conn, jetstream.JetStream) {
	t.Helper()
	conn, err := nats.Connect(urls, nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond), nats.ReconnectBufSize(-1))
	if err != nil {
		t.Fatal(err)
	}
	return conn, jetStream(t, conn)
}

func jetStream(t *testing.T, conn *nats.Conn) jetstream.JetStream {
	t.Helper()
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	return js
}

// start runs a process whose deletes go through trim.
func (f *fixture) start(s *server.Server, cfg Config, name string, trim func(p *process) error) *process {
	f.Helper()
	return f.startAt(s.ClientURL(), cfg, name, trim)
}

func (f *fixture) startAt(urls string, cfg Config, name string, trim func(p *process) error) *process {
	f.Helper()
	conn, js := connectTo(f.T, urls)
	p := &process{conn: conn, done: make(chan error, 1)}
	st := faulty{f.Store, func(store.Trim) error { return trim(p) }}
	var err error
	p.svc, err = New(cfg, Deps{Store: st, JetStream: js, Holder: name, Log: zerolog.Nop()})
	f.must(err)
	p.svc.bounds = bounds{rows: 10, batches: 20, page: 500, call: calm, patience: calm}
	ctx, cancel := context.WithCancel(context.Background())
	p.stop = cancel
	go func() { p.done <- p.svc.Run(ctx) }()
	return p
}

// kill ends a process as SIGKILL would: nothing that it does reaches anybody
// any more.
func (p *process) kill() {
	p.conn.Close()
	p.stop()
}

func (f *fixture) end(p *process) {
	f.Helper()
	p.stop()
	if err := <-p.done; err != nil {
		f.Errorf("Run ended with %v", err)
	}
	p.conn.Close()
}

// dead is how many dead letters a namespace holds at a moment.
func (f *fixture) dead(ns string) int64 {
	u, err := f.Usage(f.Context(), []string{ns})
	f.must(err)
	return u[0].Dead
}

func pass(*process) error { return nil }

// A leader that is killed in the middle of a trim, after three batches of ten, is
// succeeded, round after round: the successor trims every namespace in its first
// sweeps, and nothing is left in the bucket.
func TestKilledLeaderIsSucceeded(t *testing.T) {
	everywhere(t, func(f *fixture) {
		nc := testkit.NATS(f.T)
		cfg := Config{Maintenance: true, Tick: 200 * time.Millisecond, Lease: 1500 * time.Millisecond}
		const rows, small = 100, 30

		var batches atomic.Int32 // of this round
		killed := make(chan *process, 1)
		fourthKills := func(p *process) error {
			if batches.Add(1) != 4 {
				return nil
			}
			p.kill()
			killed <- p
			return errors.New("killed")
		}
		read := f.in.record(f.T, store.DeadLetters)
		f.limit("plover", dead(0))
		f.limit("tansy", dead(1))
		one, other := f.start(nc, cfg, "one", fourthKills), f.start(nc, cfg, "other", fourthKills)
		for round := range 3 {
			batches.Store(0)
			f.shed("plover", rows)
			f.shed("tansy", small)
			victim := <-killed
			if err := <-victim.done; err != nil {
				f.Errorf("the killed one ended with %v", err)
			}
			if victim == other {
				one, other = other, one
			}
			testkit.Eventually(f.T, "the successor finishes the trim", func() bool { return f.dead("plover") == 0 && f.dead("tansy") == 1 })
			one = f.start(nc, cfg, fmt.Sprint("new in round ", round), fourthKills)
		}
		f.end(one)
		f.end(other)
		f.usage("plover")
		if l := read(); l.most > 10 || l.deleted() != 3*(rows+small)-1 || l.of["tansy"].fewest != 1 {
			f.Errorf("the database tells of %+v", l)
		}
		f.emptyBucket(nc)
	})
}

// lateStore is a store that a leader can be cut off from: what it sends is on its way,
// and arrives later.
type lateStore struct {
	store.Store
	mu     sync.Mutex
	cut    bool
	onWay  []store.Trim
	passed int // trims, before the cut
}

func (s *lateStore) off() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cut
}

func (s *lateStore) Trim(ctx context.Context, t store.Trim) (store.Trimmed, error) {
	s.mu.Lock()
	if s.passed++; s.passed > 2 {
		s.cut = true
	}
	if s.cut {
		s.onWay = append(s.onWay, t)
		s.mu.Unlock()
		return store.Trimmed{}, errCut
	}
	s.mu.Unlock()
	return s.Store.Trim(ctx, t)
}

func (s *lateStore) Usage(ctx context.Context, names []string) ([]store.Usage, error) {
	if s.off() {
		return nil, errCut
	}
	return s.Store.Usage(ctx, names)
}

func (s *lateStore) Namespaces(ctx context.Context, after string, limit int) (store.Page[string], error) {
	if s.off() {
		return store.Page[string]{}, errCut
	}
	return s.Store.Namespaces(ctx, after, limit)
}

// A leader that is cut off from the store in the middle of a trim, and goes on,
// deletes nothing with what it had sent once it was succeeded; and as many rows are
// deleted as were over.
func TestLateDeletesAreRefused(t *testing.T) {
	everywhere(t, func(f *fixture) {
		nc := testkit.NATS(f.T)
		const ns, keep, over = "gantry", 20, 70
		read := f.in.record(f.T, store.DeadLetters)
		f.limit(ns, dead(keep))
		f.shed(ns, keep+over)
		conn, js := connect(f.T, nc)
		defer conn.Close()
		cutOff := &lateStore{Store: f.Store}
		svc, err := New(Config{Maintenance: true, Tick: 200 * time.Millisecond, Lease: 3 * time.Second},
			Deps{Store: cutOff, JetStream: js, Holder: "cut off", Log: zerolog.Nop()})
		f.must(err)
		svc.bounds = bounds{rows: 10, batches: 20, page: 500, call: time.Second, patience: 500 * time.Millisecond}
		ctx, stop := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- svc.Run(ctx) }()
		testkit.Eventually(f.T, "the leader is cut off", cutOff.off)
		if n := f.dead(ns); n != keep+over-20 {
			f.Errorf("%d rows are left after two batches of 10", n)
		}
		next := f.start(nc, Config{Maintenance: true, Tick: 200 * time.Millisecond, Lease: 3 * time.Second}, "next", pass)
		testkit.Eventually(f.T, "another leads and finishes the trim", func() bool { return f.dead(ns) == keep })
		f.shed(ns, 5) // which the late ones must not be the ones to delete
		cutOff.mu.Lock()
		late := cutOff.onWay
		cutOff.mu.Unlock()
		for _, trim := range late {
			if got, err := f.Trim(f.Context(), trim); err != nil || got != (store.Trimmed{Superseded: true}) {
				f.Errorf("a late delete of term %d came to %+v, %v", trim.Term, got, err)
			}
		}
		if len(late) == 0 {
			f.Error("nothing was on its way")
		}
		testkit.Eventually(f.T, "sweeps go on", func() bool { return f.dead(ns) == keep })
		stop()
		f.must(<-done)
		f.end(next)
		if l := read(); l.deleted() != over+5 || l.of[ns].fewest != keep || l.of[ns].disorder > 0 {
			f.Errorf("the database tells of %+v, want %d rows deleted", l, over+5)
		}
	})
}

// A leader that is cut off from NATS and goes on deletes nothing once there is
// a newer term.
func TestNewTermStopsTheOldLeader(t *testing.T) {
	f, nc := newFixture(t), testkit.NATS(t)
	cfg := Config{Maintenance: true, Tick: 200 * time.Millisecond, Lease: time.Second}
	p := f.start(nc, cfg, "only", pass)
	defer func() { f.end(p) }()
	testkit.Eventually(t, "it leads", func() bool { return p.svc.State().Role == Leader })
	old := p.svc.State().Term
	term, err := f.NewTerm(t.Context(), "elsewhere")
	f.must(err)
	f.limit("gantry", dead(0))
	f.shed("gantry", 30)
	testkit.Eventually(t, "it leads again, under a newer term", func() bool { return p.svc.State().Term > term })
	testkit.Eventually(t, "it sweeps", func() bool { return f.dead("gantry") == 0 })
	if old >= term {
		t.Errorf("terms %d and then %d", old, term)
	}
}

func TestRoles(t *testing.T) {
	f, nc := newFixture(t), testkit.NATS(t)
	cfg := Config{Maintenance: true, Tick: 200 * time.Millisecond, Lease: time.Second}
	first := f.start(nc, cfg, "first", pass)
	testkit.Eventually(t, "one leads", func() bool { return first.svc.State().Role == Leader })
	second := f.start(nc, cfg, "second", pass)
	off := f.start(nc, Config{Tick: time.Minute}, "off", pass)
	if st := off.svc.State(); st.Role != Off || off.svc.Check(t.Context()) != nil {
		t.Errorf("with maintenance off: %+v", st)
	}
	if st := second.svc.State(); st.Role != Follower || second.svc.Check(t.Context()) != nil {
		t.Errorf("the second one: %+v", st)
	}
	f.end(first)
	testkit.Eventually(t, "the second one leads", func() bool { return second.svc.State().Role == Leader })
	nc.Shutdown()
	testkit.Eventually(t, "nobody leads without JetStream", func() bool {
		st := second.svc.State()
		return st.Role == Nobody && st.Reason != "" && second.svc.Check(t.Context()) != nil
	})
	f.end(second)
	f.end(off)

	alone, err := New(cfg, Deps{Store: f.Store})
	f.must(err)
	if st, err := alone.State(), alone.Check(t.Context()); st.Role != Nobody || fault.Of(err).Message != "no retention: no JetStream" {
		t.Errorf("without JetStream: %+v, %v", st, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	f.must(alone.Run(ctx))
}

// A process without its store keeps out of the election.
func TestNotReadyWithoutTheStore(t *testing.T) {
	nc := testkit.NATS(t)
	conn, js := connect(t, nc)
	defer conn.Close()
	svc, err := New(Config{Maintenance: true, Tick: time.Second, Lease: time.Second},
		Deps{Store: deadStore{died: time.Now()}, JetStream: js, Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- svc.Run(ctx) }()
	testkit.Eventually(t, "it says why it cannot lead", func() bool { return svc.State().Role == Nobody })
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestConfig(t *testing.T) {
	if err := DefaultConfig().check(); err != nil {
		t.Errorf("the defaults: %v", err)
	}
	for name, change := range map[string]func(*Config){
		"tick":  func(c *Config) { c.Tick = time.Millisecond },
		"lease": func(c *Config) { c.Lease = time.Millisecond },
		"age":   func(c *Config) { c.DeadAge = -time.Second },
	} {
		cfg := DefaultConfig()
		change(&cfg)
		if _, err := New(cfg, Deps{Store: deadStore{}}); err == nil {
			t.Errorf("a wrong %s was accepted", name)
		}
	}
	if _, err := New(DefaultConfig(), Deps{}); err == nil {
		t.Error("no store was accepted")
	}
}
