package dispatchgate

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"google.golang.org/protobuf/types/known/durationpb"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/auth"
	"flexiq/pkg/auth/embedded"
	"flexiq/pkg/bus"
	"flexiq/pkg/job"
	"flexiq/pkg/testkit"
)

// overNATS serves the fixture's gate on a secured server, with real hints, and
// returns a worker's connection for a namespace.
func (f *fixture) overNATS() (connect func(ns string) *bus.Conn) {
	f.Helper()
	ids := auth.NewVerifier(f.store, time.Now)
	server := testkit.SecureNATS(f, embedded.New(ids, "service", "password", zerolog.Nop()))
	open := func(o bus.Options) *bus.Conn {
		f.Helper()
		c, err := bus.Connect(f.Context(), o)
		f.must(err)
		f.Cleanup(func() {
			f.gate.StopClaims() // or the claims that wait would hold up the close
			ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
			defer cancel()
			c.Close(ctx)
		})
		return c
	}
	conn := open(bus.Options{InProcess: server, User: "service", Password: "password"})
	_, err := conn.OnReady(f.gate.Woken)
	f.must(err)
	_, err = conn.OnFreed(f.gate.Freed)
	f.must(err)
	f.ears.listen, f.ears.watch = conn.PublishReady, conn.PublishFreed
	_, err = conn.Serve("dispatchgate", f.gate.Methods(), ids)
	f.must(err)
	return func(ns string) *bus.Conn { return open(bus.Options{URL: server.ClientURL(), Token: f.token(ns)}) }
}

// subject is where a namespace's worker sends requests of a verb.
func (f *fixture) subject(ns, verb string) string {
	f.Helper()
	parts, err := auth.Parse(f.token(ns))
	f.must(err)
	return bus.Subject(verb, parts.NSToken, parts.ID)
}

func TestOverNATS(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	connect := f.overNATS()
	c := connect("a.b")
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	type end struct {
		res *flexiqv1.ClaimResponse
		err error
	}
	done := make(chan end, 1)
	go func() {
		res := &flexiqv1.ClaimResponse{}
		err := c.Call(ctx, f.subject("a.b", "claim"), &flexiqv1.ClaimRequest{Wait: long, MaxJobs: 2}, res)
		done <- end{res, err}
	}()
	f.parked(1)
	id := f.enqueue("a.b", job.Spec{Payload: []byte("p"), Form: job.Bytes})[0]
	f.ears.PublishReady([]string{"a.b"}) // as admission does
	got := <-done
	if got.err != nil || len(got.res.GetJobs()) != 1 || got.res.GetJobs()[0].GetJob().GetId() != id {
		t.Fatalf("got %v, %v", got.res, got.err)
	}
	lease := got.res.GetJobs()[0].GetLease()
	var beat flexiqv1.HeartbeatResponse
	f.must(c.Call(ctx, f.subject("a.b", "heartbeat"), &flexiqv1.HeartbeatRequest{Leases: []*flexiqv1.Lease{{JobId: id, Lease: lease}}, Extend: durationpb.New(time.Minute)}, &beat))
	if len(beat.GetAlive()) != 1 {
		t.Errorf("heartbeat: %v", &beat)
	}
	m, err := c.Raw().RequestWithContext(ctx, f.subject("a.b", "settle"), fmt.Appendf(nil, `{"settlements":[{"job_id":%q,"lease":%q,"outcome":"complete"}]}`, id, lease))
	f.must(err)
	if want := fmt.Sprintf(`{"results":[{"job_id":%q,"accepted":true,"reason":"","status":"complete"}]}`, id); string(m.Data) != want {
		t.Errorf("settled: %s, want %s", m.Data, want)
	}
	f.wantUsage("a.b", 0, 0, 1, 0)
}

// A claim whose reply reaches nobody is undone at once, no attempt spent, and
// the next one that waits gets the job.
func TestDeadInbox(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.overNATS()("a")
	inbox := c.Raw().NewInbox()
	sub, err := c.Raw().SubscribeSync(inbox)
	f.must(err)
	f.must(c.Raw().PublishRequest(f.subject("a", "claim"), inbox, []byte(`{"wait":"60s"}`)))
	f.parked(1)
	f.must(sub.Unsubscribe()) // the poll is withdrawn
	f.must(c.Raw().FlushTimeout(testkit.Patience))
	next := f.start(t.Context(), "a", &flexiqv1.ClaimRequest{Wait: long})
	f.parked(2)
	id := f.enqueue("a", job.Spec{MaxAttempts: 1})[0]
	f.ears.PublishReady([]string{"a"})
	got := f.await(next)
	if got.err != nil || len(got.jobs) != 1 || got.jobs[0].GetJob().GetId() != id || got.jobs[0].GetJob().GetAttempt() != 1 {
		t.Fatalf("got %v, %v", got.jobs, got.err)
	}
	if n := f.count(metricUndelivered); n != 1 {
		t.Errorf("%v undelivered jobs are counted", n)
	}
	f.wantUsage("a", 0, 1, 0, 0)
}
