package wire_test

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/fault"
	"flexiq/pkg/job"
	"flexiq/pkg/store"
	"flexiq/pkg/wire"
)

func TestJob(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)
	j := &job.Job{
		ID: jobID, Namespace: "a.b", Queue: "q", Task: "t", Payload: []byte("p"), Form: job.Bytes, State: job.Dead,
		Priority: -1, Attempt: 2, MaxAttempts: 3, RunAt: at, CreatedAt: at, FinishedAt: at, Error: "e", Result: []byte{},
		Metadata: map[string]string{"k": "v"}, UniqueKey: "u", Origin: "enqueue", EnqueuedBy: "tok", DeadMetadata: job.ShedMetadata(),
	}
	want := &flexiqv1.Job{
		Id: jobID, Namespace: "a.b", Queue: "q", Task: "t", Status: "dead", Priority: -1, Attempt: 2, MaxAttempts: 3,
		RunAt: timestamppb.New(at), CreatedAt: timestamppb.New(at), FinishedAt: timestamppb.New(at), Error: "e", Result: []byte{},
		Metadata: map[string]string{"k": "v"}, UniqueKey: "u", Origin: "enqueue", EnqueuedBy: "tok", DeadMetadata: map[string]string{"shed": "quota"},
	}
	if d := cmp.Diff(want, wire.Bare(j), protocmp.Transform()); d != "" {
		t.Errorf("without payload (-want +got):\n%s", d)
	}
	want.Payload = []byte("p")
	if d := cmp.Diff(want, wire.Job(j), protocmp.Transform()); d != "" {
		t.Errorf("with payload (-want +got):\n%s", d)
	}
	if p := wire.Job(&job.Job{Form: job.Bytes}); p.Payload == nil {
		t.Error("an empty payload is not shown as one")
	}
	if p := wire.Job(&job.Job{}); p.Payload != nil || p.Args != nil || p.Result != nil {
		t.Error("a job without payload and result shows one")
	}
	if p := wire.Job(&job.Job{Form: job.Args, Payload: []byte("{")}); string(p.Payload) != "{" {
		t.Error("args that are no JSON are not shown")
	}
}

