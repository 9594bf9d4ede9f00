package storetest

import (
	"fmt"
	"slices"
	"time"

	"flexiq/pkg/fault"
	"flexiq/pkg/job"
	"flexiq/pkg/store"
)

var eraseCases = []testcase{
	{"all of it, in batches, and nothing of others", eraseAll},
	{"taken up again by another process", eraseResumed},
	{"a namespace that never was", eraseNothing},
	{"while others write", eraseRace},
	{"one thing alone", eraseOne},
}

// furnish gives a namespace something of everything that can be erased.
func (f *fixture) furnish(ns string) (running store.Leased) {
	f.Helper()
	long := func(s *job.Spec) { s.Payload, s.Form = make([]byte, 10_000), job.Bytes }
	f.ok(f.s.PutToken(f.ctx, token("tok of "+ns, ns), "", store.Record{Namespace: ns, Operation: "create-token"}))
	exchanged := token("exchanged "+ns, ns)
	exchanged.ActingAs = "plat"
	f.ok(f.s.PutToken(f.ctx, exchanged, "", store.Record{Namespace: ns, Operation: "exchange-token"}))
	f.put(ns, `{"max_pending":100,"enqueue_rate":"1000/h"}`)
	f.set(ns, "key", "value")
	f.override(ns, store.OverrideTask, "t", most(1000))
	f.schedule(ns, "nightly", f.clock.Now().Add(time.Hour))
	f.trigger(store.Trigger{Namespace: ns, Name: "hook", Secret: []byte("secret"), Job: []byte("job")})
	f.trigger(store.Trigger{Namespace: ns, Name: "streamed", Stream: "orders", Job: []byte("job")})
	f.enqueue(ns, f.specs(5, long)...)
	signed := f.call(ns, f.spec(long))
	signed.Signature = &store.Signature{Sum: [32]byte{1}, Until: f.clock.Now().Add(24 * time.Hour)}
	f.ok(f.admit(signed)[0].Err)
	f.clock.Advance(time.Second)
	for i, c := range f.claim(ns, 4) {
		switch i {
		case 0, 1:
			f.settle(job.Completed, c)
		case 2:
			f.settle(job.GivenUp, c)
		case 3:
			running = c
		}
	}
	f.enqueue(ns, f.spec(withKey("held")), f.spec(func(s *job.Spec) { s.Delay = time.Hour }))
	f.enqueue(ns, f.spec(func(s *job.Spec) { s.Debounce = job.Debounce{Key: "d", Window: time.Second, MaxWait: time.Minute} }))
	f.put(ns, `{"max_pending":0,"on_excess":"drop","enqueue_rate":"1000/h"}`)
	f.admit(f.call(ns, f.specs(2, long)...))
	f.put(ns, `{"max_pending":100,"enqueue_rate":"1000/h"}`)
	f.holds(ns, counts{Pending: 5, Running: 1, Archived: 2, Dead: 3, Shed: 2})
	return running
}

// erase erases to the end and counts the batches.
func (f *fixture) erase(s store.Store, ns string, limit int) (batches int) {
	f.Helper()
	for {
		out, err := s.EraseNamespace(f.ctx, ns, limit)
		f.ok(err)
		if out.More && !out.Any {
			f.Fatal("nothing was erased, and more is left")
		}
		if batches++; !out.More {
			return batches
		}
		if batches > 1000 {
			f.Fatal("erasing does not end")
		}
	}
}

