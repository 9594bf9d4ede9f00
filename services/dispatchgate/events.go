package dispatchgate

import (
	"flexiq/pkg/events"
	"flexiq/pkg/job"
	"flexiq/pkg/store"
)

// tellStarted tells of jobs that were given to workers.
func (s *Service) tellStarted(picked []*waiter, grants []store.Grant) {
	wanted := s.events.Ask()
	for i := range grants {
		if len(grants[i].Jobs) == 0 || !wanted(picked[i].want.Namespace, events.JobStarted) {
			continue
		}
		for k := range grants[i].Jobs {
			j := &grants[i].Jobs[k].Job
			s.events.Tell(events.Event{
				Namespace: picked[i].want.Namespace, Type: events.JobStarted, JobID: j.ID, Queue: j.Queue, Task: j.Task, Attempt: j.Attempt,
			})
		}
	}
}

// ended is what the end of an attempt is told as, empty for nothing: a job that
// was released never started for those who count.
func ended(s job.State) events.Type {
	switch s {
	case job.Complete:
		return events.JobComplete
	case job.Dead:
		return events.JobDead
	case job.Cancelled:
		return events.JobCancelled
	case job.Pending:
		return events.JobRetried
	}
	return ""
}

// tellSettled tells of attempts that their workers ended.
func (s *Service) tellSettled(items []store.Settlement, settled []store.Settled) {
	wanted := s.events.Ask()
	for i, r := range settled {
		what := ended(r.State)
		if !r.Accepted || r.Repeat || r.Err != nil || what == "" || what == events.JobRetried && items[i].Outcome == job.Released {
			continue
		}
		if !wanted(items[i].Namespace, what) {
			continue
		}
		s.events.Tell(events.Event{
			Namespace: items[i].Namespace, Type: what, JobID: items[i].JobID, Queue: r.Queue, Task: r.Task, Attempt: r.Attempt,
		})
	}
}

// tellExpired tells of attempts whose leases ran out.
func (s *Service) tellExpired(all []store.Ended) {
	for _, e := range all {
		if what := ended(e.State); what != "" {
			s.events.Tell(events.Event{
				Namespace: e.Namespace, Type: what, JobID: e.JobID, Queue: e.Queue, Task: e.Task, Attempt: e.Attempt,
			})
		}
	}
}
