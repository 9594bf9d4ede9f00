package client_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/auth"
	"flexiq/pkg/fault"
	"flexiq/pkg/rpc"
)

// gate is a small dispatch service in memory with the real one's manners: long
// polls, leases, undelivered claims undone, settlements judged by the lease.
type gate struct {
	mu      sync.Mutex
	changed chan struct{}
	length  time.Duration // of leases
	timeout time.Duration // of attempts; 0: not told
	ready   map[string][]*flexiqv1.Job
	waiters []*waiter
	leases  map[string]*flexiqv1.Job // by lease
	next    int

	claims   []*flexiqv1.ClaimRequest
	beats    int
	undone   int
	gone     []string               // workers that signed off
	settled  []*flexiqv1.Settlement // those that were accepted, each once
	cancel   map[string]bool        // ids to cancel
	dropping int                    // answers of Settle to lose
	refusing int                    // Settle calls to answer OVERLOADED
	failing  int                    // settlements to fail alone
	deaf     bool                   // heartbeats are answered OVERLOADED
	onClaim  func()                 // called before a claim is answered; nil: nothing
	lastUsed map[string]*flexiqv1.Settlement
}

type waiter struct {
	ns    string
	most  int
	done  func(*flexiqv1.ClaimResponse, error)
	timer *time.Timer
}

func newGate() *gate {
	return &gate{
		changed: make(chan struct{}), length: 30 * time.Second,
		ready: map[string][]*flexiqv1.Job{}, leases: map[string]*flexiqv1.Job{},
		cancel: map[string]bool{}, lastUsed: map[string]*flexiqv1.Settlement{},
	}
}

func (g *gate) methods() []rpc.Method {
	return []rpc.Method{
		rpc.Async("Claim", g.claim, rpc.OnUndelivered(g.undo)),
		rpc.Unary("Heartbeat", g.heartbeat),
		rpc.Async("Settle", g.settle),
	}
}

// install serves the gate, over both doors.
func (g *gate) install(t testing.TB) *installation {
	t.Helper()
	in := install(t, g.methods()...)
	t.Cleanup(g.shut)
	return in
}

// shut answers everyone who waits, as an orderly stop does.
func (g *gate) shut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, w := range g.waiters {
		w.timer.Stop()
		go w.done(&flexiqv1.ClaimResponse{}, nil)
	}
	g.waiters = nil
}

func (g *gate) note() {
	close(g.changed)
	g.changed = make(chan struct{})
}

// push makes jobs ready, with ids job-0, job-1 and so on.
func (g *gate) push(ns string, jobs ...*flexiqv1.Job) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, j := range jobs {
		if j.Id == "" {
			j.Id = fmt.Sprintf("job-%d", g.next)
		}
		g.next++
		g.ready[ns] = append(g.ready[ns], j)
	}
	g.serveWaiters()
}

func (g *gate) serveWaiters() {
	for i := 0; i < len(g.waiters); {
		w := g.waiters[i]
		if len(g.ready[w.ns]) == 0 {
			i++
			continue
		}
		g.waiters = append(g.waiters[:i], g.waiters[i+1:]...)
		w.timer.Stop()
		go w.done(g.grant(w.ns, w.most), nil) // an answer that reaches nobody comes back here
	}
	g.note()
}

func (g *gate) grant(ns string, most int) *flexiqv1.ClaimResponse {
	res := &flexiqv1.ClaimResponse{}
	now := time.Now()
	for len(g.ready[ns]) > 0 && len(res.Jobs) < most {
		j := proto.CloneOf(g.ready[ns][0])
		g.ready[ns] = g.ready[ns][1:]
		j.Attempt++
		j.Namespace = ns
		j.StartedAt = timestamppb.New(now)
		g.next++
		lease := fmt.Sprintf("lease-%d", g.next)
		g.leases[lease] = j
		cj := &flexiqv1.ClaimedJob{Job: j, Lease: lease, LeaseExpiresAt: timestamppb.New(now.Add(g.length))}
		if g.timeout > 0 {
			cj.Timeout = durationpb.New(g.timeout)
		}
		res.Jobs = append(res.Jobs, cj)
	}
	return res
}

func (g *gate) claim(ctx context.Context, req *flexiqv1.ClaimRequest, done func(*flexiqv1.ClaimResponse, error)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	ns := auth.From(ctx).Namespace
	g.claims = append(g.claims, req)
	if g.onClaim != nil {
		g.onClaim()
	}
	defer g.note()
	if len(g.ready[ns]) > 0 || req.GetWait().AsDuration() == 0 {
		done(g.grant(ns, int(req.GetMaxJobs())), nil)
		return
	}
	w := &waiter{ns: ns, most: int(req.GetMaxJobs()), done: done}
	w.timer = time.AfterFunc(req.GetWait().AsDuration(), func() { g.giveUp(w) })
	g.waiters = append(g.waiters, w)
	context.AfterFunc(ctx, func() { g.giveUp(w) })
}

