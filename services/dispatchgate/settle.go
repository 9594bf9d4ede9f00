package dispatchgate

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/auth"
	"flexiq/pkg/fault"
	"flexiq/pkg/job"
	"flexiq/pkg/namespace"
	"flexiq/pkg/store"
	"flexiq/pkg/wire"
)

// maxLeaseText bounds a lease as callers show it; what stores make is shorter.
const maxLeaseText = 255

func (s *Service) settle(ctx context.Context, req *flexiqv1.SettleRequest, done func(*flexiqv1.SettleResponse, error)) {
	ns := auth.From(ctx).Namespace
	items, err := settlements(ns, req.GetSettlements())
	if err != nil {
		done(nil, err)
		return
	}
	err = s.laneOf(ns).settle(ns, items, func(settled []store.Settled, err error) {
		if err != nil {
			done(nil, err)
			return
		}
		res := &flexiqv1.SettleResponse{Results: make([]*flexiqv1.SettleResult, len(settled))}
		for i := range settled {
			res.Results[i] = s.settleResult(items[i].JobID, &settled[i])
		}
		done(res, nil)
	})
	if err != nil {
		done(nil, err)
	}
}

// settleResult tells what became of one settlement. One that the database
// refused has that reason and may be sent again.
func (s *Service) settleResult(jobID string, r *store.Settled) *flexiqv1.SettleResult {
	out := &flexiqv1.SettleResult{JobId: jobID, Accepted: r.Accepted, Status: string(r.State)}
	switch {
	case r.Err != nil:
		s.failing.Do(func() { s.log.Warn().Str("job", jobID).Err(r.Err).Msg("a settlement failed alone") })
		out.Accepted, out.Reason = false, string(fault.Of(r.Err).Reason)
	case !r.Accepted:
		out.Reason = string(fault.StaleLease)
	}
	return out
}

// settlements reads a call. What cannot be stored is refused here by name,
// before anything happens, so that it never costs a state change.
func settlements(ns string, in []*flexiqv1.Settlement) ([]store.Settlement, error) {
	switch {
	case ns == "":
		return nil, noNamespace()
	case len(in) == 0 || len(in) > job.MaxBatch:
		return nil, fault.Invalid("settlements", "must be from 1 to %d, got %d", job.MaxBatch, len(in))
	}
	out := make([]store.Settlement, len(in))
	for i, p := range in {
		at := func(field string) string { return fmt.Sprintf("settlements[%d].%s", i, field) }
		if err := checkLease(at, p.GetJobId(), p.GetLease()); err != nil {
			return nil, err
		}
		st := store.Settlement{
			Namespace: ns, JobID: strings.ToLower(p.GetJobId()), Lease: p.GetLease(),
			Outcome: job.Outcome(p.GetOutcome()), Error: job.CleanError(p.GetError()), Result: p.Result,
		}
		if err := checkOutcome(at, &st, p); err != nil {
			return nil, err
		}
		out[i] = st
	}
	return out, nil
}

func checkLease(at func(string) string, jobID, lease string) error {
	if err := job.CheckID(at("job_id"), jobID); err != nil {
		return err
	}
	switch {
	case lease == "":
		return fault.Invalid(at("lease"), "must be the lease of the claim")
	case len(lease) > maxLeaseText:
		return fault.Invalid(at("lease"), "must be at most %d bytes, got %d", maxLeaseText, len(lease))
	}
	return nil
}

func checkOutcome(at func(string) string, st *store.Settlement, p *flexiqv1.Settlement) error {
	switch {
	case !st.Outcome.Valid():
		return fault.Invalid(at("outcome"), "must be one of %v", job.Outcomes)
	case len(st.Result) > job.MaxResult:
		return fault.Invalid(at("result"), "must be at most %d bytes, got %d", job.MaxResult, len(st.Result))
	case st.Result != nil && st.Outcome != job.Completed:
		return fault.Invalid(at("result"), "must not be given with outcome %q", st.Outcome)
	case p.RetryAfter == nil:
		return nil
	case st.Outcome != job.Failed && st.Outcome != job.Released:
		return fault.Invalid(at("retry_after"), "must not be given with outcome %q", st.Outcome)
	}
	after, err := wire.Duration(at("retry_after"), p.RetryAfter)
	if err != nil {
		return err
	}
	if after < 0 || after > job.MaxDelay {
		return fault.Invalid(at("retry_after"), "must be from 0s to %s, got %s", job.MaxDelay, after)
	}
	st.RetryAfter = &after
	return nil
}

// hintReturned tells the other gates of jobs that came back, and of slots that
// were freed and not given away again in the same turn.
func (s *Service) hintReturned(items []store.Settlement, settled []store.Settled, picked []*waiter, grants []store.Grant) {
	ready, free := make(map[string]bool), make(map[string]int)
	for i, r := range settled {
		ns := items[i].Namespace
		if !r.Accepted || r.Err != nil || r.Repeat {
			continue
		}
		free[ns]++
		if r.State == job.Pending {
			ready[ns] = true
		}
	}
	for i, w := range picked {
		free[w.want.Namespace] -= len(grants[i].Jobs)
	}
	var freed []string
	for ns, n := range free {
		if n > 0 && s.capped(ns) {
			freed = append(freed, ns)
		}
	}
	if len(freed) > 0 {
		s.hints.PublishFreed(freed)
	}
	if len(ready) > 0 {
		s.hints.PublishReady(slices.Collect(maps.Keys(ready)))
	}
}

