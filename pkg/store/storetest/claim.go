package storetest

import (
	"errors"
	"fmt"
	"time"

	"flexiq/pkg/fault"
	"flexiq/pkg/job"
	"flexiq/pkg/store"
)

var claimCases = []testcase{
	{"order is priority, run_at, id", claimOrder},
	{"queues of a want", claimQueues},
	{"a claimed job", claimShape},
	{"max_running", claimCap},
	{"max_running zero", claimCapZero},
	{"a lowered cap stops nothing", claimLowered},
	{"being at the cap costs no attempt", claimAttempts},
	{"the cap is over all queues", claimCapQueues},
	{"when the next job is due", claimNextAt},
	{"bytes of a grant", claimBytes},
	{"a thousand at once", claimThousand},
	{"wants of one turn", claimWants},
	{"a settlement makes room in its turn", claimTurn},
	{"a stale want", claimStale},
	{"leases are never the same", claimLeases},
	{"ready and the next instant", claimReady},
	{"a job is given once", claimRace},
	{"never over max_running with many handles", claimCapRace},
}

func queueOf(name string) func(*job.Spec) { return func(s *job.Spec) { s.Queue = name } }

func claimOrder(f *fixture) {
	const ns = "ns"
	mk := func(priority int32, delay time.Duration) job.Spec {
		return f.spec(func(s *job.Spec) { s.Priority, s.Delay, s.Queue = priority, delay, fmt.Sprint("q", priority) })
	}
	low, late, first, second, high, higher := mk(-128, 0), mk(0, 2*time.Second), mk(0, 0), mk(0, time.Second), mk(1, 3*time.Second), mk(127, 4*time.Second)
	f.enqueue(ns, low, late, first, second, high, higher)
	f.clock.Advance(10 * time.Second)
	equal(f, "order", idsOf(f.claim(ns, 6)), []string{higher.ID, high.ID, first.ID, second.ID, late.ID, low.ID})

	at := f.clock.Now().Add(time.Minute)
	same := func() job.Spec { return f.spec(func(s *job.Spec) { s.RunAt = at }) }
	c, b, a := same(), same(), same()
	f.enqueue(ns, a) // three calls that ask for one instant go by id
	f.enqueue(ns, c)
	f.enqueue(ns, b)
	f.clock.Set(at)
	equal(f, "order of one instant", idsOf(f.claim(ns, 3)), []string{c.ID, b.ID, a.ID})
}

func claimQueues(f *fixture) {
	const ns = "ns"
	a, b, c := f.spec(queueOf("a")), f.spec(queueOf("b")), f.spec(queueOf("c"))
	a2 := f.spec(queueOf("a"))
	f.enqueue(ns, a, b, c, a2)
	f.clock.Advance(time.Second)
	equal(f, "none of another queue", len(f.grant(ns, 9, queues("d", "A")).Jobs), 0)
	equal(f, "two queues in order", idsOf(f.claim(ns, 2, queues("c", "a"))), []string{a.ID, c.ID})
	equal(f, "one queue", idsOf(f.grant(ns, 9, queues("b")).Jobs), []string{b.ID})
	equal(f, "all queues", idsOf(f.grant(ns, 9).Jobs), []string{a2.ID})
	equal(f, "another namespace", len(f.grant("n", 9).Jobs), 0)
}

func claimShape(f *fixture) {
	const ns = "ns"
	spec := f.spec(func(s *job.Spec) {
		s.Payload, s.Form, s.Timeout, s.Metadata = []byte("p\x00"), job.Bytes, 10*time.Minute, map[string]string{"k": "v"}
	})
	f.enqueue(ns, spec)
	f.clock.Advance(time.Second)
	l := f.take(ns, func(w *store.Want) { w.Worker, w.LeaseFor = "host-1", 45*time.Second })
	now := f.clock.Now()
	want := job.Job{
		ID: spec.ID, Namespace: ns, Queue: "default", Task: "t", Payload: []byte("p\x00"), Form: job.Bytes, State: job.Running, Attempt: 1,
		MaxAttempts: 25, Timeout: 10 * time.Minute, BackoffBase: time.Second, BackoffMax: time.Hour, RunAt: epoch, CreatedAt: epoch,
		StartedAt: now, Metadata: map[string]string{"k": "v"}, Origin: job.OriginEnqueue, EnqueuedBy: "tok1", Worker: "host-1",
	}
	equal(f, "the leased job", l.Job, want)
	equal(f, "the stored job", *f.job(ns, spec.ID), want)
	equal(f, "the end of the lease", l.ExpiresAt, now.Add(45*time.Second))
	f.holds(ns, counts{Running: 1})
}

