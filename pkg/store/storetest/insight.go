package storetest

import (
	"fmt"
	"time"

	"flexiq/pkg/fault"
	"flexiq/pkg/job"
	"flexiq/pkg/store"
)

var insightCases = []testcase{
	{"queues", insightQueues},
	{"who holds the slots", insightHolders},
	{"how many come first", insightAhead},
}

func insightQueues(f *fixture) {
	const ns = "ns"
	f.enqueue(ns, f.spec(queueOf("b")))
	f.clock.Advance(time.Second)
	f.claim(ns, 1)
	f.enqueue(ns, f.spec(queueOf("b")), f.spec(queueOf("b"), func(s *job.Spec) { s.Priority = 3 }), f.spec(queueOf("c"), func(s *job.Spec) { s.Delay = time.Hour }))
	f.override(ns, store.OverrideQueue, "a", most(3))
	f.override(ns, store.OverrideQueue, "b", most(3))
	f.override(ns, store.OverrideTask, "d", most(3))
	f.clock.Advance(time.Minute)
	now := f.clock.Now()
	want := []store.QueueState{
		{Queue: "a", Now: now},
		{Queue: "b", Pending: 2, Running: 1, OldestDue: epoch.Add(time.Second), Now: now},
		{Queue: "c", Pending: 1, Now: now},
	}
	page, err := f.s.Queues(f.ctx, ns, "", 10)
	f.ok(err)
	equal(f, "all", page, store.Page[store.QueueState]{Items: want})
	page, err = f.s.Queues(f.ctx, ns, "", 2)
	f.ok(err)
	equal(f, "a page", page, store.Page[store.QueueState]{Items: want[:2], Next: "b"})
	page, err = f.s.Queues(f.ctx, ns, page.Next, 2)
	f.ok(err)
	equal(f, "the next page", page, store.Page[store.QueueState]{Items: want[2:]})
	page, err = f.s.Queues(f.ctx, "none", "", 2)
	f.ok(err)
	equal(f, "of a namespace that was never used", page, store.Page[store.QueueState]{})
}

func insightHolders(f *fixture) {
	const ns = "ns"
	var all []store.Holder
	for i := range 4 {
		s := f.spec(queueOf(fmt.Sprint("q", i%2)), taskOf(fmt.Sprint("t", i/2)))
		f.enqueue(ns, s)
		f.clock.Advance(time.Second)
		l := f.take(ns, func(w *store.Want) { w.Worker = fmt.Sprint("w", i) })
		all = append(all, store.Holder{JobID: s.ID, Queue: s.Queue, Task: s.Task, Worker: fmt.Sprint("w", i), StartedAt: f.clock.Now(), LeaseEnds: l.ExpiresAt})
	}
	f.enqueue("other", f.spec())
	f.clock.Advance(time.Second)
	f.claim("other", 1)
	_, err := f.s.Cancel(f.ctx, ns, store.Selection{IDs: []string{all[3].JobID}}, 1)
	f.ok(err)
	all[3].Cancelled = true
	check := func(what, queue, task string, limit int, total int64, want ...store.Holder) {
		f.Helper()
		got, err := f.s.Holders(f.ctx, ns, queue, task, limit)
		f.ok(err)
		equal(f, what, got, store.Holders{Items: want, Total: total, Now: f.clock.Now()})
	}
	check("all", "", "", 10, 4, all...)
	check("some", "", "", 3, 4, all[:3]...)
	check("of a queue", "q1", "", 10, 2, all[1], all[3])
	check("of a task", "", "t0", 1, 2, all[0])
	check("of both", "q0", "t1", 10, 1, all[2])
	check("of none", "t0", "q0", 10, 0)
}

func insightAhead(f *fixture) {
	const ns = "ns"
	f.override(ns, store.OverrideTask, "t1", most(1))
	at := epoch.Add(time.Hour)
	mk := func(task string, priority int32, run time.Time) job.Spec {
		return f.spec(taskOf(task), func(s *job.Spec) { s.Priority, s.RunAt = priority, run })
	}
	delayed := mk("t2", 0, at.Add(time.Hour))
	specs := []job.Spec{
		mk("t0", 5, at.Add(time.Hour)), // not due
		mk("t0", 5, at), mk("t1", 5, at),
		mk("t1", 0, at), mk("t0", 0, at), mk("t2", 0, at), // tied: by id
		mk("t0", 0, at.Add(time.Second)), mk("t0", -1, at),
	}
	for _, s := range append(specs, delayed, f.spec(queueOf("other"))) {
		f.enqueue(ns, s)
	}
	f.clock.Set(at.Add(time.Minute))
	check := func(id string, limit int, want store.Ahead) {
		f.Helper()
		got, err := f.s.Ahead(f.ctx, ns, id, limit)
		f.ok(err)
		equal(f, "ahead of "+id, got, want)
	}
	check(specs[1].ID, 10, store.Ahead{})
	check(specs[2].ID, 10, store.Ahead{Count: 1})
	for i, n := range []int64{2, 3, 4, 5, 6} {
		check(specs[3+i].ID, 10, store.Ahead{Count: n})
	}
	check(specs[0].ID, 10, store.Ahead{Count: 2})
	check(delayed.ID, 10, store.Ahead{Count: 6})
	check(specs[6].ID, 5, store.Ahead{Count: 5})
	check(specs[6].ID, 4, store.Ahead{Count: 4, More: true})
	_, err := f.s.Ahead(f.ctx, ns, f.id(), 10)
	f.reason(err, fault.NotFound)
	f.claim(ns, 1)
	_, err = f.s.Ahead(f.ctx, ns, specs[1].ID, 10)
	f.reason(err, fault.NotFound)
}
