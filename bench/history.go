package main

import (
	"context"
	"fmt"
	"time"

	"flexiq/pkg/client"
)

// Each measurement of B7 is short: there are many.
const (
	historyLength = 2 * time.Second
	historyJobs   = 20_000
)

// aged is an installation with one namespace, full or empty.
type aged struct {
	e      *env
	daemon *flexiqd
	db     database
	c      *client.Client
}

// place gives a database, empty and of this name, on a backend.
type place func(ctx context.Context, name string) (store string, db database, err error)

func (e *env) newAged(ctx context.Context, at place, name string) (*aged, error) {
	a := &aged{e: e}
	store, db, err := at(ctx, "aged_"+name)
	if err != nil {
		return nil, err
	}
	a.db = db
	if a.daemon, err = e.startFlexiqd(ctx, store); err != nil {
		return nil, err
	}
	a.c, err = a.daemon.connect(ctx, slack())
	return a, err
}

// enqueues is a round of single enqueues.
func (a *aged) enqueues(name, id string) entrant {
	m := &meter{daemon: a.daemon, db: a.db}
	length := a.e.length(historyLength)
	return entrant{
		name:    name,
		prepare: func(ctx context.Context) error { return quiesce(ctx, a.db) },
		round: func(ctx context.Context) (float64, error) {
			begin := func() {
				m.begin(ctx)
				m.profile(ctx, id, length)
			}
			v, jobs, err := load(ctx, 64, length, begin, func(ctx context.Context, _ int) (int, error) {
				_, err := a.c.Enqueue(ctx, noop())
				return 1, err
			})
			m.end(ctx, jobs)
			m.profiling.Wait()
			return v, err
		},
		note: m.note,
	}
}

// drains is a round that works off as many jobs as were added before it.
func (a *aged) drains(name, id string) entrant {
	m := &meter{daemon: a.daemon, db: a.db}
	jobs := a.e.scale(historyJobs)
	return entrant{
		name: name,
		prepare: func(ctx context.Context) error {
			if err := fill(ctx, a.c, jobs, nil); err != nil {
				return err
			}
			return quiesce(ctx, a.db)
		},
		round: func(ctx context.Context) (float64, error) {
			return m.around(ctx, id, time.Second, int64(jobs), func() (float64, error) { return drain(ctx, a.c, jobs, slots) })
		},
		note: m.note,
	}
}

// age is something that piles up in a namespace.
type age struct {
	id, title string
	reach     func(ctx context.Context, a *aged) error
}

// ages are reached one after the other in one namespace.
func (e *env) ages() []age {
	few, many := e.scale(10_000), e.scale(1_000_000)
	const day = 24 * time.Hour
	return []age{
		{"few", figure(float64(few)) + " pending", func(ctx context.Context, a *aged) error { return fill(ctx, a.c, few, nil) }},
		{"pending", figure(float64(many)) + " pending", func(ctx context.Context, a *aged) error { return fill(ctx, a.c, many-few, nil) }},
		{"archived", figure(float64(many)) + " archived", func(ctx context.Context, a *aged) error { return archive(ctx, a.c) }},
		{"delayed", figure(float64(many)) + " delayed of a higher priority", func(ctx context.Context, a *aged) error {
			return fill(ctx, a.c, many, func(j *client.Job) { j.Delay, j.Priority = day, new(int32(10)) })
		}},
	}
}

// archive works off all pending jobs.
func archive(ctx context.Context, c *client.Client) error {
	u, err := c.Admin().GetUsage(ctx)
	if err != nil || u.GetPending() == 0 {
		return err
	}
	_, err = drain(ctx, c, int(u.GetPending()), slots)
	return err
}

func rowB7(ctx context.Context, e *env, b *board) error {
	p, err := e.startPostgres(ctx)
	if err != nil {
		return err
	}
	onPostgres := func(ctx context.Context, name string) (string, database, error) {
		return p.url(name), p, p.create(ctx, name)
	}
	if err := e.compareAges(ctx, b, "B7.pg", "PostgreSQL", 0.8, onPostgres); err != nil {
		return err
	}
	inFile := func(context.Context, string) (string, database, error) { return "", nil, nil }
	return e.compareAges(ctx, b, "B7.sqlite", "SQLite", 0.7, inFile)
}

func rowB7Redis(ctx context.Context, e *env, b *board) error {
	r, err := e.startRedis(ctx, false)
	if err != nil {
		return err
	}
	next := 0
	numbered := func(context.Context, string) (string, database, error) {
		next++
		return r.url(next - 1), r, nil
	}
	return e.compareAges(ctx, b, "B7redis", "Redis", 0.8, numbered)
}

// compareAges measures a namespace at all ages beside empty installations.
func (e *env) compareAges(ctx context.Context, b *board, row, title string, bar float64, at place) error {
	full, err := e.newAged(ctx, at, "full")
	if err != nil {
		return err
	}
	for _, state := range e.ages() {
		start := time.Now()
		if err := state.reach(ctx, full); err != nil {
			return fmt.Errorf("%s: %w", state.title, err)
		}
		e.log("  %s on %s after %s", state.title, title, time.Since(start).Round(time.Second))
		empty, err := e.newAged(ctx, at, "empty_"+state.id)
		if err != nil {
			return err
		}
		id := row + "." + state.id
		for _, s := range []scenario{
			{id: id + ".enqueue", title: "single enqueue", ours: full.enqueues(state.id, id+".enqueue"), peer: empty.enqueues("empty", id+".enqueue.empty")},
			{id: id + ".drain", title: "drain", ours: full.drains(state.id, id+".drain"), peer: empty.drains("empty", id+".drain.empty")},
		} {
			s.title += ", " + title + " with " + state.title + ", beside an empty one"
			s.unit, s.bar, s.rounds = "jobs/s", bar, e.rounds()
			if _, err := b.compare(ctx, s); err != nil {
				return err
			}
		}
	}
	return nil
}
