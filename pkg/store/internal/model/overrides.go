package model

import (
	"cmp"
	"context"
	"math"
	"slices"

	"flexiq/pkg/fault"
	"flexiq/pkg/job"
	"flexiq/pkg/store"
)

// subject is what an override is about.
type subject struct {
	kind store.OverrideKind
	name string
}

// Overrides implements [store.Overrides].
func (s *Store) Overrides(_ context.Context, namespaces []string) ([][]store.Override, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([][]store.Override, len(namespaces))
	for i, ns := range namespaces {
		if sp := s.spaces[ns]; sp != nil {
			for _, o := range sp.overrides {
				out[i] = append(out[i], o)
			}
		}
		slices.SortFunc(out[i], func(a, b store.Override) int { return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name)) })
	}
	return out, nil
}

// PutOverride implements [store.Overrides].
func (s *Store) PutOverride(_ context.Context, o store.Override, audit store.Record) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	sp, on := s.space(o.Namespace), subject{o.Kind, o.Name}
	if old, there := sp.overrides[on]; there {
		audit.Old = old.JSON()
	}
	audit.New, audit.Outcome = o.JSON(), "ok"
	o.UpdatedAt = s.clock()
	sp.overrides[on] = o
	s.record(audit)
	s.changes = append(s.changes, store.Change{Kind: store.KindOverride, Key: o.Namespace})
	return nil
}

// ClearOverride implements [store.Overrides].
func (s *Store) ClearOverride(_ context.Context, ns string, kind store.OverrideKind, name string, audit store.Record) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	sp := s.spaces[ns]
	if sp == nil {
		return fault.Missing("override")
	}
	old, there := sp.overrides[subject{kind, name}]
	if !there {
		return fault.Missing("override")
	}
	delete(sp.overrides, subject{kind, name})
	audit.Old, audit.Outcome = old.JSON(), "ok"
	s.record(audit)
	s.changes = append(s.changes, store.Change{Kind: store.KindOverride, Key: ns})
	return nil
}

// holds are what keeps a pending job from running by overrides: pauses, and caps without room.
func (sp *space) holds(j *job.Job) []store.Hold {
	var out []store.Hold
	look := func(on subject, cap, pause store.HoldKind, same func(*row) bool) {
		o, there := sp.overrides[on]
		switch {
		case !there:
		case o.Paused != nil && *o.Paused:
			out = append(out, store.Hold{What: pause, Name: on.name})
		case o.MaxConcurrent != nil && *o.MaxConcurrent <= sp.count(func(r *row) bool { return r.job.State == job.Running && same(r) }):
			out = append(out, store.Hold{What: cap, Name: on.name})
		}
	}
	look(subject{store.OverrideQueue, j.Queue}, store.HoldQueue, store.HoldPausedQueue, func(r *row) bool { return r.job.Queue == j.Queue })
	look(subject{store.OverrideTask, j.Task}, store.HoldTask, store.HoldPausedTask, func(r *row) bool { return r.job.Task == j.Task })
	return out
}

// held tells of due jobs that were left what keeps each from running.
func (sp *space) held(left []*row) []store.Hold {
	var out []store.Hold
	for _, r := range left {
		why := sp.holds(&r.job)
		if why == nil {
			why = []store.Hold{{What: store.HoldMaxRunning}}
		}
		for _, h := range why {
			if !slices.Contains(out, h) {
				out = append(out, h)
			}
		}
	}
	slices.SortFunc(out, func(a, b store.Hold) int { return cmp.Or(cmp.Compare(a.What, b.What), cmp.Compare(a.Name, b.Name)) })
	return out
}

// room is how many more jobs may run under max_running.
func (sp *space) room(limit *int64) int64 {
	if limit == nil {
		return math.MaxInt64
	}
	return max(0, *limit-sp.count(in(job.Running)))
}

// Queues implements [store.Insight].
func (s *Store) Queues(_ context.Context, ns, after string, limit int) (store.Page[store.QueueState], error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var page store.Page[store.QueueState]
	sp, now := s.spaces[ns], s.clock()
	if sp == nil {
		return page, nil
	}
	all := map[string]*store.QueueState{}
	queue := func(name string) *store.QueueState {
		if all[name] == nil {
			all[name] = &store.QueueState{Queue: name, Now: now}
		}
		return all[name]
	}
	for on := range sp.overrides {
		if on.kind == store.OverrideQueue {
			queue(on.name)
		}
	}
	for _, r := range sp.rows {
		switch r.job.State {
		case job.Running:
			queue(r.job.Queue).Running++
		case job.Pending:
			q := queue(r.job.Queue)
			q.Pending++
			if at := r.job.RunAt; !at.After(now) && (q.OldestDue.IsZero() || at.Before(q.OldestDue)) {
				q.OldestDue = at
			}
		}
	}
	for name, q := range all {
		if name > after {
			page.Items = append(page.Items, *q)
		}
	}
	slices.SortFunc(page.Items, func(a, b store.QueueState) int { return cmp.Compare(a.Queue, b.Queue) })
	if len(page.Items) > limit {
		page.Items = page.Items[:limit]
		page.Next = page.Items[limit-1].Queue
	}
	return page, nil
}

// Holders implements [store.Insight].
func (s *Store) Holders(_ context.Context, ns, queue, task string, limit int) (store.Holders, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := store.Holders{Now: s.clock()}
	rows := s.spaces[ns].sorted(func(r *row) bool {
		return r.job.State == job.Running && (queue == "" || r.job.Queue == queue) && (task == "" || r.job.Task == task)
	})
	slices.SortStableFunc(rows, func(a, b *row) int { return a.job.StartedAt.Compare(b.job.StartedAt) })
	out.Total = int64(len(rows))
	for _, r := range rows[:min(limit, len(rows))] {
		out.Items = append(out.Items, store.Holder{JobID: r.job.ID, Queue: r.job.Queue, Task: r.job.Task, Worker: r.job.Worker,
			StartedAt: r.job.StartedAt, LeaseEnds: r.leaseEnds, Cancelled: r.cancel})
	}
	return out, nil
}

// Ahead implements [store.Insight].
func (s *Store) Ahead(_ context.Context, ns, id string, limit int) (store.Ahead, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, sp := s.clock(), s.spaces[ns]
	if sp == nil || sp.rows[id] == nil || sp.rows[id].job.State != job.Pending {
		return store.Ahead{}, fault.Missing("job")
	}
	me := sp.rows[id]
	n := sp.count(func(r *row) bool {
		return r.job.State == job.Pending && r.job.Queue == me.job.Queue && !r.job.RunAt.After(now) && order(r, me) < 0
	})
	return store.Ahead{Count: min(n, int64(limit)), More: n > int64(limit)}, nil
}
