package bus_test

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/auth"
	"flexiq/pkg/bus"
	"flexiq/pkg/fault"
	"flexiq/pkg/store"
	"flexiq/pkg/testkit"
)

func call(ctx context.Context, c *bus.Conn, subject string) error {
	return c.Call(ctx, subject, &flexiqv1.EnqueueRequest{}, &flexiqv1.EnqueueResponse{})
}

func TestCallTellsWhatTheServiceSaid(t *testing.T) {
	r := newRig(t)
	sent := fault.New(fault.RateLimited, "too fast").With("limit", "enqueue_rate").With(fault.KeyRetryAfterMS, "40")
	r.enqueue = func(_ context.Context, _ *flexiqv1.EnqueueRequest, done func(*flexiqv1.EnqueueResponse, error)) {
		done(nil, sent)
	}
	r.serve(t)
	c := r.tenant(t, "lark", auth.Produce)
	got := fault.Of(call(t.Context(), c.Conn, c.subject("enqueue")))
	if got == nil || got.Reason != sent.Reason || got.Message != sent.Message || got.Details["limit"] != "enqueue_rate" {
		t.Errorf("got %v", got)
	}
	if after, ok := got.RetryAfter(); !ok || after != 40*time.Millisecond {
		t.Errorf("retry after %v, %v", after, ok)
	}
}

// What NATS reports apart from the request must not look like a timeout.
func TestCallForbidden(t *testing.T) {
	r := newRig(t)
	r.enqueue = withJob
	r.serve(t)
	c := r.tenant(t, "lark", auth.Produce)
	for _, subject := range []string{bus.Subject("enqueue", "wren", c.id), c.subject("claim"), "fqi.v1.ready"} {
		if err := call(context.Background(), c.Conn, subject); !fault.Is(err, fault.PermissionDenied) {
			t.Errorf("%s: %v", subject, err)
		}
	}
	denied, stop := c.Denied("anything")
	if err := c.Raw().Publish("anything", nil); err != nil {
		t.Fatal(err)
	}
	if err := wait(t, "the watch is told", denied); !fault.Is(err, fault.PermissionDenied) {
		t.Errorf("the watch got %v", err)
	}
	stop()
	if err := call(t.Context(), c.Conn, c.subject("enqueue")); err != nil {
		t.Errorf("the connection is of no use any more: %v", err)
	}
}

func TestCallWithAForbiddenInbox(t *testing.T) {
	r := newRig(t)
	r.enqueue = withJob
	r.serve(t)
	own := r.tenant(t, "lark", auth.Produce)
	c := dial(t, bus.Options{URL: r.server.ClientURL(), Token: own.token, InboxPrefix: "_INBOX.wren.x"})
	for range 2 {
		if err := call(context.Background(), c, own.subject("enqueue")); !fault.Is(err, fault.PermissionDenied) {
			t.Errorf("got %v", err)
		}
	}
}

func TestCallOverTheLimit(t *testing.T) {
	r := newRig(t)
	r.enqueue = withJob
	r.serve(t)
	c := r.tenant(t, "lark", auth.Produce)
	req := &flexiqv1.EnqueueRequest{Job: &flexiqv1.JobSpec{Payload: make([]byte, 9<<20)}}
	err := c.Call(t.Context(), c.subject("enqueue"), req, &flexiqv1.EnqueueResponse{})
	if f := fault.Of(err); f == nil || f.Reason != fault.PayloadTooLarge || f.Details["limit"] != "8388608" {
		t.Errorf("got %v", err)
	}
	req.Job.Payload, req.Job.Task = nil, "\xff"
	if err := c.Call(t.Context(), c.subject("enqueue"), req, &flexiqv1.EnqueueResponse{}); !fault.Is(err, fault.InvalidRequest) {
		t.Errorf("a text that is not UTF-8: %v", err)
	}
}

