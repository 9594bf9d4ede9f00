package main

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/client"
)

// Callers and workers of B8 have connections of their own also in the single
// namespace, or grouping in the client would be what is measured.
const (
	crowdCallers = 64
	crowdWorkers = 50
)

// crowd is some namespaces with a client each, or one namespace with a client
// for each caller.
type crowd struct {
	name    string
	clients []*client.Client
	spaces  int
}

func (d *flexiqd) crowd(ctx context.Context, spaces int) (*crowd, error) {
	c := &crowd{name: figure(float64(spaces)) + " namespaces", spaces: spaces, clients: make([]*client.Client, max(spaces, crowdCallers))}
	if spaces == 1 {
		c.name = "one namespace"
		token, err := d.tenant(ctx, nil)
		if err != nil {
			return nil, err
		}
		for i := range c.clients {
			if c.clients[i], err = d.dial(ctx, token); err != nil {
				return nil, err
			}
		}
		return c, nil
	}
	tokens := make([]string, spaces)
	if err := inParallel(ctx, 64, spaces, func(ctx context.Context, i int) (err error) {
		tokens[i], err = d.tenant(ctx, nil)
		return err
	}); err != nil {
		return nil, err
	}
	for i, token := range tokens { // one by one: a server closes connections that come in a flood
		var err error
		if c.clients[i], err = d.dial(ctx, token); err != nil {
			return nil, fmt.Errorf("connection %d of %d: %w", i+1, spaces, err)
		}
	}
	return c, nil
}

// enqueues is a round in which each caller goes round its own clients.
func (c *crowd) enqueues(e *env, id string, d *flexiqd, db database) entrant {
	m := &meter{daemon: d, db: db}
	next := make([]int, crowdCallers)
	return e.producing(c.name, id, crowdCallers, m, nil, func(ctx context.Context, caller int) (int, error) {
		own := (len(c.clients) - caller + crowdCallers - 1) / crowdCallers
		i := caller + crowdCallers*(next[caller]%own)
		next[caller]++
		_, err := c.clients[i].Enqueue(ctx, noop())
		return 1, err
	})
}

// drains is a round in which workers share the namespaces among them.
func (c *crowd) drains(e *env, id string, d *flexiqd, db database, jobs int) entrant {
	m := &meter{daemon: d, db: db}
	return entrant{
		name: c.name,
		prepare: func(ctx context.Context) error {
			if err := c.empty(ctx); err != nil {
				return err
			}
			each := max(1, jobs/c.spaces)
			if err := inParallel(ctx, 16, c.spaces, func(ctx context.Context, i int) error { return fill(ctx, c.clients[i], each, nil) }); err != nil {
				return err
			}
			return quiesce(ctx, db)
		},
		round: func(ctx context.Context) (float64, error) {
			return m.around(ctx, id, time.Second, int64(jobs), func() (float64, error) { return c.work(ctx, jobs) })
		},
		note: m.note,
	}
}

// empty ends what earlier rounds have left pending.
func (c *crowd) empty(ctx context.Context) error {
	return inParallel(ctx, 16, c.spaces, func(ctx context.Context, i int) error { return archive(ctx, c.clients[i]) })
}

// work runs the workers until so many jobs are settled.
func (c *crowd) work(ctx context.Context, jobs int) (float64, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	shares := make([][]*client.Client, crowdWorkers)
	for i, cl := range c.clients {
		shares[i%crowdWorkers] = append(shares[i%crowdWorkers], cl)
	}
	workers := make([]*client.Worker, crowdWorkers)
	for i, share := range shares {
		w, err := client.NewWorker(client.WorkerOptions{Slots: slots / crowdWorkers, Grace: 5 * time.Second}, share...)
		if err != nil {
			return 0, err
		}
		w.HandleAll(func(context.Context, *client.Task) error { return nil })
		workers[i] = w
	}
	start := time.Now()
	ended := make(chan error, len(workers))
	for _, w := range workers {
		go func() { ended <- w.Run(ctx) }()
	}
	for done := int64(0); done < int64(jobs) && ctx.Err() == nil; time.Sleep(2 * time.Millisecond) {
		done = 0
		for _, w := range workers {
			done += w.Stats().Completed
		}
	}
	took := time.Since(start)
	err := context.Cause(ctx)
	cancel()
	for range workers {
		if e := <-ended; err == nil {
			err = e
		}
	}
	return float64(jobs) / took.Seconds(), err
}

