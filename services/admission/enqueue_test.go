package admission

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"flexiq/pkg/job"
	"flexiq/pkg/store"
	"flexiq/pkg/testkit"
)

// A full queue, zero, a call too large, and the texts of refusals.
func TestQueueFull(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.quota("a.b", `{"max_pending":2}`)
	f.ok("a.b", "Enqueue", `{"job":{"task":"t"}}`)
	a := f.refused("a.b", "EnqueueBatch", `{"jobs":[{"task":"t","queue":"mail"},{"task":"t"}]}`, "QUEUE_FULL")
	if want := "queue 'mail' is full: 1 pending >= max_pending 2"; a.Message != want || a.Status != http.StatusTooManyRequests {
		t.Errorf("%d %q, want 429 %q", a.Status, a.Message, want)
	}
	want := map[string]string{
		"namespace": "a.b", "limit": "max_pending", "cap": "2", "current": "1", "asked": "2", "fits": "1",
		"revision": "1", "retry_after_ms": "1000", "estimate": "true",
	}
	if d := cmp.Diff(want, a.Details); d != "" || a.Header.Get("Retry-After") != "1" {
		t.Errorf("Retry-After %q, details (-want +got):\n%s", a.Header.Get("Retry-After"), d)
	}
	f.wantPending("a.b", 1)

	f.quota("a.b", `{"max_pending":0}`)
	a = f.refused("a.b", "Enqueue", `{"job":{"task":"t"}}`, "QUEUE_FULL")
	if want := "queue 'default' is full: 1 pending >= max_pending 0"; a.Message != want || a.Details["retry"] != "never" || a.Details["retry_after_ms"] != "" {
		t.Errorf("%q %v, want %q and retry never", a.Message, a.Details, want)
	}
	f.quota("a.b", "")
	f.ok("a.b", "Enqueue", `{"job":{"task":"t"}}`)
}

func TestRateLimited(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.quota("bodkin", `{"enqueue_rate":"50/h"}`)
	a := f.refused("bodkin", "EnqueueBatch", batchOf(51), "RATE_LIMITED")
	if _, waits := a.Details["retry_after_ms"]; a.Details["retry"] != "never" || waits || a.Header.Get("Retry-After") != "" {
		t.Errorf("a call that can never pass: %v, Retry-After %q", a.Details, a.Header.Get("Retry-After"))
	}
	f.ok("bodkin", "EnqueueBatch", batchOf(50))
	a = f.refused("bodkin", "Enqueue", `{"job":{"task":"t"}}`, "RATE_LIMITED")
	if want := "rate limit exceeded for: namespace 'bodkin' enqueue_rate 50/h"; a.Message != want {
		t.Errorf("%q, want %q", a.Message, want)
	}
	ms, err := strconv.Atoi(a.Details["retry_after_ms"])
	if err != nil || ms < 60_000 || ms > 72_000 || a.Details["current"] != "0" || a.Details["cap"] != "50" || a.Details["fits"] != "0" {
		t.Errorf("details %v", a.Details)
	}
	if s, err := strconv.Atoi(a.Header.Get("Retry-After")); err != nil || s != (ms+999)/1000 {
		t.Errorf("Retry-After %q for %d ms", a.Header.Get("Retry-After"), ms)
	}
}

// A batch is one unit, on both ways of excess.
func TestBatchIsOneUnit(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.quota("hasp", `{"max_pending":5}`)
	f.ok("hasp", "EnqueueBatch", batchOf(3))
	f.refused("hasp", "EnqueueBatch", batchOf(6), "QUEUE_FULL")
	f.wantPending("hasp", 3)
	f.ok("hasp", "EnqueueBatch", batchOf(2))
	f.refused("hasp", "EnqueueBatch", batchOf(1), "QUEUE_FULL")
	f.wantPending("hasp", 5)

	f.quota("latch", `{"max_pending":5,"on_excess":"drop"}`)
	f.ok("latch", "EnqueueBatch", batchOf(3))
	f.ears.heard()
	res := f.ok("latch", "EnqueueBatch", batchOf(6))
	for i := range 6 {
		j := testkit.Dig(res, "results", i, "job")
		if testkit.Dig(j, "status") != "dead" || !strings.HasPrefix(testkit.Dig(j, "error").(string), "quota: namespace 'latch' ") ||
			cmp.Diff(map[string]any{"shed": "quota"}, testkit.Dig(j, "dead_metadata")) != "" {
			t.Errorf("a shed job came back as %v", j)
		}
	}
	if u := f.usage("latch"); u.Pending != 3 || u.Dead != 6 || u.Shed != 6 {
		t.Errorf("usage %+v, want 3 pending and 6 shed", u)
	}
	if hints := f.ears.heard(); len(hints) != 0 {
		t.Errorf("shed jobs were announced as work: %v", hints)
	}
}

