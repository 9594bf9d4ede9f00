package config

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"flexiq/pkg/auth"
	"flexiq/pkg/job"
	"flexiq/pkg/store"
)

func TestOverrides(t *testing.T) {
	f := newFixture(t)
	const ns = "lark"
	all := f.token(ns, auth.Admin, auth.Inspect)
	listed := func() (rows []any) {
		t.Helper()
		for token := ""; ; {
			page := f.ok(all, "ListOverrides", fmt.Sprintf(`{"page_size":2,"page_token":%q}`, token))
			for _, o := range page["overrides"].([]any) {
				m := o.(map[string]any)
				delete(m, "updated_at")
				delete(m, "updated_by")
				rows = append(rows, m)
			}
			if token = page["next_page_token"].(string); token == "" {
				return rows
			}
		}
	}
	set := f.ok(all, "SetOverride", `{"queue":"mail","max_concurrent":2,"paused":false,"max_attempts":3,"timeout":"1.5s","priority":-7}`)["override"].(map[string]any)
	f.same("who set it", set["updated_by"], fmt.Sprintf("%q", id(all)))
	if at, err := time.Parse(time.RFC3339Nano, fmt.Sprint(set["updated_at"])); err != nil || time.Since(at) > time.Hour {
		t.Errorf("set at %v", set["updated_at"])
	}
	f.ok(all, "SetOverride", `{"task":"mail","paused":true}`)
	for _, name := range []string{"z", "a:b", "é"} {
		f.ok(all, "SetOverride", fmt.Sprintf(`{"queue":%q,"max_concurrent":0}`, name))
	}
	f.same("listed", listed(), `[{"queue":"a:b","max_concurrent":"0"},
		{"queue":"mail","max_concurrent":"2","paused":false,"max_attempts":3,"timeout":"1.500s","priority":-7},
		{"queue":"z","max_concurrent":"0"},{"queue":"é","max_concurrent":"0"},{"task":"mail","paused":true}]`)

	// A set replaces: what is left out is lifted.
	f.ears.hints, f.stale = nil, nil
	f.ok(all, "SetOverride", `{"queue":"mail","priority":0}`)
	f.ok(all, "ClearOverride", `{"task":"mail"}`)
	want := []hint{{store.KindOverride, ns}, {store.KindOverride, ns}}
	if fmt.Sprint(f.ears.hints) != fmt.Sprint(want) || fmt.Sprint(f.stale) != fmt.Sprint(want) {
		t.Errorf("told others %v and itself %v, want %v", f.ears.hints, f.stale, want)
	}
	for _, name := range []string{"z", "a:b", "é"} {
		f.ok(all, "ClearOverride", fmt.Sprintf(`{"queue":%q}`, name))
	}
	f.same("listed", listed(), `[{"queue":"mail","priority":0}]`)
	f.refused(all, "ClearOverride", `{"task":"mail"}`, "NOT_FOUND")
	f.refused(all, "ClearOverride", `{"queue":"z"}`, "NOT_FOUND")
}

func TestOverridesAreReadStrictly(t *testing.T) {
	f := newFixture(t)
	const ns = "lark"
	all := f.token(ns, auth.Admin, auth.Inspect)
	for body, field := range map[string]string{
		`{"max_concurrent":1}`:                                 "queue",
		`{"queue":"q","task":"t","max_concurrent":1}`:          "task",
		`{"queue":"","max_concurrent":1}`:                      "queue",
		`{"task":" t","max_concurrent":1}`:                     "task",
		`{"queue":"q"}`:                                        "max_concurrent",
		`{"queue":"q","max_concurrent":-1}`:                    "max_concurrent",
		`{"queue":"q","max_attempts":0}`:                       "max_attempts",
		`{"queue":"q","max_attempts":1000001}`:                 "max_attempts",
		`{"queue":"q","timeout":"0s"}`:                         "timeout",
		`{"queue":"q","timeout":"0.999s"}`:                     "timeout",
		`{"queue":"q","timeout":"2592001s"}`:                   "timeout",
		`{"queue":"q","priority":-129}`:                        "priority",
		`{"queue":"q","priority":128,"max_concurrent":1}`:      "priority",
		`{"queue":"` + strings.Repeat("q", 256) + `"}`:         "queue",
		`{"queue":"q","max_concurrent":1,"max_running":1}`:     "max_running",
		`{"queue":"q","max_concurrent":"9223372036854775808"}`: "max_concurrent",
	} {
		r := f.refused(all, "SetOverride", body, "INVALID_REQUEST")
		if r.details["field"] != field || r.status != http.StatusBadRequest || !strings.HasPrefix(r.message, field+": ") {
			t.Errorf("%s: field %q, want %q: %s", body, r.details["field"], field, r.message)
		}
	}
	f.refused(all, "ClearOverride", `{}`, "INVALID_REQUEST")
	f.refused(all, "ClearOverride", `{"queue":"q","task":"t"}`, "INVALID_REQUEST")
	f.same("nothing was set", f.ok(all, "ListOverrides", `{}`)["overrides"], `[]`)

	other := f.token("wren", auth.Admin, auth.Inspect)
	f.ok(all, "SetOverride", `{"queue":"q","paused":true}`)
	f.refused(other, "ClearOverride", `{"queue":"q"}`, "NOT_FOUND")
	f.same("others see nothing", f.ok(other, "ListOverrides", `{}`)["overrides"], `[]`)
	f.refused(f.token(ns, auth.Inspect), "SetOverride", `{"queue":"q","paused":true}`, "PERMISSION_DENIED")
	f.refused(f.token(ns, auth.Inspect), "ClearOverride", `{"queue":"q"}`, "PERMISSION_DENIED")
	f.refused(f.token(ns, auth.Admin), "ListOverrides", `{}`, "PERMISSION_DENIED")
	f.refused(f.platform, "SetOverride", `{"queue":"q","paused":true}`, "PERMISSION_DENIED")
}

