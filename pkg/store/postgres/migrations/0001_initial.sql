-- The first schema: namespaces, jobs and their history, quotas, tokens, audit.
--
-- Reason: everything starts here. Counts are kept by triggers of the tables
-- themselves, in the transaction that changes the rows, so that rows written
-- by any program are counted and cannot drift. The triggers take the lock of
-- the namespaces that they count, like every writing transaction of FlexiQ.
-- Names are compared byte for byte: collation "C". Times are microseconds since
-- 1970 and 0 for none, durations nanoseconds. The schema's name is put in for
-- "flexiq." when it differs.
--
-- oldest program: 1

-- The one row of facts about the installation that hot statements read. It changes rarely.
create table flexiq.installation (
  single           boolean primary key default true check (single),
  default_revision bigint  not null default 0,    -- of the default quota; clear raises it too
  bootstrapped     boolean not null default false -- a token was stored at some time
);

insert into flexiq.installation default values;

-- The one row that Ping writes, apart, so that nobody else reads its dead versions.
create table flexiq.pings (
  single boolean primary key default true check (single),
  at   bigint  not null default 0
) with (fillfactor = 10);

insert into flexiq.pings default values;

-- The lock of a namespace: every transaction that writes its jobs, history or
-- quota first locks this row. It changes only when its quota does, so that
-- locking stays cheap while another transaction holds back the vacuum.
create table flexiq.namespaces (
  name           text collate "C" primary key,
  quota_revision bigint  not null default 0, -- only rises, also across clear
  has_document   boolean not null default false
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02);

create table flexiq.usage (
  ns      text collate "C" primary key,
  pending bigint not null default 0,
  running bigint not null default 0
) with (fillfactor = 40, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);

-- Token buckets, see quota.Bucket. Apart from usage, because triggers write that one.
create table flexiq.buckets (
  ns         text collate "C" primary key,
  rate_count bigint   not null,
  rate_unit  smallint not null, -- the unit's letter
  level      bigint   not null,
  level_at   bigint   not null
) with (fillfactor = 40, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);

create table flexiq.history (
  ns       text collate "C" primary key,
  archived bigint not null default 0,
  dead     bigint not null default 0, -- shed ones included
  shed     bigint not null default 0
) with (fillfactor = 40, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);

-- Where jobs wait and run, by order of dispatch. The front is the first pending
-- job of the lane, exactly: claims start there and so never walk over the dead
-- versions of the jobs before it. A lane that runs out of jobs loses its row.
create table flexiq.lanes (
  ns       text     collate "C" not null,
  queue    text     collate "C" not null,
  lane     text     collate "C" not null, -- the task, if it has a cap of its own, else empty
  rank     smallint not null,             -- minus the priority
  pending  bigint   not null,
  running  bigint   not null,
  front_at bigint,                        -- run_at and id of the front; null: nothing is pending
  front_id uuid,
  primary key (ns, queue, lane, rank)
) with (fillfactor = 40, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);

-- Pending and running jobs, and no others.
create table flexiq.jobs (
  ns                text     collate "C" not null,
  id                uuid     not null,
  state             smallint not null check (state in (0, 1)), -- 0 pending, 1 running
  queue             text     collate "C" not null,
  lane              text     collate "C" not null default '',
  rank              smallint not null,
  run_at            bigint   not null,
  lease_expires     bigint   not null default 0,
  lease             uuid,                         -- of the running attempt
  worker            text     not null default '',
  cancelled         boolean  not null default false, -- cancellation of a running job was requested
  attempt           int      not null default 0,
  started_at        bigint   not null default 0,
  settled_lease     uuid,                         -- of the last settlement, to know a repeated one
  settled_as        text     not null default '',
  error             text     not null default '',
  task              text     not null,
  max_attempts      int      not null,
  timeout           bigint   not null,
  backoff_base      bigint   not null,
  backoff_max       bigint   not null,
  created_at        bigint   not null,
  unique_key        text     collate "C" not null,
  debounce_key      text     collate "C" not null,
  debounce_window   bigint   not null,
  debounce_max_wait bigint   not null,
  origin            text     not null,
  enqueued_by       text     not null,
  metadata          text     not null,            -- a JSON object, or empty
  fingerprint       uuid     not null,
  form              smallint not null,
  aside             int      not null,            -- bytes kept in payloads; 0: the payload is here
  payload           bytea
) with (fillfactor = 85, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
        autovacuum_analyze_scale_factor = 0.2, autovacuum_vacuum_cost_delay = 1);

