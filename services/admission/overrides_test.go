package admission

import (
	"context"
	"fmt"
	"testing"
	"time"

	"flexiq/pkg/configcache"
	"flexiq/pkg/fault"
	"flexiq/pkg/job"
	"flexiq/pkg/store"
)

// overridden sets an override in the store and tells the cache, as a hint does.
func (f *fixture) overridden(o store.Override) {
	f.Helper()
	f.must(f.store.PutOverride(f.Context(), o, store.Record{Namespace: o.Namespace}))
	f.caches.Hint(store.KindOverride, o.Namespace, 0)
}

// Defaults of overrides go into jobs that leave the option open, on every way in,
// and an option that the caller chose stays.
func TestDefaultsAreWrittenIntoJobs(t *testing.T) {
	f := newFixture(t)
	const ns = "lark"
	options := func(j any) string {
		m := j.(map[string]any)
		return fmt.Sprint(m["max_attempts"], " ", m["priority"])
	}
	enqueue := func(spec string) string {
		t.Helper()
		return options(f.ok(ns, "Enqueue", `{"job":`+spec+`}`)["result"].(map[string]any)["job"])
	}
	if got := enqueue(`{"task":"mail"}`); got != "25 0" {
		t.Errorf("without overrides: %s", got)
	}
	minute := time.Minute
	f.overridden(store.Override{Namespace: ns, Kind: store.OverrideQueue, Name: "default", MaxAttempts: new(int32(7)), Priority: new(int32(-3)), Timeout: &minute})
	f.overridden(store.Override{Namespace: ns, Kind: store.OverrideTask, Name: "mail", MaxAttempts: new(int32(2))})
	f.overridden(store.Override{Namespace: "wren", Kind: store.OverrideTask, Name: "mail", MaxAttempts: new(int32(99))})
	for spec, want := range map[string]string{
		`{"task":"mail"}`:                                "2 -3",
		`{"task":"mail","queue":"other"}`:                "2 0",
		`{"task":"other"}`:                               "7 -3",
		`{"task":"other","queue":"default"}`:             "7 -3",
		`{"task":"other","queue":"other"}`:               "25 0",
		`{"task":"mail","max_attempts":25,"priority":0}`: "25 0",
		`{"task":"other","priority":5}`:                  "7 5",
	} {
		if got := enqueue(spec); got != want {
			t.Errorf("%s: %s, want %s", spec, got, want)
		}
	}
	batch := f.ok(ns, "EnqueueBatch", `{"jobs":[{"task":"mail"},{"task":"mail","max_attempts":4},{"task":"x"}]}`)["results"].([]any)
	var got []string
	for _, r := range batch {
		got = append(got, options(r.(map[string]any)["job"]))
	}
	if want := "[2 -3 4 -3 7 -3]"; fmt.Sprint(got) != want {
		t.Errorf("a batch: %v, want %s", got, want)
	}
	calls := f.ok(ns, "EnqueueCalls", `{"calls":[{"jobs":[{"task":"mail"}]}]}`)["outcomes"].([]any)[0].(map[string]any)["results"].([]any)
	if got := options(calls[0].(map[string]any)["job"]); got != "2 -3" {
		t.Errorf("a call of several: %s", got)
	}
	page, err := f.store.ListJobs(t.Context(), ns, store.Filter{Task: "other"}, "", 500)
	f.must(err)
	for _, j := range page.Items {
		want := job.DefaultTimeout
		if j.Queue == "default" {
			want = minute
		}
		if j.Timeout != want {
			t.Errorf("a job of the queue %s may run for %s, want %s", j.Queue, j.Timeout, want)
		}
	}
}

// A repeated call is the same call, whatever the defaults are by now.
func TestARepeatDoesNotDependOnDefaults(t *testing.T) {
	f := newFixture(t)
	const ns = "lark"
	body := fmt.Sprintf(`{"job":{"id":%q,"task":"t"}}`, newID())
	first := compact(t, f.ok(ns, "Enqueue", body))
	f.overridden(store.Override{Namespace: ns, Kind: store.OverrideTask, Name: "t", MaxAttempts: new(int32(2))})
	if again := compact(t, f.ok(ns, "Enqueue", body)); again != first {
		t.Errorf("the repeat answers %s, the first answered %s", again, first)
	}
	f.wantPending(ns, 1)
}

// A call that is judged anew, because the quota changed, takes the defaults that
// are in force then.
func TestDefaultsOfTheLastTryCount(t *testing.T) {
	f := newFixture(t)
	const ns = "lark"
	f.overridden(store.Override{Namespace: ns, Kind: store.OverrideTask, Name: "t", MaxAttempts: new(int32(2)), Priority: new(int32(4))})
	f.ok(ns, "Enqueue", `{"job":{"task":"t"}}`)
	first := true
	f.way.instead(func(ctx context.Context, calls []store.Call) ([]store.Outcome, error) {
		if first {
			first = false
			f.overridden(store.Override{Namespace: ns, Kind: store.OverrideTask, Name: "t", MaxAttempts: new(int32(3))})
			return []store.Outcome{{Err: store.ErrStale}}, nil
		}
		return f.store.Admit(ctx, calls)
	})
	j := f.ok(ns, "Enqueue", `{"job":{"task":"t"}}`)["result"].(map[string]any)["job"].(map[string]any)
	if got := fmt.Sprint(j["max_attempts"], j["priority"]); got != "3 0" {
		t.Errorf("attempts and priority %s", got)
	}
}

// Without its overrides nothing of a namespace is enqueued: nobody's default is
// silently another.
func TestOverridesThatCannotBeReadStopTheCall(t *testing.T) {
	f := newFixture(t)
	f.svc.overrides = unreadable{}
	f.refused("lark", "Enqueue", `{"job":{"task":"t"}}`, "STORAGE_UNAVAILABLE")
	f.wantPending("lark", 0)
}

// unreadable are overrides of a store that does not answer.
type unreadable struct{ Overrides }

func (unreadable) Peek(string) (o configcache.Overrides, ok bool) { return o, false }
func (unreadable) Get(context.Context, string) (o configcache.Overrides, err error) {
	return o, fault.New(fault.StorageUnavailable, "the store did not answer in time")
}
