package bus_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/auth"
	"flexiq/pkg/bus"
	"flexiq/pkg/fault"
	"flexiq/pkg/rpc"
	"flexiq/pkg/store"
	"flexiq/pkg/testkit"
)

func TestJSONRequest(t *testing.T) {
	r := newRig(t)
	r.enqueue = withJob
	r.serve(t)
	c := r.tenant(t, "a.b", auth.Produce)
	want := `{"result":{"job":{"id":"","namespace":"a.b","queue":"","task":"t","status":"","priority":0,"attempt":0,"max_attempts":0,"error":"",` +
		`"metadata":{},"unique_key":"","origin":"nats","enqueued_by":"` + c.id + `","dead_metadata":{}},"deduplicated":false,"debounced":false}}`
	for _, header := range [][]string{nil, {"Content-Type", "application/json"}, {"Content-Type", "Application/JSON; charset=utf-8"}} {
		got := c.request(t, "enqueue", `{"job":{"task":"t"}}`, header...)
		if diff := cmp.Diff(want, string(got.Data)); diff != "" || len(got.Header) != 0 {
			t.Errorf("%v: header %v (-want +got):\n%s", header, got.Header, diff)
		}
	}
	if got := c.request(t, "enqueue", ``); !strings.HasPrefix(string(got.Data), `{"result":`) {
		t.Errorf("an empty body: %s", got.Data)
	}
}

// The form of an error over NATS is an interface.
func TestErrorReply(t *testing.T) {
	r := newRig(t)
	r.enqueue = func(_ context.Context, _ *flexiqv1.EnqueueRequest, done func(*flexiqv1.EnqueueResponse, error)) {
		done(nil, fault.New(fault.QueueFull, "queue full: 500 pending >= max_pending 500").With("limit", "max_pending").With("cap", "500"))
	}
	r.getJob = func(context.Context, *flexiqv1.GetJobRequest) (*flexiqv1.GetJobResponse, error) {
		return nil, fault.Missing("job")
	}
	r.serve(t)
	c := r.tenant(t, "lark", auth.Produce)
	for _, contentType := range []string{"application/json", "application/protobuf"} {
		got := c.request(t, "enqueue", ``, "Content-Type", contentType)
		want := `{"error":{"code":"RESOURCE_EXHAUSTED","reason":"QUEUE_FULL","message":"queue full: 500 pending >= max_pending 500",` +
			`"details":{"cap":"500","limit":"max_pending"}}}`
		if diff := cmp.Diff(want, string(got.Data)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", contentType, diff)
		}
		header := nats.Header{
			"Nats-Service-Error-Code": {"429"}, "Nats-Service-Error": {"queue full: 500 pending >= max_pending 500"}, "Fq-Reason": {"QUEUE_FULL"},
		}
		if diff := cmp.Diff(header, got.Header); diff != "" {
			t.Errorf("%s (-want +got):\n%s", contentType, diff)
		}
	}
	got := c.request(t, "get-job", `{}`)
	if want := `{"error":{"code":"NOT_FOUND","reason":"NOT_FOUND","message":"job not found","details":{}}}`; string(got.Data) != want {
		t.Errorf("body %s, want %s", got.Data, want)
	}
}

func TestRequestHeaders(t *testing.T) {
	r := newRig(t)
	left := make(chan time.Duration, 1)
	note := func(ctx context.Context) {
		deadline, _ := ctx.Deadline()
		left <- time.Until(deadline)
	}
	r.getJob = func(ctx context.Context, _ *flexiqv1.GetJobRequest) (*flexiqv1.GetJobResponse, error) {
		note(ctx)
		return &flexiqv1.GetJobResponse{}, nil
	}
	r.claim = func(ctx context.Context, _ *flexiqv1.ClaimRequest, done func(*flexiqv1.ClaimResponse, error)) {
		note(ctx)
		done(&flexiqv1.ClaimResponse{}, nil)
	}
	r.serve(t)
	c := r.tenant(t, "lark", auth.Produce, auth.Work)
	deadlines := []struct {
		verb, header string
		most         time.Duration
	}{
		{"get-job", "", rpc.DefaultDeadline}, {"get-job", "100000", 100 * time.Second}, {"claim", "", rpc.PollDeadline},
		{"claim", "99999999999", rpc.MaxDeadline}, {"claim", "9223372036854775807", rpc.MaxDeadline},
	}
	for _, tt := range deadlines {
		c.request(t, tt.verb, `{}`, "Fq-Timeout", tt.header)
		if got := <-left; got > tt.most || got < tt.most-testkit.Patience {
			t.Errorf("%s with Fq-Timeout %q: %s left, want %s", tt.verb, tt.header, got, tt.most)
		}
	}
	for _, header := range [][2]string{
		{"Fq-Timeout", "soon"}, {"Fq-Timeout", "0"}, {"Fq-Timeout", "-5"}, {"Fq-Timeout", "1.5"}, {"Content-Type", "text/plain"},
		{"Content-Type", "application/json; charset=utf-16"},
	} {
		got := c.request(t, "get-job", `{}`, header[0], header[1])
		if got.Header.Get("Fq-Reason") != "INVALID_REQUEST" || !strings.Contains(string(got.Data), header[0]) {
			t.Errorf("%v: %v %s", header, got.Header, got.Data)
		}
	}
}

