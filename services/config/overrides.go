package config

import (
	"context"

	"google.golang.org/protobuf/types/known/durationpb"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/auth"
	"flexiq/pkg/fault"
	"flexiq/pkg/job"
	"flexiq/pkg/namespace"
	"flexiq/pkg/store"
	"flexiq/pkg/wire"
)

// aim is the queue or task that a request is about. Presence counts: an empty
// name is a wrong one.
func aim(queue, task *string) (kind store.OverrideKind, name string, err error) {
	switch {
	case queue != nil && task != nil:
		return "", "", fault.Invalid("task", "must not be given together with queue")
	case queue != nil:
		kind, name = store.OverrideQueue, *queue
	case task != nil:
		kind, name = store.OverrideTask, *task
	default:
		return "", "", fault.Invalid("queue", "must be given, or task")
	}
	if err := namespace.Check(name); err != nil {
		return "", "", fault.Invalid(string(kind), "%v", err)
	}
	return kind, name, nil
}

// overrideRecord is the record of a write to an override.
func overrideRecord(ctx context.Context, operation string, queue, task *string) store.Record {
	r := record(ctx, operation)
	if r.TargetKind = targetQueue; queue != nil {
		r.Target = nameOrClip(*queue)
	} else if task != nil {
		r.TargetKind, r.Target = targetTask, nameOrClip(*task)
	}
	return r
}

// askedOverride is an override as a request says it, wrong values included.
func askedOverride(req *flexiqv1.SetOverrideRequest) store.Override {
	o := store.Override{MaxConcurrent: req.MaxConcurrent, Paused: req.Paused, MaxAttempts: req.MaxAttempts, Priority: req.Priority}
	if req.Timeout != nil {
		o.Timeout = new(req.Timeout.AsDuration())
	}
	return o
}

// readOverride checks what a request sets.
func readOverride(req *flexiqv1.SetOverrideRequest) (o store.Override, err error) {
	o = askedOverride(req)
	switch {
	case o == store.Override{}:
		return o, fault.Invalid("max_concurrent", "must be given, or another of paused, max_attempts, timeout and priority; ClearOverride lifts all")
	case o.MaxConcurrent != nil && *o.MaxConcurrent < 0:
		return o, fault.Invalid("max_concurrent", "must not be negative, got %d", *o.MaxConcurrent)
	}
	if req.Timeout != nil {
		if *o.Timeout, err = wire.Duration("timeout", req.Timeout); err != nil {
			return o, err
		}
	}
	return o, job.Defaults{MaxAttempts: o.MaxAttempts, Timeout: o.Timeout, Priority: o.Priority}.Check()
}

func (s *Service) setOverride(ctx context.Context, req *flexiqv1.SetOverrideRequest) (*flexiqv1.SetOverrideResponse, error) {
	ns, err := tenant(ctx)
	if err != nil {
		return nil, err
	}
	kind, name, err := aim(req.Queue, req.Task)
	if err != nil {
		return nil, err
	}
	o, err := readOverride(req)
	if err != nil {
		return nil, err
	}
	o.Namespace, o.Kind, o.Name, o.UpdatedBy = ns, kind, name, auth.From(ctx).AuditTokenID()
	if err := s.store.PutOverride(ctx, o, overrideRecord(ctx, "set-override", req.Queue, req.Task)); err != nil {
		return nil, err
	}
	s.announce(store.KindOverride, ns, 0)
	all, err := s.overridesOf(ctx, ns)
	if err != nil {
		return nil, err
	}
	if now := all.of(kind, name); now.Name != "" { // else somebody cleared it meanwhile
		o = *now
	}
	return &flexiqv1.SetOverrideResponse{Override: overrideMessage(&o)}, nil
}

func (s *Service) clearOverride(ctx context.Context, req *flexiqv1.ClearOverrideRequest) (*flexiqv1.ClearOverrideResponse, error) {
	ns, err := tenant(ctx)
	if err != nil {
		return nil, err
	}
	kind, name, err := aim(req.Queue, req.Task)
	if err != nil {
		return nil, err
	}
	if err := s.store.ClearOverride(ctx, ns, kind, name, overrideRecord(ctx, "clear-override", req.Queue, req.Task)); err != nil {
		return nil, err
	}
	s.announce(store.KindOverride, ns, 0)
	return &flexiqv1.ClearOverrideResponse{}, nil
}

func (s *Service) listOverrides(ctx context.Context, req *flexiqv1.ListOverridesRequest) (*flexiqv1.ListOverridesResponse, error) {
	const list = "overrides"
	ns, err := tenant(ctx)
	if err != nil {
		return nil, err
	}
	size, after, err := page(list, req)
	if err != nil {
		return nil, err
	}
	all, err := s.overridesOf(ctx, ns)
	if err != nil {
		return nil, err
	}
	place := func(o *store.Override) string { return string(o.Kind) + " " + o.Name }
	res := &flexiqv1.ListOverridesResponse{}
	for i := range all {
		if place(&all[i]) <= after {
			continue
		}
		if len(res.Overrides) == size {
			res.NextPageToken = wire.PageToken(list, place(&all[i-1]))
			break
		}
		res.Overrides = append(res.Overrides, overrideMessage(&all[i]))
	}
	return res, nil
}

func overrideMessage(o *store.Override) *flexiqv1.Override {
	m := &flexiqv1.Override{
		MaxConcurrent: o.MaxConcurrent, Paused: o.Paused, MaxAttempts: o.MaxAttempts, Priority: o.Priority,
		UpdatedAt: wire.Stamp(o.UpdatedAt), UpdatedBy: o.UpdatedBy,
	}
	if o.Timeout != nil {
		m.Timeout = durationpb.New(*o.Timeout)
	}
	if m.Queue = &o.Name; o.Kind == store.OverrideTask {
		m.Queue, m.Task = nil, &o.Name
	}
	return m
}

// overrides are those of one namespace.
type overrides []store.Override

func (s *Service) overridesOf(ctx context.Context, ns string) (overrides, error) {
	all, err := s.store.Overrides(ctx, []string{ns})
	if err != nil {
		return nil, err
	}
	return all[0], nil
}

// of is the override of a queue or task; one that sets nothing when there is none.
func (o overrides) of(kind store.OverrideKind, name string) *store.Override {
	for i := range o {
		if o[i].Kind == kind && o[i].Name == name {
			return &o[i]
		}
	}
	return &store.Override{}
}
