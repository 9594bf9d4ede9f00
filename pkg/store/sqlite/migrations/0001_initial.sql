-- The first schema: namespaces, jobs and their history, quotas, tokens, audit.
--
-- Reason: everything starts here. Counts are kept by triggers of the tables
-- themselves, so that rows written by any program are counted and cannot drift.
-- Times are microseconds since 1970 and 0 for none, durations microseconds.
--
-- oldest program: 1

-- The one row of facts about the installation.
CREATE TABLE installation (
  only             INTEGER PRIMARY KEY CHECK (only = 1),
  default_revision INTEGER NOT NULL DEFAULT 0, -- of the default quota; clear raises it too
  change_seq       INTEGER NOT NULL DEFAULT 0, -- number of the latest row of changes
  bootstrapped     INTEGER NOT NULL DEFAULT 0, -- a token was stored at some time
  pinged_at        INTEGER NOT NULL DEFAULT 0
) STRICT;

INSERT INTO installation (only) VALUES (1);

CREATE TABLE namespaces (
  id             INTEGER PRIMARY KEY,
  name           TEXT    NOT NULL,           -- compared byte for byte
  quota_revision INTEGER NOT NULL DEFAULT 0, -- only rises, also across clear
  has_document   INTEGER NOT NULL DEFAULT 0,
  rate_count     INTEGER NOT NULL DEFAULT 0, -- the bucket, see quota.Bucket; 0: never used
  rate_unit      INTEGER NOT NULL DEFAULT 0, -- the unit's letter
  level          INTEGER NOT NULL DEFAULT 0,
  level_at       INTEGER NOT NULL DEFAULT 0
) STRICT;

CREATE UNIQUE INDEX namespaces_name ON namespaces (name);

CREATE TABLE usage (
  ns      INTEGER PRIMARY KEY,
  pending INTEGER NOT NULL DEFAULT 0,
  running INTEGER NOT NULL DEFAULT 0
) STRICT;

CREATE TABLE history (
  ns       INTEGER PRIMARY KEY,
  archived INTEGER NOT NULL DEFAULT 0,
  dead     INTEGER NOT NULL DEFAULT 0, -- shed ones included
  shed     INTEGER NOT NULL DEFAULT 0
) STRICT;

CREATE TRIGGER namespaces_inserted AFTER INSERT ON namespaces BEGIN
  INSERT INTO usage (ns) VALUES (NEW.id);
  INSERT INTO history (ns) VALUES (NEW.id);
END;

-- Where jobs wait and run, by order of dispatch. A lane without jobs has no row.
CREATE TABLE lanes (
  ns      INTEGER NOT NULL,
  queue   TEXT    NOT NULL,
  lane    TEXT    NOT NULL, -- the task, if it has a cap of its own, else empty
  rank    INTEGER NOT NULL, -- minus the priority
  pending INTEGER NOT NULL DEFAULT 0,
  running INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (ns, queue, lane, rank)
) STRICT, WITHOUT ROWID;

-- Pending and running jobs, and no others.
CREATE TABLE jobs (
  ns                INTEGER NOT NULL,
  id                TEXT    NOT NULL,
  state             INTEGER NOT NULL CHECK (state IN (0, 1)), -- 0 pending, 1 running
  queue             TEXT    NOT NULL,
  lane              TEXT    NOT NULL DEFAULT '',
  rank              INTEGER NOT NULL,
  run_at            INTEGER NOT NULL,
  lease_expires     INTEGER NOT NULL DEFAULT 0,
  lease             TEXT,                       -- of the running attempt
  worker            TEXT,
  cancelled         INTEGER NOT NULL DEFAULT 0, -- cancellation of a running job was requested
  attempt           INTEGER NOT NULL DEFAULT 0,
  started_at        INTEGER NOT NULL DEFAULT 0,
  settled_lease     TEXT,                       -- of the last settlement, to know a repeated one
  settled_as        TEXT,
  error             TEXT,
  task              TEXT    NOT NULL,
  max_attempts      INTEGER NOT NULL,
  timeout           INTEGER NOT NULL,
  backoff_base      INTEGER NOT NULL,
  backoff_max       INTEGER NOT NULL,
  created_at        INTEGER NOT NULL,
  unique_key        TEXT,
  debounce_key      TEXT,
  debounce_window   INTEGER NOT NULL DEFAULT 0,
  debounce_max_wait INTEGER NOT NULL DEFAULT 0,
  origin            TEXT    NOT NULL,
  enqueued_by       TEXT    NOT NULL,
  metadata          TEXT,                       -- a JSON object
  fingerprint       BLOB    NOT NULL,
  form              INTEGER NOT NULL,
  aside             INTEGER NOT NULL DEFAULT 0, -- bytes kept in payloads; 0: the payload is here
  payload           BLOB,
  PRIMARY KEY (ns, id)
) STRICT;

