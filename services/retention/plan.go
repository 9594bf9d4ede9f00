package retention

import (
	"time"

	"flexiq/pkg/quota"
	"flexiq/pkg/store"
)

// followUp is the time from a sweep that left excess to the next.
const followUp = time.Second

// bounds keep a sweep, and each step of it, small.
type bounds struct {
	rows    int // that one delete takes at most
	batches int // that one table of one namespace gets in a sweep
	page    int // namespaces in memory at once

	// call is how long one call of the store may take. It is well under
	// patience, so that one slow namespace does not end a leadership.
	call time.Duration
	// patience is how long a leader bears a store that does not answer.
	patience time.Duration
}

var normalBounds = bounds{rows: 500, batches: 20, page: 500, call: 4 * time.Second, patience: 10 * time.Second}

// task is one table of one namespace with rows to delete: those beyond a
// ceiling, or those older than a window. Exactly one of keep and before is set.
type task struct {
	namespace string
	table     store.Table
	keep      *int64
	stamp     store.Stamp // of the quota that keep comes from
	before    time.Time
}

// trim is the task's next batch.
func (t task) trim(term int64, rows int) store.Trim {
	out := store.Trim{Term: term, Namespace: t.namespace, Table: t.table, Keep: t.keep, Before: t.before, Limit: rows}
	if t.keep != nil {
		out.Stamp = &t.stamp
	}
	return out
}

// rows is how many rows of a table a namespace holds.
func rows(u store.Usage, table store.Table) int64 {
	if table == store.Archive {
		return u.Archived
	}
	return u.Dead
}

// ceiling is the quota's row limit for a table, nil when it is unlimited.
func ceiling(q quota.Quota, table store.Table) *int64 {
	if table == store.Archive {
		return q.MaxArchivedRows
	}
	return q.MaxDeadRows
}

var tables = []store.Table{store.Archive, store.DeadLetters}

// overAge lists the tables of a namespace that a window may reach: one without
// rows costs no delete. A table's age of 0 is no window.
func overAge(u store.Usage, ages map[store.Table]time.Duration) []task {
	var out []task
	for _, table := range tables {
		if age := ages[table]; age > 0 && rows(u, table) > 0 {
			out = append(out, task{namespace: u.Namespace, table: table, before: u.Now.Add(-age)})
		}
	}
	return out
}

// overCeiling lists the tables of a namespace that hold more rows than the
// quota lets it keep.
func overCeiling(u store.Usage, q quota.Quota, stamp store.Stamp) []task {
	var out []task
	for _, table := range tables {
		if keep := ceiling(q, table); keep != nil && rows(u, table) > *keep {
			out = append(out, task{namespace: u.Namespace, table: table, keep: keep, stamp: stamp})
		}
	}
	return out
}

// takeTurns works on tasks by turns, one batch each, until none has more to do
// or each had its share of the sweep. It reports whether any still has more.
func takeTurns[T any](tasks []T, share int, batch func(T) (next *T, err error)) (left bool, err error) {
	for range share {
		waiting := tasks[:0]
		for _, t := range tasks {
			next, err := batch(t)
			if err != nil {
				return true, err
			}
			if next != nil {
				waiting = append(waiting, *next)
			}
		}
		if tasks = waiting; len(tasks) == 0 {
			return false, nil
		}
	}
	return true, nil
}

// pause is how long to wait after a sweep that took so long: until a tick has
// passed since it started, or a follow-up when it left excess. It is never
// nothing, so that a sweep longer than its tick does not keep the store busy
// without end.
func pause(tick, took time.Duration, left bool) time.Duration {
	least := min(tick, followUp)
	if left {
		return least
	}
	return max(tick-took, least)
}
