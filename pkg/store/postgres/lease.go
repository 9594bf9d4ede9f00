package postgres

import (
	"context"
	"errors"
	"time"

	"flexiq/pkg/job"
	"flexiq/pkg/store"
)

// Heartbeat implements [store.Dispatch].
func (s *Store) Heartbeat(ctx context.Context, beats []store.Beat) ([]store.Pulse, error) {
	if len(beats) == 0 {
		return nil, nil
	}
	out := make([]store.Pulse, len(beats))
	g := &group{s: s, op: "heartbeat", names: make([]string, len(beats))}
	for i := range beats {
		g.names[i] = beats[i].Namespace
	}
	g.try = func(ctx context.Context, t *tx, units []int, l locking) ([]int, error) {
		return beating(ctx, t, g, units, l, beats, out)
	}
	g.failed = func(unit int, err error) { out[unit] = store.Pulse{Err: err} }
	err := g.run(ctx)
	if errors.Is(err, errFlushLost) {
		err = g.run(ctx)
	}
	if err != nil {
		return nil, s.fail(ctx, "heartbeat", err)
	}
	return out, nil
}

var extendLeases = statement(`update flexiq.jobs set lease_expires = u.expires
	from (
		select j.ctid as tid, u.expires from unnest($1::text[], $2::uuid[], $3::bigint[]) u(ns, id, expires)
		cross join lateral (select ctid from flexiq.jobs where ns = u.ns and id = u.id limit 1) j
	) u where jobs.ctid = u.tid`)

// beating does heartbeats in one transaction.
func beating(ctx context.Context, t *tx, g *group, units []int, l locking, beats []store.Beat, out []store.Pulse) (missed []int, err error) {
	names := g.namesOf(units)
	held, found := make(map[string]bool), make(jobs)
	var now time.Time
	t.late, t.repeatable = true, true
	err = t.read(ctx, func(b *batch) {
		b.lock(names, l, held)
		g.s.time(b, &now)
		var ns []string
		var ids [][16]byte
		for _, u := range units {
			if id, ok := key(beats[u].JobID); ok {
				ns, ids = append(ns, beats[u].Namespace), append(ids, id)
			}
		}
		found.find(b, selectLive, ns, ids)
	})
	if err != nil {
		return nil, err
	}
	extended := make(jobs)
	for _, u := range units {
		beat := &beats[u]
		if !held[beat.Namespace] && l.skip {
			missed = append(missed, u)
			continue
		}
		j := found.get(beat.Namespace, beat.JobID)
		if out[u] = j.extend(beat, now); out[u].Alive {
			extended[address{beat.Namespace, j.id}] = j
		}
	}
	if len(extended) == 0 {
		t.mark = 0
		return missed, nil
	}
	var ns []string
	var ids [][16]byte
	var expires []int64
	for at, j := range extended {
		ns, ids, expires = append(ns, at.ns), append(ids, at.id), append(expires, micros(j.expires))
	}
	return missed, t.commit(ctx, func(b *batch) { b.exec(extendLeases, ns, ids, expires) })
}

// extend extends the lease of a job, which is nil when it does not exist.
func (l *live) extend(b *store.Beat, now time.Time) store.Pulse {
	if l == nil || l.job.State != job.Running || !holds(l.lease, b.Lease) {
		return store.Pulse{}
	}
	until := now.Add(b.Extend).Truncate(time.Microsecond)
	if most := l.job.StartedAt.Add(l.job.Timeout.Truncate(time.Microsecond)); until.After(most) {
		until = most
	}
	if until.After(l.expires) {
		l.expires = until
	}
	return store.Pulse{Alive: true, Cancelled: l.cancelled, ExpiresAt: l.expires}
}

var readClock = statement(`select ` + clock)

// time queues the reading of the store's clock.
func (s *Store) time(b *batch, now *time.Time) {
	b.each(readClock, func(scan func(...any) error) error {
		var at int64
		err := scan(&at)
		*now = s.clock(at)
		return err
	})
}
