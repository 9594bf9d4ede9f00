package sqlite

import (
	"context"
	"time"
)

const (
	relabelTime  = time.Second            // that a change of an override may take for moving jobs
	relabelShare = 100 * time.Millisecond // the same of each Expire, for what others have left
	relabelBatch = 1000                   // jobs looked at in one transaction
)

const (
	selectLaned = `SELECT name FROM overrides WHERE ns = ? AND kind = 'task' AND (max_concurrent IS NOT NULL OR paused = 1)`
	markSpace   = `UPDATE namespaces SET relabelling = 1, relabelled_to = '' WHERE id = ?`
	unmarkSpace = `UPDATE namespaces SET relabelling = 0, relabelled_to = '' WHERE id = ?`
	markedSpace = `SELECT name FROM namespaces INDEXED BY namespaces_relabelling WHERE relabelling = 1 LIMIT 1`

	selectRunningTask = `SELECT rowid FROM jobs INDEXED BY jobs_leases WHERE state = 1 AND ns = ? AND task = ?`
	selectNextJobs    = `SELECT rowid, id, task, lane FROM jobs WHERE ns = ? AND id > ? ORDER BY id LIMIT ?`
	relabelJob        = `UPDATE jobs SET lane = ? WHERE rowid = ?`
)

// laned are the tasks of a namespace whose jobs have lanes of their own.
func (t *tx) laned(ns int64) (out map[string]bool, err error) {
	err = t.each(selectLaned, func(r *row) bool {
		if out == nil {
			out = make(map[string]bool)
		}
		out[r.text()] = true
		return true
	}, ns)
	return out, err
}

// lane is that of a task's jobs.
func laneOf(laned map[string]bool, task string) string {
	if laned[task] {
		return task
	}
	return ""
}

// startRelabelling moves the running jobs of a task, which are counted by their
// lanes, and notes that the pending ones are to follow.
func (t *tx) startRelabelling(ns int64, task string, laned bool) error {
	label := ""
	if laned {
		label = task
	}
	var rows []int64
	err := t.each(selectRunningTask, func(r *row) bool {
		rows = append(rows, r.int())
		return true
	}, ns, task)
	if err != nil {
		return err
	}
	for _, id := range rows {
		if err := t.exec(relabelJob, label, id); err != nil {
			return err
		}
	}
	return t.exec(markSpace, ns)
}

// relabel gives the next jobs of a namespace the lanes that they should have.
// Jobs are passed in the order of their ids, which nothing changes; those that
// are made meanwhile have their lanes from the start.
func (t *tx) relabel(sp *space) error {
	laned, err := t.laned(sp.id)
	if err != nil {
		return err
	}
	type move struct {
		row  int64
		lane string
	}
	var moves []move
	seen, last := 0, ""
	err = t.each(selectNextJobs, func(r *row) bool {
		id := r.int()
		last = r.text()
		want := laneOf(laned, r.text())
		if r.text() != want {
			moves = append(moves, move{id, want})
		}
		seen++
		return true
	}, sp.id, sp.relabelledTo, relabelBatch)
	if err != nil {
		return err
	}
	for _, m := range moves {
		if err := t.exec(relabelJob, m.lane, m.row); err != nil {
			return err
		}
	}
	if seen < relabelBatch {
		sp.relabelling = false
		return t.exec(unmarkSpace, sp.id)
	}
	sp.relabelledTo = last
	return t.exec(`UPDATE namespaces SET relabelled_to = ? WHERE id = ?`, last, sp.id)
}

// relabelFor moves jobs of a namespace for a while, or to the end.
func (s *Store) relabelFor(ctx context.Context, d time.Duration, ns string) error {
	for until, more := time.Now().Add(d), true; more && time.Now().Before(until); {
		err := s.write(ctx, "relabel", func(t *tx) error {
			sp, err := t.space(ns)
			if err == nil && sp.relabelling {
				err = t.relabel(sp)
			}
			more = sp != nil && sp.relabelling
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// relabelLeft goes on with what a change of an override, or a process that was
// killed in it, has left.
func (s *Store) relabelLeft(ctx context.Context) error {
	ns := ""
	err := s.read(ctx, "relabel", func(t *tx) error {
		_, err := t.one(markedSpace, func(r *row) { ns = r.text() })
		return err
	})
	if err != nil || ns == "" {
		return err
	}
	return s.relabelFor(ctx, relabelShare, ns)
}
