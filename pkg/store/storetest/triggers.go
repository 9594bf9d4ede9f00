package storetest

import (
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

func triggerSignature(f *fixture) {
	use := func(ns string, first byte, until time.Time) bool {
		f.Helper()
		fresh, err := f.s.UseSignature(f.ctx, ns, [32]byte{first, 31: 0xff}, until)
		f.ok(err)
		return fresh
	}
	until := epoch.Add(10 * minute)
	equal(f, "first use", use("a", 1, until), true)
	equal(f, "second use", use("a", 1, until), false)
	equal(f, "another signature", use("a", 2, until), true)
	equal(f, "another namespace", use("b", 1, until), true)
	f.ok(f.s.FreeSignature(f.ctx, "a", [32]byte{1, 31: 0xff}))
	equal(f, "a freed one", use("a", 1, until), true)
	equal(f, "the other stays", use("a", 2, until), false)
	f.clock.Advance(10*minute + time.Second)
	equal(f, "outlived", use("a", 2, until.Add(time.Hour)), true)
}

func triggerSignatureRace(f *fixture) {
	const rounds, users = 10, 8
	handles := []store.Store{f.s, f.open(), f.open()}
	var first atomic.Int64
	for round := range rounds {
		together(users, func(i int) {
			fresh, err := handles[i%len(handles)].UseSignature(f.ctx, "ns", [32]byte{byte(round)}, epoch.Add(minute))
			if err != nil {
				f.Errorf("UseSignature: %v", err)
			}
			if fresh {
				first.Add(1)
			}
		})
	}
	equal(f, "first users", first.Load(), int64(rounds))
}
