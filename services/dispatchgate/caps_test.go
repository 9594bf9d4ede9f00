package dispatchgate

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/configcache"
	"flexiq/pkg/fault"
	"flexiq/pkg/job"
	"flexiq/pkg/store"
	"flexiq/pkg/testkit"
)

// A lost worker's slot is free within the end of its lease and a tick, and
// never do two run.
func TestLostWorker(t *testing.T) {
	everywhere(t, func(t *testing.T, f *fixture) {
		f.run()
		f.quota("ostler", `{"max_running":1}`)
		ids := f.enqueue("ostler", job.Spec{}, job.Spec{}, job.Spec{})
		first := f.await(f.start(t.Context(), "ostler", &flexiqv1.ClaimRequest{LeaseFor: durationpb.New(job.MinLease)}))
		if len(first.jobs) != 1 {
			t.Fatalf("got %v, %v", first.jobs, first.err)
		}
		second := f.await(f.start(t.Context(), "ostler", &flexiqv1.ClaimRequest{MaxJobs: 3, Wait: long}))
		if len(second.jobs) != 1 || second.jobs[0].GetJob().GetId() != ids[0] || second.jobs[0].GetJob().GetAttempt() != 2 {
			t.Fatalf("after the lost worker: %v, %v", second.jobs, second.err)
		}
		ended, began := first.jobs[0].GetLeaseExpiresAt().AsTime(), second.jobs[0].GetJob().GetStartedAt().AsTime()
		if began.Before(ended) {
			t.Errorf("the slot was given away %s before the lease ended", ended.Sub(began))
		}
		f.wantUsage("ostler", 2, 1, 0, 0)
		for what, heard := range map[string]func() [][]string{"work": f.ears.heard, "free slots": f.ears.heardFreed} {
			testkit.Eventually(t, "other gates are told of "+what, func() bool {
				hints := heard()
				return len(hints) > 0 && slices.Equal(hints[0], []string{"ostler"})
			})
		}
		if r := f.settle("ostler", job.Completed, first.jobs...); r[0].GetAccepted() || r[0].GetReason() != "STALE_LEASE" || r[0].GetStatus() != "running" {
			t.Errorf("the lost worker's settlement: %v", r)
		}
		if n := f.count(metricExpired, "state", "pending"); n != 1 {
			t.Errorf("%v ended leases are counted", n)
		}
	})
}

// Under max_running 0 nothing runs, no attempt is spent, and it costs next
// to nothing; raised, the waiting claims go on at once.
func TestMaxRunningZero(t *testing.T) {
	everywhere(t, func(t *testing.T, f *fixture) {
		f.quota("vetch", `{"max_running":0}`)
		specs := make([]job.Spec, 5)
		ids := f.enqueue("vetch", specs...)
		var waiting []<-chan claimed
		for range 5 {
			waiting = append(waiting, f.start(t.Context(), "vetch", &flexiqv1.ClaimRequest{Wait: long}))
		}
		f.parked(5)
		before, _ := f.way.count()
		const looks = 4
		for range looks { // as once a second
			f.gate.lookRound(t.Context())
			f.parked(5)
		}
		if after, _ := f.way.count(); after-before > looks {
			t.Errorf("%d turns in %d look rounds", after-before, looks)
		}
		for _, id := range ids {
			if j := f.job("vetch", id); j.State != job.Pending || j.Attempt != 0 {
				t.Errorf("a job is %s with attempt %d", j.State, j.Attempt)
			}
		}
		f.quota("vetch", `{"max_running":2}`)
		f.quotas.Invalidate("vetch", 0)
		f.gate.QuotaChanged("vetch")
		for _, w := range waiting[:2] {
			if c := f.await(w); c.err != nil || len(c.jobs) != 1 {
				t.Errorf("after the change: %v, %v", c.jobs, c.err)
			}
		}
		f.parked(3)
		f.wantUsage("vetch", 3, 2, 0, 0)
		f.quota("vetch", "") // and nobody tells the cache
		f.gate.QuotaChanged("")
		for _, w := range waiting[2:] {
			if c := f.await(w); c.err != nil || len(c.jobs) != 1 {
				t.Errorf("without a limit: %v, %v", c.jobs, c.err)
			}
		}
		if f.count(metricStale) == 0 {
			t.Error("the stale quota was not noticed")
		}
	})
}

