package sqlite

import (
	"time"

	"flexiq/pkg/job"
	"flexiq/pkg/store"
)

// live is what ending an attempt needs to know of a live job.
type live struct {
	row          int64   // its rowid, which holds for the transaction
	job          job.Job // with what [job.Job.After] reads, queue and task
	lease        string
	expires      time.Time
	cancelled    bool
	settledLease string
	settledAs    string
}

const liveFields = `rowid, id, state, queue, task, attempt, max_attempts, timeout, backoff_base, backoff_max, started_at,
	lease, lease_expires, cancelled, settled_lease, settled_as`

func (r *row) live() *live {
	return &live{
		row: r.int(),
		job: job.Job{ID: r.text(), State: states[r.int()], Queue: r.text(), Task: r.text(), Attempt: int32(r.int()),
			MaxAttempts: int32(r.int()), Timeout: r.duration(), BackoffBase: r.duration(), BackoffMax: r.duration(), StartedAt: r.time()},
		lease: r.text(), expires: r.time(), cancelled: r.bool(), settledLease: r.text(), settledAs: r.text(),
	}
}

// live finds a pending or running job, nil when there is none.
func (t *tx) live(ns int64, id string) (l *live, err error) {
	_, err = t.one("SELECT "+liveFields+" FROM jobs WHERE ns = ? AND id = ?", func(r *row) { l = r.live() }, ns, id)
	return l, err
}

// settle applies one settlement.
func (t *tx) settle(ns int64, s *store.Settlement) (store.Settled, error) {
	l, err := t.live(ns, s.JobID)
	if err != nil {
		return store.Settled{}, err
	}
	if l == nil {
		return t.settledBefore(ns, s)
	}
	out := store.Settled{State: l.job.State, Queue: l.job.Queue, Task: l.job.Task, Attempt: l.job.Attempt}
	switch {
	case s.Lease == "":
		return out, nil
	case l.job.State != job.Running || l.lease != s.Lease:
		out.Repeat = l.settledLease == s.Lease && l.settledAs == string(s.Outcome)
		out.Accepted = out.Repeat
		return out, nil
	}
	move := l.job.After(job.Ending{Outcome: s.Outcome, Error: s.Error, RetryAfter: s.RetryAfter}, l.cancelled, job.Jitter())
	out.Accepted, out.State, out.Attempt = true, move.State, move.Attempt
	return out, t.end(l, move, s)
}

const selectSettled = `SELECT state, queue, task, attempt, settled_lease, settled_as FROM archive WHERE ns = ?1 AND id = ?2
	UNION ALL SELECT 3, queue, task, attempt, settled_lease, settled_as FROM dead_letters WHERE ns = ?1 AND id = ?2`

// settledBefore answers a settlement of a job that is no longer live.
func (t *tx) settledBefore(ns int64, s *store.Settlement) (out store.Settled, err error) {
	_, err = t.one(selectSettled, func(r *row) {
		out = store.Settled{State: states[r.int()], Queue: r.text(), Task: r.text(), Attempt: int32(r.int())}
		out.Repeat = r.text() == s.Lease && s.Lease != "" && r.text() == string(s.Outcome)
		out.Accepted = out.Repeat
	}, ns, s.JobID)
	return out, err
}

// unchangedColumns are those that a job takes along when it leaves the live table.
const unchangedColumns = `ns, id, queue, task, rank, run_at, max_attempts, timeout, backoff_base, backoff_max, created_at, started_at,
	unique_key, debounce_key, debounce_window, debounce_max_wait, origin, enqueued_by, metadata, fingerprint, form, aside, payload`

const (
	retryJob = `UPDATE OR ROLLBACK jobs SET state = 0, run_at = coalesce(?, run_at), attempt = ?, error = coalesce(?, error),
		settled_lease = coalesce(?, settled_lease), settled_as = coalesce(?, settled_as),
		lease = NULL, lease_expires = 0, worker = NULL WHERE rowid = ?`
	archiveJob = `INSERT OR ROLLBACK INTO archive (` + unchangedColumns + `, attempt, error, settled_lease, settled_as, finished_at, state, result)
		SELECT ` + unchangedColumns + `, ?, coalesce(?, error), coalesce(?, settled_lease), coalesce(?, settled_as), ?, ?, ?
		FROM jobs WHERE rowid = ?`
	buryJob = `INSERT OR ROLLBACK INTO dead_letters (` + unchangedColumns + `, auto_retries, attempt, error, settled_lease, settled_as, finished_at, shed)
		SELECT ` + unchangedColumns + `, auto_retries, ?, coalesce(?, error), coalesce(?, settled_lease), coalesce(?, settled_as), ?, 0
		FROM jobs WHERE rowid = ?`
	deleteJob = `DELETE FROM jobs WHERE rowid = ?`
)

// end takes a live job where its attempt's end takes it. s is nil when no
// settlement ended it.
func (t *tx) end(l *live, move job.Move, s *store.Settlement) error {
	var lease, as any
	var result []byte
	if s != nil {
		lease, as = s.Lease, string(s.Outcome)
		if move.State == job.Complete {
			result = s.Result
		}
	}
	switch move.State {
	case job.Pending:
		var runAt any
		if !move.KeepsTurn {
			runAt = t.now.Add(move.Delay)
		}
		return t.exec(retryJob, runAt, move.Attempt, null(move.Error), lease, as, l.row)
	case job.Dead:
		if err := t.exec(buryJob, move.Attempt, null(move.Error), lease, as, t.now, l.row); err != nil {
			return err
		}
	default:
		state := stateComplete
		if move.State == job.Cancelled {
			state = stateCancelled
		}
		if err := t.exec(archiveJob, move.Attempt, null(move.Error), lease, as, t.now, state, result, l.row); err != nil {
			return err
		}
	}
	return t.exec(deleteJob, l.row)
}
