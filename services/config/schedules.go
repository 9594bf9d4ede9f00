package config

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/auth"
	"flexiq/pkg/configcache"
	"flexiq/pkg/events"
	"flexiq/pkg/fault"
	"flexiq/pkg/namespace"
	"flexiq/pkg/schedule"
	"flexiq/pkg/store"
	"flexiq/pkg/wire"
)

// mostTries bounds how often a write is repeated because what it changes
// was changed meanwhile.
const mostTries = 5

// producerRecord is the record of a write to a schedule or a trigger.
func producerRecord(ctx context.Context, operation, kind, name string) store.Record {
	r := record(ctx, operation)
	r.TargetKind, r.Target = kind, nameOrClip(name)
	return r
}

// scheduleValue writes a schedule as the trail keeps it, without its job's payload.
func scheduleValue(s store.Schedule) string {
	return value(struct {
		Cron     string `json:"cron"`
		TimeZone string `json:"time_zone"`
		Paused   bool   `json:"paused"`
	}{s.Cron, s.TimeZone, s.Paused})
}

// named checks the name of a schedule or a trigger and tells whose it is.
func named(ctx context.Context, name string) (ns string, err error) {
	if ns, err = tenant(ctx); err != nil {
		return "", err
	}
	if err := namespace.Check(name); err != nil {
		return "", fault.Invalid("name", "%v", err)
	}
	return ns, nil
}

// parseSchedule reads cron and zone; the error names the field.
func parseSchedule(cron, zone string) (*schedule.Spec, error) {
	if _, err := schedule.Parse("0 0 1 1 *", zone); err != nil {
		return nil, fault.Invalid("time_zone", "%v", err)
	}
	spec, err := schedule.Parse(cron, zone)
	if err != nil {
		return nil, fault.Invalid("cron", "%v", err)
	}
	return spec, nil
}

func (s *Service) putSchedule(ctx context.Context, req *flexiqv1.PutScheduleRequest) (*flexiqv1.PutScheduleResponse, error) {
	ns, err := named(ctx, req.GetName())
	if err != nil {
		return nil, err
	}
	spec, err := parseSchedule(req.GetCron(), req.GetTimeZone())
	if err != nil {
		return nil, err
	}
	template, err := wire.EncodeTemplate(req.GetJob(), s.cfg.MaxPayload)
	if err != nil {
		return nil, err
	}
	zone := req.GetTimeZone()
	if zone == "" {
		zone = "UTC"
	}
	done, err := s.changeSchedule(ctx, "put-schedule", ns, req.GetName(), func(before *store.Schedule, c *store.ScheduleChange) error {
		if before == nil {
			before = &store.Schedule{}
		}
		// A slot that is due is not lost because the same schedule is put again.
		c.KeepNext = before.Cron == req.GetCron() && before.TimeZone == zone
		c.Cron, c.TimeZone, c.Job, c.Paused = req.GetCron(), zone, template, before.Paused
		if c.KeepNext {
			return nil
		}
		c.NextAt, err = s.nextSlot(ctx, ns, spec)
		return err
	})
	if err != nil {
		return nil, err
	}
	return &flexiqv1.PutScheduleResponse{Schedule: done}, nil
}

// changeSchedule writes what change makes of a schedule, nil when there is none.
func (s *Service) changeSchedule(ctx context.Context, operation, ns, name string,
	change func(before *store.Schedule, c *store.ScheduleChange) error) (*flexiqv1.Schedule, error) {
	for range mostTries {
		before, err := s.store.Schedule(ctx, ns, name)
		if err != nil && !fault.Is(err, fault.NotFound) {
			return nil, err
		}
		c := store.ScheduleChange{Audit: producerRecord(ctx, operation, targetSchedule, name)}
		if before != nil {
			c.Schedule = *before
			c.Audit.Old = scheduleValue(*before)
		}
		c.Namespace, c.Name, c.UpdatedBy = ns, name, auth.From(ctx).AuditTokenID()
		if err := change(before, &c); err != nil {
			return nil, err
		}
		c.Audit.New = scheduleValue(c.Schedule)
		after, err := s.store.PutSchedule(ctx, c)
		if fault.Is(err, fault.RevisionMismatch) {
			continue
		}
		if err != nil {
			return nil, err
		}
		return scheduleMessage(after), nil
	}
	return nil, fault.New(fault.Overloaded, "the schedule keeps changing")
}

