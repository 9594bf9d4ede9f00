package storetest

import (
	"time"

	"flexiq/pkg/fault"
	"flexiq/pkg/job"
	"flexiq/pkg/store"
)

var keyCases = []testcase{
	{"a duplicate returns the holder", uniqueHolder},
	{"duplicates spend no depth", uniqueDepth},
	{"inside one batch and one group", uniqueTogether},
	{"held while pending and running, freed by every end", uniqueFreed},
	{"one key in two namespaces", uniqueNamespaces},
	{"unique keys from many clients", uniqueRace},
	{"debounce replaces and moves", debounceMoves},
	{"debounce waits no longer than max_wait", debounceMaxWait},
	{"debounce ends when the job runs", debounceRunning},
	{"debounce under a limit", debounceLimits},
	{"debounce inside one group", debounceGroup},
}

func withKey(key string) func(*job.Spec) { return func(s *job.Spec) { s.UniqueKey = key } }

func uniqueHolder(f *fixture) {
	const ns = "ns"
	first := f.spec(withKey("inv-88"), func(s *job.Spec) { s.Task, s.Payload, s.Form = "first", []byte("one"), job.Bytes })
	f.enqueue(ns, first)
	second := f.spec(withKey("inv-88"), func(s *job.Spec) { s.Task, s.Queue = "second", "q" })
	out := f.try(ns, second)
	f.ok(out.Err)
	r := out.Results[0]
	if !r.Deduplicated || r.Debounced || out.Repeat || out.Shed {
		f.Fatalf("got %+v", out)
	}
	holder := *f.job(ns, first.ID)
	equal(f, "payload", string(holder.Payload), "one")
	holder.Payload = nil
	equal(f, "the holder", *r.Job, holder)
	_, err := f.s.Job(f.ctx, ns, second.ID)
	f.reason(err, fault.NotFound)
}

// uniqueDepth: a duplicate adds nothing to the depth.
func uniqueDepth(f *fixture) {
	const ns = "tansy"
	f.put(ns, `{"max_pending":10}`)
	holder := f.enqueue(ns, f.spec(withKey("inv-88")))[0]
	for range 60 {
		r := f.try(ns, f.spec(withKey("inv-88"))).Results[0]
		if !r.Deduplicated || r.Job.ID != holder.ID {
			f.Fatalf("got %+v", r)
		}
	}
	f.holds(ns, counts{Pending: 1})
	for range 9 {
		f.enqueue(ns, f.spec())
	}
	f.refused(f.try(ns, f.spec()), fault.QueueFull, "current", "10")
	f.refused(f.try(ns, f.spec(withKey("inv-88"))), fault.QueueFull, "current", "10") // limits come before keys
}

func uniqueTogether(f *fixture) {
	const ns = "ns"
	f.put(ns, `{"max_pending":4}`)
	batch := []job.Spec{f.spec(withKey("a")), f.spec(withKey("a")), f.spec(withKey("b")), f.spec(withKey("a"))}
	later := f.call(ns, f.spec(withKey("b")), f.spec(withKey("c")))
	out := f.admit(f.call(ns, batch...), later)
	for i, want := range []struct {
		r   store.Result
		id  string
		dup bool
	}{
		{out[0].Results[0], batch[0].ID, false}, {out[0].Results[1], batch[0].ID, true}, {out[0].Results[2], batch[2].ID, false},
		{out[0].Results[3], batch[0].ID, true}, {out[1].Results[0], batch[2].ID, true}, {out[1].Results[1], later.Jobs[1].ID, false},
	} {
		if want.r.Job.ID != want.id || want.r.Deduplicated != want.dup {
			f.Errorf("result %d: %s, duplicate: %t; want %s, %t", i, want.r.Job.ID, want.r.Deduplicated, want.id, want.dup)
		}
	}
	f.holds(ns, counts{Pending: 3})
}

