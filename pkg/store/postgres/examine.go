package postgres

import (
	"context"
	"fmt"
	"time"

	"flexiq/pkg/store"
)

// examineTimeout bounds the look at all jobs of one namespace.
const examineTimeout = 10 * time.Minute

const jobsOfAll = `(select id, aside from flexiq.jobs where ns = $1 union all select id, aside from flexiq.archive where ns = $1
	union all select id, aside from flexiq.dead_letters where ns = $1) j`

// ownLane is where a job belongs, unless its namespace is moving jobs between lanes.
const ownLane = `coalesce((select name from flexiq.overrides o where o.ns = $1 and o.kind = 'task' and o.name = jobs.task and (o.max_concurrent is not null or o.paused)), '')`

// examination gives the findings of one snapshot: defect, where, kept, counted.
// A lane without jobs may keep its row, with counts of zero.
var examination = statement(`with
	live as materialized (select queue, lane, rank, count(*) filter (where state = 0) as pending, count(*) filter (where state = 1) as running
		from flexiq.jobs where ns = $1 group by queue, lane, rank),
	counts as (
		select 'pending' as name, (select pending from flexiq.usage where ns = $1) as kept, (select sum(pending) from live)::bigint as counted
		union all select 'running', (select running from flexiq.usage where ns = $1), (select sum(running) from live)::bigint
		union all select 'archived', (select archived from flexiq.history where ns = $1), (select count(*) from flexiq.archive where ns = $1)
		union all select 'dead', (select dead from flexiq.history where ns = $1), (select count(*) from flexiq.dead_letters where ns = $1)
		union all select 'shed', (select shed from flexiq.history where ns = $1), (select count(*) from flexiq.dead_letters where ns = $1 and shed)),
	named as (
		select 'lane ' || queue || case when lane = '' then '' else ' of task ' || lane end || ', priority ' || -rank as name,
			coalesce(k.pending, 0) as kept_pending, coalesce(k.running, 0) as kept_running,
			coalesce(l.pending, 0) as pending, coalesce(l.running, 0) as running, k.rank is not null as row,
			k.front_at, k.front_id, f.run_at, f.id
		from live l full join (select queue, lane, rank, pending, running, front_at, front_id from flexiq.lanes where ns = $1) k
			using (queue, lane, rank)
		left join lateral (
			select j.run_at, j.id from flexiq.jobs j
			where j.ns = $1 and j.queue = l.queue and j.lane = l.lane and j.rank = l.rank and j.state = 0
			order by j.run_at, j.id limit 1
		) f on true)
	select 'miscounted', name, coalesce(kept, 0), coalesce(counted, 0) from counts where coalesce(kept, 0) <> coalesce(counted, 0)
	union all select 'miscounted', name || ', pending', kept_pending, pending from named where kept_pending <> pending
	union all select 'miscounted', name || ', running', kept_running, running from named where kept_running <> running
	union all select 'missing', name, 0, 1 from named where not row
	union all select 'misplaced', 'front of ' || name, 1, 0 from named
		where row and pending + running > 0 and (front_at is distinct from run_at or front_id is distinct from id)
	union all select 'misplaced', 'jobs in lanes of others', count(*), 0 from flexiq.jobs
		where ns = $1 and lane <> ` + ownLane + ` and not exists (select from flexiq.relabels where ns = $1) having count(*) > 0
	union all select 'stray', 'payloads', count(*), 0 from (select id from flexiq.payloads where ns = $1
		except select id from ` + jobsOfAll + ` where aside > 0) x having count(*) > 0
	union all select 'broken', 'jobs without their payload', 0, count(*) from (select id from ` + jobsOfAll + ` where aside > 0
		except select id from flexiq.payloads where ns = $1) x having count(*) > 0
	union all select 'broken', 'jobs that are there twice', 0, count(*) from (select id from ` + jobsOfAll + ` group by id having count(*) > 1) x
		having count(*) > 0`)

