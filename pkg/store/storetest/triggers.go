package storetest

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"flexiq/pkg/fault"
	"flexiq/pkg/store"
)

var triggerCases = []testcase{
	{"put, get and delete", triggerPut},
	{"list", triggerList},
	{"those that read streams", triggerStreams},
	{"a signature is used once", triggerSignature},
	{"a refused call uses no signature up", triggerSignatureRefused},
	{"a signature in a group", triggerSignatureTogether},
	{"a signature is used once from many handles", triggerSignatureRace},
}

func (f *fixture) trigger(t store.Trigger) store.Trigger {
	f.Helper()
	t.Job, t.UpdatedBy = []byte("job\x00of "+t.Name), "adm1"
	r := auditRecord(t.Namespace, "put-trigger", t.Name)
	f.ok(f.s.PutTrigger(f.ctx, t, r))
	t.UpdatedAt = f.clock.Now()
	return t
}

func triggerPut(f *fixture) {
	const ns, name = "ns: *.>", "näme *"
	_, err := f.s.Trigger(f.ctx, ns, name)
	f.reason(err, fault.NotFound)
	f.reason(f.s.DeleteTrigger(f.ctx, ns, name, auditRecord(ns, "delete-trigger", name)), fault.NotFound)
	want := f.trigger(store.Trigger{Namespace: ns, Name: name, Secret: []byte("a\x00secret")})
	got, err := f.open().Trigger(f.ctx, ns, name)
	f.ok(err)
	equal(f, "an HTTP trigger", *got, want)
	f.clock.Advance(minute)
	want = f.trigger(store.Trigger{Namespace: ns, Name: name, Stream: "ORDERS"})
	got, err = f.s.Trigger(f.ctx, ns, name)
	f.ok(err)
	equal(f, "replaced by one of a stream", *got, want)
	if got.Secret != nil {
		f.Error("the secret stayed")
	}
	_, err = f.s.Trigger(f.ctx, "other", name)
	f.reason(err, fault.NotFound)
	f.ok(f.s.DeleteTrigger(f.ctx, ns, name, auditRecord(ns, "delete-trigger", name)))
	_, err = f.s.Trigger(f.ctx, ns, name)
	f.reason(err, fault.NotFound)
	equal(f, "records", len(f.trail(ns, store.AuditFilter{}, 10)), 3)
}

func triggerList(f *fixture) {
	for i := range 5 {
		f.trigger(store.Trigger{Namespace: "ns", Name: fmt.Sprintf("t%d", i)})
	}
	f.trigger(store.Trigger{Namespace: "nt", Name: "t9"})
	var names []string
	for after := ""; ; {
		page, err := f.s.ListTriggers(f.ctx, "ns", after, 2)
		f.ok(err)
		for _, t := range page.Items {
			names = append(names, t.Name)
		}
		if after = page.Next; after == "" {
			break
		}
	}
	equal(f, "names", names, []string{"t0", "t1", "t2", "t3", "t4"})
}

func triggerStreams(f *fixture) {
	want := map[string]bool{}
	for _, ns := range []string{"b", "a", "a: *"} {
		for i := range 4 {
			f.trigger(store.Trigger{Namespace: ns, Name: fmt.Sprintf("t%d", i), Stream: "S"})
			want[fmt.Sprintf("%s/t%d", ns, i)] = true
			f.trigger(store.Trigger{Namespace: ns, Name: fmt.Sprintf("core%d", i)})
		}
	}
	f.trigger(store.Trigger{Namespace: "b", Name: "t3"}) // reads none any more
	delete(want, "b/t3")
	f.ok(f.s.DeleteTrigger(f.ctx, "a", "t0", auditRecord("a", "delete-trigger", "t0")))
	delete(want, "a/t0")
	for _, limit := range []int{1, 3, 4, 100} {
		got := map[string]bool{}
		for after, pages := "", 0; ; pages++ {
			page, err := f.s.StreamTriggers(f.ctx, after, limit)
			f.ok(err)
			if len(page.Items) > limit || pages > 50 {
				f.Fatalf("%d entries on page %d of %d", len(page.Items), pages, limit)
			}
			for _, t := range page.Items {
				if key := t.Namespace + "/" + t.Name; got[key] {
					f.Errorf("%s is listed twice", key)
				} else {
					got[key] = true
				}
			}
			if after = page.Next; after == "" {
				break
			}
		}
		equal(f, fmt.Sprintf("by %d", limit), got, want)
	}
}