// nothingLeft checks that nothing of a namespace is left.
func (f *fixture) nothingLeft(ns string) {
	f.Helper()
	u := f.usage(ns)
	equal(f, "usage", u, store.Usage{Namespace: ns, Now: u.Now})
	equal(f, "document", f.document(ns), store.Document{})
	jobs, err := f.s.ListJobs(f.ctx, ns, store.Filter{}, "", 10)
	f.ok(err)
	equal(f, "jobs", len(jobs.Items), 0)
	settings, err := f.s.ListSettings(f.ctx, ns, "", 10)
	f.ok(err)
	equal(f, "settings", len(settings.Items), 0)
	schedules, err := f.s.ListSchedules(f.ctx, ns, "", 10)
	f.ok(err)
	equal(f, "schedules", len(schedules.Items), 0)
	triggers, err := f.s.ListTriggers(f.ctx, ns, "", 10)
	f.ok(err)
	equal(f, "triggers", len(triggers.Items), 0)
	overrides, err := f.s.Overrides(f.ctx, []string{ns})
	f.ok(err)
	equal(f, "overrides", len(overrides[0]), 0)
	tokens, err := f.s.ListTokens(f.ctx, ns, "", 10)
	f.ok(err)
	equal(f, "tokens", len(tokens.Items), 0)
	equal(f, "trail", len(f.trail(ns, store.AuditFilter{}, 10)), 0)
	names, err := f.s.Namespaces(f.ctx, "", 100)
	f.ok(err)
	if slices.Contains(names.Items, ns) {
		f.Errorf("%q is listed", ns)
	}
	if f.backend.Remains != nil {
		for _, what := range f.backend.Remains(f, f.address, ns) {
			f.Errorf("left in the database: %s", what)
		}
	}
}

func eraseAll(f *fixture) {
	const ns, neighbour = "a:b", "a"
	running := f.furnish(ns)
	f.furnish(neighbour)
	f.enqueue(ns, f.specs(20)...)
	before := f.document(neighbour)
	since := f.latest()
	for batches := 1; ; batches++ {
		out, err := f.s.EraseNamespace(f.ctx, ns, 3)
		f.ok(err)
		equal(f, "anything erased", out.Any, true)
		if found, err := f.s.Examine(f.ctx, ns, false); err != nil || len(found) > 0 {
			f.Fatalf("after %d batches: %+v, %v", batches, found, err)
		}
		if u := f.usage(ns); u.Pending+u.Running > 0 && u.Archived < 2 {
			f.Fatalf("history goes before jobs: %+v", u)
		}
		tokens, err := f.s.ListTokens(f.ctx, ns, "", 1)
		f.ok(err)
		if len(tokens.Items) > 0 && f.usage(ns).Pending < 25 {
			f.Fatal("jobs go before tokens")
		}
		if !out.More {
			if batches < 10 {
				f.Errorf("only %d batches of 3", batches)
			}
			break
		}
	}
	f.nothingLeft(ns)
	changes := f.changes(since)
	for _, c := range []store.Change{{Kind: store.KindQuota, Key: ns}, {Kind: store.KindToken, Key: "tok of " + ns}} {
		if !slices.Contains(changes, c) {
			f.Errorf("changes %+v do not tell of %+v", changes, c)
		}
	}
	f.holds(neighbour, counts{Pending: 5, Running: 1, Archived: 2, Dead: 3, Shed: 2})
	equal(f, "the neighbour's quota", f.document(neighbour), before)
	if _, err := f.s.Token(f.ctx, "tok of "+neighbour); err != nil {
		f.Error(err)
	}
	settled, _ := f.turn([]store.Settlement{ending(running, job.Completed)})
	equal(f, "a settlement of an erased job", settled[0], store.Settled{})
	again, err := f.s.EraseNamespace(f.ctx, ns, 100)
	f.ok(err)
	equal(f, "erased once more", again, store.Erased{})
	f.nothingLeft(ns)

	// It may be used anew.
	f.enqueue(ns, f.spec(withKey("held")))
	equal(f, "revision", f.put(ns, `{"max_pending":2}`).Stamp.Revision, int64(1))
	f.holds(ns, counts{Pending: 1})
	f.clock.Advance(time.Second)
	f.settle(job.Completed, f.take(ns))
}

