package retention

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"flexiq/pkg/fault"
	"flexiq/pkg/store"
	"flexiq/pkg/testkit"
)

// slowly is a store that answers late. It tells of the rows that were deleted.
type slowly struct {
	Store
	least, most time.Duration
	deleted     func(term, rows int64)
}

// late makes one call after a while.
func late[T any](ctx context.Context, s slowly, call func() (T, error)) (T, error) {
	timer := time.NewTimer(s.least + rand.N(s.most-s.least))
	defer timer.Stop()
	select {
	case <-timer.C:
		return call()
	case <-ctx.Done():
		var none T
		return none, fault.New(fault.StorageUnavailable, "the store took too long")
	}
}

func (s slowly) NewTerm(ctx context.Context, holder string) (int64, error) {
	return late(ctx, s, func() (int64, error) { return s.Store.NewTerm(ctx, holder) })
}

func (s slowly) Trim(ctx context.Context, t store.Trim) (store.Trimmed, error) {
	return late(ctx, s, func() (store.Trimmed, error) {
		done, err := s.Store.Trim(ctx, t)
		if err == nil {
			s.deleted(t.Term, done.Dead+done.Shed)
		}
		return done, err
	})
}

func (s slowly) TrimAudit(ctx context.Context, term int64, before time.Time, limit int) (store.Trimmed, error) {
	return late(ctx, s, func() (store.Trimmed, error) { return s.Store.TrimAudit(ctx, term, before, limit) })
}

func (s slowly) Namespaces(ctx context.Context, after string, limit int) (store.Page[string], error) {
	return late(ctx, s, func() (store.Page[string], error) { return s.Store.Namespaces(ctx, after, limit) })
}

func (s slowly) Usage(ctx context.Context, names []string) ([]store.Usage, error) {
	return late(ctx, s, func() ([]store.Usage, error) { return s.Store.Usage(ctx, names) })
}

func (s slowly) Quotas(ctx context.Context, names []string) ([]store.Document, error) {
	return late(ctx, s, func() ([]store.Document, error) { return s.Store.Quotas(ctx, names) })
}

// slowRun is three candidates over a slow store, and what came of it.
type slowRun struct {
	f           *fixture
	tick, lease time.Duration
	least, most time.Duration // that a call of the store takes

	mu     sync.Mutex
	sweeps int
	rows   map[int64]int64 // deleted, by term
	ledger ledger
}

// run lets dead letters arrive and the candidates sweep them, until enough.
func (r *slowRun) run(enough func(sweeps int) bool) {
	r.f.Helper()
	const ns, ceiling = "silo", 40
	read := r.f.in.record(r.f.T, store.DeadLetters)
	r.f.limit(ns, dead(ceiling))
	r.rows = map[int64]int64{}
	nc := testkit.NATS(r.f.T)
	var stops []func()
	for i := range 3 {
		stops = append(stops, r.candidate(fmt.Sprint("candidate ", i), nc.ClientURL()))
	}
	for tick := time.Tick(r.tick / 3); !enough(r.swept()); <-tick {
		r.f.shed(ns, 5)
	}
	for _, stop := range stops {
		stop()
	}
	r.ledger = read()
}

func (r *slowRun) swept() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.sweeps
}

// candidate starts a process's part in retention, with the store opened as
// another process does.
func (r *slowRun) candidate(name, url string) (stop func()) {
	r.f.Helper()
	conn, err := nats.Connect(url)
	r.f.must(err)
	s, err := r.f.in.named(name).open(context.Background(), r.f.clock, calm)
	r.f.must(err)
	cfg := DefaultConfig()
	cfg.Tick, cfg.Lease = r.tick, r.lease
	svc, err := New(cfg, Deps{
		Store: slowly{s, r.least, r.most, func(term, rows int64) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.rows[term] += rows
		}},
		JetStream: jetStream(r.f.T, conn), Holder: name, Log: zerolog.Nop(),
		Tell: func([]byte) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.sweeps++
		},
	})
	r.f.must(err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- svc.Run(ctx) }()
	return func() {
		cancel()
		r.f.must(<-done)
		conn.Close()
		r.f.must(s.Close())
	}
}

// terms is how many terms deleted something. It wants the database's own record
// to be what the leaders say, so that no two terms overlapped.
func (r *slowRun) terms() int {
	r.f.Helper()
	for term, n := range r.ledger.rows {
		if n != r.rows[term] {
			r.f.Errorf("%d rows were deleted while term %d was the newest; its leader says %d", n, term, r.rows[term])
		}
	}
	if r.ledger.stray > 0 {
		r.f.Errorf("%d rows were deleted by a leader of an older term", r.ledger.stray)
	}
	return len(r.ledger.rows)
}

// A store that is slow, but not slower than a call may be, costs no healthy
// leader its lease: the renewals do not wait for the store.
func TestSlowStoreCostsNoLeadership(t *testing.T) {
	everywhere(t, func(f *fixture) {
		r := slowRun{f: f, tick: time.Second, lease: 5 * time.Second, least: 20 * time.Millisecond, most: 150 * time.Millisecond}
		r.run(func(sweeps int) bool { return sweeps >= 10 })
		if n := r.terms(); n > 2 {
			t.Errorf("%d terms in ten ticks of a healthy leader", n)
		}
	})
}