// signed is a call of one job with a signature.
func (f *fixture) signed(ns string, first byte, until time.Time) store.Call {
	c := f.call(ns, f.spec())
	c.Signature = &store.Signature{Sum: [32]byte{first, 31: 0xff}, Until: until}
	return c
}

// uses makes a signed call and reports whether its signature was new.
func (f *fixture) uses(ns string, first byte, until time.Time) bool {
	f.Helper()
	out := f.admit(f.signed(ns, first, until))[0]
	if errors.Is(out.Err, store.ErrSignature) && out.Results == nil {
		return false
	}
	f.ok(out.Err)
	return true
}

func triggerSignature(f *fixture) {
	until := epoch.Add(10 * minute)
	equal(f, "first use", f.uses("a", 1, until), true)
	equal(f, "second use", f.uses("a", 1, until), false)
	equal(f, "another signature", f.uses("a", 2, until), true)
	equal(f, "another namespace", f.uses("b", 1, until), true)
	f.holds("a", counts{Pending: 2})
	f.clock.Advance(10 * minute)
	equal(f, "at its last moment", f.uses("a", 2, until), false)
	f.clock.Advance(time.Microsecond)
	equal(f, "outlived", f.uses("a", 2, until.Add(time.Hour)), true)
	equal(f, "and used again", f.uses("a", 2, until.Add(time.Hour)), false)
	f.holds("a", counts{Pending: 3})
}

// triggerSignatureRefused: only what is written uses a signature up, and that
// whatever became of its job since.
func triggerSignatureRefused(f *fixture) {
	const ns = "ns"
	until := epoch.Add(10 * minute)
	f.put(ns, `{"max_pending":0}`)
	for range 2 {
		f.reason(f.admit(f.signed(ns, 1, until))[0].Err, fault.QueueFull)
	}
	stale := f.signed(ns, 1, until)
	f.put(ns, `{"max_pending":1,"enqueue_rate":"3/h"}`)
	if out := f.admit(stale)[0]; !errors.Is(out.Err, store.ErrStale) {
		f.Fatalf("with an old stamp: %+v", out)
	}
	call := f.signed(ns, 1, until)
	f.ok(f.admit(call)[0].Err)
	if out := f.admit(call)[0]; !errors.Is(out.Err, store.ErrSignature) {
		f.Errorf("the same call again: %+v", out)
	}
	equal(f, "while the namespace is full", f.uses(ns, 1, until), false)
	f.cancel(ns, call.Jobs[0].ID)
	f.put(ns, `{"max_pending":0,"on_excess":"drop"}`)
	equal(f, "when its job has ended", f.uses(ns, 1, until), false)
	equal(f, "of a call that is shed", f.uses(ns, 2, until), true)
	equal(f, "after it was shed", f.uses(ns, 2, until), false)
	f.holds(ns, counts{Archived: 1, Dead: 1, Shed: 1})
}

// triggerSignatureTogether: of calls of one group with a signature the first is
// carried out, and one that is refused leaves it to the next.
func triggerSignatureTogether(f *fixture) {
	const ns = "ns"
	until := epoch.Add(10 * minute)
	f.put(ns, `{"max_pending":2}`)
	large := f.call(ns, f.specs(3)...)
	large.Signature = &store.Signature{Sum: [32]byte{1, 31: 0xff}, Until: until}
	out := f.admit(large, f.signed(ns, 1, until), f.signed(ns, 1, until), f.signed(ns, 2, until), f.signed("other", 1, until))
	f.reason(out[0].Err, fault.QueueFull)
	f.ok(out[1].Err)
	if !errors.Is(out[2].Err, store.ErrSignature) {
		f.Errorf("the second of a signature: %+v", out[2])
	}
	f.ok(out[3].Err)
	f.ok(out[4].Err)
	f.holds(ns, counts{Pending: 2})
}

func triggerSignatureRace(f *fixture) {
	const rounds, users = 10, 8
	handles := []store.Store{f.s, f.open(), f.open()}
	var first atomic.Int64
	for round := range rounds {
		calls := make([]store.Call, users)
		for i := range calls {
			calls[i] = f.signed("ns", byte(round), epoch.Add(minute))
		}
		together(users, func(i int) {
			out, err := handles[i%len(handles)].Admit(f.ctx, calls[i:i+1])
			if err == nil && !errors.Is(out[0].Err, store.ErrSignature) {
				err = out[0].Err
				first.Add(1)
			}
			if err != nil {
				f.Errorf("signed call: %v", err)
			}
		})
	}
	equal(f, "first users", first.Load(), int64(rounds))
	f.holds("ns", counts{Pending: rounds})
}