// nextSlot is the first slot after the store's present time.
func (s *Service) nextSlot(ctx context.Context, ns string, spec *schedule.Spec) (at time.Time, err error) {
	usage, err := s.store.Usage(ctx, []string{ns})
	if err != nil {
		return at, err
	}
	return spec.Next(usage[0].Now), nil
}

func scheduleMessage(s store.Schedule) *flexiqv1.Schedule {
	m := &flexiqv1.Schedule{
		Name: s.Name, Cron: s.Cron, TimeZone: s.TimeZone, Paused: s.Paused, LastRun: wire.Stamp(s.LastSlot),
		UpdatedAt: wire.Stamp(s.UpdatedAt), UpdatedBy: s.UpdatedBy,
	}
	if !s.Paused {
		m.NextRun = wire.Stamp(s.NextAt)
	}
	if r := s.Refusal; r.Tries > 0 {
		m.Refusal = &flexiqv1.ScheduleRefusal{Slot: wire.Stamp(r.Slot), Reason: r.Reason, Tries: r.Tries, RetryAt: wire.Stamp(r.RetryAt)}
	}
	m.Job, _ = wire.DecodeTemplate(s.Job) // what cannot be read is shown without its job
	return m
}

func (s *Service) deleteSchedule(ctx context.Context, req *flexiqv1.DeleteScheduleRequest) (*flexiqv1.DeleteScheduleResponse, error) {
	ns, err := named(ctx, req.GetName())
	if err != nil {
		return nil, err
	}
	if err := s.store.DeleteSchedule(ctx, ns, req.GetName(), producerRecord(ctx, "delete-schedule", targetSchedule, req.GetName())); err != nil {
		return nil, err
	}
	return &flexiqv1.DeleteScheduleResponse{}, nil
}

func (s *Service) pauseSchedule(ctx context.Context, req *flexiqv1.PauseScheduleRequest) (*flexiqv1.PauseScheduleResponse, error) {
	ns, err := named(ctx, req.GetName())
	if err != nil {
		return nil, err
	}
	done, err := s.changeSchedule(ctx, "pause-schedule", ns, req.GetName(), func(before *store.Schedule, c *store.ScheduleChange) error {
		if before == nil {
			return fault.Missing("schedule")
		}
		c.Paused, c.KeepNext = true, true
		return nil
	})
	if err != nil {
		return nil, err
	}
	return &flexiqv1.PauseScheduleResponse{Schedule: done}, nil
}

