package postgres

import (
	"context"
	"time"

	"flexiq/pkg/job"
	"flexiq/pkg/store"
)

// examined is how many rows of a listing one statement looks at.
const examined = 1000

// Cancel implements [store.Admission].
func (s *Store) Cancel(ctx context.Context, ns string, sel store.Selection, limit int) (store.Cancelled, error) {
	c := &cancellation{s: s, ns: ns, named: len(sel.IDs) > 0, filter: sel.Filter}
	seen := make(map[[16]byte]bool, len(sel.IDs))
	for _, text := range sel.IDs {
		id, ok := key(text)
		switch {
		case !ok:
			c.strange++
		case !seen[id]:
			seen[id] = true
			c.ids = append(c.ids, id)
		}
	}
	if !c.named {
		if err := c.find(ctx, max(limit, 1)); err != nil {
			return store.Cancelled{}, err
		}
	}
	out := store.Cancelled{NotFound: c.strange, More: c.more}
	if len(c.ids) == 0 {
		return out, nil
	}
	g := &group{s: s, op: "cancel", names: []string{ns}}
	var failure error
	g.failed = func(_ int, err error) { failure = err }
	g.try = func(ctx context.Context, t *tx, _ []int, l locking) (_ []int, err error) {
		out, err = c.try(ctx, t, l)
		return nil, err
	}
	if err := g.run(ctx); err != nil {
		failure = s.fail(ctx, "cancel", err)
	}
	if failure != nil {
		return store.Cancelled{}, failure
	}
	return out, nil
}

// cancellation is one Cancel.
type cancellation struct {
	s       *Store
	ns      string
	named   bool // by their ids; else the filter selected them
	filter  store.Filter
	ids     [][16]byte
	strange int64 // ids that are none
	more    bool
}

var markCancelled = statement(`update flexiq.jobs set cancelled = true
	from (
		select j.ctid as tid from unnest($1::text[], $2::uuid[]) u(ns, id)
		cross join lateral (select ctid from flexiq.jobs where ns = u.ns and id = u.id limit 1) j
	) u where jobs.ctid = u.tid`)

func (c *cancellation) try(ctx context.Context, t *tx, l locking) (out store.Cancelled, err error) {
	held, found := make(map[string]bool), make(jobs)
	var now time.Time
	ns := make([]string, len(c.ids))
	for i := range ns {
		ns[i] = c.ns
	}
	t.late = true
	err = t.read(ctx, func(b *batch) {
		b.lock([]string{c.ns}, l, held)
		c.s.time(b, &now)
		found.find(b, selectLive, ns, c.ids)
	})
	if err != nil {
		return out, err
	}
	out = store.Cancelled{NotFound: c.strange, More: c.more}
	var ends endings
	var marked [][16]byte
	for _, id := range c.ids {
		j := found[address{c.ns, id}]
		switch {
		case j == nil && c.named:
			out.NotFound++
		case j == nil, !c.named && (j.cancelled || c.filter.State != "" && c.filter.State != j.job.State):
			// It moved since it was selected.
		case j.job.State == job.Pending:
			move := job.Move{State: job.Cancelled, Attempt: j.job.Attempt}
			out.Cancelled++
			out.Ended = append(out.Ended, ended(c.ns, &j.job, move))
			ends.add(j, move, nil, now)
		default:
			out.Cancelling++
			if !j.cancelled {
				marked = append(marked, id)
			}
		}
	}
	if ends.empty() && len(marked) == 0 {
		t.mark = 0
		return out, nil
	}
	return out, t.commit(ctx, func(b *batch) {
		ends.write(b, now)
		if len(marked) > 0 {
			b.exec(markCancelled, ns[:len(marked)], marked)
		}
	})
}

var selectCancellable = statement(`select id, state, queue, task, created_at, cancelled from flexiq.jobs
	where ns = $1 and id > $2 order by id limit $3`)

// find selects the first jobs of the filter that are not marked yet. It reads
// in short statements, so that a filter that matches little holds up nobody.
func (c *cancellation) find(ctx context.Context, limit int) error {
	var after [16]byte
	for end := false; !end && !c.more; {
		rows := 0
		err := c.s.query(ctx, "cancel", func(b *batch) {
			b.each(selectCancellable, func(scan func(...any) error) error {
				var id [16]byte
				var state int16
				var created int64
				var cancelled bool
				j := job.Job{Namespace: c.ns}
				if err := scan(&id, &state, &j.Queue, &j.Task, &created, &cancelled); err != nil {
					return err
				}
				rows, after = rows+1, id
				j.State, j.CreatedAt = states[state], instant(created)
				if c.more || cancelled || !matches(c.filter, &j) {
					return nil
				}
				if c.more = len(c.ids) == limit; !c.more {
					c.ids = append(c.ids, id)
				}
				return nil
			}, c.ns, after, examined)
		})
		if err != nil {
			return err
		}
		end = rows < examined
	}
	return nil
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
