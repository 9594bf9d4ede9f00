package sqlite

import (
	"context"
	"time"

	"flexiq/pkg/job"
	"flexiq/pkg/store"
)

// Heartbeat implements [store.Dispatch].
func (s *Store) Heartbeat(ctx context.Context, beats []store.Beat) ([]store.Pulse, error) {
	if len(beats) == 0 {
		return nil, nil
	}
	out := make([]store.Pulse, len(beats))
	err := s.units(ctx, "heartbeat", len(beats), func(t *tx) func(int) error {
		ids := make(map[string]int64)
		return func(i int) error {
			b := &beats[i]
			id, known := ids[b.Namespace]
			if !known {
				sp, err := t.space(b.Namespace)
				if err != nil {
					return err
				}
				id = sp.id
				ids[b.Namespace] = id
			}
			var err error
			out[i], err = t.heartbeat(id, b)
			return err
		}
	}, func(i int, err error) { out[i] = store.Pulse{Err: err} })
	if err != nil {
		return nil, err
	}
	return out, nil
}

func (t *tx) heartbeat(ns int64, b *store.Beat) (store.Pulse, error) {
	l, err := t.live(ns, b.JobID)
	if err != nil || l == nil || l.job.State != job.Running || b.Lease == "" || l.lease != b.Lease {
		return store.Pulse{}, err
	}
	pulse := store.Pulse{Alive: true, Cancelled: l.cancelled, ExpiresAt: l.expires}
	until := t.now.Add(b.Extend).Truncate(time.Microsecond)
	if most := l.job.StartedAt.Add(l.job.Timeout); until.After(most) {
		until = most
	}
	if !until.After(l.expires) {
		return pulse, nil
	}
	pulse.ExpiresAt = until
	return pulse, t.exec("UPDATE OR ROLLBACK jobs SET lease_expires = ? WHERE rowid = ?", until, l.row)
}

const (
	anyExpired    = `SELECT 1 FROM jobs INDEXED BY jobs_leases WHERE state = 1 AND lease_expires <= ? LIMIT 1`
	selectExpired = `SELECT (SELECT name FROM namespaces WHERE id = ns), ` + liveFields + ` FROM jobs INDEXED BY jobs_leases
		WHERE state = 1 AND lease_expires <= ? ORDER BY lease_expires LIMIT ?`
)

// Expire implements [store.Dispatch].
func (s *Store) Expire(ctx context.Context, limit int) ([]store.Ended, error) {
	out, err := s.expire(ctx, limit)
	if err == nil {
		if err := s.relabelLeft(ctx); err != nil {
			s.log.Warn().Err(err).Msg("jobs could not be moved between lanes")
		}
	}
	return out, err
}

func (s *Store) expire(ctx context.Context, limit int) ([]store.Ended, error) {
	// Nearly always there is nothing to do; that must not take the write lock.
	var due bool
	err := s.read(ctx, "expire", func(t *tx) (err error) {
		due, err = t.one(anyExpired, func(*row) {}, t.now)
		return err
	})
	if err != nil || !due {
		return nil, err
	}
	var out []store.Ended
	err = s.write(ctx, "expire", func(t *tx) error {
		out = nil
		var lost []*live
		err := t.each(selectExpired, func(r *row) bool {
			out = append(out, store.Ended{Namespace: r.text()})
			lost = append(lost, r.live())
			return true
		}, t.now, max(limit, 1))
		if err != nil {
			return err
		}
		for i, l := range lost {
			timedOut := !l.job.StartedAt.Add(l.job.Timeout).After(t.now)
			move := l.job.After(job.Ending{Lost: !timedOut, TimedOut: timedOut}, l.cancelled, job.Jitter())
			out[i] = ended(out[i].Namespace, &l.job, move)
			if err := t.end(l, move, nil); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// ended is a job that a move has ended, or an attempt of it.
func ended(ns string, j *job.Job, m job.Move) store.Ended {
	return store.Ended{Namespace: ns, Queue: j.Queue, Task: j.Task, JobID: j.ID, State: m.State, Attempt: m.Attempt}
}
