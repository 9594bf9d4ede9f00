package storetest

import (
	"time"

	"flexiq/pkg/job"
	"flexiq/pkg/store"
)

var cancelCases = []testcase{
	{"pending at once", cancelPending},
	{"running at its next heartbeat", cancelRunning},
	{"completion wins", cancelCompleted},
	{"every other end is cancelled", cancelEnds},
	{"by filter", cancelFilter},
	{"by filter, a part at a time", cancelParts},
	{"marked once by a filter", cancelMarked},
	{"in its namespace only", cancelNamespace},
}

func (f *fixture) cancel(ns string, ids ...string) store.Cancelled {
	f.Helper()
	c, err := f.s.Cancel(f.ctx, ns, store.Selection{IDs: ids}, 1000)
	f.ok(err)
	return f.endedBy(ns, c)
}

// endedBy checks that an answer names the jobs that ended, and returns it without them.
func (f *fixture) endedBy(ns string, c store.Cancelled) store.Cancelled {
	f.Helper()
	seen := make(map[string]bool)
	for _, e := range c.Ended {
		j, err := f.s.Job(f.ctx, ns, e.JobID)
		f.ok(err)
		equal(f, "ended", e, store.Ended{Namespace: ns, Queue: j.Queue, Task: j.Task, JobID: j.ID, State: job.Cancelled, Attempt: j.Attempt})
		equal(f, "state of one that ended", j.State, job.Cancelled)
		seen[e.JobID] = true
	}
	equal(f, "jobs that ended", int64(len(seen)), c.Cancelled)
	c.Ended = nil
	return c
}

func (f *fixture) cancelBy(ns string, filter store.Filter, limit int) store.Cancelled {
	f.Helper()
	c, err := f.s.Cancel(f.ctx, ns, store.Selection{Filter: filter}, limit)
	f.ok(err)
	return f.endedBy(ns, c)
}

func cancelPending(f *fixture) {
	const ns = "ns"
	f.put(ns, `{"max_pending":3}`)
	specs := []job.Spec{f.spec(withKey("k"), func(s *job.Spec) { s.Payload, s.Form = []byte("p"), job.Bytes }), f.spec(func(s *job.Spec) { s.Delay = time.Hour }), f.spec()}
	f.enqueue(ns, specs...)
	f.clock.Advance(time.Second)
	equal(f, "answer", f.cancel(ns, specs[0].ID, specs[1].ID, f.id()), store.Cancelled{Cancelled: 2, NotFound: 1})
	j := f.state(ns, specs[0].ID, job.Cancelled)
	equal(f, "finished, attempt, payload", [3]any{j.FinishedAt, j.Attempt, string(j.Payload)}, [3]any{f.clock.Now(), int32(0), "p"})
	f.holds(ns, counts{Pending: 1, Archived: 2})
	equal(f, "again", f.cancel(ns, specs[0].ID, specs[1].ID), store.Cancelled{NotFound: 2})
	f.enqueue(ns, f.specs(2, withKey("k"))[0], f.spec())
	f.clock.Advance(2 * time.Hour)
	equal(f, "claimed", len(f.grant(ns, 10).Jobs), 3)
}

func cancelRunning(f *fixture) {
	const ns = "ns"
	f.put(ns, `{"max_running":1}`)
	f.enqueue(ns, f.specs(2)...)
	f.clock.Advance(time.Second)
	l := f.take(ns)
	equal(f, "before", f.beat(beat(l, lease))[0].Cancelled, false)
	equal(f, "answer", f.cancel(ns, l.Job.ID), store.Cancelled{Cancelling: 1})
	f.state(ns, l.Job.ID, job.Running)
	f.holds(ns, counts{Pending: 1, Running: 1})
	equal(f, "the slot is still taken", len(f.grant(ns, 1).Held) > 0, true)
	equal(f, "heartbeat", f.beat(beat(l, lease))[0], store.Pulse{Alive: true, Cancelled: true, ExpiresAt: f.clock.Now().Add(lease)})
	s := f.settleOne(ending(l, job.Failed, func(s *store.Settlement) { s.Error = "stopped" }))
	equal(f, "settlement", s, store.Settled{Accepted: true, State: job.Cancelled, Queue: "default", Task: "t", Attempt: 1})
	j := f.state(ns, l.Job.ID, job.Cancelled)
	equal(f, "error and finish", [2]any{j.Error, j.FinishedAt}, [2]any{"stopped", f.clock.Now()})
	f.holds(ns, counts{Pending: 1, Archived: 1})
	equal(f, "the next job is not marked", f.beat(beat(f.take(ns), lease))[0].Cancelled, false)
}

func cancelCompleted(f *fixture) {
	const ns = "ns"
	f.enqueue(ns, f.spec())
	f.clock.Advance(time.Second)
	l := f.take(ns)
	f.cancel(ns, l.Job.ID)
	f.settleOne(ending(l, job.Completed, func(s *store.Settlement) { s.Result = []byte("r") }))
	equal(f, "result", string(f.state(ns, l.Job.ID, job.Complete).Result), "r")
	equal(f, "answer", f.cancel(ns, l.Job.ID), store.Cancelled{NotFound: 1})
	f.holds(ns, counts{Archived: 1})
}