CREATE INDEX jobs_pending ON jobs (ns, queue, lane, rank, run_at, id) WHERE state = 0;
CREATE INDEX jobs_leases ON jobs (lease_expires) WHERE state = 1;
CREATE UNIQUE INDEX jobs_unique ON jobs (ns, unique_key) WHERE unique_key IS NOT NULL;
CREATE INDEX jobs_debounce ON jobs (ns, debounce_key, id) WHERE state = 0 AND debounce_key IS NOT NULL;

-- Completed and cancelled jobs.
CREATE TABLE archive (
  ns                INTEGER NOT NULL,
  id                TEXT    NOT NULL,
  state             INTEGER NOT NULL CHECK (state IN (2, 4)), -- 2 complete, 4 cancelled
  finished_at       INTEGER NOT NULL,
  queue             TEXT    NOT NULL,
  rank              INTEGER NOT NULL,
  run_at            INTEGER NOT NULL,
  attempt           INTEGER NOT NULL,
  started_at        INTEGER NOT NULL,
  settled_lease     TEXT,
  settled_as        TEXT,
  error             TEXT,
  task              TEXT    NOT NULL,
  max_attempts      INTEGER NOT NULL,
  timeout           INTEGER NOT NULL,
  backoff_base      INTEGER NOT NULL,
  backoff_max       INTEGER NOT NULL,
  created_at        INTEGER NOT NULL,
  unique_key        TEXT,
  debounce_key      TEXT,
  debounce_window   INTEGER NOT NULL,
  debounce_max_wait INTEGER NOT NULL,
  origin            TEXT    NOT NULL,
  enqueued_by       TEXT    NOT NULL,
  metadata          TEXT,
  fingerprint       BLOB    NOT NULL,
  form              INTEGER NOT NULL,
  aside             INTEGER NOT NULL,
  payload           BLOB,
  result            BLOB,
  PRIMARY KEY (ns, id)
) STRICT;

CREATE INDEX archive_age ON archive (ns, finished_at, id);

-- Jobs out of attempts, given up, or shed.
CREATE TABLE dead_letters (
  ns                INTEGER NOT NULL,
  id                TEXT    NOT NULL,
  shed              INTEGER NOT NULL CHECK (shed IN (0, 1)),
  finished_at       INTEGER NOT NULL,
  queue             TEXT    NOT NULL,
  rank              INTEGER NOT NULL,
  run_at            INTEGER NOT NULL,
  attempt           INTEGER NOT NULL,
  started_at        INTEGER NOT NULL,
  settled_lease     TEXT,
  settled_as        TEXT,
  error             TEXT,
  task              TEXT    NOT NULL,
  max_attempts      INTEGER NOT NULL,
  timeout           INTEGER NOT NULL,
  backoff_base      INTEGER NOT NULL,
  backoff_max       INTEGER NOT NULL,
  created_at        INTEGER NOT NULL,
  unique_key        TEXT,
  debounce_key      TEXT,
  debounce_window   INTEGER NOT NULL,
  debounce_max_wait INTEGER NOT NULL,
  origin            TEXT    NOT NULL,
  enqueued_by       TEXT    NOT NULL,
  metadata          TEXT,
  dead_metadata     TEXT,
  fingerprint       BLOB    NOT NULL,
  form              INTEGER NOT NULL,
  aside             INTEGER NOT NULL,
  payload           BLOB,
  PRIMARY KEY (ns, id)
) STRICT;

CREATE INDEX dead_letters_age ON dead_letters (ns, finished_at, id);

-- Payloads too long to be rewritten with every move of their job.
CREATE TABLE payloads (
  ns   INTEGER NOT NULL,
  id   TEXT    NOT NULL,
  body BLOB    NOT NULL,
  PRIMARY KEY (ns, id)
) STRICT;

