package postgres

import (
	"context"
	"time"

	"flexiq/pkg/job"
	"flexiq/pkg/store"
)

// Expire implements [store.Dispatch].
func (s *Store) Expire(ctx context.Context, limit int) ([]store.Ended, error) {
	out, err := s.expire(ctx, limit)
	if err == nil {
		s.relabelLeft(ctx)
	}
	return out, err
}

// expire ends attempts. Leases of a namespace whose lock is held are left to the
// next call, and do not hide those of others from this one.
func (s *Store) expire(ctx context.Context, limit int) ([]store.Ended, error) {
	var out []store.Ended
	held := []string{} // namespaces
	for len(out) < limit {
		asked := limit - len(out)
		e, err := s.expired(ctx, held, asked)
		if err == nil && len(e.ids) > 0 {
			err = e.run(ctx)
		}
		if err != nil {
			if len(out) > 0 {
				return out, nil // the next call will tell
			}
			return nil, s.fail(ctx, "expire", err)
		}
		before := len(out)
		for i := range e.ended {
			if e.ended[i].JobID != "" {
				out = append(out, e.ended[i])
			}
		}
		if len(e.ids) < asked || len(out) == before && len(e.held) == 0 {
			break
		}
		held = append(held, e.held...)
	}
	return out, nil
}

// expiry is leases that have ended.
type expiry struct {
	s     *Store
	group *group
	ns    []string
	ids   [][16]byte
	ended []store.Ended // by place; without a job's id when another was faster
	held  []string      // namespaces that could not be locked
}

var selectExpired = statement(`select ns, id from flexiq.jobs
	where state = 1 and lease_expires <= ` + nowOr1 + ` and ns <> all($2::text[]) order by lease_expires, id limit $3`)

// expired finds leases that have ended, oldest first.
func (s *Store) expired(ctx context.Context, except []string, limit int) (*expiry, error) {
	e := &expiry{s: s}
	err := s.query(ctx, "expire", func(b *batch) {
		e.ns, e.ids = nil, nil
		b.each(selectExpired, func(scan func(...any) error) error {
			var name string
			var id [16]byte
			err := scan(&name, &id)
			e.ns, e.ids = append(e.ns, name), append(e.ids, id)
			return err
		}, s.override(), except, limit)
	})
	e.ended = make([]store.Ended, len(e.ids))
	return e, err
}

// run ends the attempts of the leases.
func (e *expiry) run(ctx context.Context) error {
	e.group = &group{s: e.s, op: "expire", names: e.ns, try: e.try, failed: func(unit int, err error) {
		e.held = append(e.held, e.ns[unit])
	}}
	return e.group.run(ctx)
}

func (e *expiry) try(ctx context.Context, t *tx, units []int, l locking) (missed []int, err error) {
	held, found := make(map[string]bool), make(jobs)
	var now time.Time
	t.late, t.repeatable = true, true
	err = t.read(ctx, func(b *batch) {
		b.lock(e.group.namesOf(units), l, held)
		e.s.time(b, &now)
		ns, ids := make([]string, len(units)), make([][16]byte, len(units))
		for i, u := range units {
			ns[i], ids[i] = e.ns[u], e.ids[u]
		}
		found.find(b, selectLive, ns, ids)
	})
	if err != nil {
		return nil, err
	}
	var ends endings
	for _, u := range units {
		e.ended[u] = store.Ended{}
		if !held[e.ns[u]] {
			missed = append(missed, u)
			continue
		}
		j := found[address{e.ns[u], e.ids[u]}]
		if j == nil || j.job.State != job.Running || j.expires.After(now) {
			continue // it was settled or extended meanwhile
		}
		timedOut := !j.job.StartedAt.Add(j.job.Timeout).After(now)
		move := j.job.After(job.Ending{Lost: !timedOut, TimedOut: timedOut}, j.cancelled, job.Jitter())
		ends.add(j, move, nil, now)
		e.ended[u] = ended(e.ns[u], &j.job, move)
	}
	if ends.empty() {
		t.mark = 0
		return missed, nil
	}
	return missed, t.commit(ctx, func(b *batch) { ends.write(b, now) })
}

// ended is a job that a move has ended, or an attempt of it.
func ended(ns string, j *job.Job, m job.Move) store.Ended {
	return store.Ended{Namespace: ns, Queue: j.Queue, Task: j.Task, JobID: j.ID, State: m.State, Attempt: m.Attempt}
}
