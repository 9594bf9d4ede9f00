-- Schedules, triggers, and the signatures that triggers have seen.
--
-- Reason: what enqueues by the clock or for a request from outside is kept in
-- the store, so that every process fires a slot, or takes a signature, once.
--
-- oldest program: 1

-- Whoever writes a schedule holds the lock of its namespace.
create table flexiq.schedules (
  namespace    text    collate "C" not null,
  name         text    collate "C" not null,
  cron         text    not null,
  time_zone    text    not null,
  job          bytea   not null,
  paused       boolean not null,
  revision     bigint  not null,
  next_at      bigint  not null,           -- the slot at which it stands, 0: none will come
  due_at       bigint  not null,           -- when to look at it again, 0: never
  last_slot    bigint  not null default 0,
  last_at      bigint  not null default 0,
  refused_slot bigint  not null default 0, -- of the due slot: what became of it so far
  reason       text    not null default '',
  tries        bigint  not null default 0,
  retry_at     bigint  not null default 0,
  updated_at   bigint  not null,
  updated_by   text    not null,
  primary key (namespace, name)
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02);

create index schedules_due on flexiq.schedules (due_at) where due_at > 0;

create table flexiq.triggers (
  namespace  text   collate "C" not null,
  name       text   collate "C" not null,
  secret     bytea,          -- of an HTTP trigger
  stream     text   not null, -- of a durable one, else empty
  job        bytea  not null,
  updated_at bigint not null,
  updated_by text   not null,
  primary key (namespace, name)
);

create index triggers_stream on flexiq.triggers (namespace, name) where stream <> '';

create table flexiq.signatures (
  namespace text   collate "C" not null,
  signature bytea  not null,
  until     bigint not null,
  primary key (namespace, signature)
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);

create index signatures_until on flexiq.signatures (until);
