package sqlite

import (
	"context"
	"slices"
	"time"

	"flexiq/pkg/store"
)

// interestsAtOnce bounds the interests of one read transaction.
const interestsAtOnce = 500

const (
	frontOfLane = `(SELECT run_at FROM jobs j INDEXED BY jobs_pending WHERE j.ns = l.ns AND j.queue = l.queue AND j.lane = l.lane
		AND j.rank = l.rank AND j.state = 0 ORDER BY run_at LIMIT 1)`
	nextOfLane = `(SELECT run_at FROM jobs j INDEXED BY jobs_pending WHERE j.ns = l.ns AND j.queue = l.queue AND j.lane = l.lane
		AND j.rank = l.rank AND j.state = 0 AND run_at > ?1 ORDER BY run_at LIMIT 1)`
	readyOfSpace = `SELECT min(` + frontOfLane + `), min(` + nextOfLane + `) FROM lanes l
		WHERE ns = (SELECT id FROM namespaces WHERE name = ?2) AND pending > 0`
	readyOfQueue = readyOfSpace + ` AND queue = ?3`
)

// Ready implements [store.Dispatch].
func (s *Store) Ready(ctx context.Context, interests []store.Interest) ([]store.Readiness, error) {
	out := make([]store.Readiness, 0, len(interests))
	for part := range slices.Chunk(interests, interestsAtOnce) {
		err := s.read(ctx, "ready", func(t *tx) error {
			for _, in := range part {
				r, err := t.ready(in)
				if err != nil {
					return err
				}
				out = append(out, r)
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (t *tx) ready(in store.Interest) (out store.Readiness, err error) {
	add := func(r *row) {
		front, next := r.time(), r.time()
		out.Ready = out.Ready || !front.IsZero() && !front.After(t.now)
		out.NextAt = earlier(out.NextAt, next)
	}
	if len(in.Queues) == 0 {
		_, err = t.one(readyOfSpace, add, t.now, in.Namespace)
		return out, err
	}
	for _, q := range in.Queues {
		if _, err := t.one(readyOfQueue, add, t.now, in.Namespace, q); err != nil {
			return out, err
		}
	}
	return out, nil
}

// earlier is the earlier of two times, of which a zero one is no time.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
