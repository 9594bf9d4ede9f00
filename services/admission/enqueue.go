package admission

import (
	"context"
	"fmt"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/auth"
	"flexiq/pkg/fault"
	"flexiq/pkg/job"
	"flexiq/pkg/store"
	"flexiq/pkg/wire"
)

func (s *Service) enqueue(ctx context.Context, req *flexiqv1.EnqueueRequest, done func(*flexiqv1.EnqueueResponse, error)) {
	call, err := s.call(ctx, []*flexiqv1.JobSpec{req.GetJob()}, alone, true)
	if err != nil {
		s.malformed(ctx, 1, err)
		done(nil, err)
		return
	}
	s.enter(&parcel{ctx: ctx, ns: call.Namespace, calls: []store.Call{call}, done: func(out []store.Outcome) {
		if err := out[0].Err; err != nil {
			done(nil, err)
			return
		}
		done(&flexiqv1.EnqueueResponse{Result: wire.Results(out[0].Results)[0]}, nil)
	}})
}

func (s *Service) enqueueBatch(ctx context.Context, req *flexiqv1.EnqueueBatchRequest, done func(*flexiqv1.EnqueueBatchResponse, error)) {
	call, err := s.call(ctx, req.GetJobs(), inBatch, false)
	if err != nil {
		s.malformed(ctx, len(req.GetJobs()), err)
		done(nil, err)
		return
	}
	s.enter(&parcel{ctx: ctx, ns: call.Namespace, calls: []store.Call{call}, done: func(out []store.Outcome) {
		if err := out[0].Err; err != nil {
			done(nil, err)
			return
		}
		done(&flexiqv1.EnqueueBatchResponse{Results: wire.Results(out[0].Results)}, nil)
	}})
}

// enqueueCalls decides many units of one message. A malformed one fails alone,
// as it would have on its own. A unit of one job is what Enqueue takes, and may
// debounce: clients send several calls of theirs as one message.
func (s *Service) enqueueCalls(ctx context.Context, req *flexiqv1.EnqueueCallsRequest, done func(*flexiqv1.EnqueueCallsResponse, error)) {
	if err := checkCalls(req.GetCalls()); err != nil {
		s.malformed(ctx, 0, err)
		done(nil, err)
		return
	}
	answers := make([]*flexiqv1.EnqueueOutcome, len(req.GetCalls()))
	p := &parcel{ctx: ctx, ns: auth.From(ctx).Namespace}
	var at []int // the places of the parcel's calls among the answers
	for i, c := range req.GetCalls() {
		call, err := s.call(ctx, c.GetJobs(), inBatch, len(c.GetJobs()) == 1)
		if err != nil {
			s.malformed(ctx, len(c.GetJobs()), err)
			answers[i] = &flexiqv1.EnqueueOutcome{Error: wire.CallError(err)}
			continue
		}
		p.calls, at = append(p.calls, call), append(at, i)
	}
	p.done = func(out []store.Outcome) {
		s.logHidden(p.ns, out)
		for k := range out {
			if err := out[k].Err; err != nil {
				answers[at[k]] = &flexiqv1.EnqueueOutcome{Error: wire.CallError(err)}
			} else {
				answers[at[k]] = &flexiqv1.EnqueueOutcome{Results: wire.Results(out[k].Results)}
			}
		}
		done(&flexiqv1.EnqueueCallsResponse{Outcomes: answers}, nil)
	}
	if len(p.calls) == 0 {
		p.done(nil)
		return
	}
	s.enter(p)
}

// checkCalls bounds the message as a whole.
func checkCalls(calls []*flexiqv1.EnqueueCall) error {
	jobs := 0
	for _, c := range calls {
		jobs += len(c.GetJobs())
	}
	if len(calls) == 0 || len(calls) > job.MaxBatch || jobs > job.MaxBatch {
		return fault.Invalid("calls", "must be from 1 to %d jobs in all, got %d jobs in %d calls", job.MaxBatch, jobs, len(calls))
	}
	return nil
}

// logHidden logs what the doors cannot see because it is the outcome of a unit:
// the cause of the first failure that is ours. The others share it as a rule.
func (s *Service) logHidden(ns string, out []store.Outcome) {
	for i := range out {
		if r := fault.Of(out[i].Err); r != nil && r.Reason.Status() >= 500 {
			s.log.Warn().Str("namespace", ns).Str("reason", string(r.Reason)).Err(out[i].Err).Msg("enqueue call failed")
			return
		}
	}
}

// alone and inBatch say where a job stands in a call. Errors of a unit of
// EnqueueCalls read as the unit's own: a client groups calls of strangers.
func alone(int) string     { return "job" }
func inBatch(i int) string { return fmt.Sprintf("jobs[%d]", i) }

// call reads one unit. name says where a job stands in the request; single that
// the unit is one job by its nature and no batch, which must not debounce.
func (s *Service) call(ctx context.Context, jobs []*flexiqv1.JobSpec, name func(int) string, single bool) (store.Call, error) {
	id := auth.From(ctx)
	switch {
	case id.Namespace == "":
		return store.Call{}, fault.New(fault.PermissionDenied, "the token belongs to no namespace")
	case len(jobs) == 0 || len(jobs) > job.MaxBatch:
		return store.Call{}, fault.Invalid("jobs", "must be from 1 to %d, got %d", job.MaxBatch, len(jobs))
	}
	c := store.Call{Namespace: id.Namespace, Origin: job.OriginEnqueue, By: id.TokenID, Jobs: make([]job.Spec, len(jobs))}
	var ids map[string]int
	if len(jobs) > 1 {
		ids = make(map[string]int, len(jobs))
	}
	for i, p := range jobs {
		spec, err := wire.Spec(name(i), p, s.cfg.MaxPayload)
		if err != nil {
			return store.Call{}, err
		}
		if spec.Debounce.Key != "" && !single {
			return store.Call{}, fault.Invalid(name(i)+".debounce", "must not be given in a batch")
		}
		if ids != nil {
			if before, twice := ids[spec.ID]; twice {
				return store.Call{}, fault.Invalid(name(i)+".id", "is also the id of %s", name(before))
			}
			ids[spec.ID] = i
		}
		c.Jobs[i] = spec
	}
	return c, nil
}
