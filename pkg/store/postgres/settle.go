package postgres

import (
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"flexiq/pkg/job"
	"flexiq/pkg/store"
)

// live is what ending an attempt needs to know of a job, and what became of it.
type live struct {
	job          job.Job // with what [job.Job.After] reads, queue and task
	id           [16]byte
	lease        *[16]byte
	expires      time.Time
	cancelled    bool
	settledLease *[16]byte
	settledAs    string
	tid          pgtype.TID // where its live row is, as long as its namespace is locked
}

// liveFields are the columns of [live.dests], noLife what a job that is not live has for some of them.
const (
	liveFields = `ns, id, state, queue, task, attempt, max_attempts, timeout, backoff_base, backoff_max, started_at,
		lease, lease_expires, cancelled, settled_lease, settled_as, ctid`
	noLife = `queue, task, attempt, 0, 0::bigint, 0::bigint, 0::bigint, 0::bigint, null::uuid, 0::bigint, false, settled_lease, settled_as, null::tid`
)

// selectSettling finds jobs by id, wherever they are.
var selectSettling = statement(`select k.* from unnest($1::text[], $2::uuid[]) u(ns, id) cross join lateral (
	select ` + liveFields + ` from flexiq.jobs where ns = u.ns and id = u.id
	union all select ns, id, state, ` + noLife + ` from flexiq.archive where ns = u.ns and id = u.id
	union all select ns, id, 3::smallint, ` + noLife + ` from flexiq.dead_letters where ns = u.ns and id = u.id limit 1) k`)

// selectLive finds live jobs by id.
var selectLive = statement(`select k.* from unnest($1::text[], $2::uuid[]) u(ns, id) cross join lateral (
	select ` + liveFields + ` from flexiq.jobs where ns = u.ns and id = u.id limit 1) k`)

func scanLive(scan func(...any) error) (*live, error) {
	var l live
	var state int16
	var started, expires int64
	j := &l.job
	err := scan(&j.Namespace, &l.id, &state, &j.Queue, &j.Task, &j.Attempt, &j.MaxAttempts,
		(*int64)(&j.Timeout), (*int64)(&j.BackoffBase), (*int64)(&j.BackoffMax), &started,
		&l.lease, &expires, &l.cancelled, &l.settledLease, &l.settledAs, &l.tid)
	j.ID, j.State, j.StartedAt, l.expires = uuid.UUID(l.id).String(), states[state], instant(started), instant(expires)
	return &l, err
}

// place is where a job is found: ids are unique in a namespace.
type address struct {
	ns string
	id [16]byte
}

// jobs are live jobs, or such as just were, by their address.
type jobs map[address]*live

// find queues the reading of jobs by one of the statements above.
func (m jobs) find(b *batch, st stmt, ns []string, ids [][16]byte) {
	if len(ids) == 0 {
		return
	}
	b.each(st, func(scan func(...any) error) error {
		l, err := scanLive(scan)
		m[address{l.job.Namespace, l.id}] = l
		return err
	}, ns, ids)
}

// get finds a job by its id in text, nil when it is not there.
func (m jobs) get(ns, id string) *live {
	k, ok := key(id)
	if !ok {
		return nil
	}
	return m[address{ns, k}]
}

// holds reports whether the text is this lease.
func holds(lease *[16]byte, text string) bool {
	k, ok := key(text)
	return ok && lease != nil && *lease == k
}

// settle applies one settlement to a job, which is nil when it does not exist.
func settle(l *live, s *store.Settlement, now time.Time, out *endings) store.Settled {
	if l == nil {
		return store.Settled{}
	}
	answer := store.Settled{State: l.job.State, Queue: l.job.Queue, Task: l.job.Task, Attempt: l.job.Attempt}
	if l.job.State != job.Running || !holds(l.lease, s.Lease) {
		answer.Repeat = holds(l.settledLease, s.Lease) && l.settledAs == string(s.Outcome)
		answer.Accepted = answer.Repeat
		return answer
	}
	move := l.job.After(job.Ending{Outcome: s.Outcome, Error: s.Error, RetryAfter: s.RetryAfter}, l.cancelled, job.Jitter())
	out.add(l, move, s, now)
	answer.Accepted, answer.State, answer.Attempt = true, move.State, move.Attempt
	return answer
}

// endings are attempts that end, by where their jobs go. Most complete without a
// result, and need nothing that does not stand in their rows: whole holds the
// places of these.
type endings struct {
	pending, archive, dead moves
	whole                  []pgtype.TID
}

// add ends an attempt, or a pending job. s is nil when no settlement ends it.
func (e *endings) add(l *live, move job.Move, s *store.Settlement, now time.Time) {
	if move.State == job.Complete && s != nil && s.Outcome == job.Completed && s.Result == nil && move.Error == "" && move.Attempt == l.job.Attempt && l.tid.Valid {
		e.whole = append(e.whole, l.tid)
		l.settledLease, l.settledAs = l.lease, string(job.Completed)
		l.job.State, l.lease = move.State, nil
		return
	}
	m := &e.archive
	state, runAt := int16(stateComplete), int64(0)
	var result []byte
	switch move.State {
	case job.Pending:
		m, state = &e.pending, statePending
		if !move.KeepsTurn {
			runAt = micros(now.Add(move.Delay))
		}
	case job.Dead:
		m, state = &e.dead, stateDead
	case job.Cancelled:
		state = stateCancelled
	default:
		if s != nil {
			result = s.Result
		}
	}
	var lease pgtype.UUID
	as := ""
	if s != nil {
		lease, as = pgtype.UUID{Bytes: *l.lease, Valid: true}, string(s.Outcome)
		l.settledLease, l.settledAs = l.lease, as
	}
	l.job.State, l.job.Attempt, l.lease = move.State, move.Attempt, nil
	m.ns, m.id, m.state = append(m.ns, l.job.Namespace), append(m.id, l.id), append(m.state, state)
	m.attempt, m.err = append(m.attempt, move.Attempt), append(m.err, move.Error)
	m.lease, m.as = append(m.lease, lease), append(m.as, as)
	m.runAt, m.result = append(m.runAt, runAt), append(m.result, result)
}