// uniqueFreed: the key's life is the job's, however it ends.
func uniqueFreed(f *fixture) {
	const ns = "quill"
	held := func(by string) {
		f.Helper()
		r := f.try(ns, f.spec(withKey("bill-3"))).Results[0]
		if !r.Deduplicated || r.Job.ID != by {
			f.Fatalf("the key of %s is not held: %+v", by, r)
		}
	}
	ends := map[string]func(store.Leased){
		"completion": func(l store.Leased) { f.settle(job.Completed, l) },
		"death":      func(l store.Leased) { f.settle(job.GivenUp, l) },
		"last attempt": func(l store.Leased) {
			f.settle(job.Failed, l)
			held(l.Job.ID)
			f.clock.Advance(2 * time.Hour)
			f.settle(job.Failed, f.take(ns))
		},
		"lost worker": func(l store.Leased) {
			f.clock.Advance(lease)
			f.expire()
			held(l.Job.ID)
			f.take(ns)
			f.clock.Advance(lease)
			f.expire()
		},
		"release, then completion": func(l store.Leased) {
			f.settle(job.Released, l)
			held(l.Job.ID)
			f.settle(job.Completed, f.take(ns))
		},
		"cancelled while pending": func(l store.Leased) {
			f.settle(job.Released, l)
			_, err := f.s.Cancel(f.ctx, ns, store.Selection{IDs: []string{l.Job.ID}}, 1)
			f.ok(err)
		},
		"cancelled while running": func(l store.Leased) {
			_, err := f.s.Cancel(f.ctx, ns, store.Selection{IDs: []string{l.Job.ID}}, 1)
			f.ok(err)
			held(l.Job.ID)
			f.settle(job.Failed, l)
		},
	}
	for name, end := range ends {
		spec := f.spec(withKey("bill-3"), func(s *job.Spec) { s.MaxAttempts = 2 })
		if r := f.try(ns, spec).Results[0]; r.Deduplicated || r.Job.ID != spec.ID {
			f.Fatalf("before %s: the key is still held by %s", name, r.Job.ID)
		}
		held(spec.ID)
		f.clock.Advance(time.Second)
		l := f.take(ns)
		held(spec.ID)
		end(l)
		if s := f.job(ns, spec.ID).State; s == job.Pending || s == job.Running {
			f.Fatalf("after %s the job is %s", name, s)
		}
	}
	f.holds(ns, counts{Archived: 4, Dead: 3})
}

func uniqueNamespaces(f *fixture) {
	a, b := f.spec(withKey("k")), f.spec(withKey("k"))
	equal(f, "in a", f.enqueue("a", a)[0].ID, a.ID)
	equal(f, "in b", f.enqueue("b", b)[0].ID, b.ID)
}

func uniqueRace(f *fixture) {
	const ns, clients = "ns", 12
	handles := []store.Store{f.s, f.open(), f.open()}
	calls, ids := make([]store.Call, clients), make([]string, clients)
	for i := range calls {
		calls[i] = f.call(ns, f.spec(withKey("k")))
	}
	together(clients, func(i int) {
		out, err := handles[i%len(handles)].Admit(f.ctx, calls[i:i+1])
		if err != nil || out[0].Err != nil {
			f.Errorf("client %d: %v, %+v", i, err, out)
			return
		}
		ids[i] = out[0].Results[0].Job.ID
	})
	for i := range ids {
		equal(f, "the job that a client was told", ids[i], ids[0])
	}
	f.holds(ns, counts{Pending: 1})
}

func debounced(window, maxWait time.Duration, payload string) func(*job.Spec) {
	return func(s *job.Spec) {
		s.Debounce = job.Debounce{Key: "d", Window: window, MaxWait: maxWait}
		s.Payload, s.Form = []byte(payload), job.Bytes
	}
}

func debounceMoves(f *fixture) {
	const ns = "quill"
	first := f.spec(debounced(2*time.Second, 0, "one"))
	equal(f, "first run_at", f.enqueue(ns, first)[0].RunAt, epoch.Add(2*time.Second))
	f.clock.Advance(1500 * time.Millisecond)
	second := f.spec(debounced(2*time.Second, 0, "two"))
	out := f.try(ns, second)
	f.ok(out.Err)
	r := out.Results[0]
	if !r.Debounced || r.Deduplicated || r.Job.ID != first.ID || r.Job.Payload != nil {
		f.Fatalf("got %+v", r)
	}
	equal(f, "second run_at", r.Job.RunAt, epoch.Add(3500*time.Millisecond))
	j := f.job(ns, first.ID)
	equal(f, "payload", string(j.Payload), "two")
	equal(f, "stored run_at", j.RunAt, r.Job.RunAt)
	equal(f, "created", j.CreatedAt, epoch)
	_, err := f.s.Job(f.ctx, ns, second.ID)
	f.reason(err, fault.NotFound)
	f.holds(ns, counts{Pending: 1})
	f.clock.Advance(time.Second) // the first window is over, the second is not
	equal(f, "claimed in the window", len(f.grant(ns, 1).Jobs), 0)
	f.clock.Advance(time.Second)
	equal(f, "claimed after it", string(f.take(ns).Job.Payload), "two")
	none := f.spec(debounced(2*time.Second, 0, ""), func(s *job.Spec) { s.Payload, s.Form = nil, job.NoPayload })
	f.enqueue(ns, f.spec(debounced(2*time.Second, 0, "three")))
	f.enqueue(ns, none)
	j = f.state(ns, f.list(ns, store.Filter{State: job.Pending}, 10)[0].ID, job.Pending)
	equal(f, "a payload replaced by none", [2]int{len(j.Payload), int(j.Form)}, [2]int{0, int(job.NoPayload)})
}

