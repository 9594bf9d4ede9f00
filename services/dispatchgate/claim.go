package dispatchgate

import (
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/auth"
	"flexiq/pkg/fault"
	"flexiq/pkg/job"
	"flexiq/pkg/namespace"
	"flexiq/pkg/store"
	"flexiq/pkg/wire"
)

const (
	maxWait   = 60 * time.Second
	maxQueues = 256

	// answerMargin is kept of a call's time, so that a wait which is longer than
	// the call's deadline ends as an empty answer and not as an error.
	answerMargin = 100 * time.Millisecond
)

func (s *Service) claim(ctx context.Context, req *flexiqv1.ClaimRequest, done func(*flexiqv1.ClaimResponse, error)) {
	want, wait, err := s.want(ctx, req)
	if err != nil {
		s.metrics.claimed(0, err)
		done(nil, err)
		return
	}
	if s.waiting.Add(1) > int64(s.cfg.MaxWaiting) {
		s.waiting.Add(-1)
		err := fault.New(fault.Overloaded, "%d claims are waiting here already", s.cfg.MaxWaiting)
		s.metrics.claimed(0, err)
		done(nil, err)
		return
	}
	now := time.Now()
	until := now.Add(wait)
	if end, ok := ctx.Deadline(); ok && end.Add(-answerMargin).Before(until) {
		until = end.Add(-answerMargin)
	}
	l, ended := s.laneOf(want.Namespace), s.roster.waits(&want, req.GetSlots())
	w := &waiter{want: want}
	gone := context.AfterFunc(ctx, func() { l.leave(w, context.Cause(ctx)) })
	w.answer = func(jobs []store.Leased, err error) {
		gone()
		ended()
		s.waiting.Add(-1)
		if err != nil {
			s.metrics.claimed(0, err)
			done(nil, err)
			return
		}
		res := s.reply(want.Namespace, jobs)
		s.metrics.claimed(len(res.GetJobs()), nil)
		done(res, nil)
	}
	l.with(func(r *room) { r.join(w, until, now) })
}

// leave ends the claim of a caller that went away.
func (l *lane) leave(w *waiter, err error) {
	l.with(func(r *room) {
		if !w.done && !w.gone {
			r.leave(w)
			r.out = append(r.out, reply{w: w, err: err})
		}
	})
}

// want reads a claim.
func (s *Service) want(ctx context.Context, req *flexiqv1.ClaimRequest) (w store.Want, wait time.Duration, err error) {
	w = store.Want{
		Namespace: auth.From(ctx).Namespace, Max: max(1, int(req.GetMaxJobs())),
		MaxBytes: int64(s.cfg.MaxReplyBytes) * 3 / 4, // JSON writes bytes a third longer
		LeaseFor: s.cfg.Lease, Worker: req.GetWorker(),
	}
	switch n := req.GetMaxJobs(); {
	case w.Namespace == "":
		return w, 0, noNamespace()
	case n < 0 || n > job.MaxBatch:
		return w, 0, fault.Invalid("max_jobs", "must be from 1 to %d, got %d", job.MaxBatch, n)
	case req.GetSlots() < 0:
		return w, 0, fault.Invalid("slots", "must not be negative, got %d", req.GetSlots())
	case w.Worker != "" && namespace.Check(w.Worker) != nil:
		return w, 0, fault.Invalid("worker", "%v", namespace.Check(w.Worker))
	}
	if w.Queues, err = queues(req.GetQueues()); err != nil {
		return w, 0, err
	}
	if req.GetLeaseFor() != nil {
		if w.LeaseFor, err = lease("lease_for", req.GetLeaseFor()); err != nil {
			return w, 0, err
		}
	}
	if req.GetWait() != nil {
		if wait, err = wire.Duration("wait", req.GetWait()); err != nil {
			return w, 0, err
		}
		if wait < 0 || wait > maxWait {
			return w, 0, fault.Invalid("wait", "must be from 0s to %s, got %s", maxWait, wait)
		}
	}
	return w, wait, nil
}

// queues checks the names of queues and sorts them, each once.
func queues(names []string) ([]string, error) {
	if len(names) > maxQueues {
		return nil, fault.Invalid("queues", "must be at most %d, got %d", maxQueues, len(names))
	}
	for i, name := range names {
		if err := namespace.Check(name); err != nil {
			return nil, fault.Invalid(fmt.Sprintf("queues[%d]", i), "%v", err)
		}
	}
	names = slices.Clone(names)
	slices.Sort(names)
	return slices.Compact(names), nil
}

// lease reads the length of a lease.
func lease(field string, d *durationpb.Duration) (time.Duration, error) {
	v, err := wire.Duration(field, d)
	if err == nil && (v < job.MinLease || v > job.MaxLease) {
		err = fault.Invalid(field, "must be from %s to %s, got %s", job.MinLease, job.MaxLease, v)
	}
	return v, err
}

func noNamespace() error {
	return fault.New(fault.PermissionDenied, "the token belongs to no namespace")
}

// reply writes granted jobs. Those that would make the reply too big for its
// transport go back at once.
func (s *Service) reply(ns string, jobs []store.Leased) *flexiqv1.ClaimResponse {
	res := &flexiqv1.ClaimResponse{Jobs: make([]*flexiqv1.ClaimedJob, 0, len(jobs))}
	size := 0
	for i := range jobs {
		l := &jobs[i]
		p := wire.Job(&l.Job)
		if size += wire.Size(&l.Job, p); size > s.cfg.MaxReplyBytes && i > 0 {
			s.release(ns, jobs[i:])
			break
		}
		res.Jobs = append(res.Jobs, &flexiqv1.ClaimedJob{
			Job: p, Lease: l.Lease, LeaseExpiresAt: wire.Stamp(l.ExpiresAt), Timeout: durationpb.New(l.Job.Timeout),
		})
	}
	return res
}

// undelivered undoes a claim whose reply reached nobody.
func (s *Service) undelivered(id auth.Identity, _ *flexiqv1.ClaimRequest, res *flexiqv1.ClaimResponse) {
	jobs := make([]store.Leased, len(res.GetJobs()))
	for i, j := range res.GetJobs() {
		jobs[i] = store.Leased{Job: job.Job{ID: j.GetJob().GetId()}, Lease: j.GetLease()}
	}
	s.metrics.undelivered.Add(float64(len(jobs)))
	s.release(id.Namespace, jobs)
}

// release gives granted jobs back, no attempt spent. When even that cannot be
// handed in, the end of the lease returns them.
func (s *Service) release(ns string, jobs []store.Leased) {
	if len(jobs) == 0 {
		return
	}
	items := make([]store.Settlement, len(jobs))
	for i := range jobs {
		items[i] = store.Settlement{Namespace: ns, JobID: jobs[i].Job.ID, Lease: jobs[i].Lease, Outcome: job.Released}
	}
	left := func(err error) {
		s.log.Warn().Str("namespace", ns).Int("jobs", len(items)).Err(err).Msg("claim not undone; its leases will end")
	}
	err := s.laneOf(ns).settle(ns, items, func(settled []store.Settled, err error) {
		for i := 0; err == nil && i < len(settled); i++ {
			err = settled[i].Err
		}
		if err != nil {
			left(err)
		}
	})
	if err != nil {
		left(err)
	}
}
