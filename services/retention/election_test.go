package retention

import (
	"context"
	"errors"
	"fmt"
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

// A leader that is killed in the middle of a trim is succeeded, round after
// round, and leaves nothing in the bucket.
func TestKilledLeaderIsSucceeded(t *testing.T) {
	f, nc := newFixture(t), testkit.NATS(t)
	cfg := Config{Maintenance: true, Tick: 200 * time.Millisecond, Lease: 1500 * time.Millisecond}
	const rows = 100

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
	f.limit("plover", dead(0))
	one, other := f.start(nc, cfg, "one", fourthKills), f.start(nc, cfg, "other", fourthKills)
	for round := range 4 {
		batches.Store(0)
		f.shed("plover", rows)
		victim := <-killed
		if err := <-victim.done; err != nil {
			t.Errorf("the killed one ended with %v", err)
		}
		if victim == other {
			one, other = other, one
		}
		testkit.Eventually(t, "the successor finishes the trim", func() bool { return f.dead("plover") == 0 })
		one = f.start(nc, cfg, fmt.Sprint("new in round ", round), fourthKills)
	}
	f.end(one)
	f.end(other)
	f.usage("plover")
	f.emptyBucket(nc)
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