-- Completed and cancelled jobs.
create table flexiq.archive (
  ns                text     collate "C" not null,
  id                uuid     not null,
  state             smallint not null check (state in (2, 4)), -- 2 complete, 4 cancelled
  finished_at       bigint   not null,
  queue             text     collate "C" not null,
  rank              smallint not null,
  run_at            bigint   not null,
  attempt           int      not null,
  started_at        bigint   not null,
  settled_lease     uuid,
  settled_as        text     not null,
  error             text     not null,
  task              text     not null,
  max_attempts      int      not null,
  timeout           bigint   not null,
  backoff_base      bigint   not null,
  backoff_max       bigint   not null,
  created_at        bigint   not null,
  unique_key        text     not null,
  debounce_key      text     not null,
  debounce_window   bigint   not null,
  debounce_max_wait bigint   not null,
  origin            text     not null,
  enqueued_by       text     not null,
  metadata          text     not null,
  fingerprint       uuid     not null,
  form              smallint not null,
  aside             int      not null,
  payload           bytea,
  result            bytea
) with (autovacuum_vacuum_scale_factor = 0.05);

-- Jobs out of attempts, given up, or shed.
create table flexiq.dead_letters (
  ns                text     collate "C" not null,
  id                uuid     not null,
  shed              boolean  not null,
  finished_at       bigint   not null,
  queue             text     collate "C" not null,
  rank              smallint not null,
  run_at            bigint   not null,
  attempt           int      not null,
  started_at        bigint   not null,
  settled_lease     uuid,
  settled_as        text     not null,
  error             text     not null,
  task              text     not null,
  max_attempts      int      not null,
  timeout           bigint   not null,
  backoff_base      bigint   not null,
  backoff_max       bigint   not null,
  created_at        bigint   not null,
  unique_key        text     not null,
  debounce_key      text     not null,
  debounce_window   bigint   not null,
  debounce_max_wait bigint   not null,
  origin            text     not null,
  enqueued_by       text     not null,
  metadata          text     not null,
  dead_metadata     text     not null,
  fingerprint       uuid     not null,
  form              smallint not null,
  aside             int      not null,
  payload           bytea
) with (autovacuum_vacuum_scale_factor = 0.05);

-- Payloads too long to be rewritten with every move of their job.
create table flexiq.payloads (
  ns   text collate "C" not null,
  id   uuid  not null,
  body bytea not null
) with (autovacuum_vacuum_scale_factor = 0.05);

-- The order of these matters: of two indexes that cost the same while a table
-- is empty, the planner takes the one that was created first, and a statement by
-- id must not be planned with another index than the primary key.
alter table flexiq.payloads add primary key (ns, id);
create index archive_age on flexiq.archive (ns, finished_at, id);
alter table flexiq.archive add primary key (ns, id);
create index dead_letters_age on flexiq.dead_letters (ns, finished_at, id);
alter table flexiq.dead_letters add primary key (ns, id);
create index jobs_pending on flexiq.jobs (ns, queue, lane, rank, run_at, id) where state = 0;
create index jobs_leases on flexiq.jobs (lease_expires, id) where state = 1;
create index jobs_debounce on flexiq.jobs (ns, debounce_key, id) where state = 0 and debounce_key <> '';
alter table flexiq.jobs add primary key (ns, id);
create unique index jobs_unique on flexiq.jobs (ns, unique_key) where unique_key <> '';

-- Locks namespaces, given in byte order, and makes sure that they exist.
create function flexiq.hold(names text[]) returns void language plpgsql as $$
declare
  there bigint;
begin
  perform 1 from unnest(names) u(name)
    cross join lateral (select from flexiq.namespaces where name = u.name limit 1 for update) n;
  get diagnostics there = row_count;
  if there < cardinality(names) then
    insert into flexiq.namespaces (name) select unnest(names) on conflict do nothing;
    perform 1 from unnest(names) u(name)
      cross join lateral (select from flexiq.namespaces where name = u.name limit 1 for update) n;
  end if;
end $$;

create function flexiq.jobs_inserted() returns trigger language plpgsql as $$
begin
  perform flexiq.hold(array(select distinct ns from new_rows order by ns));
  insert into flexiq.lanes as l (ns, queue, lane, rank, pending, running, front_at, front_id)
    select ns, queue, lane, rank, count(*) filter (where state = 0), count(*) filter (where state = 1),
      (array_agg(run_at order by run_at, id) filter (where state = 0))[1],
      (array_agg(id order by run_at, id) filter (where state = 0))[1]
    from new_rows group by ns, queue, lane, rank
  on conflict (ns, queue, lane, rank) do update set
    pending = l.pending + excluded.pending,
    running = l.running + excluded.running,
    front_at = case when l.front_at is null or (excluded.front_at, excluded.front_id) < (l.front_at, l.front_id)
      then excluded.front_at else l.front_at end,
    front_id = case when l.front_at is null or (excluded.front_at, excluded.front_id) < (l.front_at, l.front_id)
      then excluded.front_id else l.front_id end;
  insert into flexiq.usage as u (ns, pending, running)
    select ns, count(*) filter (where state = 0), count(*) filter (where state = 1) from new_rows group by ns
  on conflict (ns) do update set pending = u.pending + excluded.pending, running = u.running + excluded.running;
  return null;