// A slot that a settlement frees is given away in the same turn, and other gates
// hear of it only when nobody here took it.
func TestSettlementFreesTheSlot(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.quota("a", `{"max_running":1}`)
	f.enqueue("a", job.Spec{}, job.Spec{}, job.Spec{})
	held := f.claim("a", 3)
	if len(held) != 1 {
		t.Fatalf("%d jobs under a cap of 1", len(held))
	}
	waiting := f.start(t.Context(), "a", &flexiqv1.ClaimRequest{Wait: long})
	f.parked(1)
	before, _ := f.way.count()
	f.settle("a", job.Completed, held...)
	c := f.await(waiting)
	if c.err != nil || len(c.jobs) != 1 {
		t.Fatalf("got %v, %v", c.jobs, c.err)
	}
	taken := c.jobs
	if after, _ := f.way.count(); after != before+1 {
		t.Errorf("it took %d turns", after-before)
	}
	if hints := f.ears.heardFreed(); len(hints) != 0 {
		t.Errorf("other gates were told of free slots of %v", hints)
	}
	f.settle("a", job.Completed, taken...)
	if hints := f.ears.heardFreed(); len(hints) != 1 || hints[0][0] != "a" {
		t.Errorf("other gates were told of free slots of %v", hints)
	}

	// Without a cap a completed job frees nothing that anybody waits for.
	f.enqueue("b", job.Spec{})
	f.settle("b", job.Completed, f.claim("b", 1)...)
	if hints := append(f.ears.heard(), f.ears.heardFreed()...); len(hints) != 0 {
		t.Errorf("other gates were told of %v", hints)
	}
}

// What frees a slot in one gate wakes the claims of another.
func TestTwoGates(t *testing.T) {
	everywhere(t, func(t *testing.T, f *fixture) {
		g := f.second()
		f.ears.listen, g.ears.listen = g.gate.Woken, f.gate.Woken
		f.ears.watch, g.ears.watch = g.gate.Freed, f.gate.Freed
		f.quota("a", `{"max_running":1}`)
		f.enqueue("a", job.Spec{}, job.Spec{}, job.Spec{})
		holder, other := f, g
		held := holder.claim("a", 1)
		for i, outcome := range []job.Outcome{job.Completed, job.Released, job.Completed, job.GivenUp} {
			waiting := other.start(t.Context(), "a", &flexiqv1.ClaimRequest{Wait: long})
			other.parked(1)
			holder.settle("a", outcome, held...)
			if i == 3 {
				break
			}
			c := other.await(waiting)
			if c.err != nil || len(c.jobs) != 1 {
				t.Fatalf("after %s: %v, %v", outcome, c.jobs, c.err)
			}
			held, holder, other = c.jobs, other, holder
		}
		f.wantUsage("a", 0, 0, 2, 1)
	})
}

// Being held back by a cap is no attempt, and the order is kept.
func TestGatedIsNoAttempt(t *testing.T) {
	everywhere(t, func(t *testing.T, f *fixture) {
		f.quota("ferrule", `{"max_running":1}`)
		const jobs, workers = 60, 4
		specs := make([]job.Spec, jobs)
		for i := range specs {
			specs[i] = job.Spec{MaxAttempts: 1, Priority: int32(i % 3)}
		}
		ids := f.enqueue("ferrule", specs...)
		want := slices.Clone(ids)
		slices.SortStableFunc(want, func(a, b string) int {
			return int(specs[slices.Index(ids, b)].Priority - specs[slices.Index(ids, a)].Priority)
		})
		var (
			mu   sync.Mutex
			got  []string
			crew sync.WaitGroup
		)
		ctx, stop := context.WithCancel(t.Context())
		for range workers {
			crew.Go(func() {
				for {
					c := <-f.start(ctx, "ferrule", &flexiqv1.ClaimRequest{Wait: long})
					if len(c.jobs) == 0 {
						return
					}
					mu.Lock()
					got = append(got, c.jobs[0].GetJob().GetId())
					all := len(got) == jobs
					mu.Unlock()
					f.settle("ferrule", job.Completed, c.jobs...)
					if all {
						stop()
					}
				}
			})
		}
		crew.Wait()
		stop()
		f.wantUsage("ferrule", 0, 0, jobs, 0)
		if !slices.Equal(got, want) {
			t.Error("the jobs did not run in the order of priority and age")
		}
		for _, id := range ids {
			if j := f.job("ferrule", id); j.State != job.Complete || j.Attempt != 1 {
				t.Fatalf("a job is %s with attempt %d", j.State, j.Attempt)
			}
		}
	})
}