var holdOne = statement(`select flexiq.hold(array[$1::text])`)

// mends make everything so that a namespace's jobs do not say themselves. They
// run one after the other under the namespace's lock.
var mends = []stmt{
	statement(`update flexiq.jobs set lane = ` + ownLane + ` where ns = $1 and lane <> ` + ownLane),
	statement(`insert into flexiq.usage (ns, pending, running)
		select $1, count(*) filter (where state = 0), count(*) filter (where state = 1) from flexiq.jobs where ns = $1
		on conflict (ns) do update set pending = excluded.pending, running = excluded.running`),
	statement(`insert into flexiq.history (ns, archived, dead, shed)
		select $1, (select count(*) from flexiq.archive where ns = $1), count(*), count(*) filter (where shed)
		from flexiq.dead_letters where ns = $1
		on conflict (ns) do update set archived = excluded.archived, dead = excluded.dead, shed = excluded.shed`),
	statement(`delete from flexiq.lanes where ns = $1`),
	statement(`insert into flexiq.lanes (ns, queue, lane, rank, pending, running, front_at, front_id)
		select $1, l.queue, l.lane, l.rank, l.pending, l.running, f.run_at, f.id
		from (select queue, lane, rank, count(*) filter (where state = 0) as pending, count(*) filter (where state = 1) as running
			from flexiq.jobs where ns = $1 group by queue, lane, rank) l
		left join lateral (
			select j.run_at, j.id from flexiq.jobs j
			where j.ns = $1 and j.queue = l.queue and j.lane = l.lane and j.rank = l.rank and j.state = 0
			order by j.run_at, j.id limit 1
		) f on true`),
	statement(`delete from flexiq.payloads p where p.ns = $1
		and not exists (select from flexiq.jobs j where j.ns = p.ns and j.id = p.id and j.aside > 0)
		and not exists (select from flexiq.archive j where j.ns = p.ns and j.id = p.id and j.aside > 0)
		and not exists (select from flexiq.dead_letters j where j.ns = p.ns and j.id = p.id and j.aside > 0)`),
}

// Examine implements [store.Upkeep]. Without the lock it is one statement, so
// it sees one moment. The lock is taken only where that found something, and
// then it looks again.
func (s *Store) Examine(ctx context.Context, ns string, repair bool) ([]store.Finding, error) {
	found, err := s.examine(ctx, ns, false)
	if err == nil && repair && len(found) > 0 {
		found, err = s.examine(ctx, ns, true)
	}
	return found, s.fail(ctx, "examine", err)
}

func (s *Store) examine(ctx context.Context, ns string, repair bool) (found []store.Finding, err error) {
	_, err = s.once(ctx, examineTimeout, func(ctx context.Context, t *tx) error {
		look := func(b *batch) {
			b.Queue(unhurried)
			if repair {
				b.exec(holdOne, ns)
			}
			b.each(examination, func(scan func(...any) error) error {
				var f store.Finding
				err := scan(&f.Defect, &f.Where, &f.Kept, &f.Counted)
				found = append(found, f)
				return err
			}, ns)
		}
		if !repair {
			return t.commit(ctx, look)
		}
		if err := t.read(ctx, look); err != nil || len(found) == 0 {
			return err
		}
		return t.commit(ctx, func(b *batch) {
			for _, m := range mends {
				b.exec(m, ns)
			}
		})
	})
	return found, err
}

// unhurried undoes for one transaction the settings that suit short ones: these
// statements read whole tables, and may take their time.
var unhurried = fmt.Sprintf(`select set_config('statement_timeout', '%d', true), set_config('lock_timeout', '%d', true),
	set_config('idle_in_transaction_session_timeout', '%[1]d', true), set_config('enable_seqscan', 'on', true),
	set_config('enable_bitmapscan', 'on', true), set_config('enable_hashjoin', 'on', true), set_config('enable_mergejoin', 'on', true)`,
	examineTimeout.Milliseconds(), (30 * time.Second).Milliseconds())
