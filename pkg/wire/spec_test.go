package wire_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/fault"
	"flexiq/pkg/job"
	"flexiq/pkg/wire"
)

const jobID = "01890a5d-ac96-774b-bcce-b302099a8057"

func spec(t *testing.T, text string) *flexiqv1.JobSpec {
	t.Helper()
	p := &flexiqv1.JobSpec{}
	if err := protojson.Unmarshal([]byte(text), p); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return p
}

func TestSpec(t *testing.T) {
	t.Parallel()
	full := `{"id":"` + strings.ToUpper(jobID) + `","queue":"mail","task":"send","payload":"AAE=","priority":-3,"run_at":"2026-03-08T02:30:00.1234567Z",
		"max_attempts":7,"timeout":"90s","backoff":{"base":"2s","max":"60s"},"unique_key":"inv-88","metadata":{"a":"b"}}`
	got, err := wire.Spec("job", spec(t, full), job.DefaultMaxPayload)
	if err != nil {
		t.Fatal(err)
	}
	want := job.Spec{
		ID: jobID, Queue: "mail", Task: "send", Payload: []byte{0, 1}, Form: job.Bytes, Priority: -3,
		RunAt: time.Date(2026, 3, 8, 2, 30, 0, 123456000, time.UTC), MaxAttempts: 7, Timeout: 90 * time.Second,
		BackoffBase: 2 * time.Second, BackoffMax: time.Minute, UniqueKey: "inv-88", Metadata: map[string]string{"a": "b"},
		Fingerprint: got.Fingerprint,
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("spec (-want +got):\n%s", d)
	}

	debounced, err := wire.Spec("job", spec(t, `{"task":"t","debounce":{"key":"k","window":"2s"}}`), job.DefaultMaxPayload)
	if want := (job.Debounce{Key: "k", Window: 2 * time.Second, MaxWait: 20 * time.Second}); err != nil || debounced.Debounce != want {
		t.Errorf("debounce %+v, %v; want %+v", debounced.Debounce, err, want)
	}
	if debounced.Form != job.NoPayload || debounced.Payload != nil {
		t.Errorf("no payload became %v %q", debounced.Form, debounced.Payload)
	}
	empty, err := wire.Spec("job", spec(t, `{"task":"t","payload":""}`), job.DefaultMaxPayload)
	if err != nil || empty.Form != job.Bytes || empty.Payload == nil {
		t.Errorf("an empty payload became %v %v, %v", empty.Form, empty.Payload, err)
	}
}

// A refusal names the request's field, and an explicit zero never passes for "not set".
func TestSpecRefusals(t *testing.T) {
	t.Parallel()
	tests := []struct{ spec, field string }{
		{`{}`, "task"},
		{`{"task":"t","id":"7"}`, "id"},
		{`{"task":"t","queue":" mail"}`, "queue"},
		{`{"task":"t\u0000"}`, "task"},
		{`{"task":"t","unique_key":"a\u0000"}`, "unique_key"},
		{`{"task":"t","payload":"AAE=","args":null}`, "args"},
		{`{"task":"t","priority":128}`, "priority"},
		{`{"task":"t","max_attempts":0}`, "max_attempts"},
		{`{"task":"t","max_attempts":-1}`, "max_attempts"},
		{`{"task":"t","timeout":"0s"}`, "timeout"},
		{`{"task":"t","timeout":"0.0000001s"}`, "timeout"},
		{`{"task":"t","timeout":"0.5s"}`, "timeout"},
		{`{"task":"t","backoff":{"base":"0s"}}`, "backoff.base"},
		{`{"task":"t","backoff":{"max":"0s"}}`, "backoff.max"},
		{`{"task":"t","backoff":{"base":"10s","max":"5s"}}`, "backoff.max"},
		{`{"task":"t","delay":"-1s"}`, "delay"},
		{`{"task":"t","delay":"315576000000s"}`, "delay"},
		{`{"task":"t","delay":"0s","run_at":"2026-01-01T00:00:00Z"}`, "delay"},
		{`{"task":"t","run_at":"0001-01-01T00:00:00Z"}`, "run_at"},
		{`{"task":"t","run_at":"1969-12-31T23:59:59Z"}`, "run_at"},
		{`{"task":"t","debounce":{}}`, "debounce.key"},
		{`{"task":"t","debounce":{"window":"1s"}}`, "debounce.key"},
		{`{"task":"t","debounce":{"key":"k"}}`, "debounce.window"},
		{`{"task":"t","debounce":{"key":"k","window":"0s"}}`, "debounce.window"},
		{`{"task":"t","debounce":{"key":"k","window":"2s","max_wait":"0s"}}`, "debounce.max_wait"},
		{`{"task":"t","debounce":{"key":"k","window":"2s","max_wait":"1s"}}`, "debounce.max_wait"},
		{`{"task":"t","debounce":{"key":"k","window":"2s"},"unique_key":"u"}`, "debounce"},
		{`{"task":"t","debounce":{"key":"k","window":"2s"},"delay":"1s"}`, "debounce"},
		{`{"task":"t","debounce":{"key":"k","window":"2s"},"delay":"0s"}`, "debounce"},
		{`{"task":"t","debounce":{"key":"k","window":"2s"},"run_at":"2026-03-08T01:02:03Z"}`, "debounce"},
		{`{"task":"t","metadata":{"a":"\u0000"}}`, "metadata"},
	}
	for _, tt := range tests {
		t.Run(tt.spec, func(t *testing.T) {
			t.Parallel()
			_, err := wire.Spec("jobs[3]", spec(t, tt.spec), job.DefaultMaxPayload)
			if f := fault.Of(err); f == nil || f.Reason != fault.InvalidRequest || f.Details[fault.KeyField] != "jobs[3]."+tt.field {
				t.Errorf("got %v, want INVALID_REQUEST for jobs[3].%s", err, tt.field)
			} else if !strings.HasPrefix(f.Message, "jobs[3]."+tt.field+": ") {
				t.Errorf("the message %q does not name the field", f.Message)
			}
		})
	}
	if _, err := wire.Spec("job", nil, 1); fault.Of(err).Message != "job: must be given" {
		t.Errorf("a missing job: %v", err)
	}
}

