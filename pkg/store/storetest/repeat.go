package storetest

import (
	"fmt"
	"sync/atomic"
	"time"

	"flexiq/pkg/fault"
	"flexiq/pkg/job"
	"flexiq/pkg/store"
)

var repeatCases = []testcase{
	{"a repeated call in every state", repeatStates},
	{"a repeated call touches no limit", repeatNoLimit},
	{"a repeated shed call", repeatShed},
	{"a repeated batch with duplicates", repeatDuplicates},
	{"a conflict of ids", repeatConflict},
	{"the memory lasts as long as the row", repeatForgotten},
	{"an id belongs to one namespace", repeatNamespaces},
	{"one call from many clients", repeatRace},
}

// repeatStates: the first outcome comes back, as the jobs now stand.
func repeatStates(f *fixture) {
	const ns = "ns"
	c := f.call(ns, f.spec(), f.spec(), f.spec(), f.spec(func(s *job.Spec) { s.Payload, s.Form = []byte("p"), job.Bytes }))
	f.admit(c)
	f.clock.Advance(time.Second)
	claims := f.claim(ns, 3)
	f.settle(job.Completed, claims[0])
	f.settle(job.GivenUp, claims[1])
	before := f.usage(ns)
	out := f.admit(c)[0]
	f.ok(out.Err)
	equal(f, "outcome", outcome(out), "repeat")
	for i, want := range []job.State{job.Complete, job.Dead, job.Running, job.Pending} {
		r := out.Results[i]
		if r.Job == nil || r.Deduplicated || r.Debounced {
			f.Fatalf("result %d: %+v", i, r)
		}
		if r.Job.ID != c.Jobs[i].ID || r.Job.State != want || r.Job.Payload != nil {
			f.Errorf("result %d: %s is %s with a payload of %d bytes, want %s, %s without", i, r.Job.ID, r.Job.State, len(r.Job.Payload), c.Jobs[i].ID, want)
		}
	}
	equal(f, "usage", f.usage(ns), before)
	_, err := f.s.Cancel(f.ctx, ns, store.Selection{IDs: []string{c.Jobs[3].ID}}, 10)
	f.ok(err)
	equal(f, "with a cancelled job", outcome(f.admit(c)[0]), "repeat")
	part := c
	part.Jobs = c.Jobs[1:3]
	equal(f, "a part of the call", outcome(f.admit(part)[0]), "repeat")
}

func repeatNoLimit(f *fixture) {
	const ns = "ns"
	f.put(ns, `{"max_pending":2,"enqueue_rate":"2/h"}`)
	c := f.call(ns, f.specs(2)...)
	f.admit(c)
	equal(f, "full and without tokens", outcome(f.admit(c)[0]), "repeat")
	f.put(ns, `{"max_pending":0}`)
	equal(f, "with a stale stamp", outcome(f.admit(c)[0]), "repeat")
	f.put(ns, `{"max_pending":0,"on_excess":"drop"}`)
	c = f.call(ns, c.Jobs...)
	equal(f, "where it would be shed", outcome(f.admit(c)[0]), "repeat")
	f.holds(ns, counts{Pending: 2})
}

func repeatShed(f *fixture) {
	const ns = "ns"
	f.put(ns, `{"max_pending":1,"on_excess":"drop"}`)
	c := f.call(ns, f.specs(2, func(s *job.Spec) { s.UniqueKey = "k" + s.ID })...)
	f.admit(c)
	f.put(ns, "")
	out := f.admit(c)[0]
	f.ok(out.Err)
	if !out.Repeat || !out.Shed || out.Results[0].Job.State != job.Dead || out.Results[1].Job.ID != c.Jobs[1].ID {
		f.Errorf("got %+v", out)
	}
	f.holds(ns, counts{Dead: 2, Shed: 2})
}

// repeatDuplicates: the ids that are unknown carried unique keys and were
// duplicates; they are answered with the key's present holder, if any.
func repeatDuplicates(f *fixture) {
	const ns = "ns"
	key := func(k string) func(*job.Spec) { return func(s *job.Spec) { s.UniqueKey = k } }
	holder := f.enqueue(ns, f.spec(key("inv-88")))[0]
	c := f.call(ns, f.spec(key("inv-88")), f.spec(), f.spec(key("inv-89")))
	first := f.admit(c)[0]
	equal(f, "the duplicate's job", first.Results[0].Job.ID, holder.ID)

	again := f.admit(c)[0]
	if !again.Repeat || !again.Results[0].Deduplicated || again.Results[0].Job.ID != holder.ID {
		f.Fatalf("while the holder lives: %+v", again)
	}
	_, err := f.s.Cancel(f.ctx, ns, store.Selection{IDs: []string{holder.ID}}, 10)
	f.ok(err)
	again = f.admit(c)[0]
	if !again.Repeat || !again.Results[0].Deduplicated || again.Results[0].Job != nil {
		f.Fatalf("after the holder's end: %+v", again.Results[0])
	}
	next := f.enqueue(ns, f.spec(key("inv-88")))[0]
	again = f.admit(c)[0]
	if again.Results[0].Job == nil || again.Results[0].Job.ID != next.ID {
		f.Fatalf("with another holder: %+v", again.Results[0])
	}
	equal(f, "the job of its own", again.Results[2].Job.ID, c.Jobs[2].ID)
	f.holds(ns, counts{Pending: 3, Archived: 1})
}

