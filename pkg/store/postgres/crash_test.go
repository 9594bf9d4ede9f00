package postgres

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"flexiq/pkg/fault"
	"flexiq/pkg/job"
	"flexiq/pkg/store"
	"flexiq/pkg/testkit"
)

// TestCrash stops the server at once under load, a few times: what was answered
// as done is there afterwards, and the store goes on without being opened anew.
func TestCrash(t *testing.T) {
	server := testkit.StartPostgres(t)
	s := openAt(t, server.URL(), Options{Schema: "crash", Timeout: 2 * time.Second})
	const producers, crashes, acknowledged = 4, 3, 300
	b := newBook()
	for round := range crashes {
		ctx, cancel := context.WithCancel(t.Context())
		var group sync.WaitGroup
		for range producers {
			group.Go(func() { b.produce(ctx, t, s) })
		}
		group.Go(func() { b.work(ctx, t, s) })
		b.await(t, (round+1)*acknowledged)
		if err := server.Crash(); err != nil {
			t.Fatal(err)
		}
		cancel()
		group.Wait()
		if _, err := s.Admit(t.Context(), calls(t, "a", 1, 1)); !fault.Is(err, fault.StorageUnavailable) {
			t.Errorf("with the server gone: %v", err)
		}
		if err := server.Start(); err != nil {
			t.Fatal(err)
		}
		must(t, s, calls(t, "a", 1, 1))
	}
	b.check(t, s)
	consistent(t, server.URL(), "crash")
}

// book is what callers were told.
type book struct {
	mu      sync.Mutex
	state   map[string]job.State // by id: pending when acknowledged, complete when settled
	changed chan struct{}
}

func newBook() *book {
	return &book{state: make(map[string]job.State), changed: make(chan struct{}, 1)}
}

func (b *book) write(state job.State, ids ...string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, id := range ids {
		if b.state[id] != job.Complete {
			b.state[id] = state
		}
	}
	select {
	case b.changed <- struct{}{}:
	default:
	}
}

// await waits until n jobs are on record.
func (b *book) await(t *testing.T, n int) {
	t.Helper()
	late := time.After(time.Minute)
	for {
		b.mu.Lock()
		got := len(b.state)
		b.mu.Unlock()
		if got >= n {
			return
		}
		select {
		case <-b.changed:
		case <-late:
			t.Fatalf("%d jobs acknowledged, want %d", got, n)
		}
	}
}

func (b *book) produce(ctx context.Context, t *testing.T, s *Store) {
	for ctx.Err() == nil {
		group := append(calls(t, "a", 1, 2), calls(t, "b", 2, 1)...)
		out, err := s.Admit(ctx, group)
		if expected(err) && err != nil {
			continue
		}
		if err != nil {
			t.Errorf("admit: %v", err)
			return
		}
		for i := range out {
			if out[i].Err == nil {
				for _, sp := range group[i].Jobs {
					b.write(job.Pending, sp.ID)
				}
			} else if !expected(out[i].Err) {
				t.Errorf("call: %v", out[i].Err)
			}
		}
	}
}

func (b *book) work(ctx context.Context, t *testing.T, s *Store) {
	var settle []store.Settlement
	for ctx.Err() == nil {
		wants := []store.Want{
			{Namespace: "a", Max: 3, LeaseFor: time.Hour, Worker: "w"}, {Namespace: "b", Max: 3, LeaseFor: time.Hour, Worker: "w"},
		}
		settled, grants, err := s.Turn(ctx, settle, wants)
		if !expected(err) {
			t.Errorf("turn: %v", err)
			return
		}
		for i := range settled {
			if settled[i].Accepted {
				b.write(job.Complete, settle[i].JobID)
			}
		}
		settle = nil
		for _, g := range grants {
			for _, l := range g.Jobs {
				settle = append(settle, store.Settlement{Namespace: l.Job.Namespace, JobID: l.Job.ID, Lease: l.Lease, Outcome: job.Completed})
			}
		}
	}
}

// expected reports whether an error may come while the server goes away.
func expected(err error) bool {
	return err == nil || fault.Is(err, fault.StorageUnavailable) || errors.Is(err, context.Canceled)
}

func (b *book) check(t *testing.T, s *Store) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	found := make(map[string]job.State)
	for _, ns := range []string{"a", "b"} {
		for after := ""; ; {
			page, err := s.ListJobs(t.Context(), ns, store.Filter{}, after, 1000)
			if err != nil {
				t.Fatal(err)
			}
			for i := range page.Items {
				found[page.Items[i].ID] = page.Items[i].State
			}
			if after = page.Next; after == "" {
				break
			}
		}
	}
	lost, undone := 0, 0
	for id, state := range b.state {
		switch {
		case found[id] == "":
			lost++
		case state == job.Complete && found[id] != job.Complete:
			undone++
		}
	}
	if lost+undone > 0 {
		t.Errorf("of %d acknowledged jobs %d are lost and %d settlements undone", len(b.state), lost, undone)
	}
}

// TestLostConnections: sessions that the server ends cost nobody an answer.
func TestLostConnections(t *testing.T) {
	server := testkit.StartPostgres(t) // others' sessions must not end
	s := openAt(t, server.URL(), Options{Schema: "lost"})
	for range 5 {
		var group sync.WaitGroup
		for range 4 { // as many sessions as there can be
			group.Go(func() { must(t, s, calls(t, "a", 1, 1)) })
		}
		group.Wait()
		execute(t, server.URL(), `select pg_terminate_backend(pid, 5000) from pg_stat_activity where application_name = 'flexiq'`)
		must(t, s, calls(t, "a", 1, 1))
		if err := s.Ping(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	consistent(t, server.URL(), "lost")
}

// TestFlushNeedsOneSession: a commit whose flusher's session has gone is not
// answered as done.
func TestFlushNeedsOneSession(t *testing.T) {
	server := testkit.StartPostgres(t)
	s := openAt(t, server.URL(), Options{Schema: "flush"})
	must(t, s, calls(t, "a", 1, 1))
	mark := s.flusher.mark()
	if mark == 0 {
		t.Fatal("the flusher has no session")
	}
	if err := s.flusher.flush(t.Context(), mark); err != nil {
		t.Fatal(err)
	}
	execute(t, server.URL(), `select pg_terminate_backend(pid, 5000) from pg_stat_activity where application_name = 'flexiq'`)
	if err := s.flusher.flush(t.Context(), mark); !errors.Is(err, errFlushLost) {
		t.Errorf("the flush after the session's end: %v", err)
	}
	if err := s.flusher.flush(t.Context(), mark); !errors.Is(err, errFlushLost) {
		t.Errorf("the next: %v", err)
	}
	until(t, "the flusher has a new session", func() bool { return s.flusher.mark() != 0 })
	if err := s.flusher.flush(t.Context(), mark); !errors.Is(err, errFlushLost) {
		t.Errorf("in a new session, for a commit under the old: %v", err)
	}
	must(t, s, calls(t, "a", 1, 1))
}
