package postgres

import (
	"encoding/json"
	"time"

	"github.com/google/uuid"

	"flexiq/pkg/job"
)

// The states as stored. Migrations depend on the values.
const (
	statePending   = 0
	stateRunning   = 1
	stateComplete  = 2
	stateDead      = 3
	stateCancelled = 4
)

var states = [...]job.State{
	statePending: job.Pending, stateRunning: job.Running, stateComplete: job.Complete,
	stateDead: job.Dead, stateCancelled: job.Cancelled,
}

// asideFrom is the size in bytes from which a payload is kept in the payloads
// table, where it is not rewritten when its job moves. Below it a usual row
// stays under the 2 kB from which PostgreSQL would move columns out by itself.
const asideFrom = 1536

// place decides where a payload is kept: its size when aside, and what goes into the row.
func place(payload []byte) (aside int32, inline []byte) {
	if len(payload) >= asideFrom {
		return int32(len(payload)), nil
	}
	return 0, payload
}

// Columns of a job in the order of [jobRow.dests], for each of its three tables.
const (
	commonColumns = `ns, id, queue, task, rank, run_at, attempt, max_attempts, timeout, backoff_base, backoff_max,
		created_at, started_at, unique_key, debounce_key, debounce_window, debounce_max_wait, origin, enqueued_by,
		metadata, error, fingerprint, form`
	liveColumns    = commonColumns + `, state, 0::bigint as finished_at, worker, '' as dead_metadata, auto_retries`
	archiveColumns = commonColumns + `, state, finished_at, '' as worker, '' as dead_metadata, 0 as auto_retries`
	deadColumns    = commonColumns + `, 3::smallint as state, finished_at, '' as worker, dead_metadata, auto_retries`
	payloadColumns = `, aside, payload`
)

// jobRow is a row with the columns above as it is scanned.
type jobRow struct {
	job                                  job.Job
	id, fingerprint                      [16]byte
	rank, form, state                    int16
	runAt, createdAt, startedAt, endedAt int64
	metadata, deadMetadata               string
}

// dests are where to scan the columns.
func (r *jobRow) dests(more ...any) []any {
	j := &r.job
	return append([]any{
		&j.Namespace, &r.id, &j.Queue, &j.Task, &r.rank, &r.runAt, &j.Attempt, &j.MaxAttempts,
		(*int64)(&j.Timeout), (*int64)(&j.BackoffBase), (*int64)(&j.BackoffMax), &r.createdAt, &r.startedAt,
		&j.UniqueKey, &j.Debounce.Key, (*int64)(&j.Debounce.Window), (*int64)(&j.Debounce.MaxWait), &j.Origin, &j.EnqueuedBy,
		&r.metadata, &j.Error, &r.fingerprint, &r.form, &r.state, &r.endedAt, &j.Worker, &r.deadMetadata, &j.AutoRetries,
	}, more...)
}

// take gives the job, after the scan.
func (r *jobRow) take() *job.Job {
	j := &r.job
	j.ID, j.Priority, j.Form, j.State = uuid.UUID(r.id).String(), -int32(r.rank), job.Form(r.form), states[r.state]
	j.RunAt, j.CreatedAt, j.StartedAt, j.FinishedAt = instant(r.runAt), instant(r.createdAt), instant(r.startedAt), instant(r.endedAt)
	j.Metadata, j.DeadMetadata = stringsOf(r.metadata), stringsOf(r.deadMetadata)
	return j
}

// stringsOf reads a JSON object of strings. Only this package writes such
// columns; what else stands there is shown as nothing, so that it cannot keep a job
// from running.
func stringsOf(object string) map[string]string {
	var m map[string]string
	if object == "" || json.Unmarshal([]byte(object), &m) != nil {
		return nil
	}
	return m
}

// object writes a map of strings for [stringsOf], empty for none.
func object(m map[string]string) string {
	if len(m) == 0 {
		return ""
	}
	b, _ := json.Marshal(m) // a map of strings always marshals
	return string(b)
}

func micros(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMicro()
}

func instant(us int64) time.Time {
	if us == 0 {
		return time.Time{}
	}
	return time.UnixMicro(us).UTC()
}

// key is a job id or a lease as it is stored. What is not written as one is not there.
func key(text string) (k [16]byte, ok bool) {
	if len(text) != 36 {
		return k, false
	}
	u, err := uuid.Parse(text)
	return u, err == nil && u.String() == text
}
