package storetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"flexiq/pkg/fault"
	"flexiq/pkg/job"
	"flexiq/pkg/store"
)

var crowdCases = []testcase{
	{"every operation at once", crowdMixed},
	{"every writer at once", crowdWriters},
	{"terms from many leaders", crowdTerms},
	{"a call whose caller is gone", crowdGone},
	{"the store answers", crowdPing},
}

// crowd is what the clients of one case share.
type crowd struct {
	*fixture
	namespaces []string
	handles    []store.Store
	term       int64

	mu       sync.Mutex
	claims   []store.Leased
	admitted atomic.Int64
	trimmed  atomic.Int64
}

// crowdMixed: clients that do everything to the same namespaces, in any order,
// neither get in each other's way nor lose a job.
func crowdMixed(f *fixture) {
	const clients, rounds = 6, 12
	c := &crowd{fixture: f, handles: []store.Store{f.s, f.open(), f.open()}, term: f.term()}
	for i := range 5 {
		ns := fmt.Sprint("ns-", i)
		c.namespaces = append(c.namespaces, ns)
		f.put(ns, fmt.Sprintf(`{"max_running":%d}`, 3+i))
	}
	together(clients, func(i int) {
		rng := rand.New(rand.NewPCG(uint64(i), 1))
		for round := range rounds {
			step := []func(*rand.Rand, store.Store) error{c.enqueue, c.work, c.enqueue, c.work, c.upkeep}[(round+i)%5]
			if err := step(rng, c.handles[i%len(c.handles)]); err != nil {
				f.Errorf("client %d, round %d: %v", i, round, err)
				return
			}
			f.clock.Advance(time.Duration(rng.IntN(1000)) * time.Millisecond)
		}
	})
	left := int64(0)
	for _, ns := range c.namespaces {
		u := f.usage(ns)
		left += u.Pending + u.Running + u.Archived + u.Dead
	}
	equal(f, "jobs that are there or were trimmed", left+c.trimmed.Load(), c.admitted.Load())
}

// crowdWriters: the writers that share keys and change limits, each as fast as it can.
func crowdWriters(f *fixture) {
	Writers(f.T, f.backend, f.address, func(round int) bool { return round < 10 })
}

// some picks namespaces in a random order.
func (c *crowd) some(rng *rand.Rand) []string {
	var out []string
	for _, i := range rng.Perm(len(c.namespaces))[:1+rng.IntN(len(c.namespaces))] {
		out = append(out, c.namespaces[i])
	}
	return out
}

func (c *crowd) enqueue(rng *rand.Rand, s store.Store) error {
	var calls []store.Call
	for _, ns := range c.some(rng) {
		call, err := under(c.ctx, s, ns)
		if err != nil {
			return err
		}
		for range 1 + rng.IntN(4) {
			spec := job.Spec{ID: c.id(), Task: "t", MaxAttempts: int32(1 + rng.IntN(2))}
			if err := spec.Normalize("job", 1); err != nil {
				return err
			}
			call.Jobs = append(call.Jobs, spec)
		}
		calls = append(calls, call)
	}
	out, err := s.Admit(c.ctx, calls)
	if err != nil {
		return err
	}
	for _, o := range out {
		if o.Err != nil {
			return o.Err
		}
		c.admitted.Add(int64(len(o.Results)))
	}
	return nil
}

// work settles what others claimed, sends heartbeats, and claims.
func (c *crowd) work(rng *rand.Rand, s store.Store) error {
	c.mu.Lock()
	rng.Shuffle(len(c.claims), func(i, k int) { c.claims[i], c.claims[k] = c.claims[k], c.claims[i] })
	n := len(c.claims) / 2
	mine := append([]store.Leased(nil), c.claims[:n]...)
	c.claims = c.claims[n:]
	c.mu.Unlock()
	var ends []store.Settlement
	var beats []store.Beat
	for _, l := range mine {
		ends = append(ends, ending(l, job.Outcomes[rng.IntN(len(job.Outcomes))]))
		beats = append(beats, beat(l, lease))
	}
	if _, err := s.Heartbeat(c.ctx, beats); err != nil {
		return err
	}
	var wants []store.Want
	for _, ns := range c.some(rng) {
		call, err := under(c.ctx, s, ns)
		if err != nil {
			return err
		}
		wants = append(wants, store.Want{
			Namespace: ns, Max: 1 + rng.IntN(4), LeaseFor: time.Second, Worker: "w", MaxRunning: call.Quota.MaxRunning, Stamp: call.Stamp,
		})
	}
	_, grants, err := s.Turn(c.ctx, ends, wants)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, g := range grants {
		if g.Err != nil {
			return g.Err
		}
		c.claims = append(c.claims, g.Jobs...)
	}
	return nil
}

func (c *crowd) upkeep(rng *rand.Rand, s store.Store) error {
	if _, err := s.Expire(c.ctx, 1+rng.IntN(20)); err != nil {
		return err
	}
	for _, ns := range c.some(rng) {
		if _, err := s.Cancel(c.ctx, ns, store.Selection{}, rng.IntN(3)+1); err != nil {
			return err
		}
		table := []store.Table{store.Archive, store.DeadLetters}[rng.IntN(2)]
		got, err := s.Trim(c.ctx, store.Trim{Term: c.term, Namespace: ns, Table: table, Keep: new(int64(2)), Limit: 5})
		if err != nil {
			return err
		}
		c.trimmed.Add(got.Completed + got.Cancelled + got.Dead + got.Shed)
	}
	return nil
}

// crowdTerms: no two leaders have one term.
func crowdTerms(f *fixture) {
	const leaders = 8
	handles := []store.Store{f.s, f.open(), f.open()}
	terms := make([]int64, leaders)
	together(leaders, func(i int) {
		term, err := handles[i%len(handles)].NewTerm(f.ctx, fmt.Sprint("leader ", i))
		if err != nil {
			f.Errorf("leader %d: %v", i, err)
		}
		terms[i] = term
	})
	seen, newest := map[int64]bool{}, int64(0)
	for _, term := range terms {
		seen[term] = true
		newest = max(newest, term)
	}
	equal(f, "terms that differ", len(seen), leaders)
	for _, term := range terms {
		equal(f, fmt.Sprintf("superseded at term %d of %d", term, newest), f.keep(term, "ns", store.Archive, 0).Superseded, term != newest)
	}
}

// crowdGone: an ended context is answered with an error and no effect, and the
// store goes on.
func crowdGone(f *fixture) {
	const ns = "ns"
	f.put(ns, `{"max_pending":5}`)
	c := f.call(ns, f.specs(2)...)
	ctx, cancel := context.WithCancel(f.ctx)
	cancel()
	for range 3 {
		_, err := f.s.Admit(ctx, []store.Call{c})
		if err == nil || fault.Is(err, fault.QueueFull) || errors.Is(err, store.ErrStale) {
			f.Errorf("Admit: %v", err)
		}
		if _, _, err := f.s.Turn(ctx, nil, []store.Want{f.want(ns, 1)}); err == nil {
			f.Error("Turn: no error")
		}
		if _, err := f.s.Usage(ctx, []string{ns}); err == nil {
			f.Error("Usage: no error")
		}
	}
	f.holds(ns, counts{})
	equal(f, "afterwards", outcome(f.admit(c)[0]), "ok")
}

func crowdPing(f *fixture) {
	f.ok(f.s.Ping(f.ctx))
	f.ok(f.open().Ping(f.ctx))
}
