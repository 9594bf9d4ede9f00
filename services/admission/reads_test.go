package admission

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/auth"
	"flexiq/pkg/job"
	"flexiq/pkg/store"
	"flexiq/pkg/testkit"
)

// run makes the namespace's next job running and returns its id.
func (f *fixture) run(ns string) string {
	f.Helper()
	docs, err := f.store.Quotas(f.Context(), []string{ns})
	f.must(err)
	_, grants, err := f.store.Turn(f.Context(), nil, []store.Want{{Namespace: ns, Max: 1, LeaseFor: time.Minute, Stamp: docs[0].Stamp}})
	f.must(err)
	f.must(grants[0].Err)
	return grants[0].Jobs[0].Job.ID
}

// ids lists the ids of a listing.
func ids(res map[string]any) (out []string) {
	jobs, _ := res["jobs"].([]any)
	for _, j := range jobs {
		out = append(out, testkit.Dig(j, "id").(string))
	}
	return out
}

func TestListJobs(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var want []string
	for i := range 7 {
		res := f.ok("a", "Enqueue", fmt.Sprintf(`{"job":{"task":"t%d","queue":"q%d","payload":"AA=="}}`, i%2, i%3))
		want = append(want, testkit.Dig(res, "result", "job", "id").(string))
	}
	running := f.run("a")

	var got []string
	token, pages := "", 0
	for {
		res := f.ok("a", "ListJobs", fmt.Sprintf(`{"page_size":3,"page_token":%q}`, token))
		got = append(got, ids(res)...)
		pages++
		if token = res["next_page_token"].(string); token == "" {
			break
		}
		if testkit.Dig(res, "jobs", 0, "payload") != nil {
			t.Error("a listing shows payloads")
		}
	}
	if d := cmp.Diff(want, got); d != "" || pages < 3 {
		t.Errorf("%d pages (-want +got):\n%s", pages, d)
	}
	if got := ids(f.ok("a", "ListJobs", `{"status":"running"}`)); len(got) != 1 || got[0] != running {
		t.Errorf("running: %v", got)
	}
	if got := ids(f.ok("a", "ListJobs", `{"queue":"q0","task":"t0"}`)); cmp.Diff([]string{want[0], want[6]}, got) != "" {
		t.Errorf("by queue and task: %v", got)
	}
	if got := ids(f.ok("b", "ListJobs", `{}`)); len(got) != 0 {
		t.Errorf("another namespace lists %v", got)
	}
	first := f.ok("a", "ListJobs", `{"page_size":3}`)
	for body, field := range map[string]string{
		`{"status":"done"}`:                    "status",
		`{"queue":" q"}`:                       "queue",
		`{"task":"\u0001"}`:                    "task",
		`{"page_size":501}`:                    "page_size",
		`{"page_size":-1}`:                     "page_size",
		`{"page_token":"garbage"}`:             "page_token",
		`{"page_token":"` + newID() + `"}`:     "page_token",
		`{"page_size":3,"page_token":"AAAAA"}`: "page_token",
	} {
		if a := f.refused("a", "ListJobs", body, "INVALID_REQUEST"); a.Details["field"] != field {
			t.Errorf("%s: field %q", body, a.Details["field"])
		}
	}
	// Another namespace's token of a page shows nothing of it.
	res := f.ok("b", "ListJobs", fmt.Sprintf(`{"page_token":%q}`, first["next_page_token"]))
	if len(ids(res)) != 0 {
		t.Errorf("another namespace's page token lists %v", ids(res))
	}
}

// What belongs to another namespace looks as if it did not exist.
func TestAnotherNamespace(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	id := testkit.Dig(f.ok("wren", "Enqueue", `{"job":{"task":"t","unique_key":"u"}}`), "result", "job", "id").(string)
	ofWren := f.refused("lark", "GetJob", fmt.Sprintf(`{"id":%q}`, id), "NOT_FOUND")
	missing := f.refused("lark", "GetJob", fmt.Sprintf(`{"id":%q}`, newID()), "NOT_FOUND")
	if ofWren.Status != http.StatusNotFound || cmp.Diff(ofWren.Body, missing.Body) != "" {
		t.Errorf("told apart:\n%s", cmp.Diff(ofWren.Body, missing.Body))
	}
	if d := cmp.Diff(map[string]any{"cancelled": "0", "cancelling": "0", "not_found": "1"}, f.ok("lark", "CancelJobs", fmt.Sprintf(`{"ids":[%q]}`, id))); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(map[string]any{"cancelled": "0", "cancelling": "0", "not_found": "0"}, f.ok("lark", "CancelJobs", `{"filter":{}}`)); d != "" {
		t.Error(d)
	}
	if res := f.ok("lark", "Enqueue", `{"job":{"task":"t","unique_key":"u"}}`); testkit.Dig(res, "result", "deduplicated") != false {
		t.Error("a unique key reaches across namespaces")
	}
	f.wantPending("wren", 1)

	for name, token := range map[string]string{
		"worker": f.token("wren", auth.Work), "admin": f.token("wren", auth.Admin), "platform": f.token("", auth.Platform),
	} {
		for _, method := range []string{"Enqueue", "EnqueueBatch", "EnqueueCalls", "GetJob", "ListJobs", "CancelJobs"} {
			if a := f.post(token, method, `{}`); a.Reason != "PERMISSION_DENIED" {
				t.Errorf("%s token, %s: %d %s", name, method, a.Status, a.Reason)
			}
		}
	}
	inspector := f.token("wren", auth.Inspect)
	if a := f.post(inspector, "GetJob", fmt.Sprintf(`{"id":%q}`, id)); a.Status != http.StatusOK {
		t.Errorf("an inspector reads a job: %v", a.Body)
	}
	if a := f.post(inspector, "CancelJobs", fmt.Sprintf(`{"ids":[%q]}`, id)); a.Reason != "PERMISSION_DENIED" {
		t.Errorf("an inspector cancels a job: %v", a.Body)
	}
	f.refused("lark", "GetJob", `{"id":"7"}`, "INVALID_REQUEST")
}

