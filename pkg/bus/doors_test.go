package bus_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/structpb"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/auth"
	"flexiq/pkg/bus"
	"flexiq/pkg/fault"
	"flexiq/pkg/rpc"
)

// door is one way to call a method.
type door func(t *testing.T, c *tenant, m auth.Method, req, res proto.Message) error

// doors opens every door to a rig's methods.
func (r *rig) doors(t *testing.T) map[string]door {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := rpc.NewServer(rpc.Handler(r.methods(), r.verifier, rpc.HandlerOptions{}))
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(l) }()
	t.Cleanup(func() { s.Close(); <-done })
	url := "http://" + l.Addr().String()

	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	client := &http.Client{Transport: &http.Transport{Protocols: protocols}}
	t.Cleanup(client.CloseIdleConnections)
	return map[string]door{
		"nats protobuf": func(t *testing.T, c *tenant, m auth.Method, req, res proto.Message) error {
			return c.Call(t.Context(), c.subject(m.Verb), req, res)
		},
		"nats json": natsJSON,
		"http json": func(t *testing.T, c *tenant, m auth.Method, req, res proto.Message) error {
			return httpJSON(t, client, url, c, m, req, res)
		},
		"connect":  throughConnect(client, url),
		"grpc":     throughConnect(client, url, connect.WithGRPC()),
		"grpc-web": throughConnect(client, url, connect.WithGRPCWeb()),
	}
}

func natsJSON(t *testing.T, c *tenant, m auth.Method, req, res proto.Message) error {
	t.Helper()
	body, err := rpc.JSON.Marshal(req)
	if err != nil {
		t.Fatal(err)
	}
	reply := c.request(t, m.Verb, string(body))
	if reply.Header.Get("Nats-Service-Error-Code") != "" {
		return bus.Decode(reply, res)
	}
	return rpc.JSON.Unmarshal(reply.Data, res)
}

// httpJSON is what a program without any library does.
func httpJSON(t *testing.T, client *http.Client, url string, c *tenant, m auth.Method, req, res proto.Message) error {
	t.Helper()
	body, err := rpc.JSON.Marshal(req)
	if err != nil {
		t.Fatal(err)
	}
	in, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+m.Procedure(), bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	in.Header.Set("Authorization", "Bearer "+c.token)
	in.Header.Set("Content-Type", "application/json")
	out, err := client.Do(in)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Body.Close()
	text, err := io.ReadAll(out.Body)
	if err != nil {
		t.Fatal(err)
	}
	if out.StatusCode == http.StatusOK {
		return rpc.JSON.Unmarshal(text, res)
	}
	var e struct {
		Message string
		Details []struct {
			Debug struct {
				Reason   fault.Reason
				Metadata map[string]string
			}
		}
	}
	if err := json.Unmarshal(text, &e); err != nil || len(e.Details) == 0 {
		t.Fatalf("%v: %s", err, text)
	}
	f := fault.New(e.Details[0].Debug.Reason, "%s", e.Message).WithAll(e.Details[0].Debug.Metadata)
	if f.Reason.Status() != out.StatusCode {
		t.Errorf("%s with status %d", f.Reason, out.StatusCode)
	}
	return f
}

func throughConnect(client *http.Client, url string, opts ...connect.ClientOption) door {
	return func(t *testing.T, c *tenant, m auth.Method, req, res proto.Message) error {
		t.Helper()
		ctx, info := connect.NewClientContext(t.Context())
		info.RequestHeader().Set("Authorization", "Bearer "+c.token)
		var err error
		switch req := req.(type) {
		case *flexiqv1.EnqueueRequest:
			err = connectCall(ctx, client, url+m.Procedure(), req, res.(*flexiqv1.EnqueueResponse), opts)
		case *flexiqv1.GetJobRequest:
			err = connectCall(ctx, client, url+m.Procedure(), req, res.(*flexiqv1.GetJobResponse), opts)
		case *flexiqv1.SetQuotaRequest:
			err = connectCall(ctx, client, url+m.Procedure(), req, res.(*flexiqv1.SetQuotaResponse), opts)
		}
		if err != nil {
			return rpc.FromConnectError(err)
		}
		return nil
	}
}

func connectCall[Req, Res any, PRes interface {
	*Res
	proto.Message
}](ctx context.Context, client *http.Client, url string, req *Req, res PRes, opts []connect.ClientOption) error {
	out, err := connect.NewClient[Req, Res](client, url, opts...).CallUnary(ctx, connect.NewRequest(req))
	if err == nil {
		proto.Merge(res, PRes(out.Msg))
	}
	return err
}

