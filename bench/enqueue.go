package main

import (
	"context"
	"fmt"
	"time"

	"flexiq/pkg/client"
)

// enqueueLength is how long a round of enqueues is measured.
const enqueueLength = 6 * time.Second

// producing is an entrant that enqueues from some callers at once.
func (e *env) producing(name, id string, callers int, m *meter, prepare func(ctx context.Context) error, call func(ctx context.Context, caller int) (int, error)) entrant {
	length := e.length(enqueueLength)
	return entrant{
		name: name,
		prepare: func(ctx context.Context) error {
			if prepare != nil {
				if err := prepare(ctx); err != nil {
					return err
				}
			}
			return quiesce(ctx, m.db)
		},
		round: func(ctx context.Context) (float64, error) {
			begin := func() {
				m.begin(ctx)
				m.profile(ctx, id, length)
			}
			v, jobs, err := load(ctx, callers, length, begin, call)
			m.end(ctx, jobs)
			m.profiling.Wait()
			return v, err
		},
		note: m.note,
	}
}

// singles is FlexiQ's side: single enqueues into a new namespace each round,
// with all limits set and none in reach.
func (e *env) singles(id string, d *flexiqd, db database, callers int) entrant {
	return e.calls(id, d, db, callers, 1)
}

// calls is FlexiQ's side with size jobs in a call.
func (e *env) calls(id string, d *flexiqd, db database, callers, size int) entrant {
	var c *client.Client
	m := &meter{daemon: d, db: db}
	prepare := func(ctx context.Context) (err error) {
		c, err = d.connect(ctx, slack())
		return err
	}
	return e.producing("FlexiQ", id, callers, m, prepare, func(ctx context.Context, _ int) (int, error) {
		if size == 1 {
			_, err := c.Enqueue(ctx, noop())
			return 1, err
		}
		jobs := make([]client.Job, size)
		for i := range jobs {
			jobs[i] = noop()
		}
		_, err := c.EnqueueBatch(ctx, jobs)
		return size, err
	})
}

// onPostgres starts a server with a database and a daemon on it.
func (e *env) onPostgres(ctx context.Context) (*postgres, *flexiqd, error) {
	p, err := e.startPostgres(ctx)
	if err != nil {
		return nil, nil, err
	}
	if err := p.create(ctx, "flexiq"); err != nil {
		return nil, nil, err
	}
	d, err := e.startFlexiqd(ctx, p.url("flexiq"))
	return p, d, err
}

func rowB1(ctx context.Context, e *env, b *board) error {
	const callers = 64
	p, d, err := e.onPostgres(ctx)
	if err != nil {
		return err
	}
	peer, err := e.riverOnPostgres(ctx, p, callers)
	if err != nil {
		return err
	}
	empty := func(ctx context.Context) error { return peer.exec(ctx, "truncate river_job") }
	_, err = b.compare(ctx, scenario{
		id: "B1", title: "single enqueue, 64 producers, PostgreSQL", unit: "jobs/s", bar: 5, rounds: e.rounds(),
		ours: e.singles("B1", d, p, callers),
		peer: e.producing("River Insert", "B1", callers, &meter{db: p}, empty, func(ctx context.Context, _ int) (int, error) {
			return 1, peer.insert(ctx)
		}),
	})
	return err
}

func rowB2(ctx context.Context, e *env, b *board) error {
	const size = 1000
	p, d, err := e.onPostgres(ctx)
	if err != nil {
		return err
	}
	peer, err := e.riverOnPostgres(ctx, p, 16)
	if err != nil {
		return err
	}
	empty := func(ctx context.Context) error { return peer.exec(ctx, "truncate river_job") }
	for _, callers := range []int{1, 4} {
		id := fmt.Sprintf("B2.%d", callers)
		_, err := b.compare(ctx, scenario{
			id: id, title: fmt.Sprintf("batches of 1 000, %d at once, PostgreSQL", callers), unit: "jobs/s", bar: 1, rounds: e.rounds(),
			ours: e.calls(id, d, p, callers, size),
			peer: e.producing("River InsertManyFast", id, callers, &meter{db: p}, empty, func(ctx context.Context, _ int) (int, error) {
				return size, peer.insertMany(ctx, size)
			}),
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func rowB4(ctx context.Context, e *env, b *board) error {
	for _, durable := range []bool{false, true} {
		if durable && e.opts.quick {
			break
		}
		r, err := e.startRedis(ctx, durable)
		if err != nil {
			return err
		}
		d, err := e.startFlexiqd(ctx, r.url(0))
		if err != nil {
			return err
		}
		for _, load := range []struct {
			callers int
			bar     float64
		}{{64, 0.8}, {256, 1.5}} {
			id, title := fmt.Sprintf("B4.%d", load.callers), "as it comes"
			if durable {
				id, title = id+".always", "appendfsync always"
			}
			peer := e.newAsynq(r, load.callers)
			_, err := b.compare(ctx, scenario{
				id: id, title: fmt.Sprintf("single enqueue, %d producers, Redis %s", load.callers, title), unit: "jobs/s", bar: load.bar, rounds: e.rounds(),
				ours: e.singles(id, d, r, load.callers),
				peer: e.producing("asynq", id, load.callers, &meter{db: r}, peer.empty, func(ctx context.Context, _ int) (int, error) {
					return 1, peer.enqueue(ctx)
				}),
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}

func rowB6(ctx context.Context, e *env, b *board) error {
	const callers = 64
	d, err := e.startFlexiqd(ctx, "")
	if err != nil {
		return err
	}
	peer, err := e.riverOnSQLite(ctx)
	if err != nil {
		return err
	}
	empty := func(ctx context.Context) error { return peer.exec(ctx, "delete from river_job") }
	_, err = b.compare(ctx, scenario{
		id: "B6.enqueue", title: "single enqueue, 64 producers, SQLite", unit: "jobs/s", bar: 5, rounds: e.rounds(),
		ours: e.singles("B6.enqueue", d, nil, callers),
		peer: e.producing("River on SQLite", "B6.enqueue", callers, &meter{}, empty, func(ctx context.Context, _ int) (int, error) {
			return 1, peer.insert(ctx)
		}),
	})
	if err != nil {
		return err
	}
	jobs, few := e.scale(50_000), e.scale(5_000)
	_, err = b.compare(ctx, scenario{
		id: "B6.drain", title: "drain, SQLite", unit: "jobs/s", bar: 5, rounds: e.rounds(),
		ours: e.draining("B6.drain", d, nil, jobs),
		peer: entrant{
			name: "River on SQLite",
			prepare: func(ctx context.Context) error {
				if err := empty(ctx); err != nil {
					return err
				}
				return peer.fill(ctx, few)
			},
			round: func(ctx context.Context) (float64, error) { return peer.drain(ctx, few) },
		},
	})
	return err
}
