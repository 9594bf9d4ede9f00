-- What operators set for queues and tasks, and lanes of the tasks that it holds.
--
-- Reason: caps and pauses of queues and tasks are obeyed by the store. A job of
-- a task that has one stands in a lane of its own, so that a claim passes all of
-- them by at once. Jobs that run change their lane too, which the counts of
-- lanes had no need to follow before.
--
-- oldest program: 4

create table flexiq.overrides (
  ns             text     collate "C" not null,
  kind           text     collate "C" not null check (kind in ('queue', 'task')),
  name           text     collate "C" not null,
  max_concurrent bigint,                       -- null: not set, as in the others
  paused         boolean,
  max_attempts   int,
  timeout        bigint,
  priority       int,
  updated_at     bigint   not null,
  updated_by     text     not null,
  primary key (ns, kind, name)
) with (fillfactor = 70);

create trigger no_truncate before truncate on flexiq.overrides for each statement execute function flexiq.no_truncate();

create function flexiq.override_written() returns trigger language plpgsql as $$
begin
  perform flexiq.note('override', case when tg_op = 'DELETE' then old.ns else new.ns end);
  return null;
end $$;

create trigger written after insert or update or delete on flexiq.overrides
  for each row execute function flexiq.override_written();

-- Namespaces whose jobs move between lanes. Those up to an id have theirs.
create table flexiq.relabels (
  ns   text collate "C" primary key,
  upto uuid not null
) with (fillfactor = 10);

create index lanes_lane on flexiq.lanes (ns, lane) where lane <> '';

-- Only lanes change whose pending or running jobs became more or fewer, or from
-- which a pending one moved: a heartbeat changes none.
create or replace function flexiq.jobs_updated() returns trigger language plpgsql as $$
begin
  perform flexiq.hold(array(select distinct ns from (select ns from new_rows union all select ns from old_rows) x order by ns));
  insert into flexiq.lanes as l (ns, queue, lane, rank, pending, running, front_at, front_id)
    select d.ns, d.queue, d.lane, d.rank, d.pending, d.running, f.run_at, f.id
    from (
      select ns, queue, lane, rank,
        coalesce(sum(n) filter (where state = 0), 0) as pending, coalesce(sum(n) filter (where state = 1), 0) as running,
        (array_agg(run_at order by run_at, id) filter (where state = 0 and n > 0))[1] as run_at,
        (array_agg(id order by run_at, id) filter (where state = 0 and n > 0))[1] as id
      from (
        select ns, queue, lane, rank, run_at, id, state, 1 as n from new_rows
        union all
        select ns, queue, lane, rank, run_at, id, state, -1 from old_rows
      ) x group by ns, queue, lane, rank having bool_or(state = 0) or sum(n) filter (where state = 1) <> 0
    ) d
    left join lateral (
      select front_at, front_id from flexiq.lanes o
      where o.ns = d.ns and o.queue = d.queue and o.lane = d.lane and o.rank = d.rank limit 1
    ) o on true
    cross join lateral (
      select case when o.front_at is null or (d.run_at, d.id) < (o.front_at, o.front_id) then d.run_at else o.front_at end as run_at,
        case when o.front_at is null or (d.run_at, d.id) < (o.front_at, o.front_id) then d.id else o.front_id end as id
    ) s
    left join lateral (
      select j.run_at, j.id from flexiq.jobs j
      where j.ns = d.ns and j.queue = d.queue and j.lane = d.lane and j.rank = d.rank and j.state = 0
        and (j.run_at, j.id) >= (s.run_at, s.id)
      order by j.run_at, j.id limit 1
    ) f on true
  on conflict (ns, queue, lane, rank) do update set
    pending = l.pending + excluded.pending, running = l.running + excluded.running,
    front_at = excluded.front_at, front_id = excluded.front_id;
  insert into flexiq.usage as u (ns, pending, running)
    select ns, coalesce(sum(n) filter (where state = 0), 0), coalesce(sum(n) filter (where state = 1), 0)
    from (select ns, state, 1 as n from new_rows union all select ns, state, -1 from old_rows) x
    group by ns having sum(n) filter (where state = 0) <> 0
  on conflict (ns) do update set pending = u.pending + excluded.pending, running = u.running + excluded.running;
  return null;
end $$;