// Many clients at one free place.
func TestCrowdAtOneFreePlace(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.quota("hasp", `{"max_pending":7}`)
	f.producer("hasp")
	var crowd sync.WaitGroup
	for range 16 {
		crowd.Go(func() {
			for range 5 {
				if a := f.call("hasp", "EnqueueBatch", batchOf(2)); a.Status != http.StatusOK && a.Reason != "QUEUE_FULL" {
					t.Errorf("%d %s %v", a.Status, a.Reason, a.Body)
				}
			}
		})
	}
	crowd.Wait()
	f.wantPending("hasp", 6)
}

// The cap is compared with what the call would make.
func TestExactFit(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.quota("bodkin", `{"max_pending":100}`)
	f.ok("bodkin", "EnqueueBatch", batchOf(90))
	if a := f.refused("bodkin", "EnqueueBatch", batchOf(20), "QUEUE_FULL"); a.Details["fits"] != "10" {
		t.Errorf("details %v", a.Details)
	}
	f.ok("bodkin", "EnqueueBatch", batchOf(10))
	f.wantPending("bodkin", 100)
}

// A duplicate adds nothing.
func TestUniqueKey(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.quota("tansy", `{"max_pending":10}`)
	keyed := `{"job":{"task":"t","unique_key":"inv-88"}}`
	first := testkit.Dig(f.ok("tansy", "Enqueue", keyed), "result", "job", "id")
	for range 60 {
		res := f.ok("tansy", "Enqueue", keyed)
		if testkit.Dig(res, "result", "job", "id") != first || testkit.Dig(res, "result", "deduplicated") != true {
			t.Fatalf("a duplicate came back as %v", res)
		}
	}
	f.wantPending("tansy", 1)
	for range 9 {
		f.ok("tansy", "Enqueue", `{"job":{"task":"t"}}`)
	}
	f.refused("tansy", "Enqueue", `{"job":{"task":"t"}}`, "QUEUE_FULL")
	f.refused("tansy", "Enqueue", keyed, "QUEUE_FULL")
	f.wantPending("tansy", 10)
}

func TestRepeatedCall(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.quota("a", `{"max_pending":2}`)
	one, two := newID(), newID()
	body := fmt.Sprintf(`{"jobs":[{"id":%q,"task":"t"},{"id":%q,"task":"t"}]}`, one, strings.ToUpper(two))
	first := f.ok("a", "EnqueueBatch", body)
	if d := cmp.Diff(first, f.ok("a", "EnqueueBatch", body)); d != "" {
		t.Errorf("the repeat has another answer:\n%s", d)
	}
	if testkit.Dig(first, "results", 1, "job", "id") != two {
		t.Errorf("the id came back as %v", testkit.Dig(first, "results", 1, "job", "id"))
	}
	f.refused("a", "Enqueue", fmt.Sprintf(`{"job":{"id":%q,"task":"other"}}`, one), "ID_CONFLICT")
	f.wantPending("a", 2)
	f.ok("b", "EnqueueBatch", body) // ids are a namespace's own
}

