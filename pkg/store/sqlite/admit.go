package sqlite

import (
	"context"
	"time"

	"zombiezen.com/go/sqlite"

	"flexiq/pkg/job"
	"flexiq/pkg/store"
	"flexiq/pkg/store/admit"
)

// group is the calls of one namespace with their places among all calls.
type group struct {
	name  string
	calls []store.Call
	at    []int
}

// groups sorts calls by namespace and keeps their order within each.
func groups(calls []store.Call) []*group {
	var out []*group
	byName := make(map[string]*group)
	for i := range calls {
		name := calls[i].Namespace
		g := byName[name]
		if g == nil {
			g = &group{name: name}
			byName[name] = g
			out = append(out, g)
		}
		g.calls, g.at = append(g.calls, calls[i]), append(g.at, i)
	}
	return out
}

// Admit implements [store.Admission].
func (s *Store) Admit(ctx context.Context, calls []store.Call) ([]store.Outcome, error) {
	if len(calls) == 0 {
		return nil, nil
	}
	out, parts := make([]store.Outcome, len(calls)), groups(calls)
	err := s.units(ctx, "admit", len(parts), func(t *tx) func(int) error {
		return func(i int) error {
			if t.apart {
				return t.admitApart(parts[i], out)
			}
			return t.admit(parts[i], out)
		}
	}, func(i int, err error) {
		for _, at := range parts[i].at {
			out[at] = store.Outcome{Err: err}
		}
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// admitApart admits a namespace's calls together, or else each on its own.
func (t *tx) admitApart(g *group, out []store.Outcome) error {
	err := t.savepoint(func() error { return t.admit(g, out) })
	if err == nil || unavailable(err) {
		return err
	}
	for i := range g.calls {
		one := &group{name: g.name, calls: g.calls[i : i+1], at: g.at[i : i+1]}
		err := t.savepoint(func() error { return t.admit(one, out) })
		if unavailable(err) {
			return err
		}
		if err != nil {
			out[g.at[i]] = store.Outcome{Err: internal("admit", err)}
		}
		// The jobs of the next call come after those of this one, as in a group.
		t.now = t.now.Add(time.Duration(len(one.calls[0].Jobs)) * time.Microsecond)
	}
	return nil
}

// admit decides the calls of one namespace and writes the plan.
func (t *tx) admit(g *group, out []store.Outcome) error {
	sp, err := t.space(g.name)
	if err != nil {
		return err
	}
	snapshot := &admit.Snapshot{Now: t.now, Stamp: sp.stamp, Pending: sp.pending, Bucket: sp.bucket}
	if sp.id != 0 {
		if err := t.look(sp, g.calls, snapshot); err != nil {
			return err
		}
		if err := t.standing(g.calls, snapshot); err != nil {
			return err
		}
		if err := t.used(g.calls, snapshot); err != nil {
			return err
		}
	}
	plan := admit.Decide(snapshot, g.calls)
	if plan.Writes() {
		if err := t.carryOut(sp, plan); err != nil {
			return err
		}
	}
	for i, at := range g.at {
		out[at] = plan.Outcomes[i]
	}
	return nil
}

const (
	selectKnown = `SELECT ` + liveColumns + ` FROM jobs WHERE ns = ?1 AND id = ?2
		UNION ALL SELECT ` + archiveColumns + ` FROM archive WHERE ns = ?1 AND id = ?2
		UNION ALL SELECT ` + deadColumns + ` FROM dead_letters WHERE ns = ?1 AND id = ?2`
	selectNewest = `SELECT max(id) FROM (SELECT max(id) AS id FROM jobs WHERE ns = ?1
		UNION ALL SELECT max(id) FROM archive WHERE ns = ?1 UNION ALL SELECT max(id) FROM dead_letters WHERE ns = ?1)`
	selectUnique = `SELECT ` + liveColumns + ` FROM jobs INDEXED BY jobs_unique WHERE ns = ? AND unique_key = ?`
	// A retry may have come back beside a newer job of the same key: the newer
	// one is the one that still gathers.
	selectWaiting = `SELECT ` + liveColumns + ` FROM jobs INDEXED BY jobs_debounce
		WHERE ns = ? AND debounce_key = ? AND state = 0 ORDER BY id DESC LIMIT 1`
)

// look reads what exists of the calls' ids and keys.
func (t *tx) look(sp *space, calls []store.Call, into *admit.Snapshot) error {
	into.Known = make(map[string]admit.Known)
	into.Unique, into.Waiting = make(map[string]*job.Job), make(map[string]*job.Job)
	// Ids rise with time, so that most of a call's are above all that exist and
	// need not be looked up one by one.
	newest := ""
	if _, err := t.one(selectNewest, func(r *row) { newest = r.text() }, sp.id); err != nil {
		return err
	}
	known, err := t.statement(selectKnown)
	if err != nil {
		return err
	}
	for i := range calls {
		for k := range calls[i].Jobs {
			spec := &calls[i].Jobs[k]
			if spec.ID <= newest {
				if err := find(known, sp, spec.ID, into.Known); err != nil {
					return err
				}
			}
			if err := t.holder(selectUnique, sp, spec.UniqueKey, into.Unique); err != nil {
				return err
			}
			if err := t.holder(selectWaiting, sp, spec.Debounce.Key, into.Waiting); err != nil {
				return err
			}
		}
	}
	return nil
}

// find looks a job up by its id, wherever it is.
func find(known *sqlite.Stmt, sp *space, id string, into map[string]admit.Known) error {
	known.BindInt64(1, sp.id)
	known.BindText(2, id)
	found, err := known.Step()
	if err != nil {
		return err
	}
	if found {
		into[id] = (&row{st: known}).known(sp.name)
	}
	return known.Reset()
}

// holder finds who holds a key, unless it was looked up before.
func (t *tx) holder(query string, sp *space, key string, into map[string]*job.Job) error {
	if key == "" || into[key] != nil {
		return nil
	}
	_, err := t.one(query, func(r *row) { into[key], _ = r.job(sp.name) }, sp.id, key)
	return err
}

// carryOut writes a plan.
func (t *tx) carryOut(sp *space, plan *admit.Plan) error {
	if err := t.create(sp); err != nil {
		return err
	}
	if err := t.insert(insertLive, sp.id, plan.Live); err != nil {
		return err
	}
	if err := t.insert(insertShed, sp.id, plan.Shed); err != nil {
		return err
	}
	for _, j := range plan.Update {
		if err := t.updateWaiting(sp.id, j); err != nil {
			return err
		}
	}
	if err := t.fire(sp.name, plan.Fired); err != nil {
		return err
	}
	if err := t.sign(sp.name, plan.Signatures); err != nil {
		return err
	}
	if plan.Bucket == nil {
		return nil
	}
	return t.saveBucket(sp, *plan.Bucket)
}

const (
	newColumns = `ns, id, queue, task, rank, run_at, max_attempts, timeout, backoff_base, backoff_max, created_at,
		debounce_window, debounce_max_wait, unique_key, debounce_key, origin, enqueued_by, metadata, fingerprint, form, aside, payload`
	newValues  = `?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?`
	insertLive = `INSERT OR ROLLBACK INTO jobs (` + newColumns + `, state, lane) VALUES (` + newValues + `, 0, ?)`
	insertShed = `INSERT OR ROLLBACK INTO dead_letters (` + newColumns + `, finished_at, error, dead_metadata, shed, attempt, started_at)
		VALUES (` + newValues + `, ?, ?, ?, 1, 0, 0)`
)

// insert writes new rows with one of the two statements above.
func (t *tx) insert(query string, ns int64, rows []admit.Row) error {
	if len(rows) == 0 {
		return nil
	}
	laned, err := t.laned(ns)
	if err != nil {
		return err
	}
	st, err := t.statement(query)
	if err != nil {
		return err
	}
	for i := range rows {
		j := rows[i].Job
		aside, inline := place(j.Payload)
		kept := rows[i].Aside > 0
		if kept {
			aside = rows[i].Aside
		}
		if err := st.ClearBindings(); err != nil {
			return err
		}
		p := params{st: st}
		p.int(ns)
		p.text(j.ID)
		p.text(j.Queue)
		p.text(j.Task)
		p.int(-int64(j.Priority))
		p.time(j.RunAt)
		p.int(int64(j.MaxAttempts))
		p.duration(j.Timeout)
		p.duration(j.BackoffBase)
		p.duration(j.BackoffMax)
		p.time(j.CreatedAt)
		p.duration(j.Debounce.Window)
		p.duration(j.Debounce.MaxWait)
		p.maybe(j.UniqueKey)
		p.maybe(j.Debounce.Key)
		p.text(j.Origin)
		p.text(j.EnqueuedBy)
		p.maybe(object(j.Metadata))
		p.bytes(rows[i].Fingerprint[:])
		p.int(int64(j.Form))
		p.int(aside)
		p.bytes(inline)
		if j.State == job.Dead {
			p.time(j.FinishedAt)
			p.maybe(j.Error)
			p.maybe(object(j.DeadMetadata))
		} else {
			p.text(laneOf(laned, j.Task))
		}
		if err := finish(st); err != nil {
			return err
		}
		if aside > 0 && !kept {
			if err := t.exec(insertPayload, ns, j.ID, j.Payload); err != nil {
				return err
			}
		}
	}
	return nil
}

// updateWaiting gives a debounced job its new payload and time.
func (t *tx) updateWaiting(ns int64, j *job.Job) error {
	aside, inline := place(j.Payload)
	err := t.exec("UPDATE OR ROLLBACK jobs SET run_at = ?, form = ?, aside = ?, payload = ? WHERE ns = ? AND id = ?",
		j.RunAt, int64(j.Form), aside, inline, ns, j.ID)
	if err != nil {
		return err
	}
	if aside > 0 {
		return t.exec(insertPayload, ns, j.ID, j.Payload)
	}
	return t.exec("DELETE FROM payloads WHERE ns = ? AND id = ?", ns, j.ID)
}
