package main

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/fault"
)

func text(t *testing.T, m proto.Message) string {
	t.Helper()
	var b strings.Builder
	if err := writeJSON(&b, m); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestJSONIsTheInterfacesWithNumbers(t *testing.T) {
	t.Parallel()
	for want, m := range map[string]proto.Message{
		// Presence: zero is written, unset is left out; empty lists and defaults are there.
		`{"quota":{"max_pending":0,"on_excess":"reject","max_dead_rows":9223372036854775807},"inherited":false,"revision":3,"updated_by":""}`: &flexiqv1.GetQuotaResponse{
			Quota:    &flexiqv1.NamespaceQuota{MaxPending: new(int64(0)), OnExcess: new("reject"), MaxDeadRows: new(int64(1<<63 - 1))},
			Revision: 3,
		},
		`{"jobs":[],"next_page_token":"<&>"}`: &flexiqv1.ListJobsResponse{NextPageToken: "<&>"},
		`{}`:                                  &flexiqv1.GetJobResponse{},
	} {
		if got := text(t, m); got != want+"\n" {
			t.Errorf("got  %swant %s", got, want)
		}
	}
}

func TestJSONReadsBackAsTheSame(t *testing.T) {
	t.Parallel()
	args, err := structpb.NewValue(map[string]any{"a": []any{1.5, nil, "x\u009b", true}, "b": map[string]any{}})
	if err != nil {
		t.Fatal(err)
	}
	at := timestamppb.New(time.Date(2030, 1, 2, 3, 4, 5, 678000, time.UTC))
	for _, m := range []proto.Message{
		&flexiqv1.GetJobResponse{Job: &flexiqv1.Job{
			Id: "1", Namespace: "a\"b\\\x1b\u2028", Args: args, Priority: -128, Attempt: 7, RunAt: at, CreatedAt: at,
			Result: []byte{}, Metadata: map[string]string{"z": "1", "a": "2", "": "\x7f"},
		}},
		&flexiqv1.GetJobResponse{Job: &flexiqv1.Job{Payload: []byte{0, 0xff}, Args: structpb.NewNullValue()}},
		&flexiqv1.GetUsageResponse{
			Pending: 1 << 60, Limits: []*flexiqv1.LimitUsage{{Field: "f", Limit: 1}, {}}, LastMinute: &flexiqv1.AdmissionCounts{Shed: 2},
		},
		&flexiqv1.EnqueueOutcome{Error: &flexiqv1.CallError{Reason: "R", Details: map[string]string{"k": "v"}}},
	} {
		got := text(t, m)
		back := m.ProtoReflect().New().Interface()
		if err := protojson.Unmarshal([]byte(got), back); err != nil {
			t.Errorf("%s: %v", got, err)
		}
		if !proto.Equal(m, back) {
			t.Errorf("%s reads back as %v, want %v", got, back, m)
		}
		if strings.ContainsFunc(strings.TrimSuffix(got, "\n"), func(r rune) bool { return r < 0x20 || r >= 0x7f && r <= 0x9f }) {
			t.Errorf("a control character stands in %q", got)
		}
	}
}

func TestFaultsAreJSONLikeOverNATS(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	writeFault(&b, fault.New(fault.QueueFull, "1 >= 1").With("cap", "1").With("asked", "2"))
	want := `{"error":{"code":"RESOURCE_EXHAUSTED","reason":"QUEUE_FULL","message":"1 >= 1","details":{"asked":"2","cap":"1"}}}` + "\n"
	if b.String() != want {
		t.Errorf("got  %swant %s", b.String(), want)
	}
}