func TestCancelJobs(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var made []string
	for range 4 {
		made = append(made, testkit.Dig(f.ok("a", "Enqueue", `{"job":{"task":"t","queue":"q"}}`), "result", "job", "id").(string))
	}
	running := f.run("a")
	if running != made[0] {
		t.Fatalf("the first job is not the one that runs")
	}
	counts := func(body, cancelled, cancelling, notFound string) {
		t.Helper()
		want := map[string]any{"cancelled": cancelled, "cancelling": cancelling, "not_found": notFound}
		if d := cmp.Diff(want, f.ok("a", "CancelJobs", body)); d != "" {
			t.Errorf("%s (-want +got):\n%s", body, d)
		}
	}
	counts(fmt.Sprintf(`{"ids":[%q,%q,%q,%q]}`, made[0], made[1], made[1], newID()), "1", "1", "1")
	counts(`{"filter":{"queue":"other"}}`, "0", "0", "0")
	counts(`{"filter":{"created_before":"2020-01-01T00:00:00Z"}}`, "0", "0", "0")
	counts(`{"filter":{"queue":"q","task":"t"}}`, "2", "0", "0")
	f.wantPending("a", 0)

	for body, field := range map[string]string{
		`{}`: "ids",
		fmt.Sprintf(`{"ids":[%q],"filter":{}}`, newID()): "filter",
		`{"ids":["7"]}`:            "ids[0]",
		`{"filter":{"queue":" "}}`: "filter.queue",
		`{"filter":{"created_before":"1900-01-01T00:00:00Z"}}`: "filter.created_before",
	} {
		if a := f.refused("a", "CancelJobs", body, "INVALID_REQUEST"); a.Details["field"] != field {
			t.Errorf("%s: field %q, want %q", body, a.Details["field"], field)
		}
	}
	many := make([]string, job.MaxBatch+1)
	for i := range many {
		many[i] = `"` + newID() + `"`
	}
	f.refused("a", "CancelJobs", `{"ids":[`+join(many)+`]}`, "INVALID_REQUEST")
}

// batches is a store that cancels so many jobs in all, a few at a time.
type batches struct {
	store.Admission
	left, calls int
}

func (b *batches) Cancel(context.Context, string, store.Selection, int) (store.Cancelled, error) {
	b.calls++
	n := min(b.left, 10)
	b.left -= n
	return store.Cancelled{Cancelled: int64(n), More: b.calls < 1000}, nil
}

// A cancel by filter goes on until nothing is left, makes no progress, or its
// time is over; then it says so.
func TestCancelByFilterGoesOn(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	ctx, cancel := context.WithTimeout(caller(t.Context(), "a"), time.Minute)
	defer cancel()
	some := &batches{left: 35}
	f.svc.store = some
	res, err := f.svc.cancelJobs(ctx, &flexiqv1.CancelJobsRequest{Filter: &flexiqv1.CancelFilter{}})
	if err != nil || res.GetCancelled() != 35 || some.calls != 5 {
		t.Errorf("%v, %v after %d batches", res, err, some.calls)
	}
	f.svc.store = &batches{left: 1 << 30}
	brief, cancel := context.WithTimeout(ctx, cancelMargin/2)
	defer cancel()
	_, err = f.svc.cancelJobs(brief, &flexiqv1.CancelJobsRequest{Filter: &flexiqv1.CancelFilter{}})
	if err == nil || err.Error() != "DEADLINE_EXCEEDED: 10 jobs were cancelled and 0 told to stop; more are left: repeat the call" {
		t.Errorf("got %v", err)
	}
}