func claimCap(f *fixture) {
	const ns = "ns"
	f.put(ns, `{"max_running":3}`)
	f.enqueue(ns, f.specs(5)...)
	f.clock.Advance(time.Second)
	g := f.grant(ns, 10)
	equal(f, "claimed and at the cap", [2]any{len(g.Jobs), len(g.Held) > 0}, [2]any{3, true})
	first := g.Jobs
	g = f.grant(ns, 10)
	equal(f, "claimed at the cap", g, store.Grant{Held: atCap})
	f.settle(job.Completed, first[0])
	g = f.grant(ns, 10)
	equal(f, "after one end", [2]any{len(g.Jobs), len(g.Held) > 0}, [2]any{1, true})
	f.put(ns, `{"max_running":4}`)
	g = f.grant(ns, 10)
	equal(f, "after a raise", [2]any{len(g.Jobs), len(g.Held) > 0}, [2]any{1, false})
	f.holds(ns, counts{Running: 4, Archived: 1})
	equal(f, "no work left", f.grant(ns, 10), store.Grant{})
	f.put(ns, "")
	f.enqueue(ns, f.specs(4)...)
	f.clock.Advance(time.Second)
	equal(f, "without a cap", len(f.grant(ns, 10).Jobs), 4)
}

// claimCapZero: under zero nothing runs.
func claimCapZero(f *fixture) {
	const ns = "vetch"
	f.put(ns, `{"max_running":0}`)
	ids := f.enqueue(ns, f.specs(5)...)
	f.clock.Advance(10 * time.Second)
	for range 5 {
		equal(f, "claimed", f.grant(ns, 10), store.Grant{Held: atCap})
	}
	f.holds(ns, counts{Pending: 5})
	for _, j := range ids {
		equal(f, "a job that was not claimed", *f.job(ns, j.ID), *j)
	}
}

func claimLowered(f *fixture) {
	const ns = "ns"
	f.put(ns, `{"max_running":5}`)
	f.enqueue(ns, f.specs(8)...)
	f.clock.Advance(time.Second)
	claims := f.claim(ns, 5)
	f.put(ns, `{"max_running":2}`)
	f.holds(ns, counts{Pending: 3, Running: 5})
	pulses, err := f.s.Heartbeat(f.ctx, []store.Beat{{Namespace: ns, JobID: claims[0].Job.ID, Lease: claims[0].Lease, Extend: lease}})
	f.ok(err)
	equal(f, "alive", pulses[0].Alive, true)
	for i, l := range claims[:4] {
		got := len(f.grant(ns, 10).Jobs)
		equal(f, fmt.Sprintf("claimed with %d running", 5-i), got, 0)
		f.settle(job.Completed, l)
	}
	equal(f, "claimed with one running", len(f.grant(ns, 10).Jobs), 1)
}

// claimAttempts: being held back by a cap is no attempt.
func claimAttempts(f *fixture) {
	const ns, n = "ferrule", 10
	f.put(ns, `{"max_running":1}`)
	var want []string
	for _, j := range f.enqueue(ns, f.specs(n, func(s *job.Spec) { s.MaxAttempts = 1 })...) {
		want = append(want, j.ID)
	}
	f.clock.Advance(time.Second)
	var got []string
	for range n {
		l := f.take(ns)
		for range 3 {
			equal(f, "claimed at the cap", len(f.grant(ns, 10).Held) > 0, len(got) < n-1)
		}
		got = append(got, l.Job.ID)
		equal(f, "attempt", l.Job.Attempt, 1)
		f.settle(job.Completed, l)
	}
	equal(f, "order", got, want)
	f.holds(ns, counts{Archived: n})
}

func claimCapQueues(f *fixture) {
	const ns = "ns"
	f.put(ns, `{"max_running":3}`)
	f.enqueue(ns, f.specs(2, queueOf("a"))...)
	f.enqueue(ns, f.specs(2, queueOf("b"))...)
	f.clock.Advance(time.Second)
	f.claim(ns, 2, queues("a"))
	g := f.grant(ns, 10, queues("b"))
	equal(f, "claimed of the second queue", [2]any{len(g.Jobs), len(g.Held) > 0}, [2]any{1, true})
	equal(f, "a queue without work is not at the cap", f.grant(ns, 10, queues("a")), store.Grant{})
}