-- OR ROLLBACK, here and in the program's statements, spares SQLite the copies of
-- pages that it makes to undo a single statement: half of the cost of an insert.
-- An upsert, and INSERT … SELECT in a trigger, would bring them back.
CREATE TRIGGER jobs_inserting BEFORE INSERT ON jobs
WHEN NOT EXISTS (SELECT 1 FROM lanes WHERE ns = NEW.ns AND queue = NEW.queue AND lane = NEW.lane AND rank = NEW.rank) BEGIN
  INSERT OR ROLLBACK INTO lanes (ns, queue, lane, rank) VALUES (NEW.ns, NEW.queue, NEW.lane, NEW.rank);
END;

CREATE TRIGGER jobs_inserted AFTER INSERT ON jobs BEGIN
  UPDATE OR ROLLBACK usage SET pending = pending + (NEW.state = 0), running = running + (NEW.state = 1) WHERE ns = NEW.ns;
  UPDATE OR ROLLBACK lanes SET pending = pending + (NEW.state = 0), running = running + (NEW.state = 1)
    WHERE ns = NEW.ns AND queue = NEW.queue AND lane = NEW.lane AND rank = NEW.rank;
END;

CREATE TRIGGER jobs_moved AFTER UPDATE OF state ON jobs WHEN OLD.state <> NEW.state BEGIN
  UPDATE OR ROLLBACK usage SET
    pending = pending + (NEW.state = 0) - (OLD.state = 0),
    running = running + (NEW.state = 1) - (OLD.state = 1) WHERE ns = NEW.ns;
  UPDATE OR ROLLBACK lanes SET
    pending = pending + (NEW.state = 0) - (OLD.state = 0),
    running = running + (NEW.state = 1) - (OLD.state = 1)
    WHERE ns = OLD.ns AND queue = OLD.queue AND lane = OLD.lane AND rank = OLD.rank
      AND OLD.queue = NEW.queue AND OLD.lane = NEW.lane AND OLD.rank = NEW.rank; -- else jobs_relabelled does it
END;

CREATE TRIGGER jobs_relabelling BEFORE UPDATE OF queue, lane, rank ON jobs
WHEN NOT EXISTS (SELECT 1 FROM lanes WHERE ns = NEW.ns AND queue = NEW.queue AND lane = NEW.lane AND rank = NEW.rank) BEGIN
  INSERT OR ROLLBACK INTO lanes (ns, queue, lane, rank) VALUES (NEW.ns, NEW.queue, NEW.lane, NEW.rank);
END;

CREATE TRIGGER jobs_relabelled AFTER UPDATE OF queue, lane, rank ON jobs
WHEN OLD.queue <> NEW.queue OR OLD.lane <> NEW.lane OR OLD.rank <> NEW.rank BEGIN
  UPDATE OR ROLLBACK lanes SET pending = pending + (NEW.state = 0), running = running + (NEW.state = 1)
    WHERE ns = NEW.ns AND queue = NEW.queue AND lane = NEW.lane AND rank = NEW.rank;
  UPDATE OR ROLLBACK lanes SET pending = pending - (OLD.state = 0), running = running - (OLD.state = 1)
    WHERE ns = OLD.ns AND queue = OLD.queue AND lane = OLD.lane AND rank = OLD.rank;
  DELETE FROM lanes WHERE ns = OLD.ns AND queue = OLD.queue AND lane = OLD.lane AND rank = OLD.rank
    AND pending = 0 AND running = 0;
END;

CREATE TRIGGER jobs_deleted AFTER DELETE ON jobs BEGIN
  UPDATE OR ROLLBACK usage SET pending = pending - (OLD.state = 0), running = running - (OLD.state = 1) WHERE ns = OLD.ns;
  UPDATE OR ROLLBACK lanes SET pending = pending - (OLD.state = 0), running = running - (OLD.state = 1)
    WHERE ns = OLD.ns AND queue = OLD.queue AND lane = OLD.lane AND rank = OLD.rank;
  DELETE FROM lanes WHERE ns = OLD.ns AND queue = OLD.queue AND lane = OLD.lane AND rank = OLD.rank
    AND pending = 0 AND running = 0;
END;

CREATE TRIGGER archive_inserted AFTER INSERT ON archive BEGIN
  UPDATE OR ROLLBACK history SET archived = archived + 1 WHERE ns = NEW.ns;
END;

CREATE TRIGGER archive_deleted AFTER DELETE ON archive BEGIN
  UPDATE OR ROLLBACK history SET archived = archived - 1 WHERE ns = OLD.ns;
END;

CREATE TRIGGER dead_letters_inserted AFTER INSERT ON dead_letters BEGIN
  UPDATE OR ROLLBACK history SET dead = dead + 1, shed = shed + NEW.shed WHERE ns = NEW.ns;