// moves are jobs that go one way, column by column.
type moves struct {
	ns      []string
	id      [][16]byte
	state   []int16
	attempt []int32
	err     []string
	lease   []pgtype.UUID
	as      []string
	runAt   []int64 // 0: as it was
	result  [][]byte
}

const (
	// unchangedColumns are those that a job takes along when it leaves the live table.
	unchangedColumns = `ns, id, queue, task, rank, run_at, max_attempts, timeout, backoff_base, backoff_max, created_at, started_at,
		unique_key, debounce_key, debounce_window, debounce_max_wait, origin, enqueued_by, metadata, fingerprint, form, aside, payload`
	moveArrays = `$1::text[], $2::uuid[], $3::smallint[], $4::int[], $5::text[], $6::uuid[], $7::text[]`
	moveNames  = `m_ns, m_id, m_state, m_attempt, m_error, m_lease, m_as`
	// gone deletes the live rows of moves and keeps them for the next statement.
	gone = `with gone as (
		delete from flexiq.jobs using (
			select j.ctid as m_tid, m.* from unnest(` + moveArrays + `, $8::bytea[]) m(` + moveNames + `, m_result)
			cross join lateral (select ctid from flexiq.jobs where ns = m.m_ns and id = m.m_id limit 1) j
		) m where jobs.ctid = m.m_tid
		returning ` + unchangedColumns + `, auto_retries, m_state, m_attempt, coalesce(nullif(m_error, ''), error) as error,
			coalesce(m_lease, settled_lease) as settled_lease, case when m_lease is null then settled_as else m_as end as settled_as, m_result
	) `
	movedColumns = unchangedColumns + `, attempt, error, settled_lease, settled_as, finished_at`
	movedValues  = unchangedColumns + `, m_attempt, error, settled_lease, settled_as, $9::bigint`
)

var (
	retryJobs = statement(`update flexiq.jobs set state = 0, run_at = coalesce(nullif(m_run_at, 0), run_at), attempt = m_attempt,
			error = coalesce(nullif(m_error, ''), error), settled_lease = coalesce(m_lease, settled_lease),
			settled_as = case when m_lease is null then settled_as else m_as end,
			lease = null, lease_expires = 0, worker = ''
		from (
			select j.ctid as m_tid, m.* from unnest(` + moveArrays + `, $8::bigint[]) m(` + moveNames + `, m_run_at)
			cross join lateral (select ctid from flexiq.jobs where ns = m.m_ns and id = m.m_id limit 1) j
		) m where jobs.ctid = m.m_tid`)
	archiveJobs = statement(gone + `insert into flexiq.archive (` + movedColumns + `, state, result)
		select ` + movedValues + `, m_state, m_result from gone`)
	// completeJobs finds its rows by where they are: without a search in an index,
	// and without opening the table for each of them. That place holds, because
	// nobody changes a job without the lock of its namespace.
	completeJobs = statement(`with gone as (
			delete from flexiq.jobs where ctid = any($1::tid[])
			returning ` + unchangedColumns + `, attempt, error, lease
		)
		insert into flexiq.archive (` + movedColumns + `, state) select ` + unchangedColumns + `, attempt, error, lease, $2, $3::bigint, 2 from gone`)
	buryJobs = statement(gone + `insert into flexiq.dead_letters (` + movedColumns + `, auto_retries, shed, dead_metadata)
		select ` + movedValues + `, auto_retries, false, '' from gone`)
)

// write queues the moves.
func (e *endings) write(b *batch, now time.Time) {
	if m := &e.pending; len(m.ns) > 0 {
		b.exec(retryJobs, m.ns, m.id, m.state, m.attempt, m.err, m.lease, m.as, m.runAt)
	}
	if n := int64(len(e.whole)); n > 0 {
		b.exec(completeJobs, e.whole, string(job.Completed), micros(now)).Exec(func(done pgconn.CommandTag) error {
			if done.RowsAffected() != n {
				return fmt.Errorf("%d of %d jobs were where they had been under the lock of their namespaces", done.RowsAffected(), n)
			}
			return nil
		})
	}
	if m := &e.archive; len(m.ns) > 0 {
		b.exec(archiveJobs, m.ns, m.id, m.state, m.attempt, m.err, m.lease, m.as, m.result, micros(now))
	}
	if m := &e.dead; len(m.ns) > 0 {
		b.exec(buryJobs, m.ns, m.id, m.state, m.attempt, m.err, m.lease, m.as, m.result, micros(now))
	}
}

// empty reports whether nothing ends.
func (e *endings) empty() bool {
	return len(e.pending.ns)+len(e.archive.ns)+len(e.dead.ns)+len(e.whole) == 0
}