func claimNextAt(f *fixture) {
	const ns = "ns"
	f.put(ns, `{"max_running":1}`)
	equal(f, "a namespace without jobs", f.grant(ns, 10), store.Grant{})
	f.enqueue(ns, f.spec(queueOf("a"), func(s *job.Spec) { s.Delay = time.Hour }), f.spec(queueOf("b"), func(s *job.Spec) { s.Delay = time.Minute; s.Priority = -1 }))
	equal(f, "all queues", f.grant(ns, 10).NextAt, epoch.Add(time.Minute+time.Microsecond))
	equal(f, "one queue", f.grant(ns, 10, queues("a")).NextAt, epoch.Add(time.Hour))
	equal(f, "a queue without jobs", f.grant(ns, 10, queues("c")).NextAt, time.Time{})
	f.clock.Set(epoch.Add(time.Minute)) // a microsecond too early
	equal(f, "claimed too early", len(f.grant(ns, 10).Jobs), 0)
	f.clock.Advance(time.Microsecond)
	f.claim(ns, 1)
	f.enqueue(ns, f.spec(queueOf("b")))
	f.clock.Advance(time.Second)
	equal(f, "at the cap, with a later job", f.grant(ns, 10), store.Grant{Held: atCap, NextAt: epoch.Add(time.Hour)})
}

// claimBytes: a grant is bounded by bytes, but one job is given whatever its size.
func claimBytes(f *fixture) {
	const ns = "ns"
	sized := func(n int) job.Spec {
		return f.spec(func(s *job.Spec) { s.Payload, s.Form = make([]byte, n), job.Bytes })
	}
	specs := []job.Spec{sized(5000), sized(100), sized(100), sized(101), sized(0), sized(3000)}
	f.enqueue(ns, specs...)
	f.clock.Advance(time.Second)
	atMost := func(n int64) func(*store.Want) { return func(w *store.Want) { w.MaxBytes = n } }
	for i, want := range [][]string{{specs[0].ID}, {specs[1].ID, specs[2].ID}, {specs[3].ID, specs[4].ID}, {specs[5].ID}, {}} {
		equal(f, fmt.Sprintf("grant %d", i), idsOf(f.grant(ns, 10, atMost(200)).Jobs), want)
	}
	f.holds(ns, counts{Running: 6})
	f.enqueue(ns, sized(1000), sized(1000))
	f.clock.Advance(time.Second)
	equal(f, "without a bound", len(f.grant(ns, 10, atMost(0)).Jobs), 2)
}

func claimThousand(f *fixture) {
	const ns = "ns"
	f.put(ns, `{"max_pending":1999}`)
	var want []string
	for _, j := range f.enqueue(ns, f.specs(job.MaxBatch)...) {
		want = append(want, j.ID)
	}
	f.refused(f.try(ns, f.specs(job.MaxBatch)...), fault.QueueFull, "fits", "999", "asked", "1000")
	f.clock.Advance(time.Second)
	claims := f.claim(ns, job.MaxBatch)
	equal(f, "order", idsOf(claims), want)
	f.settle(job.Completed, claims...)
	f.holds(ns, counts{Archived: job.MaxBatch})
}

// claimWants: the wants of one turn are served in order, of one namespace and of many.
func claimWants(f *fixture) {
	f.put("a", `{"max_running":3}`)
	f.enqueue("a", f.specs(5)...)
	f.enqueue("b", f.specs(1)...)
	f.clock.Advance(time.Second)
	_, grants := f.turn(nil, f.want("a", 2), f.want("c", 1), f.want("b", 2), f.want("a", 2), f.want("a", 2))
	var got []int
	for _, g := range grants {
		f.ok(g.Err)
		got = append(got, len(g.Jobs))
	}
	equal(f, "jobs of each want", got, []int{2, 0, 1, 1, 0})
	equal(f, "order over wants", append(idsOf(grants[0].Jobs), idsOf(grants[3].Jobs)...), []string{idOf(1), idOf(2), idOf(3)})
	equal(f, "at the cap", len(grants[4].Held) > 0, true)
}

