package rpc_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"github.com/google/go-cmp/cmp"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/auth"
	"flexiq/pkg/fault"
	"flexiq/pkg/rpc"
)

func TestHTTPAnswer(t *testing.T) {
	r := newRig(t)
	token := r.mint(t, "lark", auth.Inspect)
	r.getJob = func(ctx context.Context, q *flexiqv1.GetJobRequest) (*flexiqv1.GetJobResponse, error) {
		id := auth.From(ctx)
		return &flexiqv1.GetJobResponse{Job: &flexiqv1.Job{Id: q.GetId(), Namespace: id.Namespace, Task: auth.Door(ctx)}}, nil
	}
	want := `{"job":{"id":"7","namespace":"lark","queue":"","task":"http","status":"","priority":0,"attempt":0,"max_attempts":0,` +
		`"error":"","metadata":{},"unique_key":"","origin":"","enqueued_by":"","dead_metadata":{}}}`
	for name, header := range map[string][]string{
		"plain":        nil,
		"charset":      {"Content-Type", "application/json; charset=utf-8"},
		"no type":      {"Content-Type", ""},
		"lower scheme": {"Authorization", "bearer " + token},
	} {
		got := r.post(t, pathGetJob, token, `{"id":"7"}`, header...)
		if got.status != http.StatusOK {
			t.Errorf("%s: %d %s", name, got.status, got.body)
		}
		if diff := cmp.Diff(want, got.body); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// The form of an error over HTTP is an interface.
func TestHTTPError(t *testing.T) {
	r := newRig(t)
	token := r.mint(t, "lark", auth.Produce)
	r.getJob = func(context.Context, *flexiqv1.GetJobRequest) (*flexiqv1.GetJobResponse, error) {
		return nil, fault.New(fault.RateLimited, "too fast: 5/s").WithAll(map[string]string{"limit": "enqueue_rate", fault.KeyRetryAfterMS: "1200"})
	}
	got := r.post(t, pathGetJob, token, `{}`)
	if got.status != 429 || got.header.Get("Fq-Reason") != "RATE_LIMITED" || got.header.Get("Retry-After") != "2" {
		t.Errorf("status %d, headers %v", got.status, got.header)
	}
	var body struct {
		Code    string
		Message string
		Details []struct {
			Type, Value string
			Debug       map[string]any
		}
	}
	if err := json.Unmarshal([]byte(got.body), &body); err != nil {
		t.Fatalf("%v: %s", err, got.body)
	}
	if body.Code != "resource_exhausted" || body.Message != "too fast: 5/s" || len(body.Details) != 2 {
		t.Fatalf("body %s", got.body)
	}
	info, retry := body.Details[0], body.Details[1]
	if info.Type != "google.rpc.ErrorInfo" || info.Value == "" {
		t.Errorf("first detail %+v", info)
	}
	want := map[string]any{
		"reason": "RATE_LIMITED", "domain": "flexiq",
		"metadata": map[string]any{"limit": "enqueue_rate", "retry_after_ms": "1200"},
	}
	if diff := cmp.Diff(want, info.Debug); diff != "" {
		t.Errorf("ErrorInfo (-want +got):\n%s", diff)
	}
	if retry.Type != "google.rpc.RetryInfo" || retry.Debug["retryDelay"] != "1.200s" {
		t.Errorf("second detail %+v", retry)
	}
}

// Every reason arrives as it was sent, over every protocol, with its status.
func TestReasonsArrive(t *testing.T) {
	r := newRig(t)
	token := r.mint(t, "lark", auth.Produce)
	reasons := []fault.Reason{
		fault.QueueFull, fault.RateLimited, fault.QuotaUnreadable, fault.StorageUnavailable, fault.Overloaded, fault.InvalidRequest,
		fault.PayloadTooLarge, fault.Unauthenticated, fault.PermissionDenied, fault.NotFound, fault.RevisionMismatch, fault.IDConflict,
		fault.DeadlineExceeded, fault.Unimplemented, fault.Internal, fault.Cancelled,
	}
	for _, reason := range reasons {
		sent := fault.New(reason, "message of %s", reason).With("limit", "max_pending").With(fault.KeyRetryAfterMS, "40")
		r.getJob = func(context.Context, *flexiqv1.GetJobRequest) (*flexiqv1.GetJobResponse, error) { return nil, sent }
		if got := r.post(t, pathGetJob, token, `{}`); got.status != reason.Status() || got.header.Get("Fq-Reason") != string(reason) {
			t.Errorf("%s: status %d, reason %q", reason, got.status, got.header.Get("Fq-Reason"))
		}
		for name, opts := range protocols() {
			_, err := call[flexiqv1.GetJobRequest, flexiqv1.GetJobResponse](t, r, token, pathGetJob, &flexiqv1.GetJobRequest{}, opts...)
			got := rpc.FromConnectError(err)
			if got == nil || got.Reason != sent.Reason || got.Message != sent.Message {
				t.Errorf("%s over %s: %v", reason, name, err)
				continue
			}
			if diff := cmp.Diff(sent.Details, got.Details); diff != "" {
				t.Errorf("%s over %s: details (-want +got):\n%s", reason, name, diff)
			}
		}
	}
}

// A message is readable in the body as it is, over HTTP as over NATS.
func TestHTTPErrorsAreNotEscaped(t *testing.T) {
	r := newRig(t)
	token := r.mint(t, "lark", auth.Produce)
	sent := fault.New(fault.QueueFull, `500 pending >= max_pending 500 <&> "\u003e" \\u003e \`).With("namespace", `<a&b>\`)
	r.getJob = func(context.Context, *flexiqv1.GetJobRequest) (*flexiqv1.GetJobResponse, error) { return nil, sent }
	got := r.post(t, pathGetJob, token, `{}`)
	if !strings.Contains(got.body, `500 pending >= max_pending 500 <&> `) {
		t.Errorf("body %s", got.body)
	}
	var body struct{ Message string }
	if err := json.Unmarshal([]byte(got.body), &body); err != nil || body.Message != sent.Message {
		t.Errorf("message %q, %v, want %q", body.Message, err, sent.Message)
	}
	_, err := call[flexiqv1.GetJobRequest, flexiqv1.GetJobResponse](t, r, token, pathGetJob, &flexiqv1.GetJobRequest{})
	if f := rpc.FromConnectError(err); f == nil || f.Message != sent.Message || f.Details["namespace"] != sent.Details["namespace"] {
		t.Errorf("connect client: %v", err)
	}
}

func TestFromConnectErrorOfOthers(t *testing.T) {
	tests := []struct {
		err  error
		want fault.Reason
	}{
		{connect.NewError(connect.CodeUnavailable, errors.New("refused")), fault.Overloaded},
		{connect.NewError(connect.CodeResourceExhausted, errors.New("proxy")), fault.Overloaded},
		{connect.NewError(connect.CodeUnauthenticated, errors.New("proxy")), fault.Unauthenticated},
		{connect.NewError(connect.CodeDeadlineExceeded, context.DeadlineExceeded), fault.DeadlineExceeded},
		{connect.NewError(connect.CodeUnknown, errors.New("?")), fault.Internal},
		{context.Canceled, fault.Cancelled},
		{errors.New("?"), fault.Internal},
	}
	for _, tt := range tests {
		if got := rpc.FromConnectError(tt.err); got.Reason != tt.want {
			t.Errorf("%v: %s, want %s", tt.err, got.Reason, tt.want)
		}
	}
	if got := rpc.FromConnectError(nil); got != nil {
		t.Errorf("nil: %v", got)
	}
}

func TestNothingWithoutAToken(t *testing.T) {
	r := newRig(t)
	valid := r.mint(t, "lark", auth.Produce)
	r.getJob = func(context.Context, *flexiqv1.GetJobRequest) (*flexiqv1.GetJobResponse, error) {
		t.Error("a method ran")
		return &flexiqv1.GetJobResponse{}, nil
	}
	paths := []string{"/", "/flexiq.v1.AdminService/", "/flexiq.v1.AdminService/Nonsense", "/etc/passwd"}
	for _, m := range auth.Methods {
		paths = append(paths, m.Procedure())
	}
	for _, path := range paths {
		first := r.post(t, path, "", `{}`)
		if first.status != 401 || first.header.Get("Fq-Reason") != "UNAUTHENTICATED" || first.header.Get("WWW-Authenticate") != "Bearer" {
			t.Errorf("%s: %d %v", path, first.status, first.header)
		}
		for _, header := range []string{
			"Bearer", "Bearer ", "Bearer x", "Basic " + valid, valid, "Bearer " + valid[:len(valid)-1], "Bearer " + valid + "a",
			"Bearer " + strings.Replace(valid, "lark", "wren", 1), "Bearer " + strings.Replace(valid, "lark", "=", 1),
		} {
			if got := r.post(t, path, "", `{"`, "Authorization", header); got.status != 401 || got.body != first.body {
				t.Errorf("%s with %.12q…: %d %s", path, header, got.status, got.body)
			}
		}
	}
	for name, opts := range protocols() {
		_, err := call[flexiqv1.GetJobRequest, flexiqv1.GetJobResponse](t, r, "", pathGetJob, &flexiqv1.GetJobRequest{}, opts...)
		if got := rpc.FromConnectError(err); got == nil || got.Reason != fault.Unauthenticated {
			t.Errorf("%s: %v", name, err)
		}
	}
	if strings.Contains(r.log.String(), valid) {
		t.Error("a token is in the log")
	}
}

func TestMethodsOfOtherServices(t *testing.T) {
	r := newRig(t)
	token := r.mint(t, "lark", auth.Produce)
	for _, path := range []string{pathEnqueue, "/flexiq.v1.ProducerService/Nonsense", "/"} {
		got := r.post(t, path, token, `{}`)
		if got.status != 501 || got.header.Get("Fq-Reason") != "UNIMPLEMENTED" {
			t.Errorf("%s: %d %s", path, got.status, got.body)
		}
	}
	_, err := call[flexiqv1.EnqueueRequest, flexiqv1.EnqueueResponse](t, r, token, pathEnqueue, &flexiqv1.EnqueueRequest{}, connect.WithGRPC())
	if got := rpc.FromConnectError(err); got == nil || got.Reason != fault.Unimplemented {
		t.Errorf("grpc: %v", err)
	}
}

func TestRefusalsAreHeard(t *testing.T) {
	r := newRig(t)
	tenant := r.mint(t, "lark", auth.Produce, auth.Work, auth.Inspect)
	admin := r.mint(t, "lark", auth.Admin)

	if got := r.post(t, pathSetQuota, tenant, `{"quota":{"max_pending":5}}`); got.status != 403 || got.header.Get("Fq-Reason") != "PERMISSION_DENIED" {
		t.Errorf("without the scope: %d %s", got.status, got.body)
	}
	heard := <-r.refusals
	if q, ok := heard.req.(*flexiqv1.SetQuotaRequest); !ok || q.GetQuota().GetMaxPending() != 5 {
		t.Errorf("the hook got %v", heard.req)
	}
	if heard.method != "SetQuota" || heard.id.Namespace != "lark" || heard.door != "http" || !fault.Is(heard.err, fault.PermissionDenied) {
		t.Errorf("the hook got %+v", heard)
	}

	if got := r.post(t, pathSetQuota, admin, `{"quota":{"max_bytes":5}}`); got.status != 400 || !strings.Contains(got.body, "quota.max_bytes") {
		t.Errorf("unknown field: %d %s", got.status, got.body)
	}
	if heard = <-r.refusals; heard.req != nil || !fault.Is(heard.err, fault.InvalidRequest) {
		t.Errorf("the hook got %+v", heard)
	}

	// Both at once: the scope is what a caller without it is told.
	if got := r.post(t, pathSetQuota, tenant, `{"`); got.status != 403 {
		t.Errorf("without scope and form: %d %s", got.status, got.body)
	}
	if heard = <-r.refusals; heard.req != nil || !fault.Is(heard.err, fault.PermissionDenied) {
		t.Errorf("the hook got %+v", heard)
	}

	unknown := &flexiqv1.SetQuotaRequest{}
	unknown.ProtoReflect().SetUnknown([]byte{0x98, 0x06, 0x01})
	_, err := call[flexiqv1.SetQuotaRequest, flexiqv1.SetQuotaResponse](t, r, admin, pathSetQuota, unknown, connect.WithGRPC())
	if got := rpc.FromConnectError(err); got == nil || got.Reason != fault.InvalidRequest || got.Details[fault.KeyField] != "99" {
		t.Errorf("unknown field over gRPC: %v", err)
	}
	if heard = <-r.refusals; heard.door != "grpc" {
		t.Errorf("the hook got %+v", heard)
	}
}

func TestPanicsAndCausesStayInside(t *testing.T) {
	r := newRig(t)
	token := r.mint(t, "lark", auth.Produce, auth.Work)
	r.getJob = func(context.Context, *flexiqv1.GetJobRequest) (*flexiqv1.GetJobResponse, error) {
		panic("secret of the heap")
	}
	r.claim = func(context.Context, *flexiqv1.ClaimRequest, func(*flexiqv1.ClaimResponse, error)) {
		panic("secret of the heap")
	}
	outcomes := []answer{r.post(t, pathGetJob, token, `{}`), r.post(t, pathClaim, token, `{}`)}
	if log := r.log.String(); strings.Count(log, "secret of the heap") != 2 || !strings.Contains(log, "door_test.go") {
		t.Errorf("the log lacks the panics or their stacks: %s", log)
	}
	r.getJob = func(context.Context, *flexiqv1.GetJobRequest) (*flexiqv1.GetJobResponse, error) {
		return nil, errors.New("secret of the disk")
	}
	outcomes = append(outcomes, r.post(t, pathGetJob, token, `{}`))
	r.getJob = func(context.Context, *flexiqv1.GetJobRequest) (*flexiqv1.GetJobResponse, error) { return nil, nil }
	outcomes = append(outcomes, r.post(t, pathGetJob, token, `{}`))
	for i, got := range outcomes {
		if got.status != 500 || got.header.Get("Fq-Reason") != "INTERNAL" || strings.Contains(got.body, "secret") {
			t.Errorf("%d: %d %s", i, got.status, got.body)
		}
	}
	if n := strings.Count(r.log.String(), "secret of the disk"); n != 1 {
		t.Errorf("the cause was logged %d times", n)
	}
}

func TestMetricsCountWithoutNames(t *testing.T) {
	r := newRig(t)
	token := r.mint(t, "lark", auth.Produce)
	r.getJob = func(context.Context, *flexiqv1.GetJobRequest) (*flexiqv1.GetJobResponse, error) {
		return nil, fault.Missing("job")
	}
	r.post(t, pathGetJob, token, `{}`)
	r.post(t, pathGetJob, "", `{}`)
	r.post(t, "/flexiq.v1.ProducerService/lark", token, `{}`)
	r.post(t, pathGetJob, token, `x`, "Content-Type", "text/plain")
	want := map[string]float64{
		"GetJob http INVALID_ARGUMENT": 1,
		"GetJob http NOT_FOUND":        1,
		"GetJob http UNAUTHENTICATED":  1,
		"unknown http UNIMPLEMENTED":   1,
	}
	if diff := cmp.Diff(want, r.counted(t)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestReflectionNeedsAToken(t *testing.T) {
	r := newRig(t)
	token := r.mint(t, "lark", auth.Work)
	const path = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
	if got := r.post(t, path, "", ``, "Content-Type", "application/grpc"); got.header.Get("Grpc-Status") != "16" {
		t.Errorf("without a token: %d %v", got.status, got.header)
	}
	if got := r.post(t, path, token, ``, "Content-Type", "application/grpc"); got.header.Get("Grpc-Status") == "16" {
		t.Errorf("with a token: %d %v", got.status, got.header)
	}
}

func TestUnknownMethodNamesPanic(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("a method outside the catalogue was made")
		}
	}()
	rpc.Unary("Nonsense", func(context.Context, *flexiqv1.GetJobRequest) (*flexiqv1.GetJobResponse, error) { return nil, nil })
}