// What comes back is let in, above the cap.
func TestReturnedWorkHasRoom(t *testing.T) {
	everywhere(t, func(t *testing.T, f *fixture) {
		f.quota("ingot", `{"max_pending":10}`)
		f.enqueue("ingot", make([]job.Spec, 10)...)
		held := f.claim("ingot", 10)
		f.enqueue("ingot", make([]job.Spec, 10)...)
		for _, r := range f.settle("ingot", job.Failed, held...) {
			if !r.GetAccepted() || r.GetStatus() != "pending" {
				t.Errorf("got %v", r)
			}
		}
		f.wantUsage("ingot", 20, 0, 0, 0)
	})
}

// Under an unreadable quota a claim waits and ends empty; the repair is felt at once.
func TestGateUnderUnreadableQuota(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.enqueue("broken", job.Spec{})
	f.enqueue("whole", job.Spec{})
	f.quota("broken", `{"max_running":"many"}`)
	if got := f.claim("broken", 1); len(got) != 0 {
		t.Errorf("an unreadable quota let %d jobs run", len(got))
	}
	waiting := f.start(t.Context(), "broken", &flexiqv1.ClaimRequest{Wait: long})
	f.parked(1)
	f.gate.lookRound(t.Context())
	f.parked(1)
	if got := f.claim("whole", 1); len(got) != 1 {
		t.Error("another namespace is held up")
	}
	if turns, _ := f.way.count(); turns != 1 {
		t.Errorf("%d turns, want only the other namespace's", turns)
	}
	f.quota("broken", `{"max_running":5}`)
	f.quotas.Invalidate("broken", 0)
	f.gate.QuotaChanged("broken")
	if c := f.await(waiting); c.err != nil || len(c.jobs) != 1 {
		t.Errorf("after the repair: %v, %v", c.jobs, c.err)
	}
	f.wantUsage("broken", 0, 1, 0, 0)
}

// A store that fails is told to who does not wait, and outlasted by who does.
func TestGateWhileStoreFails(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	down := fault.New(fault.StorageUnavailable, "down")
	f.way.wrap(func(turner) turner {
		return func(context.Context, []store.Settlement, []store.Want) ([]store.Settled, []store.Grant, error) {
			return nil, nil, down
		}
	})
	f.enqueue("a", job.Spec{})
	if c := f.await(f.start(t.Context(), "a", &flexiqv1.ClaimRequest{})); !fault.Is(c.err, fault.StorageUnavailable) {
		t.Errorf("got %v, %v", c.jobs, c.err)
	}
	one := &flexiqv1.SettleRequest{Settlements: []*flexiqv1.Settlement{{JobId: f.enqueue("b", job.Spec{})[0], Lease: "x", Outcome: "fail"}}}
	if _, err := f.trySettle("b", one); !fault.Is(err, fault.StorageUnavailable) {
		t.Errorf("got %v", err)
	}
	waiting := f.start(t.Context(), "a", &flexiqv1.ClaimRequest{Wait: long})
	f.parked(1)
	f.way.wrap(func(turner) turner {
		return func(context.Context, []store.Settlement, []store.Want) ([]store.Settled, []store.Grant, error) {
			panic("a bug")
		}
	})
	if _, err := f.trySettle("b", one); !fault.Is(err, fault.Internal) {
		t.Errorf("got %v", err)
	}
	f.gate.lookRound(t.Context()) // asks again, and meets the panic
	f.parked(1)
	f.way.wrap(nil)
	f.gate.lookRound(t.Context())
	if c := f.await(waiting); c.err != nil || len(c.jobs) != 1 {
		t.Errorf("after the outage: %v, %v", c.jobs, c.err)
	}
}

