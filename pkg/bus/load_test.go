package bus_test

import (
	"context"
	"errors"
	"testing"

	"github.com/nats-io/nats.go"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/auth"
	"flexiq/pkg/bus"
	"flexiq/pkg/fault"
	"flexiq/pkg/testkit"
)

func TestFullIsToldAtOnce(t *testing.T) {
	r := newRig(t, func(o *bus.Options) { o.MaxCalls = 8 })
	held := make(chan func(), 16)
	r.enqueue = func(ctx context.Context, q *flexiqv1.EnqueueRequest, done func(*flexiqv1.EnqueueResponse, error)) {
		held <- func() { withJob(ctx, q, done) }
	}
	r.claim = func(_ context.Context, _ *flexiqv1.ClaimRequest, done func(*flexiqv1.ClaimResponse, error)) {
		done(&flexiqv1.ClaimResponse{}, nil)
	}
	r.serve(t)
	c, other := r.tenant(t, "lark", auth.Produce, auth.Work), r.tenant(t, "wren", auth.Produce)
	results := make(chan error, 16)
	send := func(from *tenant) {
		go func() {
			results <- from.Call(context.Background(), from.subject("enqueue"), &flexiqv1.EnqueueRequest{}, &flexiqv1.EnqueueResponse{})
		}()
	}
	var release []func()
	for range 6 { // three quarters of the places
		send(c)
		release = append(release, wait(t, "a call arrives", held))
	}
	send(c)
	if err := wait(t, "the seventh is refused", results); !fault.Is(err, fault.Overloaded) {
		t.Errorf("the seventh call: %v", err)
	}
	send(other)
	release = append(release, wait(t, "another namespace's call arrives", held))
	if got := c.request(t, "claim", `{}`); got.Header.Get("Fq-Reason") != "" { // long polls count apart
		t.Errorf("a poll: %v", got.Header)
	}
	if got := r.counted(t, "flexiq_bus_overloaded_total", ""); got != 1 {
		t.Errorf("counted %v", got)
	}
	for _, fn := range release {
		fn()
	}
	for range release {
		if err := wait(t, "an answer", results); err != nil {
			t.Error(err)
		}
	}
	send(c)
	wait(t, "there is room again", held)()
	if err := wait(t, "an answer", results); err != nil {
		t.Error(err)
	}
}

// One that blocks, or that is large, does not hold up the others.
func TestNobodyBlocksTheWayIn(t *testing.T) {
	r := newRig(t, func(o *bus.Options) { o.Workers = 2 })
	r.enqueue = withJob
	release := make(chan struct{})
	r.getJob = func(context.Context, *flexiqv1.GetJobRequest) (*flexiqv1.GetJobResponse, error) {
		<-release
		return &flexiqv1.GetJobResponse{}, nil
	}
	r.serve(t)
	c := r.tenant(t, "lark", auth.Produce)
	done := make(chan error, 5)
	for range cap(done) { // more than there are workers
		go func() {
			done <- c.Call(context.Background(), c.subject("get-job"), &flexiqv1.GetJobRequest{}, &flexiqv1.GetJobResponse{})
		}()
	}
	for range 20 {
		if got := c.request(t, "enqueue", `{}`); got.Header.Get("Fq-Reason") != "" {
			t.Fatalf("%v", got.Header)
		}
	}
	close(release)
	for range cap(done) {
		if err := wait(t, "the calls end", done); err != nil {
			t.Error(err)
		}
	}
}

func TestStopAnswersWhatIsInFlight(t *testing.T) {
	r := newRig(t)
	held := make(chan func(), 64)
	r.enqueue = func(ctx context.Context, q *flexiqv1.EnqueueRequest, done func(*flexiqv1.EnqueueResponse, error)) {
		held <- func() { withJob(ctx, q, done) }
	}
	endpoints := r.serve(t)
	c := r.tenant(t, "lark", auth.Produce)
	results := make(chan error, 32)
	for range cap(results) {
		go func() {
			results <- c.Call(context.Background(), c.subject("enqueue"), &flexiqv1.EnqueueRequest{}, &flexiqv1.EnqueueResponse{})
		}()
	}
	release := make([]func(), cap(results))
	for i := range release {
		release[i] = wait(t, "a call arrives", held)
	}
	stopped := make(chan error, 2)
	for range cap(stopped) {
		go func() { stopped <- endpoints.Stop(context.Background()) }()
	}
	go func() { // what is taken just before the end
		for fn := range held {
			fn()
		}
	}()
	defer close(held)
	testkit.Eventually(t, "nothing new is taken", func() bool {
		_, err := c.Raw().Request(c.subject("enqueue"), nil, testkit.Patience)
		return errors.Is(err, nats.ErrNoResponders)
	})
	if len(stopped) > 0 {
		t.Fatal("stopped with calls in flight")
	}
	for _, fn := range release {
		fn()
	}
	for range cap(stopped) {
		if err := wait(t, "stop returns", stopped); err != nil {
			t.Error(err)
		}
	}
	for range cap(results) {
		if err := wait(t, "a call is answered", results); err != nil {
			t.Error(err)
		}
	}
}

func TestStopEndsWithItsContext(t *testing.T) {
	r := newRig(t)
	started := make(chan struct{})
	r.getJob = func(ctx context.Context, _ *flexiqv1.GetJobRequest) (*flexiqv1.GetJobResponse, error) {
		close(started)
		<-ctx.Done()
		return nil, ctx.Err()
	}
	endpoints := r.serve(t)
	c := r.tenant(t, "lark", auth.Produce)
	result := make(chan error, 1)
	go func() {
		result <- c.Call(context.Background(), c.subject("get-job"), &flexiqv1.GetJobRequest{}, &flexiqv1.GetJobResponse{})
	}()
	wait(t, "the call arrives", started)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := endpoints.Stop(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("stop: %v", err)
	}
	if err := wait(t, "the call is answered", result); !fault.Is(err, fault.Cancelled) {
		t.Errorf("the call: %v", err)
	}
}
