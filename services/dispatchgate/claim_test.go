package dispatchgate

import (
	"context"
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/durationpb"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/fault"
	"flexiq/pkg/job"
	"flexiq/pkg/store"
	"flexiq/pkg/testkit"
)

// long is a wait that no test wants to see the end of.
var long = durationpb.New(maxWait)

func TestClaimOverHTTP(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	id := f.enqueue("a", job.Spec{Queue: "mail", Task: "send", Payload: []byte(`{"n":1}`), Form: job.Args, Timeout: time.Minute})[0]
	res := f.ok("a", "Claim", `{"queues":["mail","mail"],"max_jobs":5,"wait":"60s","lease_for":"10s","worker":"w-1","slots":4}`)
	got, _ := testkit.Dig(res, "jobs", 0).(map[string]any)
	j, _ := got["job"].(map[string]any)
	if j["id"] != id || j["status"] != "running" || j["attempt"] != 1.0 || testkit.Dig(j, "args", "n") != 1.0 || got["timeout"] != "60s" || got["lease"] == "" {
		t.Errorf("claimed %v", got)
	}
	expires, err := time.Parse(time.RFC3339Nano, fmt.Sprint(got["lease_expires_at"]))
	started, err2 := time.Parse(time.RFC3339Nano, fmt.Sprint(j["started_at"]))
	if err != nil || err2 != nil || expires.Sub(started) != 10*time.Second {
		t.Errorf("the lease runs from %v to %v", j["started_at"], got["lease_expires_at"])
	}
	if w := f.job("a", id).Worker; w != "w-1" {
		t.Errorf("the worker is %q", w)
	}
	if d := cmp.Diff(map[string]any{"jobs": []any{}}, f.ok("a", "Claim", `{}`)); d != "" {
		t.Errorf("nothing to claim (-want +got):\n%s", d)
	}
	settled := f.ok("a", "Settle", fmt.Sprintf(`{"settlements":[{"job_id":%q,"lease":%q,"outcome":"complete","result":"AAE="}]}`, id, got["lease"]))
	want := map[string]any{"results": []any{map[string]any{"job_id": id, "accepted": true, "reason": "", "status": "complete"}}}
	if d := cmp.Diff(want, settled); d != "" {
		t.Errorf("settled (-want +got):\n%s", d)
	}
	if r := f.job("a", id).Result; string(r) != "\x00\x01" {
		t.Errorf("the result is %q", r)
	}
}

func TestClaimRefusals(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	many := strings.Repeat(`"q",`, maxQueues) + `"q"`
	for body, field := range map[string]string{
		`{"max_jobs":-1}`:           "max_jobs",
		`{"max_jobs":1001}`:         "max_jobs",
		`{"wait":"61s"}`:            "wait",
		`{"wait":"-1s"}`:            "wait",
		`{"lease_for":"0.5s"}`:      "lease_for",
		`{"lease_for":"3601s"}`:     "lease_for",
		`{"worker":" w"}`:           "worker",
		`{"slots":-1}`:              "slots",
		`{"queues":["q",""]}`:       "queues[1]",
		`{"queues":["a\u0000b"]}`:   "queues[0]",
		`{"queues":[` + many + `]}`: "queues",
	} {
		if a := f.call("a", "Claim", body); a.Status != http.StatusBadRequest || a.Reason != "INVALID_REQUEST" || a.Details["field"] != field {
			t.Errorf("%.80s: %d %s %q, want INVALID_REQUEST of %s", body, a.Status, a.Reason, a.Details["field"], field)
		}
	}
	if c := f.await(f.start(t.Context(), "", &flexiqv1.ClaimRequest{})); !fault.Is(c.err, fault.PermissionDenied) {
		t.Errorf("without a namespace: %v", c.err)
	}
}

// A hint brings a waiting claim its job, without any polling.
func TestHintWakes(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	done := f.start(t.Context(), "a", &flexiqv1.ClaimRequest{Wait: long, Queues: []string{"y"}})
	other := f.start(t.Context(), "a", &flexiqv1.ClaimRequest{Wait: long, Queues: []string{"x"}})
	f.parked(2)
	before, _ := f.way.count()
	id := f.enqueue("a", job.Spec{Queue: "y"})[0]
	f.gate.Woken([]string{"z", "a"})
	if c := f.await(done); c.err != nil || len(c.jobs) != 1 || c.jobs[0].GetJob().GetId() != id {
		t.Fatalf("got %v, %v", c.jobs, c.err)
	}
	f.parked(1)
	if after, _ := f.way.count(); after-before > 2 {
		t.Errorf("one hint cost %d turns", after-before)
	}
	f.gate.StopClaims()
	if c := f.await(other); c.err != nil || len(c.jobs) != 0 {
		t.Errorf("got %v, %v", c.jobs, c.err)
	}
}