func TestRefusals(t *testing.T) {
	r := newRig(t)
	r.setQuota = func(context.Context, *flexiqv1.SetQuotaRequest) (*flexiqv1.SetQuotaResponse, error) {
		return &flexiqv1.SetQuotaResponse{}, nil
	}
	r.serve(t)
	c := r.tenant(t, "lark", auth.Admin)
	if got := c.request(t, "set-quota", `{"quota":{"max_bytes":1}}`); got.Header.Get("Fq-Reason") != "INVALID_REQUEST" {
		t.Errorf("unknown field: %v", got.Header)
	}
	if err := <-r.refusals; !fault.Is(err, fault.InvalidRequest) {
		t.Errorf("the hook got %v", err)
	}
	// A text of the caller's, which the error repeats, makes no header.
	got := c.request(t, "set-quota", `{"a\r\nFq-Reason: QUEUE_FULL\r\nX: ":1}`)
	if got.Header.Get("Fq-Reason") != "INVALID_REQUEST" || len(got.Header) != 3 {
		t.Errorf("a key with line breaks: %v", got.Header)
	}
	<-r.refusals
	// The scope is checked by the service too, whatever the NATS server permits.
	r.tokens.change(c.id, func(s *store.Token) { s.Scopes = []string{"produce"} })
	if got := c.request(t, "set-quota", `{}`); got.Header.Get("Fq-Reason") != "PERMISSION_DENIED" || got.Header.Get("Nats-Service-Error-Code") != "403" {
		t.Errorf("without the scope: %v", got.Header)
	}
	if err := <-r.refusals; !fault.Is(err, fault.PermissionDenied) {
		t.Errorf("the hook got %v", err)
	}
}

// A token that ends while its connection lives is told so.
func TestTokenEnds(t *testing.T) {
	for name, cold := range map[string]bool{"known": false, "looked up": true} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.tokens.cold = cold
			r.enqueue = withJob
			r.serve(t)
			c := r.tenant(t, "lark", auth.Produce)
			if got := c.request(t, "enqueue", `{}`); got.Header.Get("Fq-Reason") != "" {
				t.Fatalf("%v", got.Header)
			}
			r.tokens.change(c.id, func(s *store.Token) { s.RevokedAt = time.Now() })
			if got := c.request(t, "enqueue", `{}`); got.Header.Get("Fq-Reason") != "UNAUTHENTICATED" {
				t.Errorf("revoked: %v", got.Header)
			}
			var res flexiqv1.EnqueueResponse
			if err := c.Call(t.Context(), c.subject("enqueue"), &flexiqv1.EnqueueRequest{}, &res); !fault.Is(err, fault.Unauthenticated) {
				t.Errorf("revoked: %v", err)
			}
		})
	}
}