func rowB8(ctx context.Context, e *env, b *board) error {
	p, d, err := e.onPostgres(ctx)
	if err != nil {
		return err
	}
	// One quota for all: what is measured is namespaces, not the setting of quotas.
	if _, err := d.platform.Admin().SetQuota(ctx, &flexiqv1.SetQuotaRequest{Default: true, Quota: slack()}); err != nil {
		return fmt.Errorf("set the default quota: %w", err)
	}
	one, err := d.crowd(ctx, 1)
	if err != nil {
		return err
	}
	for _, spaces := range []int{100, e.scale(10_000)} {
		start := time.Now()
		many, err := d.crowd(ctx, spaces)
		if err != nil {
			return err
		}
		e.log("  %d namespaces made and connected after %s", spaces, time.Since(start).Round(time.Second))
		id, jobs := fmt.Sprintf("B8.%d", spaces), max(spaces, e.scale(20_000)/spaces*spaces)
		for _, s := range []scenario{
			{id: id + ".enqueue", title: "single enqueue", ours: many.enqueues(e, id+".enqueue", d, p), peer: one.enqueues(e, id+".enqueue.one", d, p)},
			{id: id + ".drain", title: "drain", ours: many.drains(e, id+".drain", d, p, jobs), peer: one.drains(e, id+".drain.one", d, p, jobs)},
		} {
			s.title += fmt.Sprintf(", PostgreSQL, %s, beside one", many.name)
			s.unit, s.bar, s.rounds = "jobs/s", 0.7, e.rounds()
			if _, err := b.compare(ctx, s); err != nil {
				return err
			}
		}
	}
	return nil
}

// polls is how many claims wait in the idle system.
const polls = 1000

func rowB12(ctx context.Context, e *env, b *board) error {
	d, err := e.startFlexiqd(ctx, "")
	if err != nil {
		return err
	}
	const connections = 20
	var clients []*client.Client
	for range connections {
		c, err := d.dial(ctx, d.tokens.Tokens["default"])
		if err != nil {
			return err
		}
		clients = append(clients, c)
	}
	working, stop := context.WithCancel(ctx)
	var failed atomic.Int64
	ended := make(chan struct{}, polls)
	for i := range polls {
		w, err := client.NewWorker(client.WorkerOptions{Slots: 1, Wait: time.Minute, Queues: []string{fmt.Sprintf("queue-%d", i%50)}}, clients[i%connections])
		if err != nil {
			stop()
			return err
		}
		go func() {
			if w.Run(working) != nil {
				failed.Add(1)
			}
			ended <- struct{}{}
		}()
	}
	var cpu, memory []float64
	length := e.length(10 * time.Second)
	time.Sleep(5 * time.Second) // the start has ended
	for range e.rounds() {
		before, start := cpuOf(d.pid()), time.Now()
		time.Sleep(length)
		cpu = append(cpu, 100*(cpuOf(d.pid())-before).Seconds()/time.Since(start).Seconds())
		mib, err := residentOf(d.pid())
		if err != nil {
			stop()
			return err
		}
		memory = append(memory, mib)
		b.log("  %-14s %s %% of a core, %s MiB", "B12", figure(cpu[len(cpu)-1]), figure(mib))
	}
	stop()
	for range polls {
		<-ended
	}
	if failed.Load() > 0 {
		return fmt.Errorf("%d of %d polls failed", failed.Load(), polls)
	}
	b.reached("B12.cpu", "idle with 1 000 parked polls, SQLite: processor", "% of a core", 2, cpu)
	b.reached("B12.memory", "idle with 1 000 parked polls, SQLite: memory", "MiB resident", 80, memory)
	return e.binarySize(b)
}

// reached reports readings against a bound that they must not exceed.
func (b *board) reached(id, title, unit string, most float64, all []float64) {
	b.results = append(b.results, result{
		ID: id, Title: title, Unit: unit, Better: better(true), Entrants: "FlexiQ", Ours: median(all), OursRange: spreadOf(all),
		Bar: &most, Pass: median(all) <= most, Rounds: len(all),
	})
}
