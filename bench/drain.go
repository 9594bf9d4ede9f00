package main

import (
	"context"
	"fmt"
	"time"

	"flexiq/pkg/client"
)

// slots is how many jobs one worker of ours runs at once, as many as River's
// benchmark lets River run.
const slots = 2000

// drainProfile is how long the processor is sampled in a drain.
const drainProfile = 3 * time.Second

// draining is FlexiQ's side: a new namespace each round, filled before.
func (e *env) draining(id string, d *flexiqd, db database, jobs int) entrant {
	var c *client.Client
	m := &meter{daemon: d, db: db}
	return entrant{
		name: "FlexiQ",
		prepare: func(ctx context.Context) (err error) {
			if c, err = d.connect(ctx, slack()); err != nil {
				return err
			}
			if err := fill(ctx, c, jobs, nil); err != nil {
				return fmt.Errorf("fill: %w", err)
			}
			return quiesce(ctx, db)
		},
		round: func(ctx context.Context) (float64, error) {
			return m.around(ctx, id, drainProfile, int64(jobs), func() (float64, error) { return drain(ctx, c, jobs, slots) })
		},
		note: m.note,
	}
}

func quiesce(ctx context.Context, db database) error {
	if db == nil {
		return nil
	}
	return db.quiesce(ctx)
}

// around meters something that handles a known number of jobs.
func (m *meter) around(ctx context.Context, id string, length time.Duration, jobs int64, do func() (float64, error)) (float64, error) {
	m.begin(ctx)
	m.profile(ctx, id, length)
	v, err := do()
	m.end(ctx, jobs)
	m.profiling.Wait()
	return v, err
}

func rowB3(ctx context.Context, e *env, b *board) error {
	jobs := e.scale(50_000)
	p, d, err := e.onPostgres(ctx)
	if err != nil {
		return err
	}
	peer, err := e.riverOnPostgres(ctx, p, 32)
	if err != nil {
		return err
	}
	m := &meter{db: p}
	_, err = b.compare(ctx, scenario{
		id: "B3", title: fmt.Sprintf("drain of %s jobs, PostgreSQL", figure(float64(jobs))), unit: "jobs/s", bar: 1, rounds: e.rounds(),
		ours: e.draining("B3", d, p, jobs),
		peer: entrant{
			name: "River",
			prepare: func(ctx context.Context) error {
				if err := peer.exec(ctx, "truncate river_job"); err != nil {
					return err
				}
				if err := peer.fill(ctx, jobs); err != nil {
					return err
				}
				// Its statistics are fresh, as autovacuum would have them a minute later.
				if err := peer.exec(ctx, "vacuum analyze river_job"); err != nil {
					return err
				}
				return p.quiesce(ctx)
			},
			round: func(ctx context.Context) (float64, error) {
				return m.around(ctx, "B3", 0, int64(jobs), func() (float64, error) { return peer.drain(ctx, jobs) })
			},
			note: m.note,
		},
	})
	return err
}

func rowB5(ctx context.Context, e *env, b *board) error {
	const concurrency = 256
	jobs, few := e.scale(50_000), e.scale(20_000)
	for _, durable := range []bool{false, true} {
		id, title := "B5", "as it comes"
		if durable {
			id, title = "B5.always", "appendfsync always"
		}
		r, err := e.startRedis(ctx, durable)
		if err != nil {
			return err
		}
		d, err := e.startFlexiqd(ctx, r.url(0))
		if err != nil {
			return err
		}
		peer, m := e.newAsynq(r, concurrency), &meter{db: r}
		_, err = b.compare(ctx, scenario{
			id: id, title: "drain, Redis " + title, unit: "jobs/s", bar: 5, rounds: e.rounds(),
			ours: e.draining(id, d, r, jobs),
			peer: entrant{
				name: "asynq",
				prepare: func(ctx context.Context) error {
					if err := peer.empty(ctx); err != nil {
						return err
					}
					return peer.fill(ctx, few)
				},
				round: func(ctx context.Context) (float64, error) {
					return m.around(ctx, id, 0, int64(few), func() (float64, error) { return peer.drain(ctx, few, concurrency) })
				},
				note: m.note,
			},
		})
		if err != nil {
			return err
		}
	}
	return nil
}