func eraseResumed(f *fixture) {
	f.furnish("ns")
	for range 3 {
		out, err := f.s.EraseNamespace(f.ctx, "ns", 2)
		f.ok(err)
		equal(f, "erased", out, store.Erased{Any: true, More: true})
	}
	f.erase(f.open(), "ns", 500)
	f.nothingLeft("ns")
}

func eraseNothing(f *fixture) {
	f.furnish("ns")
	since := f.latest()
	for _, ns := range []string{"nobody", "NS", "n", "ns ", ""} {
		equal(f, "batches", f.erase(f.s, ns, 10), 1)
	}
	for _, c := range f.changes(since) {
		if c.Key == "ns" {
			f.Errorf("changed: %+v", c)
		}
	}
	f.holds("ns", counts{Pending: 5, Running: 1, Archived: 2, Dead: 3, Shed: 2})
}

// eraseOne: whatever a namespace has, alone, is something that was erased.
func eraseOne(f *fixture) {
	for what, make := range map[string]func(ns string){
		"token":    func(ns string) { f.ok(f.s.PutToken(f.ctx, token("tok", ns), "", store.Record{})) },
		"trail":    func(ns string) { f.ok(f.s.Audit(f.ctx, store.Record{Namespace: ns, Operation: "refused"})) },
		"schedule": func(ns string) { f.schedule(ns, "nightly", f.clock.Now().Add(time.Hour)) },
		"trigger": func(ns string) {
			f.trigger(store.Trigger{Namespace: ns, Name: "hook", Stream: "orders", Job: []byte("job")})
		},
		"setting":  func(ns string) { f.set(ns, "key", "value") },
		"quota":    func(ns string) { f.put(ns, `{"max_pending":1}`) },
		"override": func(ns string) { f.override(ns, store.OverrideQueue, "q", most(1)) },
		"job":      func(ns string) { f.enqueue(ns, f.spec()) },
		"signature": func(ns string) {
			equal(f, "signed", f.uses(ns, 1, f.clock.Now().Add(time.Hour)), true)
		},
	} {
		ns := "with a " + what
		make(ns)
		for i := 0; ; i++ {
			out, err := f.s.EraseNamespace(f.ctx, ns, 10)
			f.ok(err)
			if i == 0 && !out.Any {
				f.Errorf("%s: nothing was erased", what)
			}
			if !out.More {
				break
			}
		}
		f.nothingLeft(ns)
		out, err := f.s.EraseNamespace(f.ctx, ns, 10)
		f.ok(err)
		equal(f, what+" again", out, store.Erased{})
	}
}

// eraseRace: what others write meanwhile is refused, is erased, or stands as a
// whole, with right counts.
func eraseRace(f *fixture) {
	f.furnish("ns")
	other := f.open()
	calls := make([]store.Call, 20)
	for i := range calls {
		calls[i] = store.Call{Namespace: "ns", Origin: job.OriginEnqueue, By: "tok1", Jobs: f.specs(3)}
	}
	together(2, func(i int) {
		if i == 0 {
			for range 30 {
				if _, err := f.s.EraseNamespace(f.ctx, "ns", 2); err != nil {
					f.Errorf("erase: %v", err)
				}
			}
			return
		}
		for _, c := range calls {
			current, err := under(f.ctx, other, "ns")
			if err != nil {
				f.Errorf("quota: %v", err)
				return
			}
			c.Stamp, c.Quota = current.Stamp, current.Quota
			out, err := other.Admit(f.ctx, []store.Call{c})
			if err != nil || out[0].Err != nil && out[0].Err != store.ErrStale && !fault.Is(out[0].Err, fault.StorageUnavailable) {
				f.Errorf("admit: %+v, %v", out, err)
			}
		}
	})
	found, err := f.s.Examine(f.ctx, "ns", false)
	f.ok(err)
	equal(f, "findings", fmt.Sprint(found), "[]")
	f.erase(f.s, "ns", 100)
	f.nothingLeft("ns")
	_, err = f.s.Token(f.ctx, "tok of ns")
	f.reason(err, fault.NotFound)
}
