package model

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"flexiq/pkg/fault"
	"flexiq/pkg/job"
	"flexiq/pkg/quota"
	"flexiq/pkg/store"
)

// dead finds a dead letter.
func (s *Store) dead(ns, id string) *row {
	if sp := s.spaces[ns]; sp != nil && sp.rows[id] != nil && sp.rows[id].job.State == job.Dead {
		return sp.rows[id]
	}
	return nil
}

// Replay implements [store.Letters].
func (s *Store) Replay(_ context.Context, r store.Replay) ([]store.Replayed, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock()
	out := make([]store.Replayed, len(r.Letters))
	moved := 0
	for i, l := range r.Letters {
		switch dead := s.dead(r.Namespace, l.ID); {
		case dead == nil:
			out[i].Gone = true
		case r.Stamp != s.stamp(r.Namespace):
			out[i].Err = store.ErrStale
		default:
			if out[i].Err = s.stays(&r, dead, now); out[i].Err == nil {
				out[i].Job = s.revive(&r, dead, l.As, now.Add(time.Duration(moved)*time.Microsecond))
				moved++
			}
		}
	}
	if moved > 0 && r.Audit != nil {
		s.record(*r.Audit.Counted("moved", int64(moved)))
	}
	return out, nil
}

// stays tells why a dead letter cannot move; when it can, its token is spent.
func (s *Store) stays(r *store.Replay, dead *row, now time.Time) error {
	sp, q := s.spaces[r.Namespace], r.Quota
	q.OnExcess = quota.Reject
	b := bucketOf(sp.bucket)
	if b.at > now.UnixMicro() {
		b.at = now.UnixMicro()
		sp.bucket = b.stored()
	}
	if q.EnqueueRate != nil {
		b = b.under(*q.EnqueueRate, now)
	}
	asCall := store.Call{Namespace: r.Namespace, Quota: q, Stamp: r.Stamp, Jobs: []job.Spec{{Queue: dead.job.Queue}}}
	pending := sp.count(in(job.Pending))
	switch {
	case q.MaxPending != nil && pending+1 > *q.MaxPending:
		return s.excess(asCall, "max_pending", pending, b, now, nil).Err
	case q.EnqueueRate != nil && b.whole() < 1:
		return s.excess(asCall, "enqueue_rate", pending, b, now, nil).Err
	case sp.holder(dead.job.UniqueKey) != nil:
		return held(fault.UniqueKeyHeld, sp.holder(dead.job.UniqueKey))
	case sp.waiting(dead.job.Debounce.Key) != nil:
		return held(fault.DebounceKeyHeld, sp.waiting(dead.job.Debounce.Key))
	}
	if q.EnqueueRate != nil {
		b.take(1)
		sp.bucket = b.stored()
	}
	return nil
}

func held(r fault.Reason, holder *row) error {
	return &fault.Error{Reason: r, Message: fmt.Sprintf("job %s has its key", holder.job.ID), Details: map[string]string{"job_id": holder.job.ID}}
}

func (s *Store) revive(r *store.Replay, dead *row, id string, at time.Time) *job.Job {
	sp := s.spaces[r.Namespace]
	delete(sp.rows, dead.job.ID)
	j := dead.job
	j.ID, j.State, j.Attempt, j.CreatedAt, j.RunAt = id, job.Pending, 0, at, at
	j.StartedAt, j.FinishedAt, j.Error, j.DeadMetadata = time.Time{}, time.Time{}, "", nil
	j.Origin, j.EnqueuedBy = "replay:"+dead.job.ID, r.By
	if r.Automatic {
		j.AutoRetries++
	}
	sp.rows[id] = &row{job: j, fingerprint: dead.fingerprint}
	j.Payload = nil
	return &j
}

// DeleteDead implements [store.Letters].
func (s *Store) DeleteDead(_ context.Context, ns string, ids []string, audit store.Record) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := int64(0)
	for _, id := range ids {
		if s.dead(ns, id) != nil {
			delete(s.spaces[ns].rows, id)
			n++
		}
	}
	if n > 0 {
		s.record(*audit.Counted("deleted", n))
	}
	return n, nil
}

// Retryable implements [store.Letters].
func (s *Store) Retryable(_ context.Context, q store.Retryable) (store.Page[string], error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	rows := s.spaces[q.Namespace].sorted(func(r *row) bool {
		return r.job.State == job.Dead && !r.job.Shed() && r.job.FinishedAt.Before(q.Before) && r.job.AutoRetries < q.Most
	})
	slices.SortFunc(rows, func(a, b *row) int { return cmp.Compare(place(a), place(b)) })
	var page store.Page[string]
	for _, r := range rows {
		if place(r) <= q.After {
			continue
		}
		if len(page.Items) == q.Limit {
			page.Next = place(s.spaces[q.Namespace].rows[page.Items[q.Limit-1]])
			break
		}
		page.Items = append(page.Items, r.job.ID)
	}
	return page, nil
}

// place is where a dead letter stands by (finished time, id).
func place(r *row) string { return fmt.Sprintf("%020d:%s", r.job.FinishedAt.UnixMicro(), r.job.ID) }

// Bury puts a dead letter back as it was.
func (w *World) Bury(j *job.Job) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.space(j.Namespace).rows[j.ID] = &row{job: *j}
}

// Spend takes a token that nobody used.
func (w *World) Spend(ns string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	sp := w.space(ns)
	b := bucketOf(sp.bucket)
	if b.whole() > 0 {
		b.take(1)
		sp.bucket = b.stored()
	}
}
