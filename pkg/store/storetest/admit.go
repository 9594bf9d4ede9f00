package storetest

import (
	"errors"
	"fmt"
	"time"

	"flexiq/pkg/fault"
	"flexiq/pkg/job"
	"flexiq/pkg/store"
)

var admitCases = []testcase{
	{"a batch is one unit", admitWhole},
	{"projected depth", admitProjected},
	{"zero lets nothing in", admitZero},
	{"every option is kept", admitOptions},
	{"an instant belongs to each job of a group", admitInstants},
	{"delayed jobs are pending", admitDelayed},
	{"each delay of a batch is its own", admitDelays},
	{"calls of a group meet", admitGroup},
	{"no calls", admitNothing},
	{"a refused call writes nothing", admitRefused},
	{"returned work goes above the cap", admitReturned},
	{"a failing insert costs nothing", admitPoisoned},
	{"a stale stamp writes nothing", admitStale},
	{"depth is exact with many handles", admitRace},
	{"depth is exact at first use", admitFirstUse},
	{"depth is exact across changes of the limit", admitMovingLimit},
}

// admitWhole: a batch is admitted whole or refused whole.
func admitWhole(f *fixture) {
	const ns = "hasp"
	f.put(ns, `{"max_pending":5}`)
	f.enqueue(ns, f.specs(3)...)
	f.refused(f.try(ns, f.specs(6)...), fault.QueueFull,
		"namespace", ns, "limit", "max_pending", "cap", "5", "current", "3", "asked", "6", "fits", "2",
		"retry", "never", "retry_after_ms", "-", "revision", fmt.Sprint(f.usage(ns).Stamp.Revision))
	f.holds(ns, counts{Pending: 3})
	f.enqueue(ns, f.specs(2)...)
	e := f.refused(f.try(ns, f.spec(func(s *job.Spec) { s.Queue = "it's" })), fault.QueueFull,
		"current", "5", "asked", "1", "fits", "0", "retry", "-", "retry_after_ms", "1000", "estimate", "true")
	equal(f, "message", e.Message, "queue 'it's' is full: 5 pending >= max_pending 5")
	f.holds(ns, counts{Pending: 5})
}

// admitProjected: the cap is compared with what the call would make.
func admitProjected(f *fixture) {
	const ns = "bodkin"
	f.put(ns, `{"max_pending":100}`)
	f.enqueue(ns, f.specs(90)...)
	f.refused(f.try(ns, f.specs(20)...), fault.QueueFull, "fits", "10")
	f.refused(f.try(ns, f.specs(11)...), fault.QueueFull, "fits", "10")
	f.enqueue(ns, f.specs(10)...)
	f.holds(ns, counts{Pending: 100})
}

// admitZero: zero is a limit, and unset is none.
func admitZero(f *fixture) {
	const ns = "vetch"
	f.put(ns, `{"max_pending":0}`)
	f.refused(f.try(ns, f.spec()), fault.QueueFull, "cap", "0", "current", "0", "retry", "never")
	f.put(ns, `{"max_pending":0,"max_running":3}`)
	f.refused(f.try(ns, f.spec()), fault.QueueFull, "cap", "0")
	f.put(ns, "")
	f.enqueue(ns, f.specs(20)...)
	f.holds(ns, counts{Pending: 20})
}