func TestMalformedCalls(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	id := newID()
	deep := strings.Repeat("[", job.MaxArgsDepth+1) + strings.Repeat("]", job.MaxArgsDepth+1)
	large := strings.Repeat("x", job.DefaultMaxPayload)
	tests := []struct{ method, body, reason, field string }{
		{"Enqueue", `{}`, "INVALID_REQUEST", "job"},
		{"Enqueue", `{"job":{}}`, "INVALID_REQUEST", "job.task"},
		{"Enqueue", `{"job":{"task":"t","args":` + deep + `}}`, "INVALID_REQUEST", "job.args"},
		{"Enqueue", `{"job":{"task":"t","args":9007199254740993}}`, "INVALID_REQUEST", "job.args"},
		{"Enqueue", `{"job":{"task":"t","args":"` + large + `"}}`, "PAYLOAD_TOO_LARGE", "job.args"},
		{"Enqueue", `{"job":{"task":"t","max_attempts":0}}`, "INVALID_REQUEST", "job.max_attempts"},
		{"Enqueue", `{"job":{"task":"t","metadata":{"k":"\u0000"}}}`, "INVALID_REQUEST", "job.metadata"},
		{"EnqueueBatch", `{}`, "INVALID_REQUEST", "jobs"},
		{"EnqueueBatch", batchOf(1001), "INVALID_REQUEST", "jobs"},
		{"EnqueueBatch", `{"jobs":[{"task":"t"},{"task":""}]}`, "INVALID_REQUEST", "jobs[1].task"},
		{"EnqueueBatch", fmt.Sprintf(`{"jobs":[{"id":%q,"task":"t"},{"task":"t"},{"id":%q,"task":"t"}]}`, id, strings.ToUpper(id)), "INVALID_REQUEST", "jobs[2].id"},
		{"EnqueueBatch", `{"jobs":[{"task":"t"},{"task":"t","debounce":{"key":"k","window":"1s"}}]}`, "INVALID_REQUEST", "jobs[1].debounce"},
		{"EnqueueBatch", `{"jobs":[{"task":"t","debounce":{"key":"k","window":"1s"}}]}`, "INVALID_REQUEST", "jobs[0].debounce"},
		{"Enqueue", `{"job":{"task":"t","delay":"0s","debounce":{"key":"k","window":"1s"}}}`, "INVALID_REQUEST", "job.debounce"},
		{"Enqueue", `{"job":{"task":"t","args":9007199254740993.0}}`, "INVALID_REQUEST", "job.args"},
		{"Enqueue", `{"job":{"task":"t","args":"\ud800"}}`, "INVALID_REQUEST", "job.args"},
		{"Enqueue", `{"job":{"task":"t","id":"01890a5d-ac96-774b-ccce-b302099a8057"}}`, "INVALID_REQUEST", "job.id"},
		{"EnqueueCalls", `{}`, "INVALID_REQUEST", "calls"},
		{"EnqueueCalls", `{"calls":[` + batchOf(600) + `,` + batchOf(401) + `]}`, "INVALID_REQUEST", "calls"},
	}
	for _, tt := range tests {
		if a := f.refused("a", tt.method, tt.body, tt.reason); a.Details["field"] != tt.field || a.Status != http.StatusBadRequest {
			t.Errorf("%s %.80s: %d, field %q, want 400 %q", tt.method, tt.body, a.Status, a.Details["field"], tt.field)
		}
	}
	for _, body := range []string{`{"job":{"task":"t","args":"\ud800"}}`, "{\"job\":{\"task\":\"t\",\"args\":\"\xff\"}}", `{"job":{"task":"t","colour":1}}`, `{`} {
		if a := f.refused("a", "Enqueue", body, "INVALID_REQUEST"); a.Status != http.StatusBadRequest {
			t.Errorf("%q: %d", body, a.Status)
		}
	}
	f.wantPending("a", 0)
}