// capped reports whether a cap limits what runs in a namespace, as far as known.
func (s *Service) capped(ns string) bool {
	if q, ok := s.quotas.Peek(ns); ok && q.Quota.MaxRunning != nil {
		return true
	}
	_, seen := s.narrow.Load(ns)
	return seen
}

// noteHolds remembers the namespaces in which a queue or a task has a cap, as
// far as it was met here. Those that were not cost the others a second.
func (s *Service) noteHolds(picked []*waiter, grants []store.Grant) {
	for i, w := range picked {
		for _, h := range grants[i].Held {
			if h.What == store.HoldQueue || h.What == store.HoldTask {
				s.narrow.Store(w.want.Namespace, struct{}{})
			}
		}
	}
}

func (s *Service) heartbeat(ctx context.Context, req *flexiqv1.HeartbeatRequest, done func(*flexiqv1.HeartbeatResponse, error)) {
	ns := auth.From(ctx).Namespace
	if req.GetLeaving() {
		done(s.signOff(ns, req))
		return
	}
	beats, err := s.readBeats(ns, req)
	if err != nil {
		done(nil, err)
		return
	}
	s.roster.beats(ns, req.GetWorker())
	const frame = 256
	err = s.beats.Submit(ns, len(beats)*frame, beats, func(pulses []store.Pulse, err error) {
		if err != nil {
			done(nil, err)
			return
		}
		done(s.pulse(beats, pulses))
	})
	if err != nil {
		done(nil, err)
	}
}

// signOff is the last that a worker says.
func (s *Service) signOff(ns string, req *flexiqv1.HeartbeatRequest) (*flexiqv1.HeartbeatResponse, error) {
	switch w := req.GetWorker(); {
	case ns == "":
		return nil, noNamespace()
	case len(req.GetLeases()) > 0:
		return nil, fault.Invalid("leases", "must not be given with leaving")
	case namespace.Check(w) != nil:
		return nil, fault.Invalid("worker", "%v", namespace.Check(w))
	default:
		s.left(ns, w, true)
		s.hints.PublishLeft(ns, w)
		return &flexiqv1.HeartbeatResponse{}, nil
	}
}

// pulse sorts the answers; a job stands in one list. A beat that the database
// refused belongs in none of them, so its call fails and is to be sent again.
func (s *Service) pulse(beats []store.Beat, pulses []store.Pulse) (*flexiqv1.HeartbeatResponse, error) {
	res := &flexiqv1.HeartbeatResponse{}
	for i, p := range pulses {
		switch id := beats[i].JobID; {
		case p.Err != nil:
			return nil, p.Err
		case !p.Alive:
			res.Lost = append(res.Lost, id)
		case p.Cancelled:
			res.Cancelled = append(res.Cancelled, id)
		default:
			res.Alive = append(res.Alive, id)
		}
	}
	s.metrics.beats(len(res.Alive), len(res.Lost), len(res.Cancelled))
	return res, nil
}

func (s *Service) readBeats(ns string, req *flexiqv1.HeartbeatRequest) ([]store.Beat, error) {
	leases := req.GetLeases()
	switch {
	case ns == "":
		return nil, noNamespace()
	case len(leases) == 0 || len(leases) > job.MaxBatch:
		return nil, fault.Invalid("leases", "must be from 1 to %d, got %d", job.MaxBatch, len(leases))
	}
	if w := req.GetWorker(); w != "" && namespace.Check(w) != nil {
		return nil, fault.Invalid("worker", "%v", namespace.Check(w))
	}
	extend := s.cfg.Lease
	if req.GetExtend() != nil {
		var err error
		if extend, err = lease("extend", req.GetExtend()); err != nil {
			return nil, err
		}
	}
	beats := make([]store.Beat, len(leases))
	for i, p := range leases {
		at := func(field string) string { return fmt.Sprintf("leases[%d].%s", i, field) }
		if err := checkLease(at, p.GetJobId(), p.GetLease()); err != nil {
			return nil, err
		}
		beats[i] = store.Beat{Namespace: ns, JobID: strings.ToLower(p.GetJobId()), Lease: p.GetLease(), Extend: extend}
	}
	return beats, nil
}

// beat is the flush of heartbeats.
func (s *Service) beat(ctx context.Context, calls [][]store.Beat) ([][]store.Pulse, error) {
	var all []store.Beat
	for _, c := range calls {
		all = append(all, c...)
	}
	pulses, err := s.store.Heartbeat(ctx, all)
	if err != nil {
		return nil, err
	}
	if len(pulses) != len(all) {
		return nil, fault.New(fault.Internal, "internal error")
	}
	out := make([][]store.Pulse, len(calls))
	for i, c := range calls {
		out[i], pulses = pulses[:len(c)], pulses[len(c):]
	}
	return out, nil
}