func cancelEnds(f *fixture) {
	const ns = "ns"
	for _, o := range []job.Outcome{job.Failed, job.GivenUp, job.Released} {
		f.enqueue(ns, f.spec())
		f.clock.Advance(time.Second)
		l := f.take(ns)
		f.cancel(ns, l.Job.ID)
		equal(f, "state after "+string(o), f.settleOne(ending(l, o)).State, job.Cancelled)
		equal(f, "again", f.settleOne(ending(l, o)), store.Settled{Accepted: true, Repeat: true, State: job.Cancelled, Queue: "default", Task: "t", Attempt: 1})
	}
	f.enqueue(ns, f.spec(), f.spec(func(s *job.Spec) { s.Timeout = time.Second }))
	f.clock.Advance(time.Second)
	for _, l := range f.claim(ns, 2) {
		f.cancel(ns, l.Job.ID)
	}
	f.clock.Advance(lease)
	for _, e := range f.expire() {
		equal(f, "state after the lease", e.State, job.Cancelled)
		f.state(ns, e.JobID, job.Cancelled)
	}
	f.holds(ns, counts{Archived: 5})
}

func cancelFilter(f *fixture) {
	const ns = "ns"
	mk := func(queue, task string) string {
		s := f.spec(queueOf(queue), func(s *job.Spec) { s.Task = task })
		f.enqueue(ns, s)
		f.clock.Advance(time.Second)
		return s.ID
	}
	a1, b1, a2, a3 := mk("a", "x"), mk("b", "x"), mk("a", "y"), mk("a", "x")
	shed := f.usage(ns)
	equal(f, "nothing matches", f.cancelBy(ns, store.Filter{Queue: "c"}, 100), store.Cancelled{})
	equal(f, "queue and task", f.cancelBy(ns, store.Filter{Queue: "a", Task: "x", CreatedBefore: epoch.Add(3 * time.Second)}, 100), store.Cancelled{Cancelled: 1})
	f.state(ns, a1, job.Cancelled)
	equal(f, "before the instant itself", f.cancelBy(ns, store.Filter{CreatedBefore: epoch.Add(time.Second)}, 100), store.Cancelled{})
	l := f.take(ns, queues("b"))
	equal(f, "running only", f.cancelBy(ns, store.Filter{State: job.Running}, 100), store.Cancelled{Cancelling: 1})
	equal(f, "pending only", f.cancelBy(ns, store.Filter{State: job.Pending, Task: "y"}, 100), store.Cancelled{Cancelled: 1})
	f.state(ns, a2, job.Cancelled)
	equal(f, "heartbeat", f.beat(beat(l, lease))[0].Cancelled, true)
	equal(f, "the marked job", l.Job.ID, b1)
	equal(f, "the rest", f.cancelBy(ns, store.Filter{}, 100), store.Cancelled{Cancelled: 1})
	f.state(ns, a3, job.Cancelled)
	equal(f, "pending before", shed.Pending, int64(4))
	f.holds(ns, counts{Running: 1, Archived: 3})
}

func cancelParts(f *fixture) {
	const ns = "ns"
	var want []string
	for _, j := range f.enqueue(ns, f.specs(25)...) {
		want = append(want, j.ID)
	}
	f.clock.Advance(time.Second)
	claims := f.claim(ns, 5) // the oldest
	first := f.cancelBy(ns, store.Filter{}, 7)
	equal(f, "the first part", first, store.Cancelled{Cancelled: 2, Cancelling: 5, More: true})
	f.state(ns, want[6], job.Cancelled)
	f.state(ns, want[7], job.Pending)
	total, more := first, true
	for range 10 {
		if !more {
			break
		}
		c := f.cancelBy(ns, store.Filter{}, 7)
		total.Cancelled, total.Cancelling, more = total.Cancelled+c.Cancelled, total.Cancelling+c.Cancelling, c.More
		if c.Cancelled+c.Cancelling > 7 {
			f.Fatalf("more than the limit: %+v", c)
		}
	}
	equal(f, "in all", [3]any{total.Cancelled, total.Cancelling, more}, [3]any{int64(20), int64(5), false})
	f.settle(job.Failed, claims...)
	f.holds(ns, counts{Archived: 25})
}

// cancelMarked: jobs that are already marked neither count again nor fill the page.
func cancelMarked(f *fixture) {
	const ns = "ns"
	f.enqueue(ns, f.specs(10)...)
	f.clock.Advance(time.Second)
	claims := f.claim(ns, 10)
	for _, want := range []store.Cancelled{{Cancelling: 4, More: true}, {Cancelling: 4, More: true}, {Cancelling: 2}, {}} {
		got := f.cancelBy(ns, store.Filter{}, 4)
		equal(f, "marked", got, want)
	}
	equal(f, "by id it is still on its way", f.cancel(ns, claims[0].Job.ID), store.Cancelled{Cancelling: 1})
}

func cancelNamespace(f *fixture) {
	spec := f.spec()
	f.enqueue("a", spec)
	f.enqueue("b", spec)
	equal(f, "an id of another namespace", f.cancel("c", spec.ID), store.Cancelled{NotFound: 1})
	equal(f, "one of two with the id", f.cancel("a", spec.ID), store.Cancelled{Cancelled: 1})
	f.state("b", spec.ID, job.Pending)
	equal(f, "all of a namespace that was never used", f.cancelBy("c", store.Filter{}, 10), store.Cancelled{})
	f.holds("b", counts{Pending: 1})
}
