package retention

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"flexiq/pkg/job"
	"flexiq/pkg/quota"
	"flexiq/pkg/store"
	"flexiq/pkg/testkit"
)

// crowd is one namespace far over its ceiling, into which rows keep arriving, many
// that are a little over theirs, and some more in which workers claim.
type crowd struct {
	f           *fixture
	over, keep  int // of the big one
	others      int
	otherOver   int
	otherKeep   int
	rate        int // rows a second that arrive in the big one
	claimers    int // namespaces in which one worker each claims
	claimEvery  time.Duration
	tick        time.Duration
	bounds      bounds
	on, off     time.Duration // sweeps go on for a while, and then rest for a while
	patience    time.Duration
	began       time.Time
	sweeping    atomic.Bool
	mu          sync.Mutex
	claims      map[bool][]time.Duration // by whether sweeps were going on
	sweeps      int
	othersDone  int             // sweep after which the others were at their ceilings
	left        []int64         // of the big one, after each minute
	took        []time.Duration // of the sweeps
	convergedIn time.Duration
}

const big = "silo"

func (c *crowd) other(i int) string { return fmt.Sprintf("tenant %03d", i) }

// run sweeps until all are at their ceilings.
func (c *crowd) run() ledger {
	c.f.Helper()
	read := c.f.in.record(c.f.T, store.DeadLetters)
	c.claims = map[bool][]time.Duration{}
	fill := func(ns string, n, keep int) {
		c.f.limit(ns, quota.Quota{MaxPending: num(0), OnExcess: quota.Drop, MaxDeadRows: num(int64(keep))})
		c.f.enqueue(ns, n, "x") // and shed
	}
	for i := range c.others {
		fill(c.other(i), c.otherKeep+c.otherOver, c.otherKeep)
	}
	fill(big, c.keep+c.over, c.keep)
	ctx, stop := context.WithCancel(context.Background())
	var group sync.WaitGroup
	group.Go(func() { c.arrive(ctx) })
	for i := range c.claimers {
		group.Go(func() { c.claim(ctx, fmt.Sprint("lark ", i)) })
	}
	c.sweep()
	stop()
	group.Wait()
	return read()
}

// sweep is a leader's work until all are at their ceilings.
func (c *crowd) sweep() {
	c.f.Helper()
	sw := c.f.sweeper(Config{}, c.f.Store)
	sw.bounds = c.bounds
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	c.began = time.Now()
	phase := c.began
	c.sweeping.Store(true)
	err := keepSweeping(ctx, c.tick, sw, func(r report, err error, took time.Duration) {
		if err != nil {
			c.f.Errorf("a sweep failed: %v", err)
		}
		c.swept(took)
		switch since := time.Since(c.began); {
		case c.othersDone > 0 && !r.Left && c.rows(big) <= int64(c.keep+c.rate):
			c.convergedIn = since
			stop()
		case since > c.patience:
			c.f.Errorf("not within %s: %d rows are left", c.patience, c.rows(big))
			stop()
		case c.off > 0 && time.Since(phase) > c.on:
			c.sweeping.Store(false)
			wait(ctx, c.off)
			c.sweeping.Store(true)
			phase = time.Now()
		}
	})
	if !errors.Is(err, context.Canceled) {
		c.f.Errorf("the leadership ended: %v", err)
	}
}

func (c *crowd) rows(ns string) int64 {
	u, err := c.f.Usage(context.Background(), []string{ns})
	c.f.must(err)
	return u[0].Dead
}

// swept looks at what a sweep left.
func (c *crowd) swept(took time.Duration) {
	c.sweeps++
	c.took = append(c.took, took)
	if minutes := int(time.Since(c.began) / time.Minute); minutes > len(c.left) {
		c.left = append(c.left, c.rows(big))
	}
	if c.othersDone > 0 {
		return
	}
	names := make([]string, c.others)
	for i := range names {
		names[i] = c.other(i)
	}
	usages, err := c.f.Usage(context.Background(), names)
	c.f.must(err)
	if !slices.ContainsFunc(usages, func(u store.Usage) bool { return u.Dead > int64(c.otherKeep) }) {
		c.othersDone = c.sweeps
	}
}

