package config

import (
	"context"
	"strconv"
	"time"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/auth"
	"flexiq/pkg/events"
	"flexiq/pkg/fault"
	"flexiq/pkg/job"
	"flexiq/pkg/store"
)

// aliveEvery is how long a stream is silent before it shows that it lives.
const aliveEvery = 15 * time.Second

// watchEvents streams the caller's namespace's events until the caller goes.
func (s *Service) watchEvents(ctx context.Context, req *flexiqv1.WatchEventsRequest, send func(*flexiqv1.WatchEventsResponse) error) error {
	if _, err := tenant(ctx); err != nil {
		return err
	}
	filter, err := events.NewFilter(req)
	if err != nil {
		return err
	}
	heard, err := s.deps.Bus.ListenEvents(auth.From(ctx).NSToken(), filter)
	if err != nil {
		return err
	}
	defer heard.Stop()
	if err := send(&flexiqv1.WatchEventsResponse{}); err != nil {
		return err
	}
	alive := time.NewTicker(aliveEvery)
	defer alive.Stop()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-s.stopped:
			return fault.New(fault.Overloaded, "the service is stopping: watch again")
		case msg := <-heard.C:
			if heard.Late() {
				return events.TooLate()
			}
			e, err := events.Decode(msg.Data)
			if err != nil || !filter.Matches(e) {
				continue // one that cannot be read is of a newer version
			}
			if err := send(&flexiqv1.WatchEventsResponse{Event: e}); err != nil {
				return err
			}
			alive.Reset(aliveEvery)
		case <-alive.C:
			if heard.Late() {
				return events.TooLate()
			}
			if err := send(&flexiqv1.WatchEventsResponse{}); err != nil {
				return err
			}
		}
	}
}

// tellQuota tells of a quota that was written. The default quota is no
// namespace's event.
func (s *Service) tellQuota(t subject, operation string, d store.Document) {
	if t.standard() {
		return
	}
	s.deps.Events.Tell(events.Event{Namespace: t.namespace, Type: events.QuotaChanged, Details: map[string]string{
		events.KeyOperation: operation, events.KeyRevision: strconv.FormatInt(t.revision(d), 10),
	}})
}

// tellEnqueued tells of a job that an operator brought in.
func (s *Service) tellEnqueued(t events.Type, j *job.Job) {
	s.deps.Events.Tell(events.Event{Namespace: j.Namespace, Type: t, JobID: j.ID, Queue: j.Queue, Task: j.Task, Origin: j.Origin})
}