// Every write is in the trail, done or refused, under the queue or task as it was named.
func TestOverridesInTheTrail(t *testing.T) {
	f := newFixture(t)
	const ns = "lark"
	all := f.token(ns, auth.Admin)
	long := strings.Repeat("n", 255)
	f.ok(all, "SetOverride", fmt.Sprintf(`{"task":%q,"max_concurrent":3,"timeout":"2s"}`, long))
	f.refused(all, "SetOverride", `{"queue":"q","max_concurrent":-4}`, "INVALID_REQUEST")
	f.refused(f.token(ns, auth.Inspect), "SetOverride", `{"queue":"q","paused":true}`, "PERMISSION_DENIED")
	f.refused(all, "ClearOverride", `{"queue":"q"}`, "NOT_FOUND")
	f.refused(all, "ClearOverride", `{"nonsense":1}`, "INVALID_REQUEST")
	f.ok(all, "ClearOverride", fmt.Sprintf(`{"task":%q}`, long))
	var got []any
	for _, r := range f.trail(ns) {
		got = append(got, strings.Join([]string{r.Operation, r.TargetKind, r.Target, r.Outcome, r.Old, r.New}, "|"))
	}
	f.same("trail", got, fmt.Sprintf(`["set-override|task|%[1]s|ok||{\"max_concurrent\":3,\"timeout_ns\":2000000000}",
		"set-override|queue|q|INVALID_REQUEST||{\"max_concurrent\":-4}","set-override|queue|q|PERMISSION_DENIED||{\"paused\":true}",
		"clear-override|queue|q|NOT_FOUND||","clear-override|queue||INVALID_REQUEST||",
		"clear-override|task|%[1]s|ok|{\"max_concurrent\":3,\"timeout_ns\":2000000000}|"]`, long))
}

// A schedule that is run by hand enqueues its job with the defaults of the overrides.
func TestAScheduleRunNowTakesTheDefaults(t *testing.T) {
	f := newFixture(t)
	all := f.token("lark", auth.Admin)
	f.ok(all, "PutSchedule", `{"name":"n","cron":"0 0 1 1 *","job":{"task":"report","priority":3}}`)
	f.ok(all, "SetOverride", `{"task":"report","max_attempts":2,"priority":9}`)
	j := f.ok(all, "RunSchedule", `{"name":"n"}`)["result"].(map[string]any)["job"].(map[string]any)
	f.same("its options", []any{j["max_attempts"], j["priority"]}, `[2,3]`)
}

// However many overrides there are, explain knows the one that holds a job.
func TestExplainKnowsEveryCap(t *testing.T) {
	f := newFixture(t)
	const ns, many = "lark", 260
	token := f.token(ns, auth.Inspect)
	ids := f.jobs(ns, job.Spec{Task: "t-259"}, job.Spec{Task: "t-259"}, job.Spec{Queue: "q-259"})
	for i := range many {
		for _, kind := range []store.OverrideKind{store.OverrideQueue, store.OverrideTask} {
			f.must(f.store.PutOverride(t.Context(), store.Override{
				Namespace: ns, Kind: kind, Name: fmt.Sprintf("%c-%03d", kind[0], i), MaxConcurrent: new(int64(1)),
			}, store.Record{}))
		}
	}
	f.claim(ns, 1, nil, "w")
	wantFound(t, f.call(token, "Explain", fmt.Sprintf(`{"job_id":%q}`, ids[1])), "task_max_concurrent t-259")
	wantFound(t, f.call(token, "Explain", `{}`), "task_max_concurrent t-259")
	wantFound(t, f.call(token, "Explain", `{"jobs":[{"task":"t-258"},{"task":"t-259"}]}`), "task_max_concurrent t-259")
	f.must(f.store.PutOverride(t.Context(), store.Override{Namespace: ns, Kind: store.OverrideQueue, Name: "q-259", Paused: new(true)}, store.Record{}))
	wantFound(t, f.call(token, "Explain", fmt.Sprintf(`{"job_id":%q}`, ids[2])), "paused_queue q-259")

	// More run than one look reads.
	const busy = readHolders + 1
	specs := make([]job.Spec, busy+1)
	for i := range specs {
		specs[i] = job.Spec{Task: "busy", Queue: "wide"}
	}
	f.jobs(ns, specs[:busy-1]...)
	f.jobs(ns, specs[busy-1:]...)
	for claimed := 0; claimed < busy; {
		claimed += len(f.claim(ns, min(busy-claimed, 1000), nil, "w"))
	}
	f.must(f.store.PutOverride(t.Context(), store.Override{Namespace: ns, Kind: store.OverrideTask, Name: "busy", MaxConcurrent: new(int64(busy))}, store.Record{}))
	wantFound(t, f.call(token, "Explain", `{"jobs":[{"task":"busy"}]}`), "task_max_concurrent busy")
}
