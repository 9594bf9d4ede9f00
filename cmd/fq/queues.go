package main

import (
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
)

type queuesCmd struct{ paging }

func (cmd *queuesCmd) Run(s *session) error {
	c, hangUp, err := s.dial(ofNamespace)
	if err != nil {
		return err
	}
	defer hangUp()
	l := listing[*flexiqv1.ListQueuesResponse, *flexiqv1.QueueInfo]{
		name:   "queues",
		items:  (*flexiqv1.ListQueuesResponse).GetQueues,
		header: []any{"QUEUE", "PENDING", "RUNNING", "OLDEST WAIT", "MAX CONCURRENT", "ENQUEUED/MIN", "FINISHED/MIN", "STATE"},
		row: func(q *flexiqv1.QueueInfo) []any {
			limit, state := any("unlimited"), "open"
			if q.MaxConcurrent != nil {
				limit = q.GetMaxConcurrent()
			}
			if q.GetPaused() {
				state = "PAUSED"
			}
			return []any{q.GetQueue(), q.GetPending(), q.GetRunning(), span(q.GetOldestWait()), limit, q.GetEnqueuedLastMinute(), q.GetFinishedLastMinute(), state}
		},
	}
	return l.print(s, cmd.paging, func(size int32, token string) (*flexiqv1.ListQueuesResponse, error) {
		return c.Admin().ListQueues(s.ctx, &flexiqv1.ListQueuesRequest{PageSize: size, PageToken: token})
	})
}

type workersCmd struct{ paging }

func (cmd *workersCmd) Run(s *session) error {
	c, hangUp, err := s.dial(ofNamespace)
	if err != nil {
		return err
	}
	defer hangUp()
	l := listing[*flexiqv1.ListWorkersResponse, *flexiqv1.WorkerInfo]{
		name:   "workers",
		items:  (*flexiqv1.ListWorkersResponse).GetWorkers,
		header: []any{"WORKER", "QUEUES", "SLOTS", "RUNNING", "LAST SEEN"},
		row: func(w *flexiqv1.WorkerInfo) []any {
			queues, slots := "all", any(w.GetSlots())
			if len(w.GetQueues()) > 0 {
				queues = strings.Join(w.GetQueues(), ",")
			}
			if w.GetSlots() == 0 {
				slots = "-"
			}
			return []any{orDash(w.GetWorker()), queues, slots, w.GetRunning(), when(w.GetLastSeen())}
		},
	}
	return l.print(s, cmd.paging, func(size int32, token string) (*flexiqv1.ListWorkersResponse, error) {
		return c.Admin().ListWorkers(s.ctx, &flexiqv1.ListWorkersRequest{PageSize: size, PageToken: token})
	})
}

// span shows a duration, to the second when it is longer; "-" for none.
func span(d *durationpb.Duration) string {
	switch v := d.AsDuration(); {
	case d == nil:
		return "-"
	case v < time.Second:
		return v.Round(time.Millisecond).String()
	default:
		return v.Round(time.Second).String()
	}
}