// arrive makes rows of the big namespace.
func (c *crowd) arrive(ctx context.Context) {
	const parts = 10 // a second
	for tick := time.Tick(time.Second / parts); ctx.Err() == nil; <-tick {
		c.f.enqueue(big, c.rate/parts, "x")
	}
}

// round enqueues a job, claims and completes it, and tells how long the claim took.
func (c *crowd) round(ns string) time.Duration {
	ctx := context.Background()
	docs, err := c.f.Quotas(ctx, []string{ns})
	c.f.check(err)
	call := store.Call{Namespace: ns, Stamp: docs[0].Stamp, Origin: job.OriginEnqueue, By: "tester"}
	sp := job.Spec{ID: uuid.Must(uuid.NewV7()).String(), Task: "t", Form: job.Bytes}
	c.f.check(sp.Normalize("job", job.DefaultMaxPayload))
	call.Jobs = append(call.Jobs, sp)
	_, err = c.f.Admit(ctx, []store.Call{call})
	c.f.check(err)
	began := time.Now()
	_, grants, err := c.f.Turn(ctx, nil, []store.Want{{Namespace: ns, Max: 1, LeaseFor: time.Minute, Worker: "w", Stamp: docs[0].Stamp}})
	took := time.Since(began)
	c.f.check(err)
	var ends []store.Settlement
	for _, g := range grants {
		for _, l := range g.Jobs {
			ends = append(ends, store.Settlement{Namespace: ns, JobID: l.Job.ID, Lease: l.Lease, Outcome: job.Completed})
		}
	}
	_, _, err = c.f.Turn(ctx, ends, nil)
	c.f.check(err)
	return took
}

// claim is a worker that measures its claims.
func (c *crowd) claim(ctx context.Context, ns string) {
	var taken [2][]time.Duration
	for tick := time.Tick(c.claimEvery); ctx.Err() == nil; <-tick {
		sweeping := c.sweeping.Load()
		took := c.round(ns)
		if c.sweeping.Load() != sweeping {
			continue
		}
		i := 0
		if sweeping {
			i = 1
		}
		taken[i] = append(taken[i], took)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.claims[false] = append(c.claims[false], taken[0]...)
	c.claims[true] = append(c.claims[true], taken[1]...)
}

// check notes an error of a goroutine of the test.
func (f *fixture) check(err error) {
	if err != nil {
		f.Error(err)
	}
}

// judge wants the ledger to tell of the oldest rows alone, down to the ceilings.
func (c *crowd) judge(l ledger) {
	c.f.Helper()
	wrong := 0
	for ns, y := range l.of {
		keep := int64(math.MaxInt64)
		switch {
		case ns == big:
			keep = int64(c.keep)
		case ns >= "tenant":
			keep = int64(c.otherKeep)
		}
		if y.fewest < keep && keep < math.MaxInt64 || y.disorder > 0 {
			if wrong++; wrong < 5 {
				c.f.Errorf("%s: %d rows were left at one time, the ceiling is %d; %d were deleted before an older one", ns, y.fewest, keep, y.disorder)
			}
		}
	}
	if l.most > int64(c.bounds.rows) {
		c.f.Errorf("one delete took %d rows, at most %d may go", l.most, c.bounds.rows)
	}
	if want := int64(c.others*c.otherOver + c.over); l.deleted() < want {
		c.f.Errorf("%d rows were deleted of %d", l.deleted(), want)
	}
}

// One namespace far over its ceiling, into which rows keep arriving, converges and
// holds up nobody: the others are at theirs after the first sweep.
func TestOneFarOverHoldsNobodyUp(t *testing.T) {
	everywhere(t, func(f *fixture) {
		f.now = time.Time{} // rows arrive in the time that passes
		c := &crowd{
			f: f, over: 2000, keep: 200, others: 20, otherOver: 5, otherKeep: 3, rate: 100,
			claimers: 1, claimEvery: 50 * time.Millisecond, tick: 200 * time.Millisecond, patience: 10 * testkit.Patience,
			bounds: bounds{rows: 50, batches: 4, page: 500, call: calm, patience: calm},
		}
		c.judge(c.run())
		if c.othersDone > 3 {
			t.Errorf("the others were at their ceilings after %d sweeps", c.othersDone)
		}
		if c.sweeps < 5 {
			t.Errorf("%d sweeps made up for what takes more", c.sweeps)
		}
		f.usage(big)
	})
}
