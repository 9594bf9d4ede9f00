package config

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"flexiq/pkg/auth"
	"flexiq/pkg/job"
	"flexiq/pkg/store"
	"flexiq/pkg/testkit"
	"flexiq/pkg/wire"
)

// found names the findings of an answer.
func found(r reply) []string {
	var out []string
	list, _ := r.body["findings"].([]any)
	for _, f := range list {
		what, _ := testkit.Dig(f, "what").(string)
		if name, _ := testkit.Dig(f, "name").(string); name != "" {
			what += " " + name
		}
		out = append(out, what)
	}
	return out
}

// finding picks one of an answer's.
func finding(r reply, what string) map[string]any {
	list, _ := r.body["findings"].([]any)
	for _, f := range list {
		if m, _ := f.(map[string]any); m["what"] == what {
			return m
		}
	}
	return nil
}

// report is what a gate would have told.
func (f *fixture) report(ns string, c wire.DispatchCounts) {
	f.Helper()
	data, err := json.Marshal(wire.DispatchReport{Namespaces: map[string]wire.DispatchCounts{ns: c}})
	f.must(err)
	f.svc.hearDispatch(data)
}

// claim starts up to n jobs of all queues.
func (f *fixture) claim(ns string, n int, limit *int64, by string) []store.Leased {
	f.Helper()
	u, err := f.store.Usage(f.Context(), []string{ns})
	f.must(err)
	_, grants, err := f.store.Turn(f.Context(), nil, []store.Want{{Namespace: ns, Max: n, LeaseFor: time.Minute, Worker: by, MaxRunning: limit, Stamp: u[0].Stamp}})
	f.must(err)
	f.must(grants[0].Err)
	return grants[0].Jobs
}

// jobs makes pending jobs.
func (f *fixture) jobs(ns string, specs ...job.Spec) []string {
	f.Helper()
	u, err := f.store.Usage(f.Context(), []string{ns})
	f.must(err)
	ids := make([]string, len(specs))
	for i := range specs {
		if specs[i].Task == "" {
			specs[i].Task = "t"
		}
		f.must(specs[i].Normalize("job", job.LargestMaxPayload))
		ids[i] = specs[i].ID
	}
	out, err := f.store.Admit(f.Context(), []store.Call{{Namespace: ns, Stamp: u[0].Stamp, Jobs: specs, Origin: job.OriginEnqueue}})
	f.must(err)
	f.must(out[0].Err)
	return ids
}

func wantFound(t *testing.T, r reply, want ...string) {
	t.Helper()
	if got := found(r); r.status != 200 || !slices.Equal(got, want) {
		t.Errorf("found %q (%d %s), want %q", got, r.status, r.message, want)
	}
}

