package sqlite

import (
	"context"

	"flexiq/pkg/fault"
	"flexiq/pkg/store"
)

const (
	selectQueues = `SELECT queue, sum(pending), sum(running), min(CASE WHEN pending > 0 THEN ` + frontOfLane + ` END)
		FROM lanes l WHERE ns = ?1 AND queue > ?2 GROUP BY queue ORDER BY queue LIMIT ?3`
	selectQueueOverrides = `SELECT name FROM overrides WHERE ns = ?1 AND kind = 'queue' AND name > ?2 ORDER BY name LIMIT ?3`

	holding       = ` FROM jobs INDEXED BY jobs_leases WHERE state = 1 AND ns = ?1 AND (?2 = '' OR queue = ?2) AND (?3 = '' OR task = ?3)`
	selectHolders = `SELECT id, queue, task, worker, started_at, lease_expires, cancelled` + holding + ` ORDER BY started_at, id LIMIT ?4`
	countHolders  = `SELECT count(*)` + holding

	selectPlace = `SELECT queue, rank, run_at FROM jobs WHERE ns = ? AND id = ? AND state = 0`
	lanesAhead  = `SELECT lane, rank FROM lanes WHERE ns = ? AND queue = ? AND rank <= ? AND pending > 0`
	countAhead  = `SELECT count(*) FROM (SELECT 1 FROM jobs INDEXED BY jobs_pending
		WHERE ns = ? AND queue = ? AND lane = ? AND rank = ? AND state = 0 AND (run_at, id) < (?, ?) LIMIT ?)`
)

// Queues implements [store.Insight].
func (s *Store) Queues(ctx context.Context, ns, after string, limit int) (store.Page[store.QueueState], error) {
	var page store.Page[store.QueueState]
	limit = max(limit, 1)
	err := s.read(ctx, "queues", func(t *tx) error {
		sp, err := t.space(ns)
		if err != nil {
			return err
		}
		var all []store.QueueState
		err = t.each(selectQueues, func(r *row) bool {
			q := store.QueueState{Queue: r.text(), Pending: r.int(), Running: r.int(), OldestDue: r.time(), Now: t.now}
			if q.OldestDue.After(t.now) {
				q.OldestDue = instant(0)
			}
			all = append(all, q)
			return true
		}, sp.id, after, limit+1)
		if err != nil {
			return err
		}
		err = t.each(selectQueueOverrides, func(r *row) bool {
			all = append(all, store.QueueState{Queue: r.text(), Now: t.now})
			return true
		}, sp.id, after, limit+1)
		page = store.QueuePage(all, limit)
		return err
	})
	return page, err
}

// Holders implements [store.Insight].
func (s *Store) Holders(ctx context.Context, ns, queue, task string, limit int) (out store.Holders, err error) {
	err = s.read(ctx, "holders", func(t *tx) error {
		out = store.Holders{Now: t.now}
		sp, err := t.space(ns)
		if err != nil {
			return err
		}
		if _, err := t.one(countHolders, func(r *row) { out.Total = r.int() }, sp.id, queue, task); err != nil {
			return err
		}
		return t.each(selectHolders, func(r *row) bool {
			out.Items = append(out.Items, store.Holder{JobID: r.text(), Queue: r.text(), Task: r.text(), Worker: r.text(),
				StartedAt: r.time(), LeaseEnds: r.time(), Cancelled: r.bool()})
			return true
		}, sp.id, queue, task, limit)
	})
	return out, err
}

// Ahead implements [store.Insight].
func (s *Store) Ahead(ctx context.Context, ns, id string, limit int) (out store.Ahead, err error) {
	err = s.read(ctx, "ahead", func(t *tx) error {
		out = store.Ahead{}
		sp, err := t.space(ns)
		if err != nil {
			return err
		}
		var queue string
		var rank, runAt int64
		found, err := t.one(selectPlace, func(r *row) { queue, rank, runAt = r.text(), r.int(), r.int() }, sp.id, id)
		if err != nil {
			return err
		}
		if !found {
			return fault.Missing("job")
		}
		var lanes []lane
		err = t.each(lanesAhead, func(r *row) bool {
			lanes = append(lanes, lane{label: r.text(), rank: r.int()})
			return true
		}, sp.id, queue, rank)
		if err != nil {
			return err
		}
		for _, l := range lanes {
			// Due now, and before the job where the lane has its rank.
			at, before := micros(t.now)+1, ""
			if l.rank == rank && runAt < at {
				at, before = runAt, id
			}
			_, err := t.one(countAhead, func(r *row) { out.Count += r.int() }, sp.id, queue, l.label, l.rank, at, before, int64(limit)+1-out.Count)
			if err != nil {
				return err
			}
		}
		out.Count, out.More = min(out.Count, int64(limit)), out.Count > int64(limit)
		return nil
	})
	return out, err
}
