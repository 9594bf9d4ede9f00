package storetest

import (
	"time"

	"flexiq/pkg/job"
	"flexiq/pkg/store"
)

var shedCases = []testcase{
	{"a shed batch", shedBatch},
	{"everything but the keys is kept", shedShape},
	{"never live", shedNeverLive},
	{"keys are not taken", shedKeys},
	{"a shed flood", shedFlood},
}

// shedBatch: a batch is shed whole.
func shedBatch(f *fixture) {
	const ns = "hasp"
	f.put(ns, `{"max_pending":5,"on_excess":"drop"}`)
	f.enqueue(ns, f.specs(3)...)
	out := f.try(ns, f.specs(6)...)
	f.ok(out.Err)
	if !out.Shed || out.Repeat || len(out.Results) != 6 {
		f.Fatalf("got %+v", out)
	}
	for i, r := range out.Results {
		if r.Deduplicated || r.Debounced || r.Job.State != job.Dead || !r.Job.Shed() {
			f.Errorf("result %d: %+v", i, r)
		}
	}
	f.holds(ns, counts{Pending: 3, Dead: 6, Shed: 6})
	f.enqueue(ns, f.specs(2)...)
	f.holds(ns, counts{Pending: 5, Dead: 6, Shed: 6})
	equal(f, "outcome when full", outcome(f.try(ns, f.spec())), "shed")
	f.holds(ns, counts{Pending: 5, Dead: 7, Shed: 7})
}

func shedShape(f *fixture) {
	const ns = "it's"
	f.put(ns, `{"max_pending":0,"on_excess":"drop"}`)
	spec := f.spec(func(s *job.Spec) {
		*s = job.Spec{
			ID: s.ID, Queue: "mail", Task: "send", Payload: []byte("\x00p"), Form: job.Bytes, Priority: 5, RunAt: epoch.Add(time.Hour),
			MaxAttempts: 3, Timeout: time.Minute, BackoffBase: time.Second, BackoffMax: time.Minute, UniqueKey: "u", Metadata: map[string]string{"a": "b"},
		}
	})
	out := f.try(ns, spec)
	want := job.Job{
		ID: spec.ID, Namespace: ns, Queue: "mail", Task: "send", Payload: []byte("\x00p"), Form: job.Bytes, State: job.Dead, Priority: 5,
		MaxAttempts: 3, Timeout: time.Minute, BackoffBase: time.Second, BackoffMax: time.Minute, RunAt: epoch.Add(time.Hour),
		CreatedAt: epoch, FinishedAt: epoch, Error: "quota: namespace 'it's' is over max_pending 0 with 0 pending",
		Metadata: map[string]string{"a": "b"}, Origin: job.OriginEnqueue, EnqueuedBy: "tok1", DeadMetadata: map[string]string{"shed": "quota"},
	}
	equal(f, "the dead letter", *f.job(ns, spec.ID), want)
	want.Payload = nil
	equal(f, "the result", *out.Results[0].Job, want)
	equal(f, "the listing", f.list(ns, store.Filter{}, 10), []job.Job{want})

	debounced := f.spec(func(s *job.Spec) { s.Debounce = job.Debounce{Key: "d", Window: time.Second} })
	f.try(ns, debounced)
	equal(f, "debounce", f.job(ns, debounced.ID).Debounce, job.Debounce{})
}

func shedNeverLive(f *fixture) {
	const ns = "ns"
	f.put(ns, `{"max_pending":0,"on_excess":"drop"}`)
	spec := f.spec()
	f.try(ns, spec)
	f.clock.Advance(time.Hour)
	equal(f, "claimed", len(f.grant(ns, 10).Jobs), 0)
	ready, err := f.s.Ready(f.ctx, []store.Interest{{Namespace: ns}})
	f.ok(err)
	equal(f, "ready", ready, []store.Readiness{{}})
	equal(f, "expired", len(f.expire()), 0)
	c, err := f.s.Cancel(f.ctx, ns, store.Selection{IDs: []string{spec.ID}}, 10)
	f.ok(err)
	equal(f, "cancelled", c, store.Cancelled{NotFound: 1})
	c, err = f.s.Cancel(f.ctx, ns, store.Selection{}, 10)
	f.ok(err)
	equal(f, "cancelled by filter", c, store.Cancelled{})
	f.holds(ns, counts{Dead: 1, Shed: 1})
}

// shedKeys: what was shed blocks no later enqueue of the same work.
func shedKeys(f *fixture) {
	const ns = "quill"
	unique := func(s *job.Spec) { s.UniqueKey = "bill-4" }
	debounce := func(s *job.Spec) { s.Debounce = job.Debounce{Key: "d", Window: time.Second} }
	f.put(ns, `{"max_pending":0,"on_excess":"drop"}`)
	out := f.admit(f.call(ns, f.spec(unique)), f.call(ns, f.specs(2, unique)...), f.call(ns, f.spec(debounce)), f.call(ns, f.spec(debounce)))
	for i, o := range out {
		equal(f, "outcome", outcome(o), "shed")
		for _, r := range o.Results {
			if r.Deduplicated || r.Debounced {
				f.Errorf("call %d met a shed job: %+v", i, r)
			}
		}
	}
	f.holds(ns, counts{Dead: 5, Shed: 5})
	f.put(ns, "")
	u, d := f.spec(unique), f.spec(debounce)
	equal(f, "a new job with the unique key", f.enqueue(ns, u)[0].ID, u.ID)
	equal(f, "a new job with the debounce key", f.enqueue(ns, d)[0].ID, d.ID)
	f.holds(ns, counts{Pending: 2, Dead: 5, Shed: 5})
}

// shedFlood: real and shed dead letters are told apart.
func shedFlood(f *fixture) {
	const ns = "ns"
	f.finish(ns, 5, job.GivenUp)
	f.put(ns, `{"max_pending":0,"on_excess":"drop"}`)
	for range 3 {
		f.try(ns, f.specs(100)...)
	}
	f.holds(ns, counts{Dead: 305, Shed: 300})
	equal(f, "real ones", len(f.list(ns, store.Filter{State: job.Dead, Shed: new(false)}, 7)), 5)
	equal(f, "shed ones", len(f.list(ns, store.Filter{State: job.Dead, Shed: new(true)}, 100)), 300)
}