func TestCallWithoutAnAnswer(t *testing.T) {
	r := newRig(t)
	c := r.tenant(t, "lark", auth.Produce)
	if err := call(context.Background(), c.Conn, c.subject("enqueue")); !fault.Is(err, fault.Overloaded) {
		t.Errorf("nobody serves: %v", err)
	}
	hang := make(chan func(*flexiqv1.EnqueueResponse, error), 1)
	r.enqueue = func(_ context.Context, _ *flexiqv1.EnqueueRequest, done func(*flexiqv1.EnqueueResponse, error)) {
		hang <- done
	}
	r.serve(t)
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() { result <- call(ctx, c.Conn, c.subject("enqueue")) }()
	done := wait(t, "the call arrives", hang)
	cancel()
	if err := wait(t, "the call ends", result); !fault.Is(err, fault.Cancelled) {
		t.Errorf("given up: %v", err)
	}
	done(&flexiqv1.EnqueueResponse{}, nil) // nobody waits, and nothing breaks
	ctx, cancel = context.WithTimeout(t.Context(), time.Nanosecond)
	defer cancel()
	if err := call(ctx, c.Conn, c.subject("enqueue")); !fault.Is(err, fault.DeadlineExceeded) {
		t.Errorf("without time: %v", err)
	}
}

// What fails for want of a connection is not carried out later.
func TestCallWhileDisconnected(t *testing.T) {
	r := newRig(t)
	ran := make(chan string, 8)
	hang := make(chan func(*flexiqv1.EnqueueResponse, error), 1)
	r.enqueue = func(ctx context.Context, q *flexiqv1.EnqueueRequest, done func(*flexiqv1.EnqueueResponse, error)) {
		if ran <- q.GetJob().GetTask(); q.GetJob().GetTask() == "" {
			hang <- done
			return
		}
		withJob(ctx, q, done)
	}
	r.serve(t)
	c := r.tenant(t, "lark", auth.Produce)
	back := make(chan struct{}, 2)
	c.OnReconnect(func() { back <- struct{}{} })
	r.conn.OnReconnect(func() { back <- struct{}{} })

	result := make(chan error, 1)
	go func() { result <- call(context.Background(), c.Conn, c.subject("enqueue")) }()
	finish := wait(t, "the call arrives", hang)
	<-ran
	r.server.Shutdown()
	r.server.WaitForShutdown()
	if err := wait(t, "a call in flight ends with its connection", result); !fault.Is(err, fault.Overloaded) {
		t.Errorf("in flight: %v", err)
	}
	finish(&flexiqv1.EnqueueResponse{}, nil)
	testkit.Eventually(t, "the client notices", func() bool { return !c.Raw().IsConnected() })
	ghost := &flexiqv1.EnqueueRequest{Job: &flexiqv1.JobSpec{Task: "ghost"}}
	if err := c.Call(context.Background(), c.subject("enqueue"), ghost, &flexiqv1.EnqueueResponse{}); !fault.Is(err, fault.Overloaded) {
		t.Errorf("disconnected: %v", err)
	}

	r.server = testkit.StartNATS(t, r.options)
	wait(t, "one is back", back)
	wait(t, "the other is back", back)
	alive := &flexiqv1.EnqueueRequest{Job: &flexiqv1.JobSpec{Task: "alive"}}
	if err := c.Call(t.Context(), c.subject("enqueue"), alive, &flexiqv1.EnqueueResponse{}); err != nil {
		t.Errorf("reconnected: %v", err)
	}
	if got := <-ran; got != "alive" || len(ran) != 0 {
		t.Errorf("%q ran", got)
	}
}

