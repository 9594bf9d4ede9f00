package admission

import (
	"flexiq/pkg/events"
	"flexiq/pkg/fault"
	"flexiq/pkg/job"
	"flexiq/pkg/store"
)

// tell tells of jobs that were written: enqueued, or shed.
func (s *Service) tell(calls []store.Call, outcomes []store.Outcome) {
	wanted := s.events.Ask()
	for i := range outcomes {
		o := &outcomes[i]
		if o.Err != nil || o.Repeat {
			continue
		}
		what := events.JobEnqueued
		if o.Shed {
			what = events.JobShed
		}
		if !wanted(calls[i].Namespace, what) {
			continue
		}
		for _, r := range o.Results {
			if r.Job != nil && !r.Deduplicated && !r.Debounced {
				s.events.Tell(jobEvent(what, r.Job))
			}
		}
	}
}

func jobEvent(t events.Type, j *job.Job) events.Event {
	return events.Event{Namespace: j.Namespace, Type: t, JobID: j.ID, Queue: j.Queue, Task: j.Task, Origin: j.Origin}
}

// tellCancelled tells of jobs that were cancelled before they ran. Of running
// ones the gate tells, when they have ended.
func (s *Service) tellCancelled(ended []store.Ended) {
	for _, e := range ended {
		s.events.Tell(events.Event{
			Namespace: e.Namespace, Type: events.JobCancelled, JobID: e.JobID, Queue: e.Queue, Task: e.Task, Attempt: e.Attempt,
		})
	}
}

// tellRefused tells of a refused call. What is wrong with the server is no news
// for a tenant's listeners; what is wrong with the call is, for of a plain
// publish they hear it nowhere else.
func (s *Service) tellRefused(ns string, call *store.Call, f *fault.Error) {
	if ns == "" || f.Reason.Status() >= 500 || f.Reason == fault.PermissionDenied || f.Reason == fault.Cancelled {
		return
	}
	e := events.Event{Namespace: ns, Reason: f.Reason, Origin: call.Origin, Count: int64(len(call.Jobs)), Details: f.Details}
	if len(call.Jobs) > 0 {
		e.Queue, e.Task = call.Jobs[0].Queue, call.Jobs[0].Task
	}
	if len(call.Jobs) == 1 {
		e.JobID = call.Jobs[0].ID
	}
	s.events.Refused(e)
}
