package main

import (
	"context"
	"fmt"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/client"
)

// limited enqueues from 64 callers into a namespace with a quota. Refusals count
// as calls.
func (e *env) limited(name, id string, d *flexiqd, db database, quota *flexiqv1.NamespaceQuota, m *meter) entrant {
	var c *client.Client
	prepare := func(ctx context.Context) (err error) {
		c, err = d.connect(ctx, quota)
		return err
	}
	return e.producing(name, id, 64, m, prepare, func(ctx context.Context, _ int) (int, error) {
		_, err := c.Enqueue(ctx, noop())
		if _, refused := client.AsRefusal(err); refused {
			err = nil
		}
		return 1, err
	})
}

func rowB9(ctx context.Context, e *env, b *board) error {
	p, d, err := e.onPostgres(ctx)
	if err != nil {
		return err
	}
	_, err = b.compare(ctx, scenario{
		id: "B9.slack", title: "single enqueue, limits set and slack, beside unset", unit: "jobs/s", bar: 0.95, rounds: e.rounds(),
		ours: e.limited("slack", "B9.slack", d, p, slack(), &meter{daemon: d, db: p}),
		peer: e.limited("unset", "B9.unset", d, p, nil, &meter{daemon: d, db: p}),
	})
	if err != nil {
		return err
	}
	if err := e.edge(ctx, b, p, d); err != nil {
		return err
	}
	return e.refusals(ctx, b, p, d)
}

// edge has callers press against max_pending while a worker makes room.
func (e *env) edge(ctx context.Context, b *board, p *postgres, d *flexiqd) error {
	quota := slack()
	quota.MaxPending = new(int64(1000))
	var c *client.Client
	var stop func() error
	m := &meter{daemon: d, db: p}
	who := e.producing("at the edge", "B9.edge", 64, m, func(ctx context.Context) (err error) {
		if c, err = d.connect(ctx, quota); err != nil {
			return err
		}
		stop, err = working(ctx, 100, func(context.Context, *client.Task) error { return nil }, c)
		return err
	}, func(ctx context.Context, _ int) (int, error) {
		_, err := c.Enqueue(ctx, noop())
		if _, refused := client.AsRefusal(err); refused {
			err = nil
		}
		return 1, err
	})
	round := who.round
	who.round = func(ctx context.Context) (float64, error) {
		v, err := round(ctx)
		if stopped := stop(); err == nil {
			err = stopped
		}
		return v, err
	}
	_, err := b.alone(ctx, scenario{
		id: "B9.edge", title: "calls at the edge of max_pending while a worker drains", unit: "calls/s", bar: none, rounds: e.rounds(), ours: who,
	})
	return err
}

// refusals compares calls that are refused with calls that are admitted: how
// many a second, what each costs the store, and what it writes.
func (e *env) refusals(ctx context.Context, b *board, p *postgres, d *flexiqd) error {
	full := slack()
	full.MaxPending = new(int64(0))
	refused, admitted := &meter{daemon: d, db: p}, &meter{daemon: d, db: p}
	ours, peer := e.limited("refused", "B9.refusal", d, p, full, refused), e.limited("admitted", "B9.admit", d, p, slack(), admitted)
	var costOurs, costPeer, writes []float64
	ours.round = after(ours.round, func() {
		costOurs, writes = append(costOurs, micro(refused.last.db)), append(writes, refused.last.bytes)
	})
	peer.round = after(peer.round, func() { costPeer = append(costPeer, micro(admitted.last.db)) })
	s := scenario{id: "B9.refusal", title: "refusals beside admits, end to end", unit: "calls/s", bar: 1, rounds: e.rounds(), ours: ours, peer: peer}
	if _, err := b.compare(ctx, s); err != nil {
		return err
	}
	s.id, s.title, s.unit, s.bar, s.lower = "B9.refusal.cost", "what a refusal costs the database, beside an admit", "µs", 0.2, true
	b.results = append(b.results, judge(s, costOurs, costPeer))
	most := 1.0
	b.results = append(b.results, result{
		ID: "B9.refusal.writes", Title: "what a refusal writes to the store", Unit: "WAL bytes a call", Better: better(true),
		Entrants: "refused", Ours: median(writes), OursRange: spreadOf(writes), Bar: &most, Pass: median(writes) <= most, Rounds: len(writes),
		Notes: []string{fmt.Sprintf("all that the server wrote meanwhile, for whatever reason, over %d calls in the last round", refused.last.jobs)},
	})
	return nil
}

// after does something more when a round has succeeded.
func after(round func(context.Context) (float64, error), then func()) func(context.Context) (float64, error) {
	return func(ctx context.Context) (float64, error) {
		v, err := round(ctx)
		if err == nil {
			then()
		}
		return v, err
	}
}
