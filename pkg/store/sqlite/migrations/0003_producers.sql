-- Schedules, triggers, and the signatures that triggers have seen.
--
-- Reason: what enqueues by the clock or for a request from outside is kept in
-- the store, so that every process fires a slot, or takes a signature, once.
--
-- oldest program: 1

CREATE TABLE schedules (
  namespace    TEXT    NOT NULL,
  name         TEXT    NOT NULL,
  cron         TEXT    NOT NULL,
  time_zone    TEXT    NOT NULL,
  job          BLOB    NOT NULL,
  paused       INTEGER NOT NULL,
  revision     INTEGER NOT NULL,
  next_at      INTEGER NOT NULL,           -- the slot at which it stands, 0: none will come
  due_at       INTEGER NOT NULL,           -- when to look at it again, 0: never
  last_slot    INTEGER NOT NULL DEFAULT 0,
  last_at      INTEGER NOT NULL DEFAULT 0,
  refused_slot INTEGER NOT NULL DEFAULT 0, -- of the due slot: what became of it so far
  reason       TEXT    NOT NULL DEFAULT '',
  tries        INTEGER NOT NULL DEFAULT 0,
  retry_at     INTEGER NOT NULL DEFAULT 0,
  updated_at   INTEGER NOT NULL,
  updated_by   TEXT    NOT NULL,
  PRIMARY KEY (namespace, name)
) STRICT;

CREATE INDEX schedules_due ON schedules (due_at) WHERE due_at > 0;

CREATE TABLE triggers (
  namespace  TEXT    NOT NULL,
  name       TEXT    NOT NULL,
  secret     BLOB,             -- of an HTTP trigger
  stream     TEXT    NOT NULL, -- of a durable one, else empty
  job        BLOB    NOT NULL,
  updated_at INTEGER NOT NULL,
  updated_by TEXT    NOT NULL,
  PRIMARY KEY (namespace, name)
) STRICT;

CREATE INDEX triggers_stream ON triggers (namespace, name) WHERE stream <> '';

CREATE TABLE signatures (
  namespace TEXT    NOT NULL,
  signature BLOB    NOT NULL,
  until     INTEGER NOT NULL,
  PRIMARY KEY (namespace, signature)
) STRICT, WITHOUT ROWID;

CREATE INDEX signatures_until ON signatures (until);
