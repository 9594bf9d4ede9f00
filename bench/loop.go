package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"

	"flexiq/pkg/client"
)

// loopers is how many jobs are on their way at once in the closed loop.
const loopers = 256

// loop is a closed loop: each caller enqueues a job, waits until its handler
// has run, and enqueues the next.
type loop struct {
	handled []chan struct{}
}

func newLoop() *loop {
	l := &loop{handled: make([]chan struct{}, loopers)}
	for i := range l.handled {
		l.handled[i] = make(chan struct{}, 16)
	}
	return l
}

// tag is a payload of the usual length that begins with the caller's number.
func tag(caller, length int) string {
	s := strconv.Itoa(caller) + " "
	return s + strings.Repeat("x", length-len(s))
}

func (l *loop) saw(payload string) {
	text, _, _ := strings.Cut(payload, " ")
	if i, err := strconv.Atoi(text); err == nil && i < loopers {
		select {
		case l.handled[i] <- struct{}{}:
		default: // a job that ran twice and that nobody waits for
		}
	}
}

func (l *loop) turn(enqueue func(ctx context.Context, payload string) error, length int) func(ctx context.Context, caller int) (int, error) {
	return func(ctx context.Context, caller int) (int, error) {
		if err := enqueue(ctx, tag(caller, length)); err != nil {
			return 0, err
		}
		select {
		case <-l.handled[caller]:
			return 1, nil
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
}

// oursLoop is FlexiQ's closed loop in one new namespace.
func (e *env) oursLoop(id, name string, d *flexiqd, p *postgres, length time.Duration) entrant {
	m := &meter{daemon: d, db: p}
	return entrant{
		name:    name,
		prepare: p.quiesce,
		round: func(ctx context.Context) (float64, error) {
			c, err := d.connect(ctx, slack())
			if err != nil {
				return 0, err
			}
			l := newLoop()
			stop, err := working(ctx, loopers, func(_ context.Context, t *client.Task) error {
				l.saw(string(t.Input()))
				return nil
			}, c)
			if err != nil {
				return 0, err
			}
			begin := func() {
				m.begin(ctx)
				m.profile(ctx, id, length)
			}
			v, jobs, err := load(ctx, loopers, length, begin, l.turn(func(ctx context.Context, payload string) error {
				_, err := c.Enqueue(ctx, client.Job{Task: "noop", Payload: []byte(payload)})
				return err
			}, len(payload)))
			m.end(ctx, jobs)
			m.profiling.Wait()
			if stopped := stop(); err == nil {
				err = stopped
			}
			return v, err
		},
		note: m.note,
	}
}

func riverLoop(peer *riverPeer[pgx.Tx], p *postgres, length time.Duration) entrant {
	m := &meter{db: p}
	return entrant{
		name: "River",
		prepare: func(ctx context.Context) error {
			if err := peer.exec(ctx, "truncate river_job"); err != nil {
				return err
			}
			return p.quiesce(ctx)
		},
		round: func(ctx context.Context) (float64, error) {
			l := newLoop()
			c, err := peer.worker(true, func(j *river.Job[riverArgs]) { l.saw(j.Args.P) })
			if err != nil {
				return 0, err
			}
			if err := c.Start(ctx); err != nil {
				return 0, err
			}
			v, jobs, err := load(ctx, loopers, length, func() { m.begin(ctx) }, l.turn(func(ctx context.Context, payload string) error {
				_, err := peer.client.Insert(ctx, riverArgs{P: payload}, nil)
				return err
			}, len(riverPayload.P)))
			m.end(ctx, jobs)
			if stopped := c.StopAndCancel(context.WithoutCancel(ctx)); err == nil {
				err = stopped
			}
			return v, err
		},
		note: m.note,
	}
}

// held runs the rounds of an entrant while another session keeps a transaction
// open, so that no version of a row that ends meanwhile can be removed.
func held(who entrant, p *postgres) entrant {
	round := who.round
	who.round = func(ctx context.Context) (float64, error) {
		conn, err := pgx.Connect(ctx, p.url("flexiq"))
		if err != nil {
			return 0, err
		}
		defer conn.Close(context.WithoutCancel(ctx))
		if _, err := conn.Exec(ctx, "begin isolation level repeatable read; select pg_current_xact_id()"); err != nil {
			return 0, err
		}
		v, err := round(ctx)
		if err == nil && conn.Ping(ctx) != nil {
			err = fmt.Errorf("the transaction did not stay open")
		}
		return v, err
	}
	return who
}

func rowB13(ctx context.Context, e *env, b *board) error {
	length, long := e.length(20*time.Second), e.length(time.Minute)
	p, d, err := e.onPostgres(ctx)
	if err != nil {
		return err
	}
	peer, err := e.riverOnPostgres(ctx, p, 64)
	if err != nil {
		return err
	}
	if _, err := b.compare(ctx, scenario{
		id: "B13", title: "closed loop, one namespace, PostgreSQL", unit: "jobs/s", bar: 1.5, rounds: e.rounds(),
		ours: e.oursLoop("B13", "FlexiQ", d, p, length), peer: riverLoop(peer, p, length),
	}); err != nil {
		return err
	}
	_, err = b.compare(ctx, scenario{
		id: "B13.held", title: "closed loop beside an open transaction, beside none", unit: "jobs/s", bar: 0.4, rounds: e.rounds(),
		ours: held(e.oursLoop("B13.held", "held", d, p, long), p), peer: e.oursLoop("B13.free", "not held", d, p, length/2),
	})
	return err
}

// binarySize tells how large the daemon's program is.
func (e *env) binarySize(b *board) error {
	info, err := os.Stat(e.flexiqd)
	if err != nil {
		return err
	}
	mib := float64(info.Size()) / (1 << 20)
	b.results = append(b.results, result{
		ID: "B12.binary", Title: "size of flexiqd's program", Unit: "MiB", Better: better(true), Entrants: "FlexiQ",
		Ours: mib, OursRange: spread{mib, mib}, Pass: true, Rounds: 1,
	})
	return nil
}
