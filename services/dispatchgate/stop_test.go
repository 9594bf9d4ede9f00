package dispatchgate

import (
	"context"
	"testing"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/fault"
	"flexiq/pkg/job"
	"flexiq/pkg/store"
	"flexiq/pkg/testkit"
)

func TestStopClaims(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	stop := f.run()
	f.enqueue("a", job.Spec{}, job.Spec{})
	held := f.claim("a", 1)
	waiting := f.start(t.Context(), "b", &flexiqv1.ClaimRequest{Wait: long})
	f.parked(1)
	stop()
	if c := f.await(waiting); c.err != nil || len(c.jobs) != 0 {
		t.Errorf("the waiting claim got %v, %v", c.jobs, c.err)
	}
	if c := f.await(f.start(t.Context(), "a", &flexiqv1.ClaimRequest{Wait: long})); c.err != nil || len(c.jobs) != 0 {
		t.Errorf("a claim after the stop got %v, %v", c.jobs, c.err)
	}
	if r := f.settle("a", job.Completed, held...); !r[0].GetAccepted() {
		t.Errorf("a settlement after the stop: %v", r)
	}
	f.wantUsage("a", 1, 0, 1, 0)
	f.must(f.gate.Close(context.Background()))
	if _, err := f.trySettle("a", &flexiqv1.SettleRequest{Settlements: []*flexiqv1.Settlement{{JobId: held[0].GetJob().GetId(), Lease: "x", Outcome: "fail"}}}); !fault.Is(err, fault.Overloaded) {
		t.Errorf("a settlement after Close: %v", err)
	}
	f.must(f.gate.Close(context.Background()))
}

// A claim that is under way when claims stop gets what the store gives it, and
// Run does not end before.
func TestStopDuringTurn(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	entered, leave := make(chan struct{}), make(chan struct{})
	f.way.wrap(func(next turner) turner {
		return func(ctx context.Context, s []store.Settlement, w []store.Want) ([]store.Settled, []store.Grant, error) {
			close(entered)
			<-leave
			return next(ctx, s, w)
		}
	})
	ctx, stop := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- f.gate.Run(ctx) }()
	f.enqueue("a", job.Spec{})
	done := f.start(t.Context(), "a", &flexiqv1.ClaimRequest{Wait: long})
	<-entered
	stop()
	testkit.Eventually(t, "claims are stopped", func() bool {
		l := f.gate.lanes[0]
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.room.closed
	})
	select {
	case <-ran:
		t.Fatal("Run has ended while a claim was under way")
	default:
	}
	close(leave)
	if c := f.await(done); c.err != nil || len(c.jobs) != 1 {
		t.Errorf("got %v, %v", c.jobs, c.err)
	}
	f.must(<-ran)
}