func TestCallAfterClose(t *testing.T) {
	r := newRig(t)
	c := r.tenant(t, "lark", auth.Produce)
	hang := make(chan func(*flexiqv1.EnqueueResponse, error), 1)
	r.enqueue = func(_ context.Context, _ *flexiqv1.EnqueueRequest, done func(*flexiqv1.EnqueueResponse, error)) {
		hang <- done
	}
	r.serve(t)
	result := make(chan error, 1)
	go func() { result <- call(context.Background(), c.Conn, c.subject("enqueue")) }()
	defer wait(t, "the call arrives", hang)(&flexiqv1.EnqueueResponse{}, nil)
	c.Close(t.Context())
	if err := wait(t, "a call in flight ends with its connection", result); !fault.Is(err, fault.Overloaded) {
		t.Errorf("in flight: %v", err)
	}
	if err := call(context.Background(), c.Conn, c.subject("enqueue")); !fault.Is(err, fault.Overloaded) {
		t.Errorf("closed: %v", err)
	}
}

func TestConnectFails(t *testing.T) {
	r := newRig(t)
	text, tok, err := auth.Mint("lark", []auth.Scope{auth.Produce}, "", time.Hour, "", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	connect := func(ctx context.Context, o bus.Options) error {
		c, err := bus.Connect(ctx, o)
		if err == nil {
			c.Close(ctx)
		}
		return err
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	tests := []struct {
		name string
		ctx  context.Context
		o    bus.Options
		want fault.Reason
	}{
		{"unknown token", t.Context(), bus.Options{URL: r.server.ClientURL(), Token: text}, fault.Unauthenticated},
		{"not a token", t.Context(), bus.Options{URL: r.server.ClientURL(), Token: "secret"}, fault.Unauthenticated},
		{"nothing", t.Context(), bus.Options{URL: r.server.ClientURL()}, fault.Unauthenticated},
		{"wrong password", t.Context(), bus.Options{URL: r.server.ClientURL(), User: serviceUser, Password: "x"}, fault.Unauthenticated},
		{"nobody there", t.Context(), bus.Options{URL: "nats://127.0.0.1:1"}, fault.Overloaded},
		{"ended", ended, bus.Options{URL: r.server.ClientURL()}, fault.Cancelled},
	}
	for _, tt := range tests {
		if err := connect(tt.ctx, tt.o); !fault.Is(err, tt.want) {
			t.Errorf("%s: %v, want %s", tt.name, err, tt.want)
		}
	}
	r.tokens.change(tok.ID, func(s *store.Token) { *s = tok })
	if err := connect(t.Context(), bus.Options{InProcess: r.server, Token: text}); err != nil {
		t.Errorf("in process: %v", err)
	}
}

// A client whose token has ended keeps trying, and says what is wrong.
func TestCallWithAnEndedToken(t *testing.T) {
	r := newRig(t)
	r.enqueue = withJob
	r.serve(t)
	c := r.tenant(t, "lark", auth.Produce)
	r.tokens.change(c.id, func(s *store.Token) { s.RevokedAt = time.Now() })
	r.guard.Cut(c.id)
	testkit.Eventually(t, "the client is told", func() bool {
		return fault.Is(call(t.Context(), c.Conn, c.subject("enqueue")), fault.Unauthenticated)
	})
}

func TestDecodeOthersErrors(t *testing.T) {
	msg := nats.NewMsg("x")
	msg.Header.Set("Nats-Service-Error-Code", "500")
	msg.Header.Set("Nats-Service-Error", "boom")
	if err := bus.Decode(msg, &flexiqv1.EnqueueResponse{}); !fault.Is(err, fault.Internal) || fault.Of(err).Message != "boom" {
		t.Errorf("%v", err)
	}
	msg.Header.Set("Fq-Reason", "QUEUE_FULL")
	if err := bus.Decode(msg, &flexiqv1.EnqueueResponse{}); !fault.Is(err, fault.QueueFull) {
		t.Errorf("%v", err)
	}
	if err := bus.Decode(&nats.Msg{Data: []byte("{}")}, &flexiqv1.EnqueueResponse{}); !fault.Is(err, fault.Internal) {
		t.Errorf("%v", err)
	}
}
