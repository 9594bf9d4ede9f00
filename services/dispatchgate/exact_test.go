package dispatchgate

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/job"
	"flexiq/pkg/store"
	"flexiq/pkg/testkit"
)

// load keeps two gates over one database busy with one namespace.
type load struct {
	*fixture
	ns    string
	gates []*fixture

	mu      sync.Mutex
	settled int
	bad     []string // what must not happen
}

// newLoad opens the second gate, each with a connection of its own to the
// database, and joins their hints.
func newLoad(f *fixture, ns string) *load {
	g := f.second()
	f.ears.listen, g.ears.listen = g.gate.Woken, f.gate.Woken
	f.ears.watch, g.ears.watch = g.gate.Freed, f.gate.Freed
	f.run()
	g.run()
	return &load{fixture: f, ns: ns, gates: []*fixture{f, g}}
}

// work claims, holds and settles jobs until ctx ends and nothing is left to settle.
func (l *load) work(ctx context.Context, gate *fixture, hold func() time.Duration) {
	for ctx.Err() == nil {
		c := <-gate.start(ctx, l.ns, &flexiqv1.ClaimRequest{Wait: durationpb.New(2 * time.Second), MaxJobs: int32(1 + rand.IntN(3))})
		for _, j := range c.jobs {
			if j.GetJob().GetAttempt() != 1 {
				l.complain("attempt %d of %s", j.GetJob().GetAttempt(), j.GetJob().GetId())
			}
			time.Sleep(hold()) // the job's work
			for _, r := range gate.settle(l.ns, job.Completed, j) {
				if !r.GetAccepted() {
					l.complain("a settlement was refused: %v", r)
				}
			}
		}
		l.mu.Lock()
		l.settled += len(c.jobs)
		l.mu.Unlock()
	}
}

func (l *load) complain(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.bad = append(l.bad, fmt.Sprintf(format, args...))
}

// changes sets max_running again and again, and tells both gates.
type changes struct {
	mu    sync.Mutex
	limit int64 // the highest that may be in force at the moment
	peak  int64 // since it was last asked for
}

// highest is the highest limit that was in force since it was asked for.
func (c *changes) highest() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	peak := c.peak
	c.peak = c.limit
	return peak
}

func (c *changes) set(l *load, limit int64) {
	c.mu.Lock()
	c.limit = max(c.limit, limit) // while the change is under way either may hold
	c.peak = max(c.peak, c.limit)
	c.mu.Unlock()
	l.quota(l.ns, fmt.Sprintf(`{"max_running":%d}`, limit))
	c.mu.Lock()
	c.limit = limit
	c.mu.Unlock()
	for _, g := range l.gates {
		g.quotas.Invalidate(l.ns, 0)
		g.gate.QuotaChanged(l.ns)
	}
}

// watch samples the running count from the store until ctx ends: it may be above
// the limit only as far as it was so before, by what ran before a cut.
func (l *load) watch(ctx context.Context, c *changes, every time.Duration) (samples int, most int64) {
	s := l.another()
	last, older := int64(0), int64(0)
	for tick := time.NewTicker(every); ; samples++ {
		select {
		case <-ctx.Done():
			tick.Stop()
			return samples, most
		case <-tick.C:
		}
		u, err := s.Usage(context.WithoutCancel(ctx), []string{l.ns})
		if err != nil {
			l.complain("usage: %v", err)
			continue
		}
		newer := c.highest()
		if limit := max(older, newer); u[0].Running > max(limit, last) { // it was read before newer was
			l.complain("%d jobs run, %d did before, and the limit was %d at most", u[0].Running, last, limit)
		}
		last, older = u[0].Running, newer
		most = max(most, last)
	}
}

// Two gates never start a job above the limit that was answered last, while it
// changes again and again under load; what ran before a cut runs on.
func TestLimitChangesAreExact(t *testing.T) {
	everywhere(t, func(t *testing.T, f *fixture) { changeLimits(t, newLoad(f, "wicket"), 100, 5*time.Millisecond) })
}

func changeLimits(t *testing.T, l *load, times int, pause time.Duration) {
	c := &changes{}
	c.set(l, 1)
	l.enqueue(l.ns, make([]job.Spec, 500)...)
	ctx, stop := context.WithCancel(t.Context())
	var crew, eyes sync.WaitGroup
	samples, most := 0, int64(0)
	eyes.Go(func() { samples, most = l.watch(ctx, c, 10*time.Millisecond) })
	resting, rest := context.WithCancel(t.Context())
	for _, g := range l.gates {
		for range 4 {
			crew.Go(func() {
				l.work(resting, g, func() time.Duration { return rand.N(4 * pause) })
			})
		}
	}
	for i := range times {
		time.Sleep(rand.N(2 * pause)) // the load goes on under each limit for a while
		c.set(l, int64([]int{6, 1, 4, 1, 6, 2}[i%6]))
		if l.usage(l.ns).Pending < 200 {
			l.enqueue(l.ns, make([]job.Spec, 500)...)
		}
	}
	c.set(l, 6)
	before := l.done()
	testkit.Eventually(t, "the namespace is served under its last limit", func() bool { return l.done() > before+20 })
	rest()
	l.stopClaims()
	crew.Wait()
	stop()
	eyes.Wait()
	for _, b := range l.bad {
		t.Error(b)
	}
	if most < 4 || samples == 0 {
		t.Errorf("at most %d jobs ran in %d samples", most, samples)
	}
	testkit.Eventually(t, "nothing runs any more", func() bool { return l.usage(l.ns).Running == 0 })
}