END;

CREATE TRIGGER dead_letters_deleted AFTER DELETE ON dead_letters BEGIN
  UPDATE OR ROLLBACK history SET dead = dead - 1, shed = shed - OLD.shed WHERE ns = OLD.ns;
END;

-- A payload goes with the last row of its job. A job that moves has its new row first.
CREATE TRIGGER jobs_payload AFTER DELETE ON jobs WHEN OLD.aside > 0 BEGIN
  DELETE FROM payloads WHERE ns = OLD.ns AND id = OLD.id
    AND NOT EXISTS (SELECT 1 FROM archive WHERE ns = OLD.ns AND id = OLD.id)
    AND NOT EXISTS (SELECT 1 FROM dead_letters WHERE ns = OLD.ns AND id = OLD.id);
END;

CREATE TRIGGER archive_payload AFTER DELETE ON archive WHEN OLD.aside > 0 BEGIN
  DELETE FROM payloads WHERE ns = OLD.ns AND id = OLD.id
    AND NOT EXISTS (SELECT 1 FROM jobs WHERE ns = OLD.ns AND id = OLD.id)
    AND NOT EXISTS (SELECT 1 FROM dead_letters WHERE ns = OLD.ns AND id = OLD.id);
END;

CREATE TRIGGER dead_letters_payload AFTER DELETE ON dead_letters WHEN OLD.aside > 0 BEGIN
  DELETE FROM payloads WHERE ns = OLD.ns AND id = OLD.id
    AND NOT EXISTS (SELECT 1 FROM jobs WHERE ns = OLD.ns AND id = OLD.id)
    AND NOT EXISTS (SELECT 1 FROM archive WHERE ns = OLD.ns AND id = OLD.id);
END;

-- What changed, one row an object, whichever program wrote it.
CREATE TABLE changes (
  kind TEXT    NOT NULL,
  key  TEXT    NOT NULL,
  seq  INTEGER NOT NULL UNIQUE,
  PRIMARY KEY (kind, key)
) STRICT, WITHOUT ROWID;

CREATE TRIGGER namespaces_revised AFTER UPDATE OF quota_revision ON namespaces BEGIN
  UPDATE installation SET change_seq = change_seq + 1;
  INSERT INTO changes (kind, key, seq) SELECT 'quota', NEW.name, change_seq FROM installation WHERE true
    ON CONFLICT (kind, key) DO UPDATE SET seq = excluded.seq;
END;

CREATE TRIGGER installation_revised AFTER UPDATE OF default_revision ON installation BEGIN
  UPDATE installation SET change_seq = change_seq + 1;
  INSERT INTO changes (kind, key, seq) SELECT 'default_quota', '', change_seq FROM installation WHERE true
    ON CONFLICT (kind, key) DO UPDATE SET seq = excluded.seq;
END;

-- Documents. The reserved ones have no scope; a scope is a namespace. A cleared
-- document keeps its row, without a value. Whoever writes a quota here, by
-- whatever program, raises its revision. namespace is whose quota the row is,
-- by the strict rule of namespace.QuotaKey.
CREATE TABLE settings (
  scope      TEXT    NOT NULL DEFAULT '',
  key        TEXT    NOT NULL,
  value      ANY,
  revision   INTEGER NOT NULL DEFAULT 0,
  updated_at INTEGER NOT NULL DEFAULT 0,
  updated_by TEXT    NOT NULL DEFAULT '',
  namespace  TEXT    GENERATED ALWAYS AS (CASE
      WHEN scope <> '' THEN NULL
      WHEN key = 'quota:default' THEN 'default'
      WHEN key GLOB 'quota:ns:?*:?*' AND key <> 'quota:ns:7:default' AND key = 'quota:ns:' ||
          length(CAST(substr(key, 10 + instr(substr(key, 10), ':')) AS BLOB)) || ':' || substr(key, 10 + instr(substr(key, 10), ':'))
        THEN substr(key, 10 + instr(substr(key, 10), ':'))
    END) VIRTUAL,
  PRIMARY KEY (scope, key)
) STRICT;

CREATE TRIGGER quota_inserted AFTER INSERT ON settings WHEN NEW.namespace IS NOT NULL BEGIN
  INSERT INTO namespaces (name) VALUES (NEW.namespace) ON CONFLICT DO NOTHING;
  UPDATE namespaces SET has_document = NEW.value IS NOT NULL, quota_revision = max(quota_revision + 1, NEW.revision)
    WHERE name = NEW.namespace;