// brokenQuotas is a cache whose store does not answer.
type brokenQuotas struct{ err error }

func (q brokenQuotas) Get(context.Context, string) (configcache.Quota, error) {
	return configcache.Quota{}, q.err
}
func (brokenQuotas) Peek(string) (configcache.Quota, bool) { return configcache.Quota{}, false }
func (brokenQuotas) Invalidate(string, int64)              {}

func TestQuotaNotLoaded(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.gate.quotas = brokenQuotas{fault.New(fault.StorageUnavailable, "down")}
	if c := f.await(f.start(t.Context(), "a", &flexiqv1.ClaimRequest{})); !fault.Is(c.err, fault.StorageUnavailable) {
		t.Errorf("got %v, %v", c.jobs, c.err)
	}
}

// The namespaces of one gate take turns, whatever their backlogs.
func TestNoNamespaceStarves(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	gathered := make(chan struct{})
	var turns [][]string // the namespaces that each turn asked for
	f.way.wrap(func(next turner) turner {
		return func(ctx context.Context, s []store.Settlement, w []store.Want) ([]store.Settled, []store.Grant, error) {
			<-gathered
			var names []string
			for i := range w {
				names = append(names, w[i].Namespace)
			}
			turns = append(turns, names)
			return next(ctx, s, w)
		}
	})
	var waiting []<-chan claimed
	ask := func(ns string, claims int) {
		f.enqueue(ns, make([]job.Spec, claims)...)
		_, err := f.quotas.Get(t.Context(), ns)
		f.must(err)
		for range claims {
			waiting = append(waiting, f.start(t.Context(), ns, &flexiqv1.ClaimRequest{Wait: long}))
		}
	}
	for i := range 3 {
		ask(fmt.Sprintf("big-%d", i), 50)
	}
	for i := range 37 {
		ask(fmt.Sprintf("small-%d", i), 1)
	}
	close(gathered)
	for _, w := range waiting {
		if c := f.await(w); c.err != nil || len(c.jobs) != 1 {
			t.Fatalf("got %v, %v", c.jobs, c.err)
		}
	}
	// The first turn had only who came first; the second has everybody once
	// before anybody twice.
	served := map[string]bool{}
	for i, ns := range slices.Concat(turns[0], turns[1]) {
		if i > 0 && served[ns] && len(served) < 40 {
			t.Fatalf("%s had its second turn when %d of 40 namespaces had had one", ns, len(served))
		}
		served[ns] = true
	}
	if len(served) != 40 {
		t.Errorf("%d of 40 namespaces had a turn in the first two", len(served))
	}
}

func TestConfig(t *testing.T) {
	t.Parallel()
	if err := DefaultConfig().Check(); err != nil {
		t.Error(err)
	}
	for _, change := range []func(*Config){
		func(c *Config) { c.Lease = time.Millisecond }, func(c *Config) { c.Lease = 2 * time.Hour }, func(c *Config) { c.MaxReplyBytes = 1 },
		func(c *Config) { c.Lanes = 0 }, func(c *Config) { c.MaxWaiting = 0 }, func(c *Config) { c.MaxCalls = 0 }, func(c *Config) { c.MaxBytes = 0 },
	} {
		cfg := DefaultConfig()
		change(&cfg)
		if _, err := New(cfg, Deps{}); err == nil {
			t.Errorf("%+v was accepted", cfg)
		}
	}
	if _, err := New(DefaultConfig(), Deps{}); err == nil {
		t.Error("a gate without dependencies was made")
	}
}

// Several lanes serve as one does.
func TestLanes(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(c *Config) { c.Lanes = 3 })
	f.run()
	var waiting []<-chan claimed
	for i := range 12 {
		waiting = append(waiting, f.start(t.Context(), fmt.Sprintf("ns-%d", i), &flexiqv1.ClaimRequest{Wait: long}))
	}
	f.parked(12)
	for i := range 12 {
		f.enqueue(fmt.Sprintf("ns-%d", i), job.Spec{})
	}
	for _, w := range waiting { // by the look round alone
		if c := f.await(w); c.err != nil || len(c.jobs) != 1 {
			t.Fatalf("got %v, %v", c.jobs, c.err)
		}
	}
}
