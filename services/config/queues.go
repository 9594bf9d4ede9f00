package config

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/store"
	"flexiq/pkg/wire"
)

func (s *Service) listQueues(ctx context.Context, req *flexiqv1.ListQueuesRequest) (*flexiqv1.ListQueuesResponse, error) {
	const list = "queues"
	ns, err := tenant(ctx)
	if err != nil {
		return nil, err
	}
	size, after, err := page(list, req)
	if err != nil {
		return nil, err
	}
	queues, err := s.store.Queues(ctx, ns, after, size)
	if err != nil {
		return nil, err
	}
	set, err := s.overridesOf(ctx, ns)
	if err != nil {
		return nil, err
	}
	enqueued, finished := s.minute.queues(time.Now(), ns)
	res := &flexiqv1.ListQueuesResponse{NextPageToken: wire.PageToken(list, queues.Next)}
	for _, q := range queues.Items {
		o := set.of(store.OverrideQueue, q.Queue)
		info := &flexiqv1.QueueInfo{
			Queue: q.Queue, Pending: q.Pending, Running: q.Running,
			Paused: o.IsPaused(), MaxConcurrent: o.MaxConcurrent,
			EnqueuedLastMinute: enqueued[q.Queue], FinishedLastMinute: finished[q.Queue],
		}
		if !q.OldestDue.IsZero() {
			info.OldestWait = durationpb.New(max(0, q.Now.Sub(q.OldestDue)))
		}
		res.Queues = append(res.Queues, info)
	}
	return res, nil
}