func TestExplain(t *testing.T) {
	f := newFixture(t)
	const ns = "heron"
	token := f.token(ns, auth.Inspect)
	explain := func(body string) reply { t.Helper(); return f.call(token, "Explain", body) }
	ofJob := func(id string) reply { t.Helper(); return explain(fmt.Sprintf(`{"job_id":%q}`, id)) }
	wantFound(t, explain(`{}`))

	ids := f.jobs(ns, job.Spec{}, job.Spec{}, job.Spec{Queue: "mail", Delay: time.Hour}, job.Spec{Debounce: job.Debounce{Key: "k", Window: time.Hour, MaxWait: 2 * time.Hour}})
	r := ofJob(ids[1])
	wantFound(t, r, "behind default")
	if b := finding(r, "behind"); b["ahead"] != "1" {
		t.Errorf("behind: %v", b)
	}
	wantFound(t, ofJob(ids[2]), "delayed")
	wantFound(t, ofJob(ids[3]), "debounce")

	// The slots are full, and by whom.
	limit := int64(1)
	f.document(ns, `{"max_running":1}`)
	f.claim(ns, 5, &limit, "w-1")
	for _, r := range []reply{explain(`{}`), ofJob(ids[1])} {
		m := finding(r, "max_running")
		if m["limit"] != "1" || m["current"] != "1" || testkit.Dig(m, "held_by", 0, "worker") != "w-1" || testkit.Dig(m, "held_by", 0, "job_id") != ids[0] || m["since"] == nil {
			t.Errorf("max_running: %v", m)
		}
	}
	r = ofJob(ids[0])
	wantFound(t, r, "running")
	if testkit.Dig(finding(r, "running"), "held_by", 0, "worker") != "w-1" {
		t.Errorf("running: %v", r.body)
	}

	// A pause and a cap of the operator's.
	yes, two := true, int64(0)
	f.must(f.store.PutOverride(t.Context(), store.Override{Namespace: ns, Kind: store.OverrideQueue, Name: "default", Paused: &yes}, store.Record{}))
	f.must(f.store.PutOverride(t.Context(), store.Override{Namespace: ns, Kind: store.OverrideTask, Name: "t", MaxConcurrent: &two}, store.Record{}))
	wantFound(t, ofJob(ids[1]), "paused_queue default", "max_running", "task_max_concurrent t")
	if r := ofJob(ids[1]); finding(r, "paused_queue")["ahead"] != "0" || finding(r, "max_running")["ahead"] != "2" {
		t.Errorf("a job is not ahead of itself: %v", r.body) // two others of the namespace wait
	}
	wantFound(t, explain(`{"jobs":[{"task":"t"},{"task":"t"}]}`), "paused_queue default", "max_running", "task_max_concurrent t")

	// Limits of the way in.
	f.document(ns, `{"max_pending":3,"enqueue_rate":"2/h"}`)
	wantFound(t, explain(`{"jobs":[{"task":"x","queue":"q"}]}`), "max_pending")
	if m := finding(explain(`{}`), "max_pending"); m["limit"] != "3" || m["current"] != "3" {
		t.Errorf("max_pending: %v", m)
	}
	f.document(ns, `{"enqueue_rate":"2/h"}`)
	wantFound(t, explain(`{"jobs":[{"task":"x"},{"task":"x"},{"task":"x"}]}`), "enqueue_rate")
	wantFound(t, explain(`{"jobs":[{"task":"x"},{}]}`), "invalid")
	f.document(ns, `{"max_running":"many"}`)
	if got := found(ofJob(ids[1])); got[0] != "quota_unreadable" {
		t.Errorf("under an unreadable quota: %v", got)
	}

	for body, reason := range map[string]string{
		`{"job_id":"0190b6a0-0000-7000-8000-000000000000"}`: "NOT_FOUND",
		`{"job_id":"x"}`: "INVALID_REQUEST",
		fmt.Sprintf(`{"job_id":%q,"jobs":[{}]}`, ids[0]): "INVALID_REQUEST",
	} {
		if r := explain(body); r.reason != reason {
			t.Errorf("%s: %d %s, want %s", body, r.status, r.reason, reason)
		}
	}
	if r := f.call(f.token("other", auth.Inspect), "Explain", fmt.Sprintf(`{"job_id":%q}`, ids[1])); r.reason != "NOT_FOUND" {
		t.Errorf("another namespace's job: %d %s", r.status, r.reason)
	}
}

