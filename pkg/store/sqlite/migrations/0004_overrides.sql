-- What operators set for queues and tasks, and lanes of the tasks that it holds.
--
-- Reason: caps and pauses of queues and tasks are obeyed by the store. A job of
-- a task that has one stands in a lane of its own, so that a claim passes all of
-- them by at once.
--
-- oldest program: 4

CREATE TABLE overrides (
  ns             INTEGER NOT NULL,
  kind           TEXT    NOT NULL CHECK (kind IN ('queue', 'task')),
  name           TEXT    NOT NULL,
  max_concurrent INTEGER, -- null: not set, as in the others
  paused         INTEGER,
  max_attempts   INTEGER,
  timeout        INTEGER,
  priority       INTEGER,
  updated_at     INTEGER NOT NULL,
  updated_by     TEXT    NOT NULL,
  PRIMARY KEY (ns, kind, name)
) STRICT, WITHOUT ROWID;

CREATE TRIGGER overrides_inserted AFTER INSERT ON overrides BEGIN
  UPDATE installation SET change_seq = change_seq + 1;
  INSERT INTO changes (kind, key, seq) SELECT 'override', n.name, change_seq FROM installation, namespaces n WHERE n.id = NEW.ns
    ON CONFLICT (kind, key) DO UPDATE SET seq = excluded.seq;
END;

CREATE TRIGGER overrides_updated AFTER UPDATE ON overrides BEGIN
  UPDATE installation SET change_seq = change_seq + 1;
  INSERT INTO changes (kind, key, seq) SELECT 'override', n.name, change_seq FROM installation, namespaces n WHERE n.id = NEW.ns
    ON CONFLICT (kind, key) DO UPDATE SET seq = excluded.seq;
END;

CREATE TRIGGER overrides_deleted AFTER DELETE ON overrides BEGIN
  UPDATE installation SET change_seq = change_seq + 1;
  INSERT INTO changes (kind, key, seq) SELECT 'override', n.name, change_seq FROM installation, namespaces n WHERE n.id = OLD.ns
    ON CONFLICT (kind, key) DO UPDATE SET seq = excluded.seq;
END;

-- While a namespace's jobs move between lanes, those up to an id have theirs.
ALTER TABLE namespaces ADD COLUMN relabelling INTEGER NOT NULL DEFAULT 0;
ALTER TABLE namespaces ADD COLUMN relabelled_to TEXT NOT NULL DEFAULT '';

CREATE INDEX namespaces_relabelling ON namespaces (id) WHERE relabelling = 1;
CREATE INDEX lanes_lane ON lanes (ns, lane) WHERE lane <> '';
