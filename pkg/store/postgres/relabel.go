package postgres

import (
	"context"
	"time"
)

const (
	relabelTime  = time.Second            // that a change of an override may take for moving jobs
	relabelShare = 100 * time.Millisecond // the same of each Expire, for what others have left
	relabelBatch = 1000                   // jobs looked at in one transaction
)

var (
	// Running jobs are counted by their lanes, so all of a task move at once.
	relabelRunning = statement(`update flexiq.jobs set lane = $3 from (
			select ctid as tid from flexiq.jobs where state = 1 and lease_expires > 0 and ns || '' = $1 and task = $2 order by lease_expires, id
		) j where jobs.ctid = j.tid and jobs.lane <> $3`)
	markRelabel = statement(`insert into flexiq.relabels (ns, upto) values ($1, '00000000-0000-0000-0000-000000000000')
		on conflict (ns) do update set upto = excluded.upto`)
	selectRelabel = statement(`select upto from flexiq.relabels where ns = $1`)
	moveRelabel   = statement(`update flexiq.relabels set upto = $2 where ns = $1`)
	endRelabel    = statement(`delete from flexiq.relabels where ns = $1`)
	anyRelabel    = statement(`select ns from flexiq.relabels order by ns limit 1`)
	// relabelJobs gives the next jobs by id the lanes that they should have.
	relabelJobs = statement(`with few as materialized (
			select ctid as tid, id, lane, task from flexiq.jobs where ns = $1 and id > $2 order by id limit $3
		), moved as (
			update flexiq.jobs set lane = x.want from (
				select s.tid, s.lane, coalesce(o.name, '') as want from few s
				left join lateral (select name from flexiq.overrides where ns = $1 and kind = 'task' and name = s.task
					and (max_concurrent is not null or paused) limit 1) o on true
			) x where jobs.ctid = x.tid and x.lane <> x.want
		)
		select count(*), coalesce((array_agg(id order by id desc))[1], '00000000-0000-0000-0000-000000000000') from few`)
	emptyLanes = statement(`delete from flexiq.lanes where ns = $1 and pending = 0 and running = 0`)
)

// relabel gives the next jobs of a namespace the lanes that they should have; its
// lock is held. Jobs are passed in the order of their ids, which nothing changes;
// those that are made meanwhile have their lanes from the start.
func (t *tx) relabel(ctx context.Context, ns string) (more bool, err error) {
	var upto, last [16]byte
	seen := 0
	err = t.read(ctx, func(b *batch) {
		b.each(selectRelabel, func(scan func(...any) error) error {
			more = true
			return scan(&upto)
		}, ns)
	})
	if err != nil || !more {
		return false, err
	}
	err = t.read(ctx, func(b *batch) {
		b.each(relabelJobs, func(scan func(...any) error) error { return scan(&seen, &last) }, ns, upto, relabelBatch)
	})
	if err != nil {
		return false, err
	}
	more = seen == relabelBatch
	return more, t.read(ctx, func(b *batch) {
		if more {
			b.exec(moveRelabel, ns, last)
			return
		}
		b.exec(endRelabel, ns)
		b.exec(emptyLanes, ns)
	})
}

// relabelFor moves jobs of a namespace for a while, or to the end.
func (s *Store) relabelFor(ctx context.Context, d time.Duration, ns string) error {
	for until, more := time.Now().Add(d), true; more && time.Now().Before(until); {
		err := s.tryWrite(ctx, func(ctx context.Context, t *tx) error {
			t.repeatable = true
			err := t.read(ctx, func(b *batch) { b.lock([]string{ns}, locking{}, map[string]bool{}) })
			if err == nil {
				more, err = t.relabel(ctx, ns)
			}
			if err != nil {
				return err
			}
			return t.commit(ctx, func(*batch) {})
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// relabelLeft goes on with what a change of an override, or a process that was
// killed in it, has left.
func (s *Store) relabelLeft(ctx context.Context) {
	ns := ""
	err := s.query(ctx, "relabel", func(b *batch) {
		b.each(anyRelabel, func(scan func(...any) error) error { return scan(&ns) })
	})
	if err == nil && ns != "" {
		err = s.relabelFor(ctx, relabelShare, ns)
	}
	if err != nil {
		s.log.Warn().Err(err).Msg("jobs could not be moved between lanes")
	}
}