func repeatConflict(f *fixture) {
	const ns = "ns"
	f.put(ns, `{"enqueue_rate":"100/h"}`)
	c := f.call(ns, f.specs(2)...)
	f.admit(c)
	before := f.usage(ns)
	other := func(change func(*job.Spec)) job.Spec {
		return f.spec(func(s *job.Spec) { s.ID = c.Jobs[0].ID; change(s) })
	}
	fresh := f.spec()
	for name, jobs := range map[string][]job.Spec{
		"another task":           {other(func(s *job.Spec) { s.Task = "u" })},
		"another payload":        {other(func(s *job.Spec) { s.Payload, s.Form = []byte("x"), job.Bytes })},
		"another queue":          {other(func(s *job.Spec) { s.Queue = "q" })},
		"a unique key":           {other(func(s *job.Spec) { s.UniqueKey = "k" })},
		"one more job":           {c.Jobs[0], c.Jobs[1], fresh},
		"one more job before":    {fresh, c.Jobs[0]},
		"one of two changed":     {c.Jobs[1], other(func(s *job.Spec) { s.Priority = 1 })},
		"a changed and a unique": {other(func(s *job.Spec) { s.Priority = 1 }), f.spec(func(s *job.Spec) { s.UniqueKey = "k" })},
	} {
		call := f.call(ns, jobs...)
		if got := outcome(f.admit(call)[0]); got != "ID_CONFLICT" {
			f.Errorf("%s: %s", name, got)
		}
	}
	equal(f, "usage", f.usage(ns), before)
	_, err := f.s.Job(f.ctx, ns, fresh.ID)
	f.reason(err, fault.NotFound)
	f.put(ns, `{"max_pending":0}`)
	call := f.call(ns, c.Jobs[0], fresh)
	call.Stamp.Revision--
	equal(f, "a conflict is seen before stale stamps and limits", outcome(f.admit(call)[0]), "ID_CONFLICT")
}

func repeatForgotten(f *fixture) {
	const ns = "ns"
	c := f.call(ns, f.spec())
	f.admit(c)
	f.clock.Advance(time.Second)
	f.settle(job.Completed, f.take(ns))
	equal(f, "archived", outcome(f.admit(c)[0]), "repeat")
	term, err := f.s.NewTerm(f.ctx, "leader")
	f.ok(err)
	_, err = f.s.Trim(f.ctx, store.Trim{Term: term, Namespace: ns, Table: store.Archive, Keep: new(int64(0)), Limit: 10})
	f.ok(err)
	equal(f, "trimmed", outcome(f.admit(c)[0]), "ok")
	f.holds(ns, counts{Pending: 1})
}

func repeatNamespaces(f *fixture) {
	spec := f.spec(func(s *job.Spec) { s.UniqueKey = "k" })
	changed := f.spec(func(s *job.Spec) { s.ID, s.Task = spec.ID, "u" })
	out := f.admit(f.call("a", spec), f.call("b", changed))
	equal(f, "outcomes", []string{outcome(out[0]), outcome(out[1])}, []string{"ok", "ok"})
	equal(f, "the task in a", f.job("a", spec.ID).Task, "t")
	equal(f, "the task in b", f.job("b", spec.ID).Task, "u")
}

// repeatRace: a client that repeats itself on every connection is served once.
func repeatRace(f *fixture) {
	const ns, rounds, clients = "ns", 5, 8
	f.put(ns, `{"enqueue_rate":"100/h"}`)
	handles := []store.Store{f.s, f.open(), f.open()}
	for round := range rounds {
		c := f.call(ns, f.specs(2)...)
		var first, again atomic.Int64
		together(clients, func(i int) {
			out, err := handles[i%len(handles)].Admit(f.ctx, []store.Call{c})
			switch {
			case err != nil || out[0].Err != nil:
				f.Errorf("client %d: %v, %+v", i, err, out)
			case out[0].Repeat:
				again.Add(1)
			default:
				first.Add(1)
			}
		})
		equal(f, fmt.Sprintf("round %d: first and repeated", round), [2]int64{first.Load(), again.Load()}, [2]int64{1, clients - 1})
	}
	f.holds(ns, counts{Pending: 2 * rounds})
	equal(f, "tokens", f.usage(ns).Bucket.Tokens(), int64(100-2*rounds))
}