func (l *load) stopClaims() {
	for _, g := range l.gates {
		g.gate.StopClaims()
	}
}

func (l *load) done() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.settled
}

// A gate that dies between the claim and its reply costs a lease and an attempt,
// and nothing else: no job is lost, and no slot stays taken.
func TestClaimsThatAreNeverAnswered(t *testing.T) {
	everywhere(t, func(t *testing.T, f *fixture) {
		const jobs, lost, cap = 60, 6, 4
		f.quota("plover", fmt.Sprintf(`{"max_running":%d}`, cap))
		f.enqueue("plover", make([]job.Spec, jobs)...)
		ghosts := make(chan struct{}, lost)
		for range lost {
			ghosts <- struct{}{}
		}
		f.way.wrap(func(next turner) turner {
			return func(ctx context.Context, s []store.Settlement, w []store.Want) ([]store.Settled, []store.Grant, error) {
				settled, grants, err := next(ctx, s, w)
				for i := range grants {
					if len(grants[i].Jobs) > 0 {
						select {
						case <-ghosts:
							grants[i].Jobs = nil // the reply is never made
						default:
						}
					}
				}
				return settled, grants, err
			}
		})
		f.run()
		short := durationpb.New(job.MinLease)
		done := 0
		for done < jobs {
			c := f.await(f.start(t.Context(), "plover", &flexiqv1.ClaimRequest{Wait: long, MaxJobs: 2, LeaseFor: short}))
			f.must(c.err)
			if n := f.usage("plover").Running; n > cap {
				t.Errorf("%d jobs run", n)
			}
			for _, r := range f.settle("plover", job.Completed, c.jobs...) {
				if r.GetAccepted() {
					done++
				}
			}
		}
		f.wantUsage("plover", 0, 0, jobs, 0)
		if n := f.count(metricExpired, "state", "pending"); n < lost {
			t.Errorf("%v leases ended, want %d at least", n, lost)
		}
	})
}

// A job that kills its worker ends dead after its attempts, with an error that
// tells it; one that never ends is stopped at its timeout, heartbeats or not.
func TestPoisonJobsEnd(t *testing.T) {
	everywhere(t, func(t *testing.T, f *fixture) {
		f.run()
		poison := f.enqueue("p", job.Spec{MaxAttempts: 2, BackoffBase: time.Millisecond, BackoffMax: time.Millisecond})[0]
		for attempt := range int32(2) {
			c := f.await(f.start(t.Context(), "p", &flexiqv1.ClaimRequest{Wait: long, LeaseFor: durationpb.New(job.MinLease)}))
			if len(c.jobs) != 1 || c.jobs[0].GetJob().GetAttempt() != attempt+1 {
				t.Fatalf("attempt %d: %v, %v", attempt+1, c.jobs, c.err)
			}
		}
		testkit.Eventually(t, "the job is dead", func() bool { return f.job("p", poison).State == job.Dead })
		if j := f.job("p", poison); j.Error == "" || j.Attempt != 2 {
			t.Errorf("dead after attempt %d with the error %q", j.Attempt, j.Error)
		}
		f.wantUsage("p", 0, 0, 0, 1)

		endless := f.enqueue("e", job.Spec{MaxAttempts: 1, Timeout: job.MinTimeout})[0]
		c := f.await(f.start(t.Context(), "e", &flexiqv1.ClaimRequest{}))
		f.must(c.err)
		beat := &flexiqv1.HeartbeatRequest{Extend: durationpb.New(time.Minute), Leases: []*flexiqv1.Lease{{JobId: endless, Lease: c.jobs[0].GetLease()}}}
		testkit.Eventually(t, "the job is dead", func() bool {
			done := make(chan struct{})
			f.gate.heartbeat(worker(t.Context(), "e"), beat, func(*flexiqv1.HeartbeatResponse, error) { close(done) })
			<-done
			return f.job("e", endless).State == job.Dead
		})
		if j := f.job("e", endless); j.Attempt != 1 || j.Error == "" {
			t.Errorf("dead after attempt %d with the error %q", j.Attempt, j.Error)
		}
	})
}