func TestSpecTooLarge(t *testing.T) {
	t.Parallel()
	large := func(field string, p *flexiqv1.JobSpec, limit int) {
		t.Helper()
		_, err := wire.Spec("job", p, limit)
		if f := fault.Of(err); f == nil || f.Reason != fault.PayloadTooLarge || f.Details[fault.KeyField] != field {
			t.Errorf("got %v, want PAYLOAD_TOO_LARGE for %s", err, field)
		}
	}
	large("job.payload", &flexiqv1.JobSpec{Task: "t", Payload: make([]byte, 11)}, 10)
	large("job.args", &flexiqv1.JobSpec{Task: "t", Args: structpb.NewStringValue("123456789")}, 10)

	// A value that fits as JSON but would not fit into the reply of a claim.
	one := structpb.NewNumberValue(1)
	ones := make([]*structpb.Value, 400_000)
	for i := range ones {
		ones[i] = one
	}
	large("job.args", &flexiqv1.JobSpec{Task: "t", Args: structpb.NewListValue(&structpb.ListValue{Values: ones})}, job.LargestMaxPayload)
}

func TestArgs(t *testing.T) {
	t.Parallel()
	tests := []struct{ in, want string }{
		{`null`, `null`},
		{`true`, `true`},
		{`9007199254740991`, `9007199254740991`},
		{`6.02e23`, `6.02e+23`},
		{`-0.5`, `-0.5`},
		{`"a<b>&\u0000é\ud83d\ude00\n"`, `"a<b>&\u0000é😀\n"`},
		{`[ ]`, `[]`},
		{` { "b" : [1, {"y":2,"x":null}], "a" : {} } `, `{"a":{},"b":[1,{"x":null,"y":2}]}`},
	}
	for _, tt := range tests {
		t.Run(tt.in, func(t *testing.T) {
			t.Parallel()
			s, err := wire.Spec("job", spec(t, `{"task":"t","args":`+tt.in+`}`), job.DefaultMaxPayload)
			if err != nil || s.Form != job.Args || string(s.Payload) != tt.want {
				t.Fatalf("got %v %s, %v; want %s", s.Form, s.Payload, err, tt.want)
			}
			back := wire.Job(&job.Job{Payload: s.Payload, Form: s.Form})
			if back.Payload != nil || !proto.Equal(back.Args, spec(t, `{"args":`+tt.in+`}`).Args) {
				t.Errorf("shown as %v %v", back.Args, back.Payload)
			}
		})
	}
}

func TestArgsDepth(t *testing.T) {
	t.Parallel()
	nested := func(levels int) *structpb.Value {
		v := structpb.NewNullValue()
		for i := range levels {
			if i%2 == 0 {
				v = structpb.NewListValue(&structpb.ListValue{Values: []*structpb.Value{v}})
			} else {
				v = structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{"k": v}})
			}
		}
		return v
	}
	s, err := wire.Spec("job", &flexiqv1.JobSpec{Task: "t", Args: nested(job.MaxArgsDepth)}, job.DefaultMaxPayload)
	if err != nil {
		t.Fatalf("1000 levels: %v", err)
	}
	if back := wire.Job(&job.Job{Payload: s.Payload, Form: s.Form}); back.Args == nil {
		t.Error("1000 levels cannot be shown")
	}
	for _, bad := range []*structpb.Value{nested(job.MaxArgsDepth + 1), {}, structpb.NewListValue(&structpb.ListValue{Values: []*structpb.Value{nil}})} {
		_, err := wire.Spec("job", &flexiqv1.JobSpec{Task: "t", Args: bad}, job.DefaultMaxPayload)
		if f := fault.Of(err); f == nil || f.Reason != fault.InvalidRequest || f.Details[fault.KeyField] != "job.args" {
			t.Errorf("got %v, want INVALID_REQUEST for job.args", err)
		}
	}
}

// The same value is the same content, whatever the order of its keys was.
func TestArgsFingerprint(t *testing.T) {
	t.Parallel()
	sum := func(args string) [16]byte {
		s, err := wire.Spec("job", spec(t, `{"task":"t","args":`+args+`}`), job.DefaultMaxPayload)
		if err != nil {
			t.Fatal(err)
		}
		return s.Fingerprint
	}
	first := sum(`{"a":1,"b":2,"c":3,"d":4}`)
	for range 20 {
		if sum(`{"d":4,"c":3,"b":2,"a":1}`) != first {
			t.Fatal("the order of keys changed the fingerprint")
		}
	}
	if sum(`{"a":1,"b":2,"c":3,"d":5}`) == first {
		t.Fatal("another value has the same fingerprint")
	}
}