// Units of one message fail and pass on their own.
func TestCallsAreIndependent(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.quota("a", `{"max_pending":3}`)
	id := newID()
	res := f.ok("a", "EnqueueCalls", fmt.Sprintf(`{"calls":[
		{"jobs":[{"id":%[1]q,"task":"t"},{"task":"t"}]},
		{"jobs":[{"task":"t"},{}]},
		{"jobs":[]},
		{"jobs":[{"task":"t"},{"task":"t"}]},
		{"jobs":[{"task":"t","args":{"n":1}}]},
		{"jobs":[{"id":%[1]q,"task":"other"}]},
		{"jobs":[{"task":"t","queue":"mail"}]}]}`, id))
	var got []string
	for i := range 7 {
		o := testkit.Dig(res, "outcomes", i)
		if e := testkit.Dig(o, "error"); e != nil {
			got = append(got, fmt.Sprintf("%v %v %v", testkit.Dig(e, "code"), testkit.Dig(e, "reason"), testkit.Dig(e, "message")))
			if testkit.Dig(e, "reason") == "QUEUE_FULL" && (testkit.Dig(e, "details", "cap") != "3" || testkit.Dig(e, "details", "retry_after_ms") != "1000") {
				t.Errorf("details %v", testkit.Dig(e, "details"))
			}
			continue
		}
		results, _ := testkit.Dig(o, "results").([]any)
		got = append(got, fmt.Sprintf("%d %v", len(results), testkit.Dig(o, "results", 0, "job", "status")))
		if testkit.Dig(o, "results", 0, "job", "args") != nil || testkit.Dig(o, "results", 0, "job", "payload") != nil {
			t.Errorf("a result repeats the payload: %v", o)
		}
	}
	want := []string{
		"2 pending",
		"INVALID_ARGUMENT INVALID_REQUEST jobs[1].task: must not be empty",
		"INVALID_ARGUMENT INVALID_REQUEST jobs: must be from 1 to 1000, got 0",
		"RESOURCE_EXHAUSTED QUEUE_FULL queue 'default' is full: 2 pending >= max_pending 3",
		"1 pending",
		"ABORTED ID_CONFLICT job id " + id + ": a call with known ids must repeat the same jobs",
		"RESOURCE_EXHAUSTED QUEUE_FULL queue 'mail' is full: 3 pending >= max_pending 3",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	f.wantPending("a", 3)

	res = f.ok("b", "EnqueueCalls", `{"calls":[{"jobs":[]},{"jobs":[{}]}]}`)
	if testkit.Dig(res, "outcomes", 0, "error", "reason") != "INVALID_REQUEST" || testkit.Dig(res, "outcomes", 1, "error", "reason") != "INVALID_REQUEST" {
		t.Errorf("nothing but malformed units: %v", res)
	}
}

// Payloads of every kind arrive as they were.
func TestPayloadsSurvive(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for _, spec := range []string{`"payload":"AAD/"`, `"payload":""`, `"args":{"a":[1,"\u0000",null]}`, `"args":null`, `"metadata":{"k":"\u0001"}`} {
		res := f.ok("a", "Enqueue", `{"job":{"task":"t",`+spec+`}}`)
		got := testkit.Dig(f.ok("a", "GetJob", fmt.Sprintf(`{"id":%q}`, testkit.Dig(res, "result", "job", "id"))), "job")
		name, want, _ := strings.Cut(strings.TrimPrefix(spec, `"`), `":`)
		if text := compact(t, testkit.Dig(got, name)); text != want {
			t.Errorf("%s came back as %s", spec, text)
		}
	}
}

func TestPrecisionAndDefaults(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	j := testkit.Dig(f.ok("a", "Enqueue", `{"job":{"task":"send"}}`), "result", "job")
	want := map[string]any{
		"namespace": "a", "queue": "default", "task": "send", "status": "pending", "priority": 0.0, "attempt": 0.0, "max_attempts": 25.0,
		"error": "", "unique_key": "", "origin": "enqueue", "metadata": map[string]any{}, "dead_metadata": map[string]any{},
		"enqueued_by": strings.Split(f.producer("a"), ".")[2],
	}
	got, _ := j.(map[string]any)
	for _, k := range []string{"id", "run_at", "created_at"} {
		if s, _ := got[k].(string); s == "" {
			t.Errorf("%s is not there", k)
		}
		delete(got, k)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// Debounce joins calls into one pending job.
func TestDebounce(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	first := f.ok("quill", "Enqueue", `{"job":{"task":"t","args":1,"debounce":{"key":"k","window":"60s"}}}`)
	second := f.ok("quill", "Enqueue", `{"job":{"task":"t","args":2,"debounce":{"key":"k","window":"60s"}}}`)
	if testkit.Dig(second, "result", "debounced") != true || testkit.Dig(second, "result", "job", "id") != testkit.Dig(first, "result", "job", "id") {
		t.Errorf("%v", second)
	}
	got := f.ok("quill", "GetJob", fmt.Sprintf(`{"id":%q}`, testkit.Dig(first, "result", "job", "id")))
	if testkit.Dig(got, "job", "args") != 2.0 {
		t.Errorf("the last payload did not win: %v", got)
	}
	// A unit of one job is what Enqueue takes; a unit of several is a batch.
	units := f.ok("quill", "EnqueueCalls", `{"calls":[{"jobs":[{"task":"t","args":3,"debounce":{"key":"k","window":"60s"}}]},
		{"jobs":[{"task":"t"},{"task":"t","debounce":{"key":"k","window":"60s"}}]}]}`)
	if testkit.Dig(units, "outcomes", 0, "results", 0, "debounced") != true ||
		testkit.Dig(units, "outcomes", 1, "error", "message") != "jobs[1].debounce: must not be given in a batch" {
		t.Errorf("%v", units)
	}
	f.wantPending("quill", 1)
	f.quota("quill", `{"max_pending":1}`)
	f.refused("quill", "Enqueue", `{"job":{"task":"t","debounce":{"key":"k","window":"60s"}}}`, "QUEUE_FULL")
}

// One hint for each flush, naming who got work that is due now or soon.
func TestHints(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.ok("a", "Enqueue", `{"job":{"task":"t"}}`)
	f.ok("a", "Enqueue", `{"job":{"task":"t","delay":"1s"}}`)
	f.ok("b", "Enqueue", `{"job":{"task":"t","delay":"3600s"}}`)
	id := newID()
	f.ok("c", "Enqueue", fmt.Sprintf(`{"job":{"id":%q,"task":"t","unique_key":"u"}}`, id))
	f.ok("c", "Enqueue", fmt.Sprintf(`{"job":{"id":%q,"task":"t","unique_key":"u"}}`, id)) // repeated
	f.ok("c", "Enqueue", `{"job":{"task":"t","unique_key":"u"}}`)                          // duplicate
	f.refused("c", "Enqueue", `{"job":{}}`, "INVALID_REQUEST")
	if d := cmp.Diff([][]string{{"a"}, {"a"}, {"c"}}, f.ears.heard()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	calls := []store.Call{{Namespace: "x"}, {Namespace: "y"}, {Namespace: "x"}, {Namespace: "z"}}
	got := store.Outcome{Results: []store.Result{{Job: &job.Job{State: job.Pending}}}}
	f.svc.hint(calls, []store.Outcome{got, got, got, {Err: store.ErrStale}})
	if d := cmp.Diff([][]string{{"x", "y"}}, f.ears.heard()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}