func admitOptions(f *fixture) {
	full := f.spec(func(s *job.Spec) {
		*s = job.Spec{
			ID: s.ID, Queue: "mail", Task: "send", Payload: []byte(`{"to":"x"}`), Form: job.Args, Priority: -128,
			RunAt: epoch.Add(time.Hour + 1234*time.Microsecond), MaxAttempts: 7, Timeout: 90 * time.Second,
			BackoffBase: 1500 * time.Millisecond, BackoffMax: 2 * time.Minute, UniqueKey: "inv-88",
			Metadata: map[string]string{"a": "", "é": "\n\"", "z": "1"},
		}
	})
	bare := f.spec()
	debounced := f.spec(func(s *job.Spec) {
		s.Debounce = job.Debounce{Key: "d", Window: 3 * time.Second, MaxWait: 9 * time.Second}
	})
	call := f.call("ns", full)
	call.Origin, call.By = "schedule:nightly", "tok2"
	f.admit(call, f.call("ns", bare), f.call("ns", debounced))

	want := job.Job{
		ID: full.ID, Namespace: "ns", Queue: "mail", Task: "send", Payload: full.Payload, Form: job.Args, State: job.Pending,
		Priority: -128, MaxAttempts: 7, Timeout: 90 * time.Second, BackoffBase: 1500 * time.Millisecond, BackoffMax: 2 * time.Minute,
		RunAt: full.RunAt, CreatedAt: epoch, Metadata: full.Metadata, UniqueKey: "inv-88", Origin: "schedule:nightly", EnqueuedBy: "tok2",
	}
	equal(f, "a job with every option", *f.job("ns", full.ID), want)
	want = job.Job{
		ID: bare.ID, Namespace: "ns", Queue: "default", Task: "t", State: job.Pending, MaxAttempts: 25, Timeout: 30 * time.Minute,
		BackoffBase: time.Second, BackoffMax: time.Hour, RunAt: epoch.Add(time.Microsecond), CreatedAt: epoch.Add(time.Microsecond),
		Origin: job.OriginEnqueue, EnqueuedBy: "tok1",
	}
	equal(f, "a job with none", *f.job("ns", bare.ID), want)
	want.ID, want.Debounce, want.CreatedAt = debounced.ID, debounced.Debounce, epoch.Add(2*time.Microsecond)
	want.RunAt = want.CreatedAt.Add(3 * time.Second)
	equal(f, "a debounced job", *f.job("ns", debounced.ID), want)
}

// admitInstants: the k-th job that a group makes in a namespace gets now + k µs,
// so that arrival order holds, and the results say so.
func admitInstants(f *fixture) {
	calls := []store.Call{f.call("a", f.specs(2)...), f.call("b", f.spec()), f.call("a", f.spec())}
	out := f.admit(calls...)
	for _, want := range []struct {
		call, job int
		after     time.Duration
	}{{0, 0, 0}, {0, 1, 1}, {1, 0, 0}, {2, 0, 2}} {
		at := epoch.Add(want.after * time.Microsecond)
		j := out[want.call].Results[want.job].Job
		if !j.CreatedAt.Equal(at) || !j.RunAt.Equal(at) {
			f.Errorf("call %d job %d: created %s, run at %s, want %s", want.call, want.job, j.CreatedAt, j.RunAt, at)
		}
		equal(f, "the stored job", *f.job(j.Namespace, j.ID), *j)
	}
	f.clock.Advance(time.Second)
	equal(f, "order", idsOf(f.claim("a", 3)), []string{calls[0].Jobs[0].ID, calls[0].Jobs[1].ID, calls[2].Jobs[0].ID})
}

func admitDelayed(f *fixture) {
	const ns = "ns"
	f.put(ns, `{"max_pending":3}`)
	j := f.enqueue(ns, f.spec(func(s *job.Spec) { s.Delay = time.Hour }))[0]
	equal(f, "run_at of a delay", j.RunAt, epoch.Add(time.Hour))
	j = f.enqueue(ns, f.spec(func(s *job.Spec) { s.RunAt = epoch.Add(2 * time.Hour) }))[0]
	equal(f, "run_at", j.RunAt, epoch.Add(2*time.Hour))
	past := f.enqueue(ns, f.spec(func(s *job.Spec) { s.RunAt = epoch.Add(-2 * time.Hour) }))[0]
	equal(f, "a past run_at is now", past.RunAt, epoch)
	f.holds(ns, counts{Pending: 3})
	f.refused(f.try(ns, f.spec()), fault.QueueFull)
	equal(f, "due now", idsOf(f.grant(ns, 10).Jobs), []string{past.ID})
}

