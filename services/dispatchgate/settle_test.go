package dispatchgate

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/fault"
	"flexiq/pkg/job"
	"flexiq/pkg/store"
)

func TestOutcomes(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.enqueue("a", make([]job.Spec, 5)...)
	held := f.claim("a", 5)
	req := &flexiqv1.SettleRequest{}
	for i, s := range []*flexiqv1.Settlement{
		{Outcome: "complete", Result: []byte{}},
		{Outcome: "fail", Error: proto.String("boom")},
		{Outcome: "fail", RetryAfter: durationpb.New(time.Hour)},
		{Outcome: "dead", Error: proto.String("no use")},
		{Outcome: "release", RetryAfter: durationpb.New(time.Hour)},
	} {
		s.JobId, s.Lease = held[i].GetJob().GetId(), held[i].GetLease()
		req.Settlements = append(req.Settlements, s)
	}
	req.Settlements[0].JobId = strings.ToUpper(req.Settlements[0].GetJobId())
	res, err := f.trySettle("a", req)
	f.must(err)
	for i, status := range []string{"complete", "pending", "pending", "dead", "pending"} {
		r := res.GetResults()[i]
		if !r.GetAccepted() || r.GetStatus() != status || r.GetReason() != "" || r.GetJobId() != held[i].GetJob().GetId() {
			t.Errorf("settlement %d: %v", i, r)
		}
	}
	get := func(i int) *job.Job { return f.job("a", held[i].GetJob().GetId()) }
	if j := get(0); j.Result == nil || len(j.Result) != 0 {
		t.Errorf("an empty result became %v", j.Result)
	}
	if j := get(1); j.Error != "boom" || j.Attempt != 1 {
		t.Errorf("failed: %q, attempt %d", j.Error, j.Attempt)
	}
	if j := get(2); time.Until(j.RunAt) < 50*time.Minute {
		t.Errorf("a retry after an hour is due at %s", j.RunAt)
	}
	if j := get(3); j.Error != "no use" || j.State != job.Dead {
		t.Errorf("dead: %s %q", j.State, j.Error)
	}
	if j := get(4); time.Until(j.RunAt) < 50*time.Minute || j.Attempt != 0 {
		t.Errorf("released for an hour: due at %s, attempt %d", j.RunAt, j.Attempt)
	}
	// The same again is a success; something else is stale.
	again, err := f.trySettle("a", req)
	f.must(err)
	for i, r := range again.GetResults() {
		if !r.GetAccepted() {
			t.Errorf("repeated settlement %d: %v", i, r)
		}
	}
	req.Settlements[0].Outcome, req.Settlements[0].Result = "fail", nil
	other, err := f.trySettle("a", req)
	f.must(err)
	if r := other.GetResults()[0]; r.GetAccepted() || r.GetReason() != "STALE_LEASE" || r.GetStatus() != "complete" {
		t.Errorf("another outcome: %v", r)
	}
	if n := f.count(metricSettlements, "lease", "stale"); n != 1 {
		t.Errorf("%v stale settlements are counted", n)
	}
}