// A tenant cannot make a service write where it may not write itself, nor get
// work done that way.
func TestForgedReplySubjects(t *testing.T) {
	r := newRig(t)
	ran := make(chan string, 64)
	r.enqueue = func(ctx context.Context, q *flexiqv1.EnqueueRequest, done func(*flexiqv1.EnqueueResponse, error)) {
		ran <- q.GetJob().GetTask()
		withJob(ctx, q, done)
	}
	r.serve(t)
	c := r.tenant(t, "lark", auth.Produce, auth.Work, auth.Inspect, auth.Admin)
	victim := r.tenant(t, "wren", auth.Produce)
	forged := []string{
		bus.Inbox(victim.nsToken, victim.id) + ".x", auth.ServiceInbox + ".x", "$SYS.REQ.SERVER.PING",
		"$KV.FQ_LEASE.retention", "fqi.v1.ready", "fqi.v1.config.quota.wren", "fqe.v1.wren.quota.changed", victim.subject("enqueue"), "x",
		bus.Inbox(c.nsToken, c.id), bus.Inbox(c.nsToken, c.id) + "x.y", bus.Inbox("lark", "other") + ".x", bus.Inbox("larkx", c.id) + ".x",
		bus.Inbox(c.nsToken, c.id) + ".>", bus.Inbox(c.nsToken, c.id) + ".*", bus.Inbox(c.nsToken, c.id) + ".a.*.b", "_INBOX.lark", "_INBOX.",
	}
	everything, err := r.conn.Raw().SubscribeSync("fqi.v1.>")
	if err != nil {
		t.Fatal(err)
	}
	for _, reply := range forged {
		if err := c.Raw().PublishRequest(c.subject("enqueue"), reply, []byte(`{"job":{"task":"forged"}}`)); err != nil {
			t.Fatalf("%s: %v", reply, err)
		}
	}
	// This one the NATS server refuses itself.
	if err := c.Raw().PublishRequest(c.subject("enqueue"), "$JS.API.STREAM.DELETE.KV_FQ_LEASE", []byte(`{}`)); err != nil {
		t.Fatal(err)
	}
	if err := c.Raw().Publish(c.subject("claim"), []byte(`{}`)); err != nil { // not a method for plain publishes
		t.Fatal(err)
	}
	c.request(t, "enqueue", `{"job":{"task":"honest"}}`) // behind all of them
	if got := <-ran; got != "honest" || len(ran) != 0 {
		t.Errorf("%q ran", got)
	}
	testkit.Eventually(t, "every forged request is counted", func() bool {
		return r.counted(t, "flexiq_bus_dropped_total", "reply") == float64(len(forged)) &&
			r.counted(t, "flexiq_bus_dropped_total", "no_reply") == 1
	})
	if n, _, err := everything.Pending(); n != 0 || err != nil {
		t.Errorf("%d hints were made, %v", n, err)
	}
}

func TestPlainPublish(t *testing.T) {
	r := newRig(t)
	ran := make(chan string, 1)
	r.enqueue = func(ctx context.Context, q *flexiqv1.EnqueueRequest, done func(*flexiqv1.EnqueueResponse, error)) {
		ran <- auth.From(ctx).Namespace
		done(nil, errors.New("nobody hears this"))
	}
	r.serve(t)
	c := r.tenant(t, "lark", auth.Produce, auth.Admin)
	if err := c.Raw().Publish(c.subject("enqueue"), []byte(`{}`)); err != nil {
		t.Fatal(err)
	}
	if got := wait(t, "a plain publish is carried out", ran); got != "lark" {
		t.Errorf("for %q", got)
	}
	if err := c.Raw().Publish(c.subject("set-quota"), []byte(`{"quota":{"max_bytes":1}}`)); err != nil {
		t.Fatal(err)
	}
	if err := wait(t, "a refused plain publish is told", r.refusals); !fault.Is(err, fault.InvalidRequest) {
		t.Errorf("the hook got %v", err)
	}
}

func TestPanicsAreAnswered(t *testing.T) {
	r := newRig(t)
	r.enqueue = func(context.Context, *flexiqv1.EnqueueRequest, func(*flexiqv1.EnqueueResponse, error)) {
		panic("secret")
	}
	r.getJob = func(context.Context, *flexiqv1.GetJobRequest) (*flexiqv1.GetJobResponse, error) { panic("secret") }
	r.serve(t)
	c := r.tenant(t, "lark", auth.Produce)
	for range 3 {
		for _, verb := range []string{"enqueue", "get-job"} {
			got := c.request(t, verb, `{}`)
			if got.Header.Get("Fq-Reason") != "INTERNAL" || strings.Contains(string(got.Data), "secret") {
				t.Errorf("%s: %v %s", verb, got.Header, got.Data)
			}
		}
	}
}

