package redis

import (
	"cmp"
	"context"
	"slices"

	"flexiq/pkg/fault"
	"flexiq/pkg/job"
	"flexiq/pkg/store"
)

// Queues implements [store.Insight].
func (s *Store) Queues(ctx context.Context, ns, after string, limit int) (store.Page[store.QueueState], error) {
	limit = max(limit, 1)
	c := s.on(tag(ns), queuesScript, after, limit+1)
	if err := s.run(ctx, again, c); err != nil {
		return store.Page[store.QueueState]{}, s.fail(ctx, "queues", err)
	}
	r := c.list()
	now := r.time()
	var all []store.QueueState
	for r.more() {
		all = append(all, store.QueueState{Queue: r.text(), Pending: r.int(), Running: r.int(), OldestDue: r.time(), Now: now})
	}
	return store.QueuePage(all, limit), nil
}

// Holders implements [store.Insight]. A job that ends while they are read is left out.
func (s *Store) Holders(ctx context.Context, ns, queue, task string, limit int) (store.Holders, error) {
	c, clock := plain("zrange", s.key(tag(ns), "running"), 0, -1, "withscores"), s.on(tag(ns), usageScript, quotaField(ns))
	if err := s.run(ctx, again, c, clock); err != nil {
		return store.Holders{}, s.fail(ctx, "holders", err)
	}
	out := store.Holders{Now: clock.list().time()}
	var cmds []*command
	var found []store.Holder
	for r := c.list(); r.more(); {
		id := r.text()
		found = append(found, store.Holder{JobID: id, LeaseEnds: r.time()})
		cmds = append(cmds, plain("getrange", s.key(tag(ns), "j:"+id), 0, longestHead), plain("hget", s.key(tag(ns), "workers"), id))
	}
	if err := s.run(ctx, again, cmds...); err != nil {
		return store.Holders{}, s.fail(ctx, "holders", err)
	}
	for i, h := range found {
		d, err := decode(ns, h.JobID, cmds[2*i].text())
		if err != nil || d.job.State != job.Running || queue != "" && d.job.Queue != queue || task != "" && d.job.Task != task {
			continue
		}
		h.Queue, h.Task, h.Worker, h.StartedAt, h.Cancelled = d.job.Queue, d.job.Task, cmds[2*i+1].text(), d.job.StartedAt, d.cancelling
		out.Items = append(out.Items, h)
	}
	slices.SortFunc(out.Items, func(a, b store.Holder) int {
		return cmp.Or(a.StartedAt.Compare(b.StartedAt), cmp.Compare(a.JobID, b.JobID))
	})
	out.Total = int64(len(out.Items))
	out.Items = out.Items[:min(max(limit, 1), len(out.Items))]
	return out, nil
}

// Ahead implements [store.Insight].
func (s *Store) Ahead(ctx context.Context, ns, id string, limit int) (store.Ahead, error) {
	c := s.on(tag(ns), aheadScript, id)
	if err := s.run(ctx, again, c); err != nil {
		return store.Ahead{}, s.fail(ctx, "ahead", err)
	}
	n := c.int()
	if n < 0 {
		return store.Ahead{}, fault.Missing("job")
	}
	return store.Ahead{Count: min(n, int64(limit)), More: n > int64(limit)}, nil
}