// An error text of any kind is stored, cleaned and cut; a result that
// cannot be stored is refused by name and costs nothing.
func TestWhatCannotBeStored(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	ids := f.enqueue("a", job.Spec{MaxAttempts: 1}, job.Spec{MaxAttempts: 1}, job.Spec{})
	held := f.claim("a", 3)
	body := func(i int, rest string) string {
		return fmt.Sprintf(`{"settlements":[{"job_id":%q,"lease":%q,%s}]}`, ids[i], held[i].GetLease(), rest)
	}
	f.ok("a", "Settle", body(0, `"outcome":"fail","error":"a\u0000b\u001b[31mc\nd"`))
	if j := f.job("a", ids[0]); j.State != job.Dead || j.Error != "a\uFFFDb\uFFFD[31mc\nd" {
		t.Errorf("control bytes: %s %q", j.State, j.Error)
	}
	f.ok("a", "Settle", body(1, `"outcome":"fail","error":"`+strings.Repeat("é", job.MaxError)+`"`))
	if j := f.job("a", ids[1]); j.State != job.Dead || len(j.Error) > job.MaxError || len(j.Error) < job.MaxError-1 {
		t.Errorf("a long error: %s, %d bytes", j.State, len(j.Error))
	}
	a := f.call("a", "Settle", body(2, `"outcome":"complete","result":"`+strings.Repeat("AAAA", job.MaxResult/3+1)+`"`))
	if a.Status != http.StatusBadRequest || a.Reason != "INVALID_REQUEST" || a.Details["field"] != "settlements[0].result" {
		t.Errorf("a large result: %d %s %s", a.Status, a.Reason, a.Details["field"])
	}
	f.wantUsage("a", 0, 1, 0, 2)
	f.ok("a", "Settle", body(2, `"outcome":"complete","result":"`+strings.Repeat("AAAA", job.MaxResult/3)+`"`))
	f.wantUsage("a", 0, 0, 1, 2)
}

func TestSettleRefusals(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	id := uuid.Must(uuid.NewV7()).String()
	one := func(rest string) string { return fmt.Sprintf(`{"settlements":[{"job_id":%q%s}]}`, id, rest) }
	for body, field := range map[string]string{
		`{}`:                               "settlements",
		`{"settlements":[{"job_id":"7"}]}`: "settlements[0].job_id",
		one(``):                            "settlements[0].lease",
		one(`,"lease":"` + strings.Repeat("x", 256) + `"`): "settlements[0].lease",
		one(`,"lease":"x"`):                                                "settlements[0].outcome",
		one(`,"lease":"x","outcome":"done"`):                               "settlements[0].outcome",
		one(`,"lease":"x","outcome":"fail","result":""`):                   "settlements[0].result",
		one(`,"lease":"x","outcome":"complete","retry_after":"1s"`):        "settlements[0].retry_after",
		one(`,"lease":"x","outcome":"fail","retry_after":"-1s"`):           "settlements[0].retry_after",
		one(`,"lease":"x","outcome":"fail","retry_after":"315576000000s"`): "settlements[0].retry_after",
		`{"settlements":[` + strings.Repeat(`{},`, job.MaxBatch) + `{}]}`:  "settlements",
	} {
		if a := f.call("a", "Settle", body); a.Status != http.StatusBadRequest || a.Reason != "INVALID_REQUEST" || a.Details["field"] != field {
			t.Errorf("%.120s: %d %s %q, want INVALID_REQUEST of %s", body, a.Status, a.Reason, a.Details["field"], field)
		}
	}
	for body, field := range map[string]string{
		`{}`:                                   "leases",
		`{"leases":[{"job_id":"7"}]}`:          "leases[0].job_id",
		`{"leases":[{"job_id":"` + id + `"}]}`: "leases[0].lease",
		`{"leases":[{"job_id":"` + id + `","lease":"x"}],"extend":"0s"}`: "extend",
		`{"leases":[` + strings.Repeat(`{},`, job.MaxBatch) + `{}]}`:     "leases",
	} {
		if a := f.call("a", "Heartbeat", body); a.Status != http.StatusBadRequest || a.Reason != "INVALID_REQUEST" || a.Details["field"] != field {
			t.Errorf("%.120s: %d %s %q, want INVALID_REQUEST of %s", body, a.Status, a.Reason, a.Details["field"], field)
		}
	}
}

