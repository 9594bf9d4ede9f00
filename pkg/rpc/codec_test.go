package rpc_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/fault"
	"flexiq/pkg/rpc"
)

func TestJSONOutput(t *testing.T) {
	tests := []struct {
		name string
		msg  proto.Message
		want string
	}{
		{"empty lists and default values are there", &flexiqv1.ListJobsResponse{}, `{"jobs":[],"next_page_token":""}`},
		{"64-bit integers are strings", &flexiqv1.CancelJobsResponse{Cancelled: 9007199254740993}, `{"cancelled":"9007199254740993","cancelling":"0","not_found":"0"}`},
		{"what is unset is left out", &flexiqv1.NamespaceQuota{}, `{}`},
		{"zero is not unset", &flexiqv1.NamespaceQuota{MaxPending: proto.Int64(0)}, `{"max_pending":"0"}`},
		{"durations are seconds", &flexiqv1.ClaimRequest{Wait: durationpb.New(300 * time.Second), LeaseFor: durationpb.New(1500 * time.Millisecond)},
			`{"queues":[],"max_jobs":0,"wait":"300s","lease_for":"1.500s","worker":"","slots":0}`},
		{"times are RFC 3339", &flexiqv1.CancelFilter{CreatedBefore: timestamppb.New(time.Date(2026, 3, 8, 1, 2, 3, 0, time.UTC))},
			`{"queue":"","task":"","created_before":"2026-03-08T01:02:03Z"}`},
		{"args are JSON, null too", &flexiqv1.JobSpec{Task: "a b", Args: structpb.NewNullValue()},
			`{"id":"","queue":"","task":"a b","args":null,"unique_key":"","metadata":{}}`},
		{"bytes are base64, empty ones too", &flexiqv1.JobSpec{Payload: []byte{}},
			`{"id":"","queue":"","task":"","payload":"","unique_key":"","metadata":{}}`},
		{"white space in texts stays", &flexiqv1.CallError{Message: "500 pending >= max_pending  500 <&>"},
			`{"code":"","reason":"","message":"500 pending >= max_pending  500 <&>","details":{}}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := rpc.JSON.Marshal(tt.msg)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, string(got)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			back := tt.msg.ProtoReflect().New().Interface()
			if err := rpc.JSON.Unmarshal(got, back); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.msg, back, protocmp.Transform()); diff != "" {
				t.Errorf("read back (-want +got):\n%s", diff)
			}
		})
	}
	if _, err := rpc.JSON.Marshal(&flexiqv1.CallError{Message: "\xff"}); err == nil {
		t.Error("a text that is not UTF-8 was written")
	}
	if _, err := rpc.JSON.Marshal("x"); err == nil {
		t.Error("what is not a message was written")
	}
}

func TestJSONInput(t *testing.T) {
	for _, body := range []string{
		``, `{}`, ` { } `, `{"job":{"max_attempts":3}}`, `{"job":{"maxAttempts":3}}`, `{"job":{"delay":"300s"}}`,
		`{"job":{"priority":"7"}}`, `{"job":{"priority":7.0}}`, `{"job":null}`, `{"job":{"args":null}}`, `{"job":{"args":9007199254740992}}`,
		`{"job":{"args":-9007199254740992}}`, `{"job":{"args":[12345678901234567890.5,"12345678901234567890","1e99"]}}`,
		`{"job":{"args":[9007199254740992.0,-90071992547409920e-1,9.007199254740992e15,0e999999999999,0.0e5,1e-400,12345678901234567e-1]}}`,
		`{"job":{"args":` + nested(1000) + `}}`, `{"job":{"args":{"a":` + nested(999) + `}}}`,
		`{"job":{"task":"\ud83d\ude00 \\\" 12345678901234567890 [["}}`,
	} {
		if err := rpc.JSON.Unmarshal([]byte(body), &flexiqv1.EnqueueRequest{}); err != nil {
			t.Errorf("%.60s: %v", body, err)
		}
	}
	var q flexiqv1.NamespaceQuota
	if err := rpc.JSON.Unmarshal([]byte(`{"max_pending":9223372036854775807,"max_running":"9007199254740993"}`), &q); err != nil {
		t.Error(err)
	} else if q.GetMaxPending() != 9223372036854775807 || q.GetMaxRunning() != 9007199254740993 {
		t.Errorf("64-bit integers read as %d and %d", q.GetMaxPending(), q.GetMaxRunning())
	}
}

func nested(depth int) string { return strings.Repeat("[", depth) + strings.Repeat("]", depth) }

func TestJSONRefuses(t *testing.T) {
	batch := func() proto.Message { return &flexiqv1.EnqueueBatchRequest{} }
	calls := func() proto.Message { return &flexiqv1.EnqueueCallsRequest{} }
	one := func() proto.Message { return &flexiqv1.EnqueueRequest{} }
	quota := func() proto.Message { return &flexiqv1.SetQuotaRequest{} }
	tests := []struct {
		msg         func() proto.Message
		body, field string
		text        string // part of the message
	}{
		{one, `{`, "", "unexpected EOF"},
		{one, `[]`, "", "unexpected token ["},
		{one, `null`, "", "unexpected token null"},
		{one, `{} {}`, "", "(line 1:4)"},
		{one, `{"jib":1}`, "jib", "unknown field"},
		{one, `{"job":{"tusk":"a"}}`, "job.tusk", "unknown field (line 1:9)"},
		{one, "{\n \"jöb\": 1}", "jöb", "unknown field (line 2:2)"},
		{batch, `{"jobs":[{},{"tusk":{"deep":[1]}}]}`, "jobs[1].tusk", "unknown field"},
		{one, `{"job":{"task":1}}`, "job.task", "invalid value 1"},
		{one, `{"job":{"priority":1.5}}`, "job.priority", "invalid value 1.5"},
		{one, `{"job":{"priority":99999999999}}`, "job.priority", "invalid value"},
		{one, `{"job":{"payload":"*"}}`, "job.payload", "invalid value"},
		{one, `{"job":{"runAt":"yesterday"}}`, "job.run_at", "yesterday"},
		{one, `{"job":{"delay":"5m"}}`, "job.delay", "5m"},
		{one, `{"job":{"backoff":{"base":1}}}`, "job.backoff.base", "unexpected token 1"},
		{one, `{"job":{"metadata":{"k":1}}}`, "job.metadata.k", "invalid value 1"},
		{one, `{"job":{"metadata":{"k":"1","k":"2"}}}`, "job.metadata.k", "given twice"},
		{one, `{"job":{"max_attempts":1,"maxAttempts":2}}`, "job.max_attempts", "given twice"},
		{one, `{"job":{"args":1e999}}`, "job.args", "1e999"},
		{one, `{"job":{"args":{"a":[NaN]}}}`, "job.args", "NaN"},
		{one, `{"job":{"args":{"n":9007199254740993}}}`, "job.args", "beyond ±2^53"},
		{one, `{"job":{"args":-9007199254740993}}`, "job.args", "the integer -9007199254740993"},
		{batch, `{"jobs":[{"args":1},{"args":[[{"a":"b"},10000000000000000]]}]}`, "jobs[1].args", "beyond ±2^53"},
		{calls, `{"calls":[{},{"jobs":[{},{"args":12345678901234567}]}]}`, "calls[1].jobs[1].args", "beyond ±2^53"},
		{one, `{"job":{"args":9007199254740993.0}}`, "job.args", "the integer 9007199254740993.0"},
		{one, `{"job":{"args":-9007199254740993e0}}`, "job.args", "beyond ±2^53"},
		{one, `{"job":{"args":[90071992547409930e-1]}}`, "job.args", "beyond ±2^53"},
		{one, `{"job":{"args":[900719925474.0993E+4]}}`, "job.args", "beyond ±2^53"},
		{one, `{"job":{"args":1e20}}`, "job.args", "the integer 1e20"},
		{one, `{"job":{"args":1e99999999999999999999}}`, "job.args", "beyond ±2^53"},
		{one, `{"job":{"args":` + strings.Repeat("9", 5000) + `}}`, "job.args", "…"},
		{one, `{"job":{"args":` + nested(1001) + `}}`, "job.args", "at most 1000 levels"},
		{one, `{"job":{"args":{"a":` + nested(1000) + `}}}`, "job.args", "at most 1000 levels"},
		{one, `{"job":{"args":` + nested(10000) + `}}`, "job.args", "at most 1000 levels"},
		{one, `{"job":{"args":` + strings.Repeat("[", 1<<20) + `}}`, "job.args", "at most 1000 levels"},
		{one, `{"x":` + nested(10000) + `}`, "", "nested too deeply"},
		{one, strings.Repeat(`{"x":`, 900), "x", "unknown field"},
		{one, "{\"job\":{\"task\":\"\x00\"}}", "job.task", "invalid character"},
		{one, "{\"job\":{\"task\":\"\xff\"}}", "job.task", "UTF-8"},
		{one, "{\"job\":{\"\xff\":1}}", "", "UTF-8"},
		{one, `{"job":{"task":"\ud800"}}`, "job.task", "half a surrogate pair"},
		{one, `{"job":{"task":"\ud800 and so much more"}}`, "job.task", "half a surrogate pair"},
		{one, `{"job":{"task":"\\\ud83d\ude00\u00e9","args":{"a":["\udc00\ud800"]}}}`, "job.args", "half a surrogate pair"},
		{one, `{"job":{"metadata":{"k":"\ud800\u0041"}}}`, "job.metadata.k", "half a surrogate pair"},
		{batch, `{"jobs":[{},{"unique_key":"\udfff"}]}`, "jobs[1].unique_key", "half a surrogate pair"},
		{one, `{"job":{"task":"\x"}}`, "job.task", "invalid escape"},
		{quota, `{"quota":{"max_bytes":1}}`, "quota.max_bytes", "unknown field"},
		{quota, `{"quota":{"max_pending":9223372036854775808}}`, "quota.max_pending", "invalid value"},
		{quota, `{"quota":{"max_pending":1e2}}`, "quota.max_pending", "must be a plain decimal integer, got 1e2"},
		{quota, `{"quota":{"max_pending":1.0}}`, "quota.max_pending", "plain decimal"},
		{quota, `{"quota":{"max_running":"1e2"}}`, "quota.max_running", "plain decimal"},
		{quota, `{"quota":{"maxDeadRows":"1.0"}}`, "quota.max_dead_rows", "plain decimal"},
		{quota, `{"quota":{"max_archived_rows":-0}}`, "quota.max_archived_rows", "plain decimal"},
		{quota, `{"quota":{"max_archived_rows":"+1"}}`, "quota.max_archived_rows", "plain decimal"},
		{quota, `{"quota":{"max_archived_rows":"01"}}`, "quota.max_archived_rows", "plain decimal"},
		{quota, `{"quota":{"max_archived_rows":""}}`, "quota.max_archived_rows", "plain decimal"},
		{quota, `{"if_revision":1e0}`, "if_revision", "plain decimal"},
	}
	for _, tt := range tests {
		err := rpc.JSON.Unmarshal([]byte(tt.body), tt.msg())
		f := fault.Of(err)
		if f == nil || f.Reason != fault.InvalidRequest {
			t.Errorf("%.80q: %v, want INVALID_REQUEST", tt.body, err)
			continue
		}
		if tt.field != "" && f.Details[fault.KeyField] != tt.field {
			t.Errorf("%.80q: field %q, want %q (%s)", tt.body, f.Details[fault.KeyField], tt.field, f.Message)
		}
		if !strings.Contains(f.Message, tt.text) || len(f.Message) > 1000 {
			t.Errorf("%.80q: message %q, want %q in it", tt.body, f.Message, tt.text)
		}
	}
}

// A key may be as long and as deep as the body: the error stays short.
func TestJSONErrorsStayShort(t *testing.T) {
	for _, body := range []string{
		strings.Repeat(`{"`+strings.Repeat("k", 1000)+`":`, 500),
		`{"job":{"task":` + strings.Repeat("x", 1<<20) + `}}`,
		`{"job":{"delay":"` + strings.Repeat("x", 1<<20) + `"}}`,
		`{"job":{"metadata":{"` + strings.Repeat("x", 1<<20) + `":1}}}`,
	} {
		err := rpc.JSON.Unmarshal([]byte(body), &flexiqv1.EnqueueRequest{})
		if f := fault.Of(err); f == nil || f.Reason != fault.InvalidRequest || len(f.Message) > 1000 {
			t.Errorf("%.40s…: %.2000v", body, err)
		}
	}
}

func TestBinary(t *testing.T) {
	req := &flexiqv1.EnqueueRequest{Job: &flexiqv1.JobSpec{Task: "t", Args: value(t, `{"a":[1,{"b":null}]}`), Metadata: map[string]string{"k": "v"}}}
	body, err := rpc.Binary.Marshal(req)
	if err != nil {
		t.Fatal(err)
	}
	var back flexiqv1.EnqueueRequest
	if err := rpc.Binary.Unmarshal(body, &back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(req, &back, protocmp.Transform()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func value(t *testing.T, text string) *structpb.Value {
	t.Helper()
	v := new(structpb.Value)
	if err := v.UnmarshalJSON([]byte(text)); err != nil {
		t.Fatal(err)
	}
	return v
}

func deepValue(depth int) *structpb.Value {
	v := structpb.NewListValue(&structpb.ListValue{})
	for range depth - 1 {
		v = structpb.NewListValue(&structpb.ListValue{Values: []*structpb.Value{v}})
	}
	return v
}

// mark stands for bytes that are not UTF-8 in what protobuf would not write.
const mark = "broken"

// raw writes a batch whose second job has the mark made wrong.
func raw(t *testing.T, change func(*flexiqv1.JobSpec)) []byte {
	t.Helper()
	s := &flexiqv1.JobSpec{Task: "t"}
	change(s)
	body, err := proto.Marshal(&flexiqv1.EnqueueBatchRequest{Jobs: []*flexiqv1.JobSpec{{Task: "first"}, s}})
	if err != nil {
		t.Fatal(err)
	}
	return bytes.ReplaceAll(body, []byte(mark), []byte("\xff\xfeoken"))
}

func TestBinaryRefuses(t *testing.T) {
	unknown := []byte{0x98, 0x06, 0x01} // field 99, varint 1
	spec := func(change func(*flexiqv1.JobSpec)) []byte {
		s := &flexiqv1.JobSpec{Task: "t"}
		change(s)
		body, err := proto.Marshal(&flexiqv1.EnqueueBatchRequest{Jobs: []*flexiqv1.JobSpec{{Task: "first"}, s}})
		if err != nil {
			t.Fatal(err)
		}
		return body
	}
	tests := []struct {
		name  string
		body  []byte
		field string
	}{
		{"not protobuf", []byte("{}"), ""},
		{"cut short", spec(func(*flexiqv1.JobSpec) {})[:5], ""},
		{"not UTF-8", []byte{0x0a, 0x03, 0x1a, 0x01, 0xff}, "jobs[0].task"},
		{"metadata that is not UTF-8", raw(t, func(s *flexiqv1.JobSpec) { s.Metadata = map[string]string{"k": mark} }), "jobs[1].metadata"},
		{"args that are not UTF-8", raw(t, func(s *flexiqv1.JobSpec) {
			s.Args = structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{"a": structpb.NewStringValue(mark)}})
		}), "jobs[1].args"},
		{"unknown field", unknown, "99"},
		{"unknown field of a job", spec(func(s *flexiqv1.JobSpec) { s.ProtoReflect().SetUnknown(unknown) }), "jobs[1].99"},
		{"unknown field of a duration", spec(func(s *flexiqv1.JobSpec) {
			s.Delay = durationpb.New(time.Second)
			s.Delay.ProtoReflect().SetUnknown(unknown)
		}), "jobs[1].delay.99"},
		{"unknown field in args", spec(func(s *flexiqv1.JobSpec) {
			s.Args = value(t, `{"a":[1]}`)
			s.Args.GetStructValue().Fields["a"].GetListValue().Values[0].ProtoReflect().SetUnknown(unknown)
		}), "jobs[1].args.99"},
		{"deep args", spec(func(s *flexiqv1.JobSpec) { s.Args = deepValue(1001) }), "jobs[1].args"},
		{"very deep args", spec(func(s *flexiqv1.JobSpec) { s.Args = deepValue(3000) }), "jobs[1].args"},
		{"args beyond protobuf's own depth", spec(func(s *flexiqv1.JobSpec) { s.Args = deepValue(9990) }), "jobs[1].args"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := rpc.Binary.Unmarshal(tt.body, &flexiqv1.EnqueueBatchRequest{})
			f := fault.Of(err)
			if f == nil || f.Reason != fault.InvalidRequest || f.Details[fault.KeyField] != tt.field {
				t.Errorf("got %v %v, want INVALID_REQUEST of %q", err, f, tt.field)
			}
		})
	}
	if err := rpc.Binary.Unmarshal(spec(func(s *flexiqv1.JobSpec) { s.Args = deepValue(1000) }), &flexiqv1.EnqueueBatchRequest{}); err != nil {
		t.Errorf("args at the limit: %v", err)
	}
}

// Whatever arrives, the codec answers INVALID_REQUEST or a message that both
// codecs carry unchanged.
func FuzzCodec(f *testing.F) {
	f.Add([]byte(`{"calls":[{"jobs":[{"task":"a","args":{"n":[1,-9007199254740993,1e5]},"delay":"1.5s"}]}]}`), false)
	f.Add([]byte(`{"calls":[{"jobs":[{"task":"\ud800","metadata":{"a":"b"}}]}]}`), false)
	f.Add([]byte("{\"calls\":[{\"jobs\":[{\"\xff\":[{}]}]}]}"), false)
	f.Add([]byte{0x0a, 0x05, 0x0a, 0x03, 0x1a, 0x01, 0x61}, true)
	f.Fuzz(func(t *testing.T, body []byte, binary bool) {
		codec := rpc.JSON
		if binary {
			codec = rpc.Binary
		}
		var m flexiqv1.EnqueueCallsRequest
		if err := codec.Unmarshal(body, &m); err != nil {
			if f := fault.Of(err); f.Reason != fault.InvalidRequest || len(f.Message) > 1000 {
				t.Fatalf("%v", err)
			}
			return
		}
		for _, c := range []rpc.Codec{rpc.JSON, rpc.Binary} {
			out, err := c.Marshal(&m)
			if err != nil {
				if c == rpc.JSON {
					return // NaN within args, which only the binary form can carry
				}
				t.Fatal(err)
			}
			if c == rpc.JSON && !json.Valid(out) {
				t.Fatalf("not JSON: %s", out)
			}
			var back flexiqv1.EnqueueCallsRequest
			if err := c.Unmarshal(out, &back); err != nil && c == rpc.Binary {
				t.Fatal(err)
			}
		}
	})
}