func (g *gate) giveUp(w *waiter) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i, other := range g.waiters {
		if other == w {
			g.waiters = append(g.waiters[:i], g.waiters[i+1:]...)
			go w.done(&flexiqv1.ClaimResponse{}, nil)
			g.note()
			return
		}
	}
}

// undo takes back a claim whose answer reached nobody.
func (g *gate) undo(id auth.Identity, _ *flexiqv1.ClaimRequest, res *flexiqv1.ClaimResponse) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, cj := range res.GetJobs() {
		if j := g.leases[cj.GetLease()]; j != nil {
			delete(g.leases, cj.GetLease())
			j.Attempt--
			g.ready[id.Namespace] = append([]*flexiqv1.Job{j}, g.ready[id.Namespace]...)
			g.undone++
		}
	}
	g.serveWaiters()
}

func (g *gate) heartbeat(_ context.Context, req *flexiqv1.HeartbeatRequest) (*flexiqv1.HeartbeatResponse, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	defer g.note()
	if req.GetLeaving() {
		g.gone = append(g.gone, req.GetWorker())
		return &flexiqv1.HeartbeatResponse{}, nil
	}
	g.beats++
	if g.deaf {
		return nil, fault.New(fault.Overloaded, "the gate is overloaded")
	}
	res := &flexiqv1.HeartbeatResponse{}
	for _, l := range req.GetLeases() {
		switch {
		case g.leases[l.GetLease()] == nil:
			res.Lost = append(res.Lost, l.GetJobId())
		case g.cancel[l.GetJobId()]:
			res.Cancelled = append(res.Cancelled, l.GetJobId())
		default:
			res.Alive = append(res.Alive, l.GetJobId())
		}
	}
	return res, nil
}

func (g *gate) settle(_ context.Context, req *flexiqv1.SettleRequest, done func(*flexiqv1.SettleResponse, error)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	defer g.note()
	if g.refusing > 0 {
		g.refusing--
		done(nil, fault.New(fault.Overloaded, "the gate is overloaded"))
		return
	}
	res := &flexiqv1.SettleResponse{}
	for _, st := range req.GetSettlements() {
		res.Results = append(res.Results, g.judge(st))
	}
	if g.dropping > 0 {
		g.dropping--
		done(nil, fault.New(fault.StorageUnavailable, "settled, but the answer is lost"))
		return
	}
	done(res, nil)
}

func (g *gate) judge(st *flexiqv1.Settlement) *flexiqv1.SettleResult {
	r := &flexiqv1.SettleResult{JobId: st.GetJobId(), Accepted: true}
	if g.failing > 0 {
		g.failing--
		r.Accepted, r.Reason = false, string(fault.StorageUnavailable)
		return r
	}
	if proto.Equal(g.lastUsed[st.GetLease()], st) {
		return r
	}
	j := g.leases[st.GetLease()]
	if j == nil {
		r.Accepted, r.Reason = false, string(fault.StaleLease)
		return r
	}
	delete(g.leases, st.GetLease())
	g.lastUsed[st.GetLease()] = st
	g.settled = append(g.settled, st)
	if st.GetOutcome() == "release" {
		j.Attempt--
		g.ready[j.GetNamespace()] = append(g.ready[j.GetNamespace()], j)
		g.serveWaiters()
	}
	return r
}

// expire ends the lease on a job without a word, as for a lost worker.
func (g *gate) expire(id string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for lease, j := range g.leases {
		if j.GetId() == id {
			delete(g.leases, lease)
		}
	}
}

// until waits for a state of the gate.
func (g *gate) until(t testing.TB, what string, reached func() bool) {
	t.Helper()
	timeout := time.After(20 * time.Second)
	for {
		g.mu.Lock()
		ok, changed := reached(), g.changed
		g.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-changed:
		case <-timeout:
			t.Fatalf("never came: %s", what)
		}
	}
}

// outcomes are the accepted settlements of one job.
func (g *gate) outcomes(id string) []*flexiqv1.Settlement {
	g.mu.Lock()
	defer g.mu.Unlock()
	var out []*flexiqv1.Settlement
	for _, st := range g.settled {
		if st.GetJobId() == id {
			out = append(out, st)
		}
	}
	return out
}