func TestAnswerLargerThanTheLimit(t *testing.T) {
	r := newRig(t)
	large := &flexiqv1.ClaimResponse{Jobs: []*flexiqv1.ClaimedJob{{Lease: strings.Repeat("x", 9<<20)}}}
	r.claim = func(_ context.Context, _ *flexiqv1.ClaimRequest, done func(*flexiqv1.ClaimResponse, error)) {
		done(large, nil)
	}
	r.serve(t)
	c := r.tenant(t, "lark", auth.Work)
	err := c.Call(t.Context(), c.subject("claim"), &flexiqv1.ClaimRequest{}, &flexiqv1.ClaimResponse{})
	if f := fault.Of(err); f == nil || f.Reason != fault.PayloadTooLarge || f.Details["limit"] != fmt.Sprint(8<<20) {
		t.Errorf("got %v", err)
	}
	if got := wait(t, "the method is told", r.undelivered); got != large {
		t.Error("of another answer")
	}
}

func TestUndeliveredReplies(t *testing.T) {
	r := newRig(t)
	grant := &flexiqv1.ClaimResponse{Jobs: []*flexiqv1.ClaimedJob{{Lease: "l"}}}
	arrived := make(chan func(), 1)
	r.claim = func(_ context.Context, _ *flexiqv1.ClaimRequest, done func(*flexiqv1.ClaimResponse, error)) {
		arrived <- func() { done(grant, nil) }
	}
	r.serve(t)
	c := r.tenant(t, "lark", auth.Work)

	inbox := c.NewInbox()
	sub, err := c.Raw().SubscribeSync(inbox)
	if err != nil {
		t.Fatal(err)
	}
	poll := func() func() {
		t.Helper()
		if err := c.Raw().PublishRequest(c.subject("claim"), inbox, []byte(`{}`)); err != nil {
			t.Fatal(err)
		}
		return wait(t, "the poll arrives", arrived)
	}
	poll()()
	if got, err := sub.NextMsg(testkit.Patience); err != nil || !strings.Contains(string(got.Data), `"lease":"l"`) {
		t.Errorf("%v, %v", got, err)
	}

	answer := poll()
	if err := sub.Unsubscribe(); err != nil {
		t.Fatal(err)
	}
	if err := c.Raw().Flush(); err != nil {
		t.Fatal(err)
	}
	answer()
	if got := wait(t, "the method is told of a dead inbox", r.undelivered); got != grant {
		t.Errorf("told of %v", got)
	}

	answer = poll()
	c.Raw().Close()
	answer()
	if got := wait(t, "the method is told of a closed connection", r.undelivered); got != grant {
		t.Errorf("told of %v", got)
	}
	if len(r.undelivered) > 0 {
		t.Error("told of a delivered answer, or twice")
	}
}

// Several processes share the work; each call is carried out once.
func TestQueueGroup(t *testing.T) {
	r := newRig(t)
	ran := make(chan int, 200)
	for i := range 3 {
		second := *r
		second.enqueue = func(ctx context.Context, q *flexiqv1.EnqueueRequest, done func(*flexiqv1.EnqueueResponse, error)) {
			ran <- i
			withJob(ctx, q, done)
		}
		second.conn = dial(t, bus.Options{InProcess: r.server, User: serviceUser, Password: servicePassword})
		second.serve(t)
	}
	c := r.tenant(t, "lark", auth.Produce)
	for range 100 {
		c.request(t, "enqueue", `{}`)
	}
	if len(ran) != 100 {
		t.Errorf("%d calls ran for 100 requests", len(ran))
	}
	seen := map[int]bool{}
	for range len(ran) {
		seen[<-ran] = true
	}
	if len(seen) != 3 {
		t.Errorf("only %v took part", seen)
	}
}

func TestProtobufRequest(t *testing.T) {
	r := newRig(t)
	r.enqueue = withJob
	r.serve(t)
	c := r.tenant(t, "lark", auth.Produce)
	var got flexiqv1.EnqueueResponse
	if err := c.Call(t.Context(), c.subject("enqueue"), &flexiqv1.EnqueueRequest{Job: &flexiqv1.JobSpec{Task: "t"}}, &got); err != nil {
		t.Fatal(err)
	}
	want := &flexiqv1.EnqueueResponse{Result: &flexiqv1.EnqueueResult{
		Job: &flexiqv1.Job{Namespace: "lark", Task: "t", EnqueuedBy: c.id, Origin: "nats"},
	}}
	if diff := cmp.Diff(want, &got, protocmp.Transform()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	large := &flexiqv1.EnqueueRequest{Job: &flexiqv1.JobSpec{Task: "t", Payload: make([]byte, 1<<20)}}
	if err := c.Call(t.Context(), c.subject("enqueue"), large, &got); err != nil || !proto.Equal(want, &got) {
		t.Errorf("large: %v, %v", &got, err)
	}
}