func admitDelays(f *fixture) {
	at := epoch.Add(time.Minute)
	late := f.spec(func(s *job.Spec) { s.RunAt = at })
	specs := []job.Spec{
		f.spec(func(s *job.Spec) { s.Delay = 10 * time.Second }),
		f.spec(),
		f.spec(func(s *job.Spec) { s.Delay = 5 * time.Second }),
		f.spec(func(s *job.Spec) { s.RunAt = at }), // its id is above that of the next, which asks for the same instant
		late,
	}
	var got []time.Duration
	for _, j := range f.enqueue("ns", specs...) {
		got = append(got, j.RunAt.Sub(epoch))
	}
	const µs = time.Microsecond
	equal(f, "run_at after now", got, []time.Duration{10 * time.Second, µs, 5*time.Second + 2*µs, time.Minute, time.Minute + µs})
	f.clock.Set(at.Add(time.Second))
	equal(f, "order", idsOf(f.claim("ns", 5)), []string{specs[1].ID, specs[2].ID, specs[0].ID, specs[3].ID, late.ID})
}

// admitGroup: calls of one group are decided in order, each against what those
// before it leave, and none is harmed by another.
func admitGroup(f *fixture) {
	f.put("a", `{"max_pending":3}`)
	f.put("b", `{"max_pending":1}`)
	first := f.call("a", f.specs(2)...)
	stale := f.call("b", f.spec())
	stale.Stamp.Revision--
	conflict := f.call("a", f.spec(func(s *job.Spec) { s.ID, s.Task = first.Jobs[0].ID, "other" }))
	out := f.admit(
		first,
		f.call("b", f.spec()),
		f.call("a", f.specs(2)...), // one too many
		stale,
		f.call("b", f.spec()), // full by now
		conflict,
		f.call("c", f.specs(2)...), // never used before
		f.call("a", f.spec()),
		first, // repeated
	)
	for i, want := range []string{"ok", "ok", "QUEUE_FULL", "stale", "QUEUE_FULL", "ID_CONFLICT", "ok", "ok", "repeat"} {
		if got := outcome(out[i]); got != want {
			f.Errorf("call %d: %s, want %s", i, got, want)
		}
	}
	equal(f, "depth as the second call saw it", fault.Of(out[2].Err).Details["current"], "2")
	f.holds("a", counts{Pending: 3})
	f.holds("b", counts{Pending: 1})
	f.holds("c", counts{Pending: 2})
}

// outcome is an outcome in one word.
func outcome(o store.Outcome) string {
	switch {
	case errors.Is(o.Err, store.ErrStale):
		return "stale"
	case o.Err != nil:
		return string(fault.Of(o.Err).Reason)
	case o.Repeat:
		return "repeat"
	case o.Shed:
		return "shed"
	}
	return "ok"
}

func admitNothing(f *fixture) {
	out, err := f.s.Admit(f.ctx, nil)
	f.ok(err)
	equal(f, "outcomes", len(out), 0)
}

func admitRefused(f *fixture) {
	const ns = "ns"
	f.put(ns, `{"max_pending":2,"enqueue_rate":"10/h"}`)
	f.enqueue(ns, f.spec())
	before := f.usage(ns)
	refused := f.specs(2, func(s *job.Spec) { s.UniqueKey = "k" + s.ID })
	for range 3 {
		f.refused(f.try(ns, refused...), fault.QueueFull)
	}
	equal(f, "usage after refusals", f.usage(ns), before)
	for _, s := range refused {
		_, err := f.s.Job(f.ctx, ns, s.ID)
		f.reason(err, fault.NotFound)
	}
	f.enqueue(ns, refused[0]) // neither its id nor its key is taken
	f.holds(ns, counts{Pending: 2})
}