// claimTurn: settlements come first, so that a full namespace goes on in one step.
func claimTurn(f *fixture) {
	const ns = "ns"
	f.put(ns, `{"max_running":2}`)
	f.enqueue(ns, f.specs(6)...)
	f.clock.Advance(time.Second)
	claims := f.claim(ns, 2)
	for range 2 {
		settled, grants := f.turn([]store.Settlement{ending(claims[0], job.Completed), ending(claims[1], job.GivenUp)}, f.want(ns, 10))
		equal(f, "settled", [2]bool{settled[0].Accepted, settled[1].Accepted}, [2]bool{true, true})
		claims = grants[0].Jobs
		if len(claims) != 2 {
			f.Fatalf("%d jobs claimed in the turn that settled two", len(claims))
		}
	}
	f.holds(ns, counts{Running: 2, Archived: 2, Dead: 2})
	_, grants := f.turn([]store.Settlement{ending(claims[0], job.Released)}, f.want(ns, 10))
	equal(f, "a released job is next again", idsOf(grants[0].Jobs), []string{claims[0].Job.ID})
}

func claimStale(f *fixture) {
	const ns = "ns"
	f.enqueue(ns, f.specs(2)...)
	f.enqueue("other", f.spec())
	f.clock.Advance(time.Second)
	old := f.want(ns, 10)
	f.put(ns, `{"max_running":1}`)
	_, grants := f.turn(nil, old, f.want("other", 10), f.want(ns, 10), old)
	for _, i := range []int{0, 3} {
		if !errors.Is(grants[i].Err, store.ErrStale) || len(grants[i].Jobs) != 0 {
			f.Errorf("stale want: %+v", grants[i])
		}
	}
	equal(f, "beside a stale want", [2]int{len(grants[1].Jobs), len(grants[2].Jobs)}, [2]int{1, 1})
	f.holds(ns, counts{Pending: 1, Running: 1})
	inherited := f.want("other", 10)
	f.setDefault(`{"max_running":5}`)
	_, grants = f.turn(nil, inherited)
	if !errors.Is(grants[0].Err, store.ErrStale) {
		f.Errorf("after a new default quota: %v", grants[0].Err)
	}
}

func claimLeases(f *fixture) {
	const ns = "ns"
	f.enqueue(ns, f.specs(20)...)
	seen := map[string]bool{}
	for range 3 {
		f.clock.Advance(time.Second)
		claims := f.claim(ns, 20)
		for _, l := range claims {
			if l.Lease == "" || len(l.Lease) < 10 || seen[l.Lease] {
				f.Fatalf("lease %q", l.Lease)
			}
			seen[l.Lease] = true
		}
		f.settle(job.Released, claims...)
	}
}

func claimReady(f *fixture) {
	f.put("a", `{"max_running":0}`) // Ready looks at no caps
	f.enqueue("a", f.spec(queueOf("x")), f.spec(queueOf("y"), func(s *job.Spec) { s.Delay = time.Hour }))
	f.enqueue("b", f.spec(func(s *job.Spec) { s.Delay = time.Minute }), f.spec(func(s *job.Spec) { s.Delay = time.Second }))
	f.clock.Advance(time.Millisecond)
	interests := []store.Interest{
		{Namespace: "a"}, {Namespace: "a", Queues: []string{"y"}}, {Namespace: "a", Queues: []string{"y", "x"}}, {Namespace: "a", Queues: []string{"z"}},
		{Namespace: "b"}, {Namespace: "never used"},
	}
	ready := func() []store.Readiness {
		got, err := f.s.Ready(f.ctx, interests)
		f.ok(err)
		return got
	}
	const µs = time.Microsecond
	y, b1, b2 := epoch.Add(time.Hour+µs), epoch.Add(time.Minute), epoch.Add(time.Second+µs)
	equal(f, "at first", ready(), []store.Readiness{{Ready: true, NextAt: y}, {NextAt: y}, {Ready: true, NextAt: y}, {}, {NextAt: b2}, {}})
	f.clock.Set(b2)
	equal(f, "when it is due", ready()[4], store.Readiness{Ready: true, NextAt: b1})
	f.claim("b", 1)
	equal(f, "when it runs", ready()[4], store.Readiness{NextAt: b1})
	got, err := f.s.Ready(f.ctx, nil)
	f.ok(err)
	equal(f, "no interests", len(got), 0)
}