// Whenever the job and its hint come, around the moment between "the store
// had nothing" and parking, the claim gets it, without the fallback.
func TestNoWakeUpIsLost(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.way.wrap(func(next turner) turner {
		return func(ctx context.Context, s []store.Settlement, w []store.Want) ([]store.Settled, []store.Grant, error) {
			dawdle(1)
			settled, grants, err := next(ctx, s, w)
			dawdle(1)
			return settled, grants, err
		}
	})
	const tenants, rounds = 10, 100
	var all sync.WaitGroup
	for i := range tenants {
		ns := fmt.Sprintf("teasel-%d", i)
		all.Go(func() {
			for range rounds {
				done := f.start(t.Context(), ns, &flexiqv1.ClaimRequest{Wait: long})
				dawdle(3)
				id := f.enqueue(ns, job.Spec{})[0]
				f.gate.Woken([]string{ns})
				select {
				case c := <-done:
					if c.err != nil || len(c.jobs) != 1 || c.jobs[0].GetJob().GetId() != id {
						t.Errorf("got %v, %v", c.jobs, c.err)
						return
					}
				case <-time.After(testkit.Patience):
					t.Error("a wake-up was lost")
					return
				}
			}
		})
	}
	all.Wait()
	f.wantUsage("teasel-0", 0, rounds, 0, 0)
}

// One hint for a batch brings all its jobs to the claims that wait, although the
// k-th of them is due k µs after the first.
func TestWholeBatch(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const jobs = 50
	var waiting []<-chan claimed
	for range jobs {
		waiting = append(waiting, f.start(t.Context(), "a", &flexiqv1.ClaimRequest{Wait: long}))
	}
	f.parked(jobs)
	f.enqueue("a", make([]job.Spec, jobs)...)
	f.gate.Woken([]string{"a"})
	for _, w := range waiting {
		if c := f.await(w); c.err != nil || len(c.jobs) != 1 {
			t.Fatalf("got %v, %v", c.jobs, c.err)
		}
	}
}

// dawdle spends a random short time.
func dawdle(most int) {
	for range rand.IntN(most * 100) {
		runtime.Gosched()
	}
}

// A hint that never arrives costs no more than the look round.
func TestLostHint(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.run()
	done := f.start(t.Context(), "teasel", &flexiqv1.ClaimRequest{Wait: long})
	f.parked(1)
	f.enqueue("teasel", job.Spec{})
	if c := f.await(done); c.err != nil || len(c.jobs) != 1 {
		t.Fatalf("got %v, %v", c.jobs, c.err)
	}
}

// A delayed job reaches a waiting claim when it is due, by the gate's own timer.
func TestDelayedJob(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	done := f.start(t.Context(), "a", &flexiqv1.ClaimRequest{Wait: long})
	f.parked(1)
	f.enqueue("a", job.Spec{Delay: 300 * time.Millisecond})
	f.gate.Woken([]string{"a"})
	c := f.await(done)
	if c.err != nil || len(c.jobs) != 1 {
		t.Fatalf("got %v, %v", c.jobs, c.err)
	}
	if j := c.jobs[0].GetJob(); j.GetStartedAt().AsTime().Before(j.GetRunAt().AsTime()) {
		t.Error("it started before it was due")
	}
}

func TestWaitEndsEmpty(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.await(f.start(t.Context(), "a", &flexiqv1.ClaimRequest{Wait: durationpb.New(50 * time.Millisecond)}))
	if c.err != nil || len(c.jobs) != 0 {
		t.Errorf("got %v, %v", c.jobs, c.err)
	}
	// A wait beyond the call's own deadline ends as an empty answer, too.
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if c := f.await(f.start(ctx, "a", &flexiqv1.ClaimRequest{Wait: long})); c.err != nil || len(c.jobs) != 0 {
		t.Errorf("got %v, %v", c.jobs, c.err)
	}
}

// Who goes away leaves no trace, and what was claimed for it goes back at once.
func TestCallerLeaves(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	ctx, leave := context.WithCancel(t.Context())
	done := f.start(ctx, "a", &flexiqv1.ClaimRequest{Wait: long})
	f.parked(1)
	leave()
	if c := f.await(done); fault.Of(c.err).Reason != fault.Cancelled {
		t.Errorf("got %v", c.err)
	}
	f.parked(0)

	ctx, leave = context.WithCancel(t.Context())
	f.way.wrap(func(next turner) turner {
		return func(ctx context.Context, s []store.Settlement, w []store.Want) ([]store.Settled, []store.Grant, error) {
			settled, grants, err := next(ctx, s, w)
			if len(w) > 0 {
				leave()
				<-done // the claim has ended before its job comes
			}
			return settled, grants, err
		}
	})
	id := f.enqueue("a", job.Spec{})[0]
	done = f.start(ctx, "a", &flexiqv1.ClaimRequest{Wait: long})
	testkit.Eventually(t, "the job is back", func() bool { return f.usage("a").Pending == 1 && f.usage("a").Running == 0 })
	if j := f.job("a", id); j.Attempt != 0 || j.State != job.Pending {
		t.Errorf("the job is %s with attempt %d", j.State, j.Attempt)
	}
	if n := f.count(metricWaiting); n != 0 {
		t.Errorf("%v claims are counted as waiting", n)
	}
}