func (s *Service) resumeSchedule(ctx context.Context, req *flexiqv1.ResumeScheduleRequest) (*flexiqv1.ResumeScheduleResponse, error) {
	ns, err := named(ctx, req.GetName())
	if err != nil {
		return nil, err
	}
	done, err := s.changeSchedule(ctx, "resume-schedule", ns, req.GetName(), func(before *store.Schedule, c *store.ScheduleChange) error {
		if before == nil {
			return fault.Missing("schedule")
		}
		c.Paused, c.KeepNext = false, !before.Paused
		if c.KeepNext {
			return nil
		}
		spec, err := parseSchedule(before.Cron, before.TimeZone)
		if err == nil {
			c.NextAt, err = s.nextSlot(ctx, ns, spec)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return &flexiqv1.ResumeScheduleResponse{Schedule: done}, nil
}

// runSchedule enqueues the schedule's job beside its slots, like any other enqueue.
func (s *Service) runSchedule(ctx context.Context, req *flexiqv1.RunScheduleRequest) (*flexiqv1.RunScheduleResponse, error) {
	ns, err := named(ctx, req.GetName())
	if err != nil {
		return nil, err
	}
	found, err := s.store.Schedule(ctx, ns, req.GetName())
	if err != nil {
		return nil, err
	}
	usage, err := s.store.Usage(ctx, []string{ns})
	if err != nil {
		return nil, err
	}
	spec, err := wire.SlotSpec(found.Job, usage[0].Now, s.cfg.MaxPayload)
	if err != nil {
		return nil, err
	}
	call := store.Call{Namespace: ns, Origin: "schedule:" + found.Name, By: auth.From(ctx).AuditTokenID()}
	id, err := uuid.NewV7()
	if err != nil {
		return nil, fault.Wrap(err, fault.Internal, "no random numbers for a job id")
	}
	spec.ID = id.String()
	set, err := s.overridesOf(ctx, ns)
	if err != nil {
		return nil, err
	}
	spec.Default(configcache.OverridesOf(set).Defaults(spec.Queue, spec.Task))
	call.Jobs = append(call.Jobs, spec)
	out, err := s.admit(ctx, call)
	s.noteRun(&call, &out, err)
	if err != nil {
		return nil, err
	}
	r := producerRecord(ctx, "run-schedule", targetSchedule, found.Name)
	r.Outcome, r.New = outcomeOK, value(map[string]string{"job_id": spec.ID})
	if err := s.store.Audit(ctx, r); err != nil {
		return nil, err // the job is there, and is told by nobody else; a repeated call makes another
	}
	if !out.Shed {
		s.deps.Bus.PublishReady([]string{ns})
	}
	return &flexiqv1.RunScheduleResponse{Result: wire.Results(out.Results)[0]}, nil
}

// noteRun counts and tells what became of a job that a schedule was told to make.
func (s *Service) noteRun(call *store.Call, out *store.Outcome, err error) {
	f := fault.Of(err)
	switch {
	case f != nil && (f.Reason == fault.QueueFull || f.Reason == fault.RateLimited):
		s.count(call.Namespace, wire.AdmissionCounts{Rejected: 1})
		s.deps.Events.Refused(events.Event{
			Namespace: call.Namespace, Reason: f.Reason, Origin: call.Origin, Queue: call.Jobs[0].Queue, Task: call.Jobs[0].Task, Details: f.Details,
		})
	case f != nil:
	case out.Shed:
		s.count(call.Namespace, wire.AdmissionCounts{Shed: 1})
		s.tellEnqueued(events.JobShed, out.Results[0].Job)
	default:
		counts := wire.AdmissionCounts{Admitted: 1}
		if r := out.Results[0]; !r.Deduplicated && !r.Debounced {
			counts.Queues = map[string]int64{r.Job.Queue: 1}
			s.tellEnqueued(events.JobEnqueued, r.Job)
		}
		s.count(call.Namespace, counts)
	}
}

// admit decides one call under the quota in force.
func (s *Service) admit(ctx context.Context, call store.Call) (store.Outcome, error) {
	for range mostTries {
		docs, err := s.store.Quotas(ctx, []string{call.Namespace})
		if err != nil {
			return store.Outcome{}, err
		}
		call.Stamp = docs[0].Stamp
		if call.Quota, err = readDocument(docs[0]); err != nil {
			return store.Outcome{}, err
		}
		out, err := s.store.Admit(ctx, []store.Call{call})
		switch {
		case err != nil:
			return store.Outcome{}, err
		case !errors.Is(out[0].Err, store.ErrStale):
			return out[0], out[0].Err
		}
	}
	return store.Outcome{}, fault.New(fault.Overloaded, "the quota of the namespace keeps changing")
}

func (s *Service) listSchedules(ctx context.Context, req *flexiqv1.ListSchedulesRequest) (*flexiqv1.ListSchedulesResponse, error) {
	ns, err := tenant(ctx)
	if err != nil {
		return nil, err
	}
	size, after, err := page("schedules", req)
	if err != nil {
		return nil, err
	}
	found, err := s.store.ListSchedules(ctx, ns, after, size)
	if err != nil {
		return nil, err
	}
	res := &flexiqv1.ListSchedulesResponse{NextPageToken: wire.PageToken("schedules", found.Next)}
	for _, one := range found.Items {
		res.Schedules = append(res.Schedules, scheduleMessage(one))
	}
	return res, nil
}