END;

CREATE TRIGGER quota_updated AFTER UPDATE OF value, revision ON settings WHEN NEW.namespace IS NOT NULL BEGIN
  UPDATE namespaces SET has_document = NEW.value IS NOT NULL, quota_revision = max(quota_revision + 1, NEW.revision)
    WHERE name = NEW.namespace;
END;

CREATE TRIGGER quota_deleted AFTER DELETE ON settings WHEN OLD.namespace IS NOT NULL BEGIN
  UPDATE namespaces SET has_document = 0, quota_revision = quota_revision + 1 WHERE name = OLD.namespace;
END;

CREATE TRIGGER default_quota_inserted AFTER INSERT ON settings WHEN NEW.scope = '' AND NEW.key = 'installation:quota' BEGIN
  UPDATE installation SET default_revision = max(default_revision + 1, NEW.revision);
END;

CREATE TRIGGER default_quota_updated AFTER UPDATE OF value, revision ON settings
WHEN NEW.scope = '' AND NEW.key = 'installation:quota' BEGIN
  UPDATE installation SET default_revision = max(default_revision + 1, NEW.revision);
END;

CREATE TRIGGER default_quota_deleted AFTER DELETE ON settings WHEN OLD.scope = '' AND OLD.key = 'installation:quota' BEGIN
  UPDATE installation SET default_revision = default_revision + 1;
END;

CREATE TABLE tokens (
  id         TEXT    NOT NULL PRIMARY KEY,
  namespace  TEXT    NOT NULL, -- empty: a platform token
  scopes     TEXT    NOT NULL, -- a JSON array
  name       TEXT    NOT NULL,
  hash       BLOB    NOT NULL, -- SHA-256 of the secret
  created_at INTEGER NOT NULL,
  created_by TEXT    NOT NULL,
  acting_as  TEXT    NOT NULL,
  expires_at INTEGER NOT NULL,
  revoked_at INTEGER NOT NULL DEFAULT 0,
  last_used  INTEGER NOT NULL DEFAULT 0
) STRICT;

CREATE INDEX tokens_namespace ON tokens (namespace, id);

CREATE TRIGGER tokens_inserted AFTER INSERT ON tokens BEGIN
  UPDATE installation SET bootstrapped = 1, change_seq = change_seq + 1;
  INSERT INTO changes (kind, key, seq) SELECT 'token', NEW.id, change_seq FROM installation WHERE true
    ON CONFLICT (kind, key) DO UPDATE SET seq = excluded.seq;
END;

CREATE TRIGGER tokens_updated AFTER UPDATE OF namespace, scopes, name, hash, expires_at, revoked_at ON tokens BEGIN
  UPDATE installation SET change_seq = change_seq + 1;
  INSERT INTO changes (kind, key, seq) SELECT 'token', NEW.id, change_seq FROM installation WHERE true
    ON CONFLICT (kind, key) DO UPDATE SET seq = excluded.seq;
END;

CREATE TRIGGER tokens_deleted AFTER DELETE ON tokens BEGIN
  UPDATE installation SET change_seq = change_seq + 1;
  INSERT INTO changes (kind, key, seq) SELECT 'token', OLD.id, change_seq FROM installation WHERE true
    ON CONFLICT (kind, key) DO UPDATE SET seq = excluded.seq;
END;

CREATE TABLE audit (
  id          INTEGER PRIMARY KEY AUTOINCREMENT, -- never reused, so that a page token stays true
  at          INTEGER NOT NULL,
  namespace   TEXT    NOT NULL, -- whose trail; empty: the installation's
  token_id    TEXT    NOT NULL,
  acting_as   TEXT    NOT NULL,
  door        TEXT    NOT NULL,
  operation   TEXT    NOT NULL,
  target_kind TEXT    NOT NULL,
  target      TEXT    NOT NULL,
  outcome     TEXT    NOT NULL,
  old         TEXT    NOT NULL,
  new         TEXT    NOT NULL,
  revision    INTEGER NOT NULL
) STRICT;

CREATE INDEX audit_namespace ON audit (namespace, id);
CREATE INDEX audit_age ON audit (at, id);

-- Terms of retention's leaders. The highest is the one that may delete.
CREATE TABLE terms (
  term      INTEGER PRIMARY KEY,
  holder    TEXT    NOT NULL,
  issued_at INTEGER NOT NULL
) STRICT;