// Whether anybody is there to work is said once the gates have been heard.
func TestExplainWorkers(t *testing.T) {
	f := newFixture(t)
	const ns = "wren"
	token := f.token(ns, auth.Inspect)
	id := f.jobs(ns, job.Spec{Queue: "q"})[0]
	ask := func() reply { t.Helper(); return f.call(token, "Explain", fmt.Sprintf(`{"job_id":%q}`, id)) }
	wantFound(t, ask(), "behind q")
	f.svc.crews.listen(time.Now().Add(-time.Minute))
	if r := ask(); finding(r, "no_worker")["ahead"] != "0" {
		t.Errorf("a lone job: %v", r.body)
	}
	wantFound(t, ask(), "no_worker q")
	seen := func(w wire.WorkerSighting) {
		f.report(ns, wire.DispatchCounts{Workers: map[string]wire.WorkerSighting{"w": w}, Finished: map[string]int64{"q": 30}})
	}
	seen(wire.WorkerSighting{Queues: []string{"other"}, Waiting: 1})
	wantFound(t, ask(), "no_worker q")
	seen(wire.WorkerSighting{Queues: []string{"other", "q"}})
	wantFound(t, ask(), "busy_workers q")
	if r := ask(); finding(r, "busy_workers")["ahead"] != "0" {
		t.Errorf("a lone job: %v", r.body)
	}
	seen(wire.WorkerSighting{Waiting: 1})
	r := ask()
	wantFound(t, r, "behind q")
	if b := finding(r, "behind"); b["estimate"] != "1s" { // 90 in the last minute
		t.Errorf("behind: %v", b)
	}
	seen(wire.WorkerSighting{Gone: true}) // it has signed off: neither waiting nor busy
	wantFound(t, ask(), "no_worker q")
}

func TestListQueuesAndWorkers(t *testing.T) {
	f := newFixture(t)
	const ns = "lark"
	token := f.token(ns, auth.Inspect)
	f.jobs(ns, job.Spec{Queue: "a"}, job.Spec{Queue: "a"}, job.Spec{Queue: "b", Delay: time.Hour})
	f.claim(ns, 1, nil, "w-2")
	yes, five := true, int64(5)
	f.must(f.store.PutOverride(t.Context(), store.Override{Namespace: ns, Kind: store.OverrideQueue, Name: "b", Paused: &yes, MaxConcurrent: &five}, store.Record{}))
	f.report(ns, wire.DispatchCounts{
		Finished: map[string]int64{"a": 7},
		Workers:  map[string]wire.WorkerSighting{"w-1": {Queues: []string{"a"}, Slots: 4, Waiting: 1}, "w-2": {Beat: true}, "": {Slots: 1}},
	})
	r := f.call(token, "ListQueues", `{"page_size":1}`)
	a, _ := testkit.Dig(r.body, "queues", 0).(map[string]any)
	if a["queue"] != "a" || a["pending"] != "1" || a["running"] != "1" || a["oldest_wait"] == nil || a["paused"] != false || a["max_concurrent"] != nil || a["finished_last_minute"] != "7" {
		t.Errorf("queues: %v", r.body)
	}
	next, _ := r.body["next_page_token"].(string)
	r = f.call(token, "ListQueues", fmt.Sprintf(`{"page_token":%q}`, next))
	b, _ := testkit.Dig(r.body, "queues", 0).(map[string]any)
	if b["queue"] != "b" || b["pending"] != "1" || b["oldest_wait"] != nil || b["paused"] != true || b["max_concurrent"] != "5" || r.body["next_page_token"] != "" {
		t.Errorf("queues: %v", r.body)
	}

	var names []string
	for next := ""; ; {
		r := f.call(token, "ListWorkers", fmt.Sprintf(`{"page_size":1,"page_token":%q}`, next))
		w, _ := testkit.Dig(r.body, "workers", 0).(map[string]any)
		names = append(names, fmt.Sprint(w["worker"], " ", w["slots"], " ", w["running"], " ", w["last_seen"] != nil))
		if next, _ = r.body["next_page_token"].(string); next == "" {
			break
		}
	}
	if want := []string{" 1 0 true", "w-1 4 0 true", "w-2 0 1 true"}; !slices.Equal(names, want) {
		t.Errorf("workers: %q, want %q", names, want)
	}
	for _, m := range []string{"ListQueues", "ListWorkers", "Explain"} {
		if r := f.call(f.token(ns, auth.Work), m, `{}`); r.reason != "PERMISSION_DENIED" {
			t.Errorf("%s without inspect: %d %s", m, r.status, r.reason)
		}
	}
}