// Over HTTP the request's end is the caller's.
func TestRequestEnds(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	ctx, leave := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, f.door.URL+"/flexiq.v1.WorkerService/Claim", strings.NewReader(`{"wait":"60s"}`))
	f.must(err)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+f.token("a"))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if res, err := f.door.Client().Do(req); err == nil {
			res.Body.Close()
			t.Error("the request was answered")
		}
	}()
	f.parked(1)
	leave()
	<-ended
	f.parked(0)
}

// Thousands of waiting claims are memory and nothing else, and one hint does not
// ask the store for each of them.
func TestManyWaitingClaims(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const claims = 5000
	before := runtime.NumGoroutine()
	var waiting []<-chan claimed
	for range claims {
		waiting = append(waiting, f.start(t.Context(), "a", &flexiqv1.ClaimRequest{Wait: long}))
	}
	f.parked(claims)
	if n := runtime.NumGoroutine() - before; n > claims/10 { // other tests run beside
		t.Errorf("%d goroutines for %d waiting claims", n, claims)
	}
	if n := f.count(metricWaiting); n != claims {
		t.Errorf("%v claims are counted as waiting", n)
	}
	_, wants := f.way.count()
	f.enqueue("a", job.Spec{})
	f.gate.Woken([]string{"a"})
	if c := f.await(waiting[0]); c.err != nil || len(c.jobs) != 1 {
		t.Errorf("the first claim got %v, %v", c.jobs, c.err)
	}
	f.parked(claims - 1)
	if _, after := f.way.count(); after-wants > 10 {
		t.Errorf("one hint asked the store %d times", after-wants)
	}
	f.gate.StopClaims()
	for _, w := range waiting[1:] {
		if c := f.await(w); c.err != nil || len(c.jobs) != 0 {
			t.Fatalf("got %v, %v", c.jobs, c.err)
		}
	}
}

func TestTooManyWaitingClaims(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(c *Config) { c.MaxWaiting = 2 })
	first := f.start(t.Context(), "a", &flexiqv1.ClaimRequest{Wait: long})
	f.start(t.Context(), "b", &flexiqv1.ClaimRequest{Wait: long})
	if c := f.await(f.start(t.Context(), "c", &flexiqv1.ClaimRequest{Wait: long})); !fault.Is(c.err, fault.Overloaded) {
		t.Errorf("got %v", c.err)
	}
	f.parked(2)
	f.enqueue("a", job.Spec{})
	f.gate.Woken([]string{"a"})
	f.await(first)
	f.start(t.Context(), "c", &flexiqv1.ClaimRequest{Wait: long})
	f.parked(2)
}

// A reply never gets too big; what does not fit stays pending, no attempt spent.
func TestReplyIsBounded(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(c *Config) { c.MaxReplyBytes = 64 << 10 })
	payload := make([]byte, 20<<10)
	ids := f.enqueue("bytes", job.Spec{Payload: payload, Form: job.Bytes}, job.Spec{Payload: payload, Form: job.Bytes}, job.Spec{Payload: payload, Form: job.Bytes})
	got := f.claim("bytes", 10)
	if len(got) != 2 || len(got[0].GetJob().GetPayload()) != len(payload) {
		t.Errorf("%d jobs of 20 KiB in a reply of 64 KiB", len(got))
	}
	if j := f.job("bytes", ids[2]); j.Attempt != 0 {
		t.Errorf("the job that did not fit has spent attempt %d", j.Attempt)
	}

	// Metadata counts for nothing in the store's bound.
	big := map[string]string{"k": strings.Repeat("\x01", 2000)} // 12 000 bytes in JSON
	specs := make([]job.Spec, 8)
	for i := range specs {
		specs[i] = job.Spec{Metadata: big}
	}
	f.enqueue("metadata", specs...)
	first := f.claim("metadata", 8)
	if len(first) == 0 || len(first) > 5 {
		t.Errorf("%d jobs with 12 KiB of metadata in a reply of 64 KiB", len(first))
	}
	testkit.Eventually(t, "the rest is back", func() bool { return f.usage("metadata").Pending == int64(8-len(first)) })
	second := f.claim("metadata", 8)
	for _, c := range slices.Concat(first, second) {
		if c.GetJob().GetAttempt() != 1 {
			t.Errorf("a job has attempt %d", c.GetJob().GetAttempt())
		}
	}

	f.enqueue("huge", job.Spec{Payload: make([]byte, 200<<10), Form: job.Bytes})
	res := f.ok("huge", "Claim", `{}`)
	text, _ := testkit.Dig(res, "jobs", 0, "job", "payload").(string)
	if n, err := base64.StdEncoding.DecodeString(text); err != nil || len(n) != 200<<10 {
		t.Errorf("a single big job arrives with %d bytes, %v", len(n), err)
	}
}