func TestHeartbeat(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	ids := f.enqueue("a", make([]job.Spec, 3)...)
	held := f.claim("a", 3)
	beat := func(extend string) map[string]any {
		t.Helper()
		var leases []string
		for i := range held {
			leases = append(leases, fmt.Sprintf(`{"job_id":%q,"lease":%q}`, ids[i], held[i].GetLease()))
		}
		return f.ok("a", "Heartbeat", `{"leases":[`+strings.Join(leases, ",")+`]`+extend+`}`)
	}
	all := []any{ids[0], ids[1], ids[2]}
	if d := cmp.Diff(map[string]any{"alive": all, "lost": []any{}, "cancelled": []any{}}, beat(`,"extend":"60s"`)); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	f.settle("a", job.Completed, held[0])
	if _, err := f.store.Cancel(t.Context(), "a", store.Selection{IDs: ids[1:2]}, 10); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{"alive": []any{ids[2]}, "lost": []any{ids[0]}, "cancelled": []any{ids[1]}}
	if d := cmp.Diff(want, beat("")); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if alive, lost := f.count(metricHeartbeats, "answer", "alive"), f.count(metricHeartbeats, "answer", "lost"); alive != 4 || lost != 1 {
		t.Errorf("%v alive and %v lost are counted", alive, lost)
	}
}

// The jobs of another namespace are simply not there, with their true leases shown.
func TestAnotherNamespace(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.enqueue("wren", job.Spec{}, job.Spec{})
	held := f.claim("wren", 1)
	id, lease := held[0].GetJob().GetId(), held[0].GetLease()
	if got := f.claim("lark", 10); len(got) != 0 {
		t.Errorf("lark claims %d jobs of wren", len(got))
	}
	missing := uuid.Must(uuid.NewV7()).String()
	for _, outcome := range job.Outcomes {
		for _, target := range []string{id, missing} {
			got := f.ok("lark", "Settle", fmt.Sprintf(`{"settlements":[{"job_id":%q,"lease":%q,"outcome":%q}]}`, target, lease, outcome))
			want := map[string]any{"results": []any{map[string]any{"job_id": target, "accepted": false, "reason": "STALE_LEASE", "status": ""}}}
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("lark settles %s (-want +got):\n%s", outcome, d)
			}
		}
	}
	got := f.ok("lark", "Heartbeat", fmt.Sprintf(`{"leases":[{"job_id":%q,"lease":%q}]}`, id, lease))
	if d := cmp.Diff(map[string]any{"alive": []any{}, "lost": []any{id}, "cancelled": []any{}}, got); d != "" {
		t.Errorf("lark's heartbeat (-want +got):\n%s", d)
	}
	f.wantUsage("wren", 1, 1, 0, 0)
	if r := f.settle("wren", job.Completed, held...); !r[0].GetAccepted() {
		t.Errorf("wren's own settlement: %v", r)
	}
}

// What the database refuses of one alone is told for that one, and is no stale lease.
func TestRefusedAlone(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.enqueue("a", job.Spec{}, job.Spec{})
	held := f.claim("a", 2)
	locked := fault.New(fault.StorageUnavailable, "the namespace is locked")
	f.way.wrap(func(next turner) turner {
		return func(ctx context.Context, s []store.Settlement, w []store.Want) ([]store.Settled, []store.Grant, error) {
			settled, grants, err := next(ctx, s[1:], w)
			return append([]store.Settled{{Err: locked}}, settled...), grants, err
		}
	})
	r := f.settle("a", job.Completed, held...)
	if r[0].GetAccepted() || r[0].GetReason() != "STORAGE_UNAVAILABLE" || r[0].GetStatus() != "" || !r[1].GetAccepted() {
		t.Errorf("got %v", r)
	}
	_, err := f.gate.pulse(make([]store.Beat, 2), []store.Pulse{{Alive: true}, {Err: locked}})
	if !fault.Is(err, fault.StorageUnavailable) {
		t.Errorf("got %v", err)
	}
	f.way.wrap(nil)
	f.wantUsage("a", 0, 1, 1, 0)
	if again := f.settle("a", job.Completed, held[0]); !again[0].GetAccepted() {
		t.Errorf("sent again: %v", again)
	}
}
