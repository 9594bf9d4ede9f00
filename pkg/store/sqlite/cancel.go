package sqlite

import (
	"context"

	"flexiq/pkg/job"
	"flexiq/pkg/store"
)

// examined is how many rows of jobs one read transaction looks at.
const examined = 1000

// Cancel implements [store.Admission].
func (s *Store) Cancel(ctx context.Context, ns string, sel store.Selection, limit int) (store.Cancelled, error) {
	ids, more := sel.IDs, false
	if len(ids) == 0 {
		var err error
		if ids, more, err = s.cancellable(ctx, ns, sel.Filter, max(limit, 1)); err != nil {
			return store.Cancelled{}, err
		}
	}
	out := store.Cancelled{More: more}
	if len(ids) == 0 {
		return out, nil
	}
	err := s.write(ctx, "cancel", func(t *tx) error {
		out = store.Cancelled{More: more}
		sp, err := t.space(ns)
		if err != nil {
			return err
		}
		seen := make(map[string]bool, len(ids))
		for _, id := range ids {
			if seen[id] {
				continue
			}
			seen[id] = true
			l, err := t.live(sp.id, id)
			switch {
			case err != nil:
				return err
			case l == nil && len(sel.IDs) > 0:
				out.NotFound++
			case l == nil, len(sel.IDs) == 0 && !cancels(sel.Filter, l):
				// It moved since it was selected.
			default:
				if err := t.cancel(ns, l, &out); err != nil {
					return err
				}
			}
		}
		return nil
	})
	return out, err
}

// cancels reports whether a job that a filter selected is still to be cancelled by it.
func cancels(f store.Filter, l *live) bool {
	return !l.cancelled && (f.State == "" || f.State == l.job.State)
}

func (t *tx) cancel(ns string, l *live, out *store.Cancelled) error {
	if l.job.State == job.Pending {
		move := job.Move{State: job.Cancelled, Attempt: l.job.Attempt}
		out.Cancelled++
		out.Ended = append(out.Ended, ended(ns, &l.job, move))
		return t.end(l, move, nil)
	}
	out.Cancelling++
	if l.cancelled {
		return nil
	}
	return t.exec("UPDATE OR ROLLBACK jobs SET cancelled = 1 WHERE rowid = ?", l.row)
}

const selectCancellable = `SELECT id, state, queue, task, created_at, cancelled FROM jobs
	WHERE ns = (SELECT id FROM namespaces WHERE name = ?) AND id > ? ORDER BY id LIMIT ?`

// cancellable finds the first jobs of a filter that are not marked yet. It
// reads in short transactions, so that a filter that matches little holds up
// nobody.
func (s *Store) cancellable(ctx context.Context, ns string, f store.Filter, limit int) (ids []string, more bool, err error) {
	for after, end := "", false; !end && !more; {
		err := s.read(ctx, "cancel", func(t *tx) error {
			rows := 0
			err := t.each(selectCancellable, func(r *row) bool {
				rows++
				j := job.Job{ID: r.text(), State: states[r.int()], Queue: r.text(), Task: r.text(), CreatedAt: r.time()}
				after = j.ID
				if !r.bool() && matches(f, &j) {
					if more = len(ids) == limit; more {
						return false
					}
					ids = append(ids, j.ID)
				}
				return true
			}, ns, after, examined)
			end = rows < examined
			return err
		})
		if err != nil {
			return nil, false, err
		}
	}
	return ids, more, nil
}

// matches reports whether a job passes a filter.
func matches(f store.Filter, j *job.Job) bool {
	switch {
	case f.State != "" && f.State != j.State,
		f.Queue != "" && f.Queue != j.Queue,
		f.Task != "" && f.Task != j.Task,
		!f.CreatedBefore.IsZero() && !j.CreatedAt.Before(f.CreatedBefore),
		!f.DiedBefore.IsZero() && !(j.State == job.Dead && j.FinishedAt.Before(f.DiedBefore)),
		f.Shed != nil && !(j.State == job.Dead && j.Shed() == *f.Shed):
		return false
	}
	return true
}