end $$;

-- Only lanes that a pending job left or entered change: a heartbeat changes none.
create function flexiq.jobs_updated() returns trigger language plpgsql as $$
begin
  perform flexiq.hold(array(select distinct ns from (select ns from new_rows union all select ns from old_rows) x order by ns));
  insert into flexiq.lanes as l (ns, queue, lane, rank, pending, running, front_at, front_id)
    select d.ns, d.queue, d.lane, d.rank, d.pending, d.running, f.run_at, f.id
    from (
      select ns, queue, lane, rank,
        sum(n) filter (where state = 0) as pending, coalesce(sum(n) filter (where state = 1), 0) as running,
        (array_agg(run_at order by run_at, id) filter (where state = 0 and n > 0))[1] as run_at,
        (array_agg(id order by run_at, id) filter (where state = 0 and n > 0))[1] as id
      from (
        select ns, queue, lane, rank, run_at, id, state, 1 as n from new_rows
        union all
        select ns, queue, lane, rank, run_at, id, state, -1 from old_rows
      ) x group by ns, queue, lane, rank having bool_or(state = 0)
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
    select ns, sum(n) filter (where state = 0), coalesce(sum(n) filter (where state = 1), 0)
    from (select ns, state, 1 as n from new_rows union all select ns, state, -1 from old_rows) x
    group by ns having sum(n) filter (where state = 0) <> 0
  on conflict (ns) do update set pending = u.pending + excluded.pending, running = u.running + excluded.running;
  return null;
end $$;

create function flexiq.jobs_deleted() returns trigger language plpgsql as $$
begin
  perform flexiq.hold(array(select distinct ns from old_rows order by ns));
  delete from flexiq.lanes using (
    select o.ctid as tid from (select ns, queue, lane, rank, count(*) as n from old_rows group by ns, queue, lane, rank) d
    cross join lateral (
      select ctid from flexiq.lanes
      where ns = d.ns and queue = d.queue and lane = d.lane and rank = d.rank and pending + running = d.n limit 1
    ) o
  ) d where lanes.ctid = d.tid;
  update flexiq.lanes set pending = lanes.pending - d.pending, running = lanes.running - d.running, front_at = d.run_at, front_id = d.id
  from (
    select o.tid, d.pending, d.running, f.run_at, f.id
    from (
      select ns, queue, lane, rank, count(*) filter (where state = 0) as pending, count(*) filter (where state = 1) as running
      from old_rows group by ns, queue, lane, rank
    ) d
    cross join lateral (
      select ctid as tid, front_at, front_id from flexiq.lanes o
      where o.ns = d.ns and o.queue = d.queue and o.lane = d.lane and o.rank = d.rank limit 1
    ) o
    left join lateral (
      select j.run_at, j.id from flexiq.jobs j
      where j.ns = d.ns and j.queue = d.queue and j.lane = d.lane and j.rank = d.rank and j.state = 0
        and (j.run_at, j.id) >= (o.front_at, o.front_id)
      order by j.run_at, j.id limit 1
    ) f on true
  ) d where lanes.ctid = d.tid;
  update flexiq.usage set pending = usage.pending - d.pending, running = usage.running - d.running
  from (
    select u.tid, d.pending, d.running from (
      select ns, count(*) filter (where state = 0) as pending, count(*) filter (where state = 1) as running from old_rows group by ns
    ) d cross join lateral (select ctid as tid from flexiq.usage where ns = d.ns limit 1) u
  ) d where usage.ctid = d.tid;
  return null;
end $$;

create trigger inserted after insert on flexiq.jobs referencing new table as new_rows
  for each statement execute function flexiq.jobs_inserted();
create trigger updated after update on flexiq.jobs referencing old table as old_rows new table as new_rows
  for each statement execute function flexiq.jobs_updated();
create trigger deleted after delete on flexiq.jobs referencing old table as old_rows
  for each statement execute function flexiq.jobs_deleted();

create function flexiq.archive_inserted() returns trigger language plpgsql as $$
begin
  perform flexiq.hold(array(select distinct ns from new_rows order by ns));
  insert into flexiq.history as h (ns, archived) select ns, count(*) from new_rows group by ns
  on conflict (ns) do update set archived = h.archived + excluded.archived;
  return null;
end $$;

create function flexiq.archive_deleted() returns trigger language plpgsql as $$
begin
  perform flexiq.hold(array(select distinct ns from old_rows order by ns));
  update flexiq.history set archived = archived - d.n
  from (
    select h.tid, d.n from (select ns, count(*) as n from old_rows group by ns) d
    cross join lateral (select ctid as tid from flexiq.history where ns = d.ns limit 1) h
  ) d where history.ctid = d.tid;
  return null;
end $$;

create function flexiq.dead_letters_inserted() returns trigger language plpgsql as $$
begin
  perform flexiq.hold(array(select distinct ns from new_rows order by ns));
  insert into flexiq.history as h (ns, dead, shed) select ns, count(*), count(*) filter (where shed) from new_rows group by ns
  on conflict (ns) do update set dead = h.dead + excluded.dead, shed = h.shed + excluded.shed;
  return null;
end $$;

create function flexiq.dead_letters_deleted() returns trigger language plpgsql as $$
begin
  perform flexiq.hold(array(select distinct ns from old_rows order by ns));
  update flexiq.history set dead = dead - d.n, shed = history.shed - d.shed
  from (
    select h.tid, d.n, d.shed from (select ns, count(*) as n, count(*) filter (where shed) as shed from old_rows group by ns) d
    cross join lateral (select ctid as tid from flexiq.history where ns = d.ns limit 1) h
  ) d where history.ctid = d.tid;
  return null;
end $$;

create trigger inserted after insert on flexiq.archive referencing new table as new_rows
  for each statement execute function flexiq.archive_inserted();
create trigger deleted after delete on flexiq.archive referencing old table as old_rows
  for each statement execute function flexiq.archive_deleted();
create trigger inserted after insert on flexiq.dead_letters referencing new table as new_rows
  for each statement execute function flexiq.dead_letters_inserted();
create trigger deleted after delete on flexiq.dead_letters referencing old table as old_rows
  for each statement execute function flexiq.dead_letters_deleted();

-- A history row that moves to another namespace, or changes between dead and
-- shed, would not be counted; nothing that is history has a reason to change.
create function flexiq.no_update() returns trigger language plpgsql as $$
begin
  raise exception 'rows of %.% are history and do not change', tg_table_schema, tg_table_name;
end $$;

create trigger no_update before update of ns, id on flexiq.archive for each statement execute function flexiq.no_update();
create trigger no_update before update of ns, id, shed on flexiq.dead_letters for each statement execute function flexiq.no_update();

-- Truncation would pass the counts by.
create function flexiq.no_truncate() returns trigger language plpgsql as $$
begin
  raise exception 'truncate of %.% is forbidden, because its rows are counted: delete them', tg_table_schema, tg_table_name;
end $$;

create trigger no_truncate before truncate on flexiq.namespaces for each statement execute function flexiq.no_truncate();
create trigger no_truncate before truncate on flexiq.usage for each statement execute function flexiq.no_truncate();
create trigger no_truncate before truncate on flexiq.history for each statement execute function flexiq.no_truncate();
create trigger no_truncate before truncate on flexiq.lanes for each statement execute function flexiq.no_truncate();
create trigger no_truncate before truncate on flexiq.jobs for each statement execute function flexiq.no_truncate();
create trigger no_truncate before truncate on flexiq.archive for each statement execute function flexiq.no_truncate();
create trigger no_truncate before truncate on flexiq.dead_letters for each statement execute function flexiq.no_truncate();
create trigger no_truncate before truncate on flexiq.payloads for each statement execute function flexiq.no_truncate();

-- What changed, one row an object, whichever program wrote it. The number comes
-- from one row that stays locked until its transaction is over, so that changes
-- become visible in the order of their numbers and without gaps: a reader that
-- goes on from the last number that it saw misses nothing.
create table flexiq.change_counter (
  single boolean primary key default true check (single),
  change bigint  not null default 0,
  record bigint  not null default 0 -- number of the latest audit record
) with (fillfactor = 10);

insert into flexiq.change_counter default values;

create table flexiq.changes (
  kind   text   collate "C" not null,
  key    text   collate "C" not null,
  number bigint not null,
  primary key (kind, key)
);

create index changes_number on flexiq.changes (number);

create function flexiq.note(what text, whose text) returns void language plpgsql as $$
declare
  n bigint;
begin
  update flexiq.change_counter set change = change + 1 where single returning change into n;
  insert into flexiq.changes (kind, key, number) values (what, whose, n)
  on conflict (kind, key) do update set number = excluded.number;
end $$;

-- Documents. The reserved ones have no scope; a scope is a namespace. A cleared
-- document keeps its row, without a value. Whoever writes a quota here, by
-- whatever program, raises its revision.
create table flexiq.settings (
  scope      text   collate "C" not null default '',
  key        text   collate "C" not null,
  value      text,
  revision   bigint not null default 0,
  updated_at bigint not null default 0,
  updated_by text   not null default '',
  primary key (scope, key)
);

-- Whose quota a settings key is, by the strict rule of namespace.QuotaKey; null for another key.
create function flexiq.quota_namespace(scope text, key text) returns text immutable language plpgsql as $$
declare
  rest text := substr(key, 10);
  name text := substr(rest, strpos(rest, ':') + 1);
begin
  if scope <> '' then return null; end if;
  if key = 'quota:default' then return 'default'; end if;
  if key = 'quota:ns:' || octet_length(name) || ':' || name and name <> 'default' and name <> '' then return name; end if;
  return null;
end $$;

create function flexiq.settings_written() returns trigger language plpgsql as $$
declare
  is_there boolean := tg_op <> 'DELETE';
  k text;
  s text;
  r bigint := 0;
  name_ text;
begin
  if tg_op = 'DELETE' then
    s := old.scope; k := old.key;
  else
    s := new.scope; k := new.key; r := new.revision; is_there := new.value is not null;
    if tg_op = 'UPDATE' and (new.scope <> old.scope or new.key <> old.key) then
      raise exception 'a setting cannot be renamed';
    end if;
  end if;
  if s = '' and k = 'installation:quota' then
    update flexiq.installation set default_revision = greatest(default_revision + 1, r) where single;
    perform flexiq.note('default_quota', '');
    return null;
  end if;
  name_ := flexiq.quota_namespace(s, k);
  if name_ is not null then
    perform flexiq.hold(array[name_]);
    update flexiq.namespaces set quota_revision = greatest(quota_revision + 1, r), has_document = is_there where name = name_;
    perform flexiq.note('quota', name_);
  end if;
  return null;
end $$;

create trigger written after insert or update or delete on flexiq.settings
  for each row execute function flexiq.settings_written();
create trigger no_truncate before truncate on flexiq.settings for each statement execute function flexiq.no_truncate();

create table flexiq.tokens (
  id         text   collate "C" not null,
  namespace  text   collate "C" not null, -- empty: a platform token
  scopes     text[] not null,
  name       text   not null,
  hash       bytea  not null, -- SHA-256 of the secret
  created_at bigint not null,
  created_by text   not null,
  acting_as  text   not null,
  expires_at bigint not null,
  revoked_at bigint not null default 0,
  last_used  bigint not null default 0
) with (fillfactor = 70);

create index tokens_namespace on flexiq.tokens (namespace, id);
alter table flexiq.tokens add primary key (id);

create function flexiq.token_written() returns trigger language plpgsql as $$
begin
  if tg_op = 'INSERT' then
    update flexiq.installation set bootstrapped = true where single and not bootstrapped;
  end if;
  if tg_op <> 'INSERT' then
    perform flexiq.note('token', old.id);
  end if;
  if tg_op = 'INSERT' or tg_op = 'UPDATE' and new.id <> old.id then
    perform flexiq.note('token', new.id);
  end if;
  return null;
end $$;

create trigger written after insert or update of id, namespace, scopes, name, hash, expires_at, revoked_at or delete on flexiq.tokens
  for each row execute function flexiq.token_written();
create trigger no_truncate before truncate on flexiq.tokens for each statement execute function flexiq.no_truncate();

-- Numbers come from change_counter, so that records too appear in order.
create table flexiq.audit (
  number      bigint primary key,
  at          bigint not null,
  namespace   text   collate "C" not null, -- whose trail; empty: the installation's
  token_id    text   not null,
  acting_as   text   not null,
  door        text   not null,
  operation   text   not null,
  target_kind text   not null,
  target      text   not null,
  outcome     text   not null,
  old         text   not null,
  new         text   not null,
  revision    bigint not null
);

create index audit_namespace on flexiq.audit (namespace, number);
create index audit_age on flexiq.audit (at, number);

-- The term of retention's leader: one row, which trimming transactions share
-- and a new term takes alone.
create table flexiq.term (
  single    boolean primary key default true check (single),
  term      bigint  not null default 0,
  holder    text    not null default '',
  issued_at bigint  not null default 0
);

insert into flexiq.term default values;
