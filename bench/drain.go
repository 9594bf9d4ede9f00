package main

import (
	"context"
	"fmt"

	"flexiq/pkg/client"
)

// slots is how many jobs one worker of ours runs at once, as many as River's
// benchmark lets River run.
const slots = 2000

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
			if db == nil {
				return nil
			}
			return db.quiesce(ctx)
		},
		round: func(ctx context.Context) (float64, error) {
			m.begin(ctx)
			m.profile(ctx, id, 3e9)
			v, err := drain(ctx, c, jobs, slots)
			m.end(ctx, int64(jobs))
			m.profiling.Wait()
			return v, err
		},
		note: m.note,
	}
}
