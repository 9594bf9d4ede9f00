package sqlite

import (
	"flexiq/pkg/job"
	"flexiq/pkg/store/admit"
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
// table, where it is not rewritten when its job moves.
const asideFrom = 2 << 10

// Columns of a job in the order of [row.job], for each of its three tables.
const (
	commonColumns = `id, queue, task, rank, run_at, attempt, max_attempts, timeout, backoff_base, backoff_max,
		created_at, started_at, unique_key, debounce_key, debounce_window, debounce_max_wait, origin, enqueued_by,
		metadata, error, fingerprint, form`
	liveColumns    = commonColumns + `, state, 0 AS finished_at, worker, NULL AS dead_metadata, auto_retries`
	archiveColumns = commonColumns + `, state, finished_at, NULL AS worker, NULL AS dead_metadata, 0 AS auto_retries`
	deadColumns    = commonColumns + `, 3 AS state, finished_at, NULL AS worker, dead_metadata, auto_retries`
	payloadColumns = `, aside, payload`
)

// job reads a job without its payload and result.
func (r *row) job(ns string) (*job.Job, [16]byte) {
	var fingerprint [16]byte
	j := &job.Job{
		Namespace: ns, ID: r.text(), Queue: r.text(), Task: r.text(), Priority: -int32(r.int()), RunAt: r.time(),
		Attempt: int32(r.int()), MaxAttempts: int32(r.int()), Timeout: r.duration(),
		BackoffBase: r.duration(), BackoffMax: r.duration(), CreatedAt: r.time(), StartedAt: r.time(),
		UniqueKey: r.text(), Debounce: job.Debounce{Key: r.text(), Window: r.duration(), MaxWait: r.duration()},
		Origin: r.text(), EnqueuedBy: r.text(), Metadata: r.strings(), Error: r.text(),
	}
	r.into(fingerprint[:])
	j.Form = job.Form(r.int())
	j.State, j.FinishedAt, j.Worker, j.DeadMetadata = states[r.int()], r.time(), r.text(), r.strings()
	j.AutoRetries = int32(r.int())
	return j, fingerprint
}

// known is [row.job] for package admit.
func (r *row) known(ns string) admit.Known {
	j, fingerprint := r.job(ns)
	return admit.Known{Job: j, Fingerprint: fingerprint}
}

const insertPayload = `INSERT INTO payloads (ns, id, body) VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET body = excluded.body`

// place decides where a payload is kept: its size when aside, and what goes into the row.
func place(payload []byte) (aside int64, inline []byte) {
	if len(payload) >= asideFrom {
		return int64(len(payload)), nil
	}
	return 0, payload
}

// payload reads a payload that is kept aside.
func (t *tx) payload(ns int64, id string) (body []byte, err error) {
	_, err = t.one("SELECT body FROM payloads WHERE ns = ? AND id = ?", func(r *row) { body = r.bytes() }, ns, id)
	return body, err
}