// admitReturned: what comes back is let in, above the cap.
func admitReturned(f *fixture) {
	const ns = "ingot"
	f.put(ns, `{"max_pending":10}`)
	f.enqueue(ns, f.specs(10)...)
	f.clock.Advance(time.Second)
	claims := f.claim(ns, 10)
	f.enqueue(ns, f.specs(10)...)
	f.holds(ns, counts{Pending: 10, Running: 10})
	f.settle(job.Failed, claims...)
	f.holds(ns, counts{Pending: 20})
	f.refused(f.try(ns, f.spec()), fault.QueueFull, "current", "20", "fits", "0")
	f.clock.Advance(2 * time.Hour)
	f.settle(job.Completed, f.claim(ns, 10)...)
	f.refused(f.try(ns, f.spec()), fault.QueueFull, "current", "10")
	f.settle(job.Completed, f.take(ns))
	f.enqueue(ns, f.spec())
	f.holds(ns, counts{Pending: 10, Archived: 11})
}

// admitPoisoned: what the database refuses is that call's
// own error; it leaves neither jobs nor spent tokens, and its neighbours,
// in its namespace and in others, are admitted.
func admitPoisoned(f *fixture) {
	if f.backend.Poison == nil {
		f.Skip("this database refuses all of a namespace or nothing: see the backend's own test")
	}
	f.put("a", `{"max_pending":10,"enqueue_rate":"8/h"}`)
	heal := f.backend.Poison(f, f.address, "poison")
	bad := f.specs(3)
	bad[1] = f.spec(func(s *job.Spec) { s.Task = "poison" })
	for round := range 2 {
		out := f.admit(f.call("a", f.spec()), f.call("a", bad...), f.call("b", f.specs(2)...), f.call("a", f.specs(2)...))
		for i := range out {
			if bad := i == 1; bad != (out[i].Err != nil) {
				f.Fatalf("round %d, call %d: %v", round, i, out[i].Err)
			}
		}
		if o := outcome(out[1]); o != string(fault.Internal) && o != string(fault.StorageUnavailable) {
			f.Errorf("a failing insert looks like %s", o)
		}
		f.holds("a", counts{Pending: int64(3 * (round + 1))})
		equal(f, "tokens", f.usage("a").Bucket.Tokens(), int64(8-3*(round+1)))
	}
	f.holds("b", counts{Pending: 4})
	for range 5 {
		if out, err := f.s.Admit(f.ctx, []store.Call{f.call("a", bad[1])}); err == nil && out[0].Err == nil {
			f.Fatal("the poisoned job was admitted")
		}
	}
	heal()
	f.enqueue("a", bad[:2]...)
	f.holds("a", counts{Pending: 8})
	equal(f, "tokens", f.usage("a").Bucket.Tokens(), int64(0))
}

func admitStale(f *fixture) {
	const ns = "ns"
	old := f.call(ns, f.spec())
	expect := func(what, want string, c store.Call) {
		f.Helper()
		before := countsOf(f.usage(ns))
		if got := outcome(f.admit(c)[0]); got != want {
			f.Fatalf("%s: %s, want %s", what, got, want)
		}
		if want == "stale" {
			f.holds(ns, before)
		}
	}
	f.put(ns, `{"max_pending":5}`)
	expect("before the first document", "stale", old)
	set := f.call(ns, f.spec())
	f.put(ns, `{"max_pending":5}`)
	expect("before the same document again", "stale", set)
	set = f.call(ns, f.spec())
	f.put(ns, "")
	expect("before a clear", "stale", set)
	cleared := f.call(ns, f.spec())
	f.setDefault(`{"max_pending":5}`)
	expect("before a default quota", "stale", cleared)
	inherited := f.call(ns, f.spec())
	f.setDefault(`{"max_pending":6}`)
	expect("before another default quota", "stale", inherited)
	inherited = f.call(ns, f.spec())
	f.setDefault("")
	expect("before the default quota was cleared", "stale", inherited)
	f.put(ns, `{"max_pending":5}`)
	own := f.call(ns, f.spec())
	f.setDefault(`{"max_pending":1}`)
	expect("a default quota that this namespace does not inherit", "ok", own)
}