func debounceMaxWait(f *fixture) {
	const ns = "quill"
	f.enqueue(ns, f.spec(debounced(2*time.Second, 5*time.Second, "0")))
	var got []time.Duration
	for range 5 {
		f.clock.Advance(time.Second)
		got = append(got, f.try(ns, f.spec(debounced(2*time.Second, 5*time.Second, "n"))).Results[0].Job.RunAt.Sub(epoch))
	}
	equal(f, "run_at", got, []time.Duration{3 * time.Second, 4 * time.Second, 5 * time.Second, 5 * time.Second, 5 * time.Second})
	f.take(ns)
}

// debounceRunning: an update during the run is not lost.
func debounceRunning(f *fixture) {
	const ns = "quill"
	first := f.spec(debounced(time.Second, 0, "one"))
	f.enqueue(ns, first)
	f.clock.Advance(time.Second)
	l := f.take(ns)
	second := f.spec(debounced(time.Second, 0, "two"))
	equal(f, "while it runs", f.enqueue(ns, second)[0].ID, second.ID)
	f.settle(job.Failed, l) // back to pending: now two wait with one key
	f.holds(ns, counts{Pending: 2})
	r := f.try(ns, f.spec(debounced(time.Second, 0, "three"))).Results[0]
	if !r.Debounced {
		f.Fatalf("got %+v", r)
	}
	f.clock.Advance(2 * time.Hour)
	f.settle(job.Completed, f.claim(ns, 2)...)
	equal(f, "after quiet", f.try(ns, f.spec(debounced(time.Second, 0, "four"))).Results[0].Debounced, false)
}

func debounceLimits(f *fixture) {
	const ns = "quill"
	f.put(ns, `{"max_pending":2,"enqueue_rate":"4/h"}`)
	f.enqueue(ns, f.spec(debounced(time.Second, 0, "one")))
	f.enqueue(ns, f.spec(debounced(time.Second, 0, "two")))
	f.holds(ns, counts{Pending: 1})
	equal(f, "tokens", f.usage(ns).Bucket.Tokens(), int64(2))
	f.enqueue(ns, f.spec())
	f.refused(f.try(ns, f.spec(debounced(time.Second, 0, "three"))), fault.QueueFull)
	equal(f, "payload after a refusal", string(f.job(ns, idOf(1)).Payload), "two")
}

func debounceGroup(f *fixture) {
	const ns = "quill"
	first := f.call(ns, f.spec(debounced(2*time.Second, 0, "one")))
	out := f.admit(first, f.call(ns, f.spec(debounced(3*time.Second, 0, "two"))), f.call("other", f.spec(debounced(time.Second, 0, "x"))))
	r := out[1].Results[0]
	if out[0].Results[0].Debounced || !r.Debounced || r.Job.ID != first.Jobs[0].ID || out[2].Results[0].Debounced {
		f.Fatalf("got %+v", out)
	}
	j := f.job(ns, first.Jobs[0].ID)
	equal(f, "payload and run_at", []string{string(j.Payload), j.RunAt.Sub(epoch).String()}, []string{"two", "3s"})
	f.clock.Advance(time.Second)
	f.admit(f.call(ns, f.spec(debounced(2*time.Second, 0, "three"))), f.call(ns, f.spec(debounced(2*time.Second, 0, "four"))))
	equal(f, "payload", string(f.job(ns, first.Jobs[0].ID).Payload), "four")
	f.holds(ns, counts{Pending: 1})
}
