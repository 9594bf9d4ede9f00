package sqlite

import (
	"context"
	"time"

	"flexiq/pkg/store"
)

// examineTimeout bounds the look at all jobs of one namespace.
const examineTimeout = 10 * time.Minute

const (
	everyJob = `(SELECT id, aside FROM jobs WHERE ns = ?1 UNION ALL SELECT id, aside FROM archive WHERE ns = ?1
		UNION ALL SELECT id, aside FROM dead_letters WHERE ns = ?1)`

	// ownLane is where a job belongs, unless its namespace is moving jobs between lanes.
	ownLane = `coalesce((SELECT name FROM overrides WHERE ns = ?1 AND kind = 'task' AND name = jobs.task AND (max_concurrent IS NOT NULL OR paused = 1)), '')`

	// examination gives the findings of one state of the store: defect, where, kept, counted.
	examination = `WITH
		live AS MATERIALIZED (SELECT queue, lane, rank, sum(state = 0) AS pending, sum(state = 1) AS running
			FROM jobs WHERE ns = ?1 GROUP BY queue, lane, rank),
		counts (name, kept, counted) AS (
			SELECT 'pending', (SELECT pending FROM usage WHERE ns = ?1), (SELECT sum(pending) FROM live)
			UNION ALL SELECT 'running', (SELECT running FROM usage WHERE ns = ?1), (SELECT sum(running) FROM live)
			UNION ALL SELECT 'archived', (SELECT archived FROM history WHERE ns = ?1), (SELECT count(*) FROM archive WHERE ns = ?1)
			UNION ALL SELECT 'dead', (SELECT dead FROM history WHERE ns = ?1), (SELECT count(*) FROM dead_letters WHERE ns = ?1)
			UNION ALL SELECT 'shed', (SELECT shed FROM history WHERE ns = ?1), (SELECT sum(shed) FROM dead_letters WHERE ns = ?1)),
		both (queue, lane, rank, row, kept_pending, kept_running, pending, running) AS (
			SELECT queue, lane, rank, sum(row), sum(kp), sum(kr), sum(cp), sum(cr) FROM (
				SELECT queue, lane, rank, 1 AS row, pending AS kp, running AS kr, 0 AS cp, 0 AS cr FROM lanes WHERE ns = ?1
				UNION ALL SELECT queue, lane, rank, 0, 0, 0, pending, running FROM live)
			GROUP BY queue, lane, rank),
		named AS (SELECT *, 'lane ' || queue || iif(lane = '', '', ' of task ' || lane) || ', priority ' || -rank AS name FROM both)
	SELECT 'miscounted', name, coalesce(kept, 0), coalesce(counted, 0) FROM counts WHERE coalesce(kept, 0) <> coalesce(counted, 0)
	UNION ALL SELECT 'missing', 'row of usage', 0, 1 WHERE NOT EXISTS (SELECT 1 FROM usage WHERE ns = ?1)
	UNION ALL SELECT 'missing', 'row of history', 0, 1 WHERE NOT EXISTS (SELECT 1 FROM history WHERE ns = ?1)
	UNION ALL SELECT 'miscounted', name || ', pending', kept_pending, pending FROM named WHERE kept_pending <> pending
	UNION ALL SELECT 'miscounted', name || ', running', kept_running, running FROM named WHERE kept_running <> running
	UNION ALL SELECT 'missing', name, 0, 1 FROM named WHERE row = 0
	UNION ALL SELECT 'stray', name, 1, 0 FROM named WHERE pending + running = 0
	UNION ALL SELECT 'misplaced', 'jobs in lanes of others', count(*), 0 FROM jobs
		WHERE ns = ?1 AND lane <> ` + ownLane + ` AND (SELECT relabelling FROM namespaces WHERE id = ?1) = 0 HAVING count(*) > 0
	UNION ALL SELECT 'stray', 'payloads', count(*), 0 FROM (SELECT id FROM payloads WHERE ns = ?1
		EXCEPT SELECT id FROM ` + everyJob + ` WHERE aside > 0) HAVING count(*) > 0
	UNION ALL SELECT 'broken', 'jobs without their payload', 0, count(*) FROM (SELECT id FROM ` + everyJob + ` WHERE aside > 0
		EXCEPT SELECT id FROM payloads WHERE ns = ?1) HAVING count(*) > 0
	UNION ALL SELECT 'broken', 'jobs that are there twice', 0, count(*) FROM (SELECT id FROM ` + everyJob + ` GROUP BY id HAVING count(*) > 1)
		HAVING count(*) > 0`
)

// mends make everything so that a namespace's jobs do not say themselves.
var mends = []string{
	`UPDATE jobs SET lane = ` + ownLane + ` WHERE ns = ?1 AND lane <> ` + ownLane,
	`INSERT OR REPLACE INTO usage (ns, pending, running)
		SELECT ?1, count(*) FILTER (WHERE state = 0), count(*) FILTER (WHERE state = 1) FROM jobs WHERE ns = ?1`,
	`INSERT OR REPLACE INTO history (ns, archived, dead, shed)
		SELECT ?1, (SELECT count(*) FROM archive WHERE ns = ?1), count(*), count(*) FILTER (WHERE shed = 1) FROM dead_letters WHERE ns = ?1`,
	`DELETE FROM lanes WHERE ns = ?1`,
	`INSERT INTO lanes (ns, queue, lane, rank, pending, running)
		SELECT ns, queue, lane, rank, sum(state = 0), sum(state = 1) FROM jobs WHERE ns = ?1 GROUP BY queue, lane, rank`,
	`DELETE FROM payloads WHERE ns = ?1 AND id NOT IN (SELECT id FROM ` + everyJob + ` WHERE aside > 0)`,
}

// Examine implements [store.Upkeep]. The lock is that of the file: with repair
// all writers wait, but only where something was found without it.
func (s *Store) Examine(ctx context.Context, ns string, repair bool) ([]store.Finding, error) {
	var found []store.Finding
	err := s.readWithin(ctx, examineTimeout, "examine", func(t *tx) (err error) {
		_, found, err = t.examine(ns)
		return err
	})
	if err != nil || !repair || len(found) == 0 {
		return found, err
	}
	err = s.writeWithin(ctx, examineTimeout, "repair", func(t *tx) error {
		var id int64
		var err error
		if id, found, err = t.examine(ns); err != nil || len(found) == 0 {
			return err
		}
		for _, m := range mends {
			if err := t.exec(m, id); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return found, nil
}

func (t *tx) examine(ns string) (id int64, found []store.Finding, err error) {
	there, err := t.one("SELECT id FROM namespaces WHERE name = ?", func(r *row) { id = r.int() }, ns)
	if err != nil || !there {
		return 0, nil, err
	}
	err = t.each(examination, func(r *row) bool {
		found = append(found, store.Finding{Defect: store.Defect(r.text()), Where: r.text(), Kept: r.int(), Counted: r.int()})
		return true
	}, id)
	return id, found, err
}