// The same call has the same outcome through every door.
func TestDoorsAgree(t *testing.T) {
	r := newRig(t)
	r.enqueue = func(_ context.Context, q *flexiqv1.EnqueueRequest, done func(*flexiqv1.EnqueueResponse, error)) {
		switch j := q.GetJob(); j.GetTask() {
		case "full":
			done(nil, fault.New(fault.QueueFull, "queue full: 500 pending >= max_pending 500 <&>").
				WithAll(map[string]string{"limit": "max_pending", "cap": "500", "retry": "never"}))
		case "fast":
			done(nil, fault.New(fault.RateLimited, "wait").With(fault.KeyRetryAfterMS, "1500"))
		case "broken":
			done(nil, errors.New("a secret of the database"))
		default:
			done(&flexiqv1.EnqueueResponse{Result: &flexiqv1.EnqueueResult{Job: &flexiqv1.Job{
				Task: j.GetTask(), Payload: payloadOf(j), Args: j.GetArgs(), Priority: j.GetPriority(), Metadata: j.GetMetadata(),
			}}}, nil)
		}
	}
	r.getJob = func(_ context.Context, q *flexiqv1.GetJobRequest) (*flexiqv1.GetJobResponse, error) {
		return nil, fault.Missing("job")
	}
	r.setQuota = func(_ context.Context, q *flexiqv1.SetQuotaRequest) (*flexiqv1.SetQuotaResponse, error) {
		return &flexiqv1.SetQuotaResponse{Quota: q.GetQuota(), Revision: 1 << 60}, nil
	}
	r.serve(t)
	c := r.tenant(t, "a.b", auth.Produce, auth.Admin)
	enqueue := func(j *flexiqv1.JobSpec) proto.Message { return &flexiqv1.EnqueueRequest{Job: j} }
	args, err := structpb.NewValue(map[string]any{"n": []any{1.0, -2.5, nil, "é\u0000<&>"}})
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name, method string
		req          proto.Message
		res          proto.Message
		want         *fault.Error
	}{
		{"payload", "Enqueue", enqueue(&flexiqv1.JobSpec{Task: "t", Payload: []byte{0, 255, '"'}, Priority: proto.Int32(0)}),
			&flexiqv1.EnqueueResponse{Result: &flexiqv1.EnqueueResult{Job: &flexiqv1.Job{Task: "t", Payload: []byte{0, 255, '"'}}}}, nil},
		{"args", "Enqueue", enqueue(&flexiqv1.JobSpec{Task: "té", Args: args, Metadata: map[string]string{"k": "v"}}),
			&flexiqv1.EnqueueResponse{Result: &flexiqv1.EnqueueResult{Job: &flexiqv1.Job{Task: "té", Args: args, Metadata: map[string]string{"k": "v"}}}}, nil},
		{"nothing", "Enqueue", &flexiqv1.EnqueueRequest{}, &flexiqv1.EnqueueResponse{Result: &flexiqv1.EnqueueResult{Job: &flexiqv1.Job{}}}, nil},
		{"zero and unset", "SetQuota", &flexiqv1.SetQuotaRequest{Quota: &flexiqv1.NamespaceQuota{MaxPending: proto.Int64(0)}, IfRevision: proto.Int64(0)},
			&flexiqv1.SetQuotaResponse{Quota: &flexiqv1.NamespaceQuota{MaxPending: proto.Int64(0)}, Revision: 1 << 60}, nil},
		{"full", "Enqueue", enqueue(&flexiqv1.JobSpec{Task: "full"}), &flexiqv1.EnqueueResponse{},
			fault.New(fault.QueueFull, "queue full: 500 pending >= max_pending 500 <&>").
				WithAll(map[string]string{"limit": "max_pending", "cap": "500", "retry": "never"})},
		{"fast", "Enqueue", enqueue(&flexiqv1.JobSpec{Task: "fast"}), &flexiqv1.EnqueueResponse{},
			fault.New(fault.RateLimited, "wait").With(fault.KeyRetryAfterMS, "1500")},
		{"broken", "Enqueue", enqueue(&flexiqv1.JobSpec{Task: "broken"}), &flexiqv1.EnqueueResponse{}, fault.New(fault.Internal, "internal error")},
		{"missing", "GetJob", &flexiqv1.GetJobRequest{Id: "x"}, &flexiqv1.GetJobResponse{}, fault.New(fault.NotFound, "job not found")},
	}
	for name, open := range r.doors(t) {
		for _, tt := range tests {
			t.Run(tt.name+" through "+name, func(t *testing.T) {
				m, ok := auth.MethodNamed(tt.method)
				if !ok {
					t.Fatal("no such method")
				}
				res := tt.res.ProtoReflect().New().Interface()
				got := fault.Of(open(t, c, m, tt.req, res))
				if (got == nil) != (tt.want == nil) || got != nil && (got.Reason != tt.want.Reason || got.Message != tt.want.Message) {
					t.Fatalf("got %v, want %v", got, tt.want)
				}
				if got != nil && len(got.Details)+len(tt.want.Details) > 0 {
					if diff := cmp.Diff(tt.want.Details, got.Details); diff != "" {
						t.Errorf("details (-want +got):\n%s", diff)
					}
				}
				if diff := cmp.Diff(tt.res, res, protocmp.Transform()); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			})
		}
	}
}

// A type that no door reads is refused in the same words.
func TestDoorsAgreeOnContentTypes(t *testing.T) {
	r := newRig(t)
	r.serve(t)
	c := r.tenant(t, "a.b", auth.Produce)
	h := rpc.Handler(r.methods(), r.verifier, rpc.HandlerOptions{})
	m, _ := auth.MethodNamed("GetJob")
	for _, contentType := range []string{"text/plain", "application/json; charset=utf-16", "application/xml"} {
		reply := c.request(t, m.Verb, `{}`, "Content-Type", contentType)
		want := reply.Header.Get("Nats-Service-Error")
		in := httptest.NewRequestWithContext(t.Context(), http.MethodPost, m.Procedure(), strings.NewReader(`{}`))
		in.Header.Set("Authorization", "Bearer "+c.token)
		in.Header.Set("Content-Type", contentType)
		out := httptest.NewRecorder()
		h.ServeHTTP(out, in)
		var got struct{ Message string }
		if err := json.Unmarshal(out.Body.Bytes(), &got); err != nil || want == "" || got.Message != want {
			t.Errorf("%s: %q, %v, over NATS %q", contentType, got.Message, err, want)
		}
		if reason := reply.Header.Get("Fq-Reason"); reason != "INVALID_REQUEST" || out.Header().Get("Fq-Reason") != reason {
			t.Errorf("%s: reasons %q and %q", contentType, reason, out.Header().Get("Fq-Reason"))
		}
	}
}

func payloadOf(j *flexiqv1.JobSpec) []byte {
	if j == nil {
		return nil
	}
	return j.Payload // its presence, too
}