func TestResults(t *testing.T) {
	t.Parallel()
	got := wire.Results([]store.Result{{Job: &job.Job{ID: jobID, State: job.Pending}}, {Deduplicated: true}, {Job: &job.Job{}, Debounced: true}})
	want := []*flexiqv1.EnqueueResult{{Job: &flexiqv1.Job{Id: jobID, Status: "pending"}}, {Deduplicated: true}, {Job: &flexiqv1.Job{}, Debounced: true}}
	if d := cmp.Diff(want, got, protocmp.Transform()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestCallError(t *testing.T) {
	t.Parallel()
	got := wire.CallError(fault.New(fault.QueueFull, "full").With("cap", "5"))
	want := &flexiqv1.CallError{Code: "RESOURCE_EXHAUSTED", Reason: "QUEUE_FULL", Message: "full", Details: map[string]string{"cap": "5"}}
	if d := cmp.Diff(want, got, protocmp.Transform()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if got := wire.CallError(errors.New("secret")); got.GetReason() != "INTERNAL" || got.GetMessage() != "internal error" {
		t.Errorf("an unknown error is shown as %v", got)
	}
}

// Whatever is in a job, Size is not less than it takes on the wire.
func TestSizeBounds(t *testing.T) {
	t.Parallel()
	text := rapid.StringOfN(rapid.RuneFrom([]rune("a\"\\\x01\x1f\x7f<é😀\u2028")), 0, 200, -1)
	rapid.Check(t, func(t *rapid.T) {
		j := &job.Job{
			ID: jobID, Namespace: text.Draw(t, "namespace"), Queue: text.Draw(t, "queue"), Task: text.Draw(t, "task"),
			Error: text.Draw(t, "error"), UniqueKey: text.Draw(t, "key"), Origin: text.Draw(t, "origin"),
			Metadata: rapid.MapOf(text, text).Draw(t, "metadata"), Form: job.Form(rapid.IntRange(0, 2).Draw(t, "form")),
			RunAt: time.Now(), CreatedAt: time.Now(), StartedAt: time.Now(), State: job.Running,
		}
		switch j.Form {
		case job.Bytes:
			j.Payload = rapid.SliceOf(rapid.Byte()).Draw(t, "payload")
		case job.Args:
			j.Payload = []byte(rapid.SampledFrom([]string{`[1,1,1,1,1,1,1,1,1,1,1,1]`, `{"a":{"b":"c"}}`, `"x"`, `null`}).Draw(t, "args"))
		}
		p := wire.Job(j)
		claimed := &flexiqv1.ClaimedJob{Job: p, Lease: "ABCDEFGHIJKLMNOPQRSTUVWXYZ", LeaseExpiresAt: timestamppb.Now()}
		text, err := protojson.MarshalOptions{UseProtoNames: true, EmitDefaultValues: true}.Marshal(claimed)
		if err != nil {
			t.Fatal(err)
		}
		if got, need := wire.Size(j, p), max(len(text), proto.Size(claimed)); got < need {
			t.Fatalf("size %d is less than the %d bytes needed: %s", got, need, text)
		}
	})
}

func TestPages(t *testing.T) {
	t.Parallel()
	for in, want := range map[int32]int{0: 50, 1: 1, 500: 500} {
		if n, err := wire.PageSize(in); err != nil || n != want {
			t.Errorf("page size %d became %d, %v", in, n, err)
		}
	}
	for _, in := range []int32{-1, 501} {
		if _, err := wire.PageSize(in); fault.Of(err) == nil || fault.Of(err).Details[fault.KeyField] != "page_size" {
			t.Errorf("page size %d: %v", in, err)
		}
	}
	token := wire.PageToken("jobs", jobID)
	if after, err := wire.ParsePageToken("jobs", token); err != nil || after != jobID {
		t.Errorf("read back %q, %v", after, err)
	}
	if after, err := wire.ParsePageToken("jobs", ""); err != nil || after != "" || wire.PageToken("jobs", "") != "" {
		t.Errorf("the first page: %q, %v", after, err)
	}
	for _, bad := range []string{"x", jobID, token[1:], token + "A", token + "=", wire.PageToken("audit", jobID)} {
		if _, err := wire.ParsePageToken("jobs", bad); !fault.Is(err, fault.InvalidRequest) || fault.Of(err).Details[fault.KeyField] != "page_token" {
			t.Errorf("token %q: %v", bad, err)
		}
	}
}

func FuzzParsePageToken(f *testing.F) {
	f.Add(wire.PageToken("jobs", jobID))
	f.Add("")
	f.Add("AAAAAA")
	f.Fuzz(func(t *testing.T, token string) {
		after, err := wire.ParsePageToken("jobs", token)
		if err == nil && wire.PageToken("jobs", after) != token {
			t.Errorf("%q reads as %q, which is written %q", token, after, wire.PageToken("jobs", after))
		}
	})
}

func TestAdmissionReport(t *testing.T) {
	t.Parallel()
	got, err := wire.ParseAdmissionReport([]byte(`{"process":"p","namespaces":{"a.b":{"admitted":1,"rejected":2,"shed":3,"new":4}}}`))
	want := wire.AdmissionReport{Process: "p", Namespaces: map[string]wire.AdmissionCounts{"a.b": {Admitted: 1, Rejected: 2, Shed: 3}}}
	if d := cmp.Diff(want, got); err != nil || d != "" {
		t.Errorf("%v (-want +got):\n%s", err, d)
	}
	if _, err := wire.ParseAdmissionReport([]byte(`[`)); err == nil {
		t.Error("garbage was read as a report")
	}
}
