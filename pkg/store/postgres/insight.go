package postgres

import (
	"context"

	"github.com/google/uuid"

	"flexiq/pkg/fault"
	"flexiq/pkg/store"
)

var (
	selectQueues = statement(`select ` + nowOr1 + `, q.* from (
			(select queue, sum(pending)::bigint as pending, sum(running)::bigint as running, min(front_at) as front from flexiq.lanes
				where ns = $2 and queue > $3 group by queue having sum(pending + running) > 0 order by queue limit $4)
			union all
			(select name, 0, 0, null from flexiq.overrides where ns = $2 and kind = 'queue' and name > $3 order by kind, name limit $4)
		) q`)

	// Running jobs of all namespaces are passed, which are as many as workers have slots.
	selectHolders = statement(`select ` + nowOr1 + `, count(h.id) over (), h.* from (select 1) one
		left join (select id, queue, task, worker, started_at, lease_expires, cancelled from flexiq.jobs
			where state = 1 and lease_expires > 0 and ns || '' = $2 and ($3 = '' or queue || '' = $3) and ($4 = '' or task = $4)
		) h on true order by h.started_at, h.id limit $5`)

	selectAhead = statement(`with me as materialized (
			select queue, rank, run_at, id, ` + nowOr1 + ` as now from flexiq.jobs where ns = $2 and id = $3 and state + 0 = 0 limit 1
		)
		select (select count(*) from (
			select from (select lane, rank from flexiq.lanes where ns = $2 and queue = me.queue and rank <= me.rank and front_at <= me.now) l
			cross join lateral (
				select from flexiq.jobs j where j.ns = $2 and j.queue = me.queue and j.lane = l.lane and j.rank = l.rank and j.state = 0
					and (j.run_at, j.id) < (case when l.rank = me.rank and me.run_at <= me.now then me.run_at else me.now + 1 end,
						case when l.rank = me.rank and me.run_at <= me.now then me.id else '00000000-0000-0000-0000-000000000000' end)
				order by j.run_at, j.id limit $4
			) j limit $4
		) x) from me`)
)

// Queues implements [store.Insight].
func (s *Store) Queues(ctx context.Context, ns, after string, limit int) (store.Page[store.QueueState], error) {
	var all []store.QueueState
	limit = max(limit, 1)
	err := s.query(ctx, "queues", func(b *batch) {
		all = nil
		b.each(selectQueues, func(scan func(...any) error) error {
			var q store.QueueState
			var now int64
			var front *int64
			err := scan(&now, &q.Queue, &q.Pending, &q.Running, &front)
			if front != nil && *front <= now {
				q.OldestDue = instant(*front)
			}
			q.Now = instant(now)
			all = append(all, q)
			return err
		}, s.override(), ns, storable(after), limit+1)
	})
	if err != nil {
		return store.Page[store.QueueState]{}, err
	}
	return store.QueuePage(all, limit), nil
}

// Holders implements [store.Insight].
func (s *Store) Holders(ctx context.Context, ns, queue, task string, limit int) (store.Holders, error) {
	var out store.Holders
	err := s.query(ctx, "holders", func(b *batch) {
		out = store.Holders{}
		b.each(selectHolders, func(scan func(...any) error) error {
			var now int64
			var id *[16]byte
			var inQueue, ofTask, worker *string
			var started, ends *int64
			var cancelled *bool
			if err := scan(&now, &out.Total, &id, &inQueue, &ofTask, &worker, &started, &ends, &cancelled); err != nil {
				return err
			}
			if out.Now = instant(now); id != nil {
				out.Items = append(out.Items, store.Holder{JobID: uuid.UUID(*id).String(), Queue: *inQueue, Task: *ofTask, Worker: *worker,
					StartedAt: instant(*started), LeaseEnds: instant(*ends), Cancelled: *cancelled})
			}
			return nil
		}, s.override(), ns, storable(queue), storable(task), max(limit, 1))
	})
	return out, err
}

// Ahead implements [store.Insight].
func (s *Store) Ahead(ctx context.Context, ns, id string, limit int) (store.Ahead, error) {
	k, ok := key(id)
	if !ok {
		return store.Ahead{}, fault.Missing("job")
	}
	found, n := false, int64(0)
	err := s.query(ctx, "ahead", func(b *batch) {
		found = false
		b.each(selectAhead, func(scan func(...any) error) error {
			found = true
			return scan(&n)
		}, s.override(), ns, k, int64(limit)+1)
	})
	if err == nil && !found {
		err = fault.Missing("job")
	}
	return store.Ahead{Count: min(n, int64(limit)), More: n > int64(limit)}, err
}
