package postgres

import (
	"slices"

	"flexiq/pkg/store/admit"
)

// inserts are new jobs, column by column: many rows are one statement with one
// array a column.
type inserts struct {
	ns, queue, task, unique, debounce, origin, by, metadata, err, deadMetadata []string
	id, fingerprint                                                            [][16]byte
	rank, form                                                                 []int16
	runAt, timeout, base, most, created, window, wait                          []int64
	attempts, aside                                                            []int32
	payload                                                                    [][]byte

	lane []string // of pending jobs

	asideNS   []string // payloads kept aside
	asideID   [][16]byte
	asideBody [][]byte
}

func (n *inserts) add(r *admit.Row) {
	j := r.Job
	id, _ := key(j.ID) // of a checked spec, or from the database
	aside, inline := place(j.Payload)
	if r.Aside > 0 {
		aside = int32(r.Aside)
	} else if aside > 0 {
		n.asideNS, n.asideID, n.asideBody = append(n.asideNS, j.Namespace), append(n.asideID, id), append(n.asideBody, j.Payload)
	}
	n.ns, n.id = append(n.ns, j.Namespace), append(n.id, id)
	n.queue, n.task = append(n.queue, j.Queue), append(n.task, j.Task)
	n.rank, n.runAt = append(n.rank, int16(-j.Priority)), append(n.runAt, micros(j.RunAt))
	n.attempts, n.timeout = append(n.attempts, j.MaxAttempts), append(n.timeout, int64(j.Timeout))
	n.base, n.most = append(n.base, int64(j.BackoffBase)), append(n.most, int64(j.BackoffMax))
	n.created, n.unique = append(n.created, micros(j.CreatedAt)), append(n.unique, j.UniqueKey)
	n.debounce, n.window = append(n.debounce, j.Debounce.Key), append(n.window, int64(j.Debounce.Window))
	n.wait, n.origin = append(n.wait, int64(j.Debounce.MaxWait)), append(n.origin, j.Origin)
	n.by, n.metadata = append(n.by, j.EnqueuedBy), append(n.metadata, object(j.Metadata))
	n.fingerprint, n.form = append(n.fingerprint, r.Fingerprint), append(n.form, int16(j.Form))
	n.aside, n.payload = append(n.aside, aside), append(n.payload, inline)
	n.err, n.deadMetadata = append(n.err, j.Error), append(n.deadMetadata, object(j.DeadMetadata))
}

// addLive adds a pending job, whose lane is its task if that is laned.
func (n *inserts) addLive(r *admit.Row, laned []string) {
	n.add(r)
	lane := ""
	if slices.Contains(laned, r.Job.Task) {
		lane = r.Job.Task
	}
	n.lane = append(n.lane, lane)
}

const (
	newColumns = `ns, id, queue, task, rank, run_at, max_attempts, timeout, backoff_base, backoff_max, created_at, unique_key,
		debounce_key, debounce_window, debounce_max_wait, origin, enqueued_by, metadata, fingerprint, form, aside, payload`
	newArrays = `$1::text[], $2::uuid[], $3::text[], $4::text[], $5::smallint[], $6::bigint[], $7::int[], $8::bigint[], $9::bigint[],
		$10::bigint[], $11::bigint[], $12::text[], $13::text[], $14::bigint[], $15::bigint[], $16::text[], $17::text[], $18::text[],
		$19::uuid[], $20::smallint[], $21::int[], $22::bytea[]`
)

var (
	insertLive = statement(`insert into flexiq.jobs (state, ` + newColumns + `, lane) select 0, * from unnest(` + newArrays + `, $23::text[])`)
	insertShed = statement(`insert into flexiq.dead_letters (shed, attempt, started_at, settled_as, finished_at, ` + newColumns + `, error, dead_metadata)
		select true, 0, 0, '', u.created_at, u.* from unnest(` + newArrays + `, $23::text[], $24::text[])
		u(` + newColumns + `, error, dead_metadata)`)
	insertPayloads = statement(`insert into flexiq.payloads (ns, id, body) select * from unnest($1::text[], $2::uuid[], $3::bytea[])
		on conflict (ns, id) do update set body = excluded.body`)
	deletePayloads = statement(`delete from flexiq.payloads using (
		select p.ctid as tid from unnest($1::text[], $2::uuid[]) u(ns, id)
		cross join lateral (select ctid from flexiq.payloads where ns = u.ns and id = u.id limit 1) p) u where payloads.ctid = u.tid`)
	updateWaiting = statement(`update flexiq.jobs set run_at = u.run_at, form = u.form, aside = u.aside, payload = u.payload
		from (
			select j.ctid as tid, u.* from unnest($1::text[], $2::uuid[], $3::bigint[], $4::smallint[], $5::int[], $6::bytea[])
				u(ns, id, run_at, form, aside, payload)
			cross join lateral (select ctid from flexiq.jobs where ns = u.ns and id = u.id limit 1) j
		) u where jobs.ctid = u.tid`)
)

func (n *inserts) columns(more ...any) []any {
	return append([]any{
		n.ns, n.id, n.queue, n.task, n.rank, n.runAt, n.attempts, n.timeout, n.base, n.most, n.created, n.unique,
		n.debounce, n.window, n.wait, n.origin, n.by, n.metadata, n.fingerprint, n.form, n.aside, n.payload,
	}, more...)
}

// insert queues the insertion of pending jobs.
func (n *inserts) insert(b *batch) {
	if len(n.ns) > 0 {
		b.exec(insertLive, n.columns(n.lane)...)
		n.putAside(b)
	}
}

// bury queues the insertion of shed jobs as dead letters.
func (n *inserts) bury(b *batch) {
	if len(n.ns) > 0 {
		b.exec(insertShed, n.columns(n.err, n.deadMetadata)...)
		n.putAside(b)
	}
}

// update queues the new payload, form and time of debounced jobs. A payload
// that was kept aside goes, or is replaced.
func (n *inserts) update(b *batch) {
	if len(n.ns) > 0 {
		b.exec(updateWaiting, n.ns, n.id, n.runAt, n.form, n.aside, n.payload)
		b.exec(deletePayloads, n.ns, n.id)
		n.putAside(b)
	}
}

func (n *inserts) putAside(b *batch) {
	if len(n.asideNS) > 0 {
		b.exec(insertPayloads, n.asideNS, n.asideID, n.asideBody)
	}
}
