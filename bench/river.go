package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/riverdriver/riversqlite"
	"github.com/riverqueue/river/rivermigrate"
	_ "modernc.org/sqlite" // the driver that riversqlite recommends
)

// riverArgs is River's job; its JSON is as long as the others' payload.
type riverArgs struct {
	P string `json:"p"`
}

func (riverArgs) Kind() string { return "noop" }

// riverPayload fills up the JSON `{"p":"…"}` to the length of payload.
var riverPayload = riverArgs{P: string(payload[len(`{"p":""}`):])}

// riverWorker hands each job to a function.
type riverWorker struct {
	river.WorkerDefaults[riverArgs]
	do func(job *river.Job[riverArgs])
}

func (w *riverWorker) Work(_ context.Context, j *river.Job[riverArgs]) error {
	w.do(j)
	return nil
}

// The settings of River's own benchmark (`river bench`), which are the most
// eager ones that it documents.
const (
	riverCooldown = 2 * time.Millisecond
	riverPoll     = 20 * time.Millisecond
	riverWorkers  = 2000
)

// riverPeer is River over one database. Tx is the driver's transaction.
type riverPeer[Tx any] struct {
	driver riverdriver.Driver[Tx]
	client *river.Client[Tx] // only inserts
	exec   func(ctx context.Context, query string) error
	count  func(ctx context.Context, query string) (int, error)
	only   int // workers at once; 0: as many as River's benchmark has
}

func newRiver[Tx any](ctx context.Context, p *riverPeer[Tx]) (*riverPeer[Tx], error) {
	m, err := rivermigrate.New(p.driver, &rivermigrate.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, err
	}
	if _, err := m.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return nil, fmt.Errorf("migrate: %w", err)
	}
	p.client, err = river.NewClient(p.driver, &river.Config{Logger: slog.New(slog.DiscardHandler)})
	return p, err
}

// riverOnPostgres is River with as many connections as the load has callers,
// so that none waits for one.
func (e *env) riverOnPostgres(ctx context.Context, p *postgres, connections int) (*riverPeer[pgx.Tx], error) {
	name := fmt.Sprintf("river_%d", time.Now().UnixNano())
	if err := p.create(ctx, name); err != nil {
		return nil, err
	}
	cfg, err := pgxpool.ParseConfig(p.url(name))
	if err != nil {
		return nil, err
	}
	cfg.MaxConns = int32(connections)
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, err
	}
	e.later(func() error { pool.Close(); return nil })
	return newRiver(ctx, &riverPeer[pgx.Tx]{
		driver: riverpgxv5.New(pool),
		exec: func(ctx context.Context, query string) error {
			_, err := pool.Exec(ctx, query)
			return err
		},
		count: func(ctx context.Context, query string) (n int, err error) {
			return n, pool.QueryRow(ctx, query).Scan(&n)
		},
	})
}

// riverOnSQLite is River with one connection, as its driver asks for, and the
// same durability as ours.
func (e *env) riverOnSQLite(ctx context.Context) (*riverPeer[*sql.Tx], error) {
	file := filepath.Join(e.dir, fmt.Sprintf("river-%d.db", time.Now().UnixNano()))
	db, err := sql.Open("sqlite", "file:"+file+"?_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)&_txlock=immediate")
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1)
	e.later(db.Close)
	return newRiver(ctx, &riverPeer[*sql.Tx]{
		driver: riversqlite.New(db),
		exec: func(ctx context.Context, query string) error {
			_, err := db.ExecContext(ctx, query)
			return err
		},
		count: func(ctx context.Context, query string) (n int, err error) {
			return n, db.QueryRowContext(ctx, query).Scan(&n)
		},
		only: 100,
	})
}

func (p *riverPeer[Tx]) insert(ctx context.Context) error {
	_, err := p.client.Insert(ctx, riverPayload, nil)
	return err
}

func (p *riverPeer[Tx]) insertMany(ctx context.Context, n int) error {
	params := make([]river.InsertManyParams, n)
	for i := range params {
		params[i].Args = riverPayload
	}
	_, err := p.client.InsertManyFast(ctx, params)
	return err
}

// fill inserts n jobs.
func (p *riverPeer[Tx]) fill(ctx context.Context, n int) error {
	return inParallel(ctx, 2, (n+999)/1000, func(ctx context.Context, i int) error {
		return p.insertMany(ctx, min(1000, n-i*1000))
	})
}

// worker makes a client that works. A tuned one has the settings of River's own
// benchmark, another one River's defaults.
func (p *riverPeer[Tx]) worker(tuned bool, do func(*river.Job[riverArgs])) (*river.Client[Tx], error) {
	workers := river.NewWorkers()
	river.AddWorker(workers, &riverWorker{do: do})
	cfg := &river.Config{
		Logger: slog.New(slog.DiscardHandler), Workers: workers,
		Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 100}},
	}
	if tuned {
		cfg.FetchCooldown, cfg.FetchPollInterval = riverCooldown, riverPoll
		cfg.Queues[river.QueueDefault] = river.QueueConfig{MaxWorkers: riverWorkers}
	}
	if p.only > 0 {
		cfg.Queues[river.QueueDefault] = river.QueueConfig{MaxWorkers: p.only}
	}
	return river.NewClient(p.driver, cfg)
}

// drain works off n jobs, until their outcomes are stored, and returns how many
// a second that was.
func (p *riverPeer[Tx]) drain(ctx context.Context, n int) (float64, error) {
	var left atomic.Int64
	left.Store(int64(n))
	handled := make(chan struct{})
	c, err := p.worker(true, func(*river.Job[riverArgs]) {
		if left.Add(-1) == 0 {
			close(handled)
		}
	})
	if err != nil {
		return 0, err
	}
	start := time.Now()
	if err := c.Start(ctx); err != nil {
		return 0, err
	}
	select {
	case <-handled:
	case <-ctx.Done():
		return 0, errors.Join(context.Cause(ctx), c.StopAndCancel(context.WithoutCancel(ctx)))
	}
	for open := 1; open > 0; { // outcomes are stored in batches, a little later
		if open, err = p.count(ctx, "select count(*) from river_job where state = 'running'"); err != nil {
			return 0, err
		}
		if open > 0 {
			time.Sleep(2 * time.Millisecond)
		}
	}
	took := time.Since(start)
	return float64(n) / took.Seconds(), c.Stop(ctx)
}
