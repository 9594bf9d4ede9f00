package storetest

import (
	"fmt"
	"time"

	"flexiq/pkg/fault"
	"flexiq/pkg/job"
	"flexiq/pkg/store"
)

var overrideCases = []testcase{
	{"set, replaced and cleared", overrideKept},
	{"the trail and the changes", overrideTold},
	{"names are bytes", overrideNames},
}

// set puts an override that a turn obeys.
func (f *fixture) override(ns string, kind store.OverrideKind, name string, options ...func(*store.Override)) {
	f.Helper()
	o := store.Override{Namespace: ns, Kind: kind, Name: name, UpdatedBy: "adm1"}
	for _, option := range options {
		option(&o)
	}
	f.ok(f.s.PutOverride(f.ctx, o, f.overriding("set-override", ns, kind, name)))
}

func (f *fixture) overriding(operation, ns string, kind store.OverrideKind, name string) store.Record {
	return store.Record{Namespace: ns, TokenID: "adm1", Door: "nats", Operation: operation, TargetKind: string(kind), Target: name}
}

func (f *fixture) clearOverride(ns string, kind store.OverrideKind, name string) {
	f.Helper()
	f.ok(f.s.ClearOverride(f.ctx, ns, kind, name, f.overriding("clear-override", ns, kind, name)))
}

func most(n int64) func(*store.Override)   { return func(o *store.Override) { o.MaxConcurrent = &n } }
func paused(is bool) func(*store.Override) { return func(o *store.Override) { o.Paused = &is } }

func overrideKept(f *fixture) {
	const ns = "ns"
	all := func() []store.Override {
		f.Helper()
		got, err := f.s.Overrides(f.ctx, []string{"none", ns})
		f.ok(err)
		equal(f, "of a namespace without any", len(got[0]), 0)
		return got[1]
	}
	full := store.Override{
		Namespace: ns, Kind: store.OverrideTask, Name: "t", MaxConcurrent: new(int64(0)), Paused: new(false), MaxAttempts: new(int32(3)),
		Timeout: new(90 * time.Second), Priority: new(int32(-7)), UpdatedBy: "adm1",
	}
	f.ok(f.s.PutOverride(f.ctx, full, f.overriding("set-override", ns, full.Kind, full.Name)))
	full.UpdatedAt = f.clock.Now()
	f.override(ns, store.OverrideQueue, "z", most(5))
	f.override(ns, store.OverrideQueue, "a")
	queue := func(name string, limit *int64) store.Override {
		return store.Override{Namespace: ns, Kind: store.OverrideQueue, Name: name, MaxConcurrent: limit, UpdatedAt: f.clock.Now(), UpdatedBy: "adm1"}
	}
	equal(f, "all, by kind and name", all(), []store.Override{queue("a", nil), queue("z", new(int64(5))), full})

	f.clock.Advance(time.Minute)
	f.override(ns, store.OverrideTask, "t", paused(true))
	equal(f, "replaced, nothing of before is left", all()[2], store.Override{
		Namespace: ns, Kind: store.OverrideTask, Name: "t", Paused: new(true), UpdatedAt: f.clock.Now(), UpdatedBy: "adm1"})
	f.clearOverride(ns, store.OverrideTask, "t")
	equal(f, "cleared", len(all()), 2)
	missing := func(kind store.OverrideKind, name string) {
		f.Helper()
		f.reason(f.s.ClearOverride(f.ctx, ns, kind, name, f.overriding("clear-override", ns, kind, name)), fault.NotFound)
	}
	missing(store.OverrideTask, "t")
	missing(store.OverrideTask, "z")
	f.reason(f.s.ClearOverride(f.ctx, "none", store.OverrideQueue, "z", store.Record{}), fault.NotFound)
}

func overrideTold(f *fixture) {
	const ns = "ns"
	before, err := f.s.Changes(f.ctx, 0, 100)
	f.ok(err)
	f.override(ns, store.OverrideQueue, "q", most(1))
	f.override(ns, store.OverrideQueue, "q", most(2), paused(true))
	f.clearOverride(ns, store.OverrideQueue, "q")
	_ = f.s.ClearOverride(f.ctx, ns, store.OverrideQueue, "q", f.overriding("clear-override", ns, store.OverrideQueue, "q"))
	changes, err := f.s.Changes(f.ctx, before.Latest, 100)
	f.ok(err)
	equal(f, "changes", changes.Items, []store.Change{{Kind: store.KindOverride, Key: ns}})
	page, err := f.s.ListAudit(f.ctx, ns, store.AuditFilter{}, "", 100)
	f.ok(err)
	record := func(operation, old, now string) store.Record {
		r := f.overriding(operation, ns, store.OverrideQueue, "q")
		r.Time, r.Outcome, r.Old, r.New = f.clock.Now(), "ok", old, now
		return r
	}
	equal(f, "audit", page.Items, []store.Record{
		record("set-override", "", `{"max_concurrent":1}`),
		record("set-override", `{"max_concurrent":1}`, `{"max_concurrent":2,"paused":true}`),
		record("clear-override", `{"max_concurrent":2,"paused":true}`, ""),
	})
}

func overrideNames(f *fixture) {
	const ns, other = "a", "a:b"
	for i, name := range []string{"q", "Q", "é", "q:q", "b:q", `%_[*]?"'`} {
		for _, kind := range []store.OverrideKind{store.OverrideQueue, store.OverrideTask} {
			f.override(ns, kind, name, most(int64(i)))
		}
	}
	f.override(other, store.OverrideQueue, "q", most(99))
	got, err := f.s.Overrides(f.ctx, []string{ns, other})
	f.ok(err)
	limits := map[string]int64{}
	for _, o := range got[0] {
		limits[fmt.Sprint(o.Kind, " ", o.Name)] = *o.MaxConcurrent
	}
	equal(f, "overrides of one namespace", len(limits), 12)
	for i, name := range []string{"q", "Q", "é", "q:q", "b:q", `%_[*]?"'`} {
		equal(f, "limit of "+name, [2]int64{limits["queue "+name], limits["task "+name]}, [2]int64{int64(i), int64(i)})
	}
	equal(f, "overrides of the other", len(got[1]), 1)
	f.enqueue(ns, f.spec(queueOf("Q")), f.spec(queueOf("Q")), f.spec(queueOf("q")))
	f.clock.Advance(time.Second)
	equal(f, "under the limit of its own queue", len(f.grant(ns, 9).Jobs), 1)
}

func taskOf(name string) func(*job.Spec) { return func(s *job.Spec) { s.Task = name } }
