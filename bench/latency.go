package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/client"
)

// watch collects how long jobs took from the call that enqueued them to the
// start of their handler, in milliseconds. The time of the call travels in the payload.
type watch struct {
	mu   sync.Mutex
	took []float64
}

// stamp is a payload of the usual length that begins with the time.
func stamp(length int) string {
	s := strconv.FormatInt(time.Now().UnixNano(), 10) + " "
	return s + strings.Repeat("x", length-len(s))
}

func (w *watch) saw(payload string) {
	now := time.Now()
	text, _, _ := strings.Cut(payload, " ")
	ns, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return // a job of another measurement
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.took = append(w.took, float64(now.Sub(time.Unix(0, ns)))/float64(time.Millisecond))
}

func (w *watch) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.took)
}

func (w *watch) reset() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.took = nil
}

// paced enqueues at a steady rate, whatever the calls take, and returns p50 and
// p99 when all jobs have started.
func (w *watch) paced(ctx context.Context, perSecond int, length time.Duration, enqueue func(ctx context.Context) error) (p50, p99 float64, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, warmUp+length+30*time.Second, fmt.Errorf("jobs do not start"))
	defer cancel()
	send := func(n int) error {
		var calls sync.WaitGroup
		errs := make(chan error, n)
		start := time.Now()
		for i := range n {
			if d := time.Until(start.Add(time.Duration(i) * time.Second / time.Duration(perSecond))); d > 0 {
				time.Sleep(d)
			}
			calls.Go(func() { errs <- enqueue(ctx) })
		}
		calls.Wait()
		for range n {
			if err := <-errs; err != nil {
				return err
			}
		}
		for w.count() < n {
			if ctx.Err() != nil {
				return fmt.Errorf("%w: %d of %d started", context.Cause(ctx), w.count(), n)
			}
			time.Sleep(5 * time.Millisecond)
		}
		return nil
	}
	w.reset()
	if err := send(perSecond); err != nil { // the warm-up
		return 0, 0, err
	}
	w.reset()
	if err := send(int(length.Seconds() * float64(perSecond))); err != nil {
		return 0, 0, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return percentile(w.took, 0.5), percentile(w.took, 0.99), nil
}

// pacedRound is a round of B10 or B11.
type pacedRound struct {
	name     string
	round    func(ctx context.Context) (p50, p99 float64, err error)
	p50, p99 []float64
}

// takeTurns runs the rounds of several entrants, each beginning in turn.
func (b *board) takeTurns(ctx context.Context, id string, rounds int, all ...*pacedRound) error {
	for i := range rounds {
		for k := range all {
			who := all[(i+k)%len(all)]
			p50, p99, err := who.round(ctx)
			if err != nil {
				return fmt.Errorf("%s, %s: %w", id, who.name, err)
			}
			b.log("  %-14s %-22s p50 %s ms, p99 %s ms", id, who.name, figure(p50), figure(p99))
			who.p50, who.p99 = append(who.p50, p50), append(who.p99, p99)
		}
	}
	return nil
}

func (e *env) oursPaced(ctx context.Context, c *client.Client, workers, perSecond int, length time.Duration) (float64, float64, error) {
	var w watch
	stop, err := working(ctx, workers, func(_ context.Context, t *client.Task) error {
		w.saw(string(t.Input()))
		return nil
	}, c)
	if err != nil {
		return 0, 0, err
	}
	p50, p99, err := w.paced(ctx, perSecond, length, func(ctx context.Context) error {
		_, err := c.Enqueue(ctx, client.Job{Task: "noop", Payload: []byte(stamp(len(payload)))})
		return err
	})
	if stopped := stop(); err == nil {
		err = stopped
	}
	return p50, p99, err
}

func riverPaced(ctx context.Context, peer *riverPeer[pgx.Tx], tuned bool, perSecond int, length time.Duration) (float64, float64, error) {
	var w watch
	if err := peer.exec(ctx, "truncate river_job"); err != nil {
		return 0, 0, err
	}
	c, err := peer.worker(tuned, func(j *river.Job[riverArgs]) { w.saw(j.Args.P) })
	if err != nil {
		return 0, 0, err
	}
	if err := c.Start(ctx); err != nil {
		return 0, 0, err
	}
	p50, p99, err := w.paced(ctx, perSecond, length, func(ctx context.Context) error {
		_, err := peer.client.Insert(ctx, riverArgs{P: stamp(len(riverPayload.P))}, nil)
		return err
	})
	if stopped := c.StopAndCancel(context.WithoutCancel(ctx)); err == nil {
		err = stopped
	}
	return p50, p99, err
}

func rowB10(ctx context.Context, e *env, b *board) error {
	const perSecond = 300
	length := e.length(12 * time.Second)
	p, d, err := e.onPostgres(ctx)
	if err != nil {
		return err
	}
	peer, err := e.riverOnPostgres(ctx, p, 32)
	if err != nil {
		return err
	}
	c, err := d.connect(ctx, slack())
	if err != nil {
		return err
	}
	ours := &pacedRound{name: "FlexiQ", round: func(ctx context.Context) (float64, float64, error) {
		return e.oursPaced(ctx, c, 100, perSecond, length)
	}}
	river := func(name string, tuned bool) *pacedRound {
		return &pacedRound{name: name, round: func(ctx context.Context) (float64, float64, error) {
			return riverPaced(ctx, peer, tuned, perSecond, length)
		}}
	}
	usual, tuned := river("River, defaults", false), river("River, tuned", true)
	if err := b.takeTurns(ctx, "B10", e.rounds(), ours, usual, tuned); err != nil {
		return err
	}
	for _, against := range []struct {
		id string
		*pacedRound
	}{{"default", usual}, {"tuned", tuned}} {
		s := scenario{unit: "ms", lower: true, bar: 1, ours: entrant{name: ours.name}, peer: entrant{name: against.name}}
		s.id, s.title = "B10."+against.id+".p50", "enqueue to start at 300 jobs/s, p50, beside "+against.name
		b.results = append(b.results, judge(s, ours.p50, against.p50))
		s.id, s.title = "B10."+against.id+".p99", "enqueue to start at 300 jobs/s, p99, beside "+against.name
		b.results = append(b.results, judge(s, ours.p99, against.p99))
	}
	return nil
}

func rowB11(ctx context.Context, e *env, b *board) error {
	const perSecond, cap = 100, 10
	length := e.length(10 * time.Second)
	_, d, err := e.onPostgres(ctx)
	if err != nil {
		return err
	}
	quiet, err := d.connect(ctx, slack())
	if err != nil {
		return err
	}
	busy, err := d.connect(ctx, &flexiqv1.NamespaceQuota{MaxRunning: new(int64(cap))})
	if err != nil {
		return err
	}
	backlog := e.scale(100_000)
	if err := fill(ctx, busy, backlog, nil); err != nil {
		return err
	}
	alone := &pacedRound{name: "alone", round: func(ctx context.Context) (float64, float64, error) {
		return e.oursPaced(ctx, quiet, 20, perSecond, length)
	}}
	beside := &pacedRound{name: "beside a capped tenant", round: func(ctx context.Context) (float64, float64, error) {
		stop, err := working(ctx, 10*cap, func(context.Context, *client.Task) error {
			time.Sleep(10 * time.Millisecond)
			return nil
		}, busy)
		if err != nil {
			return 0, 0, err
		}
		p50, p99, err := e.oursPaced(ctx, quiet, 20, perSecond, length)
		if stopped := stop(); err == nil {
			err = stopped
		}
		return p50, p99, err
	}}
	if err := b.takeTurns(ctx, "B11", e.rounds(), beside, alone); err != nil {
		return err
	}
	b.results = append(b.results, judge(scenario{
		id: "B11", title: fmt.Sprintf("a quiet tenant's p99 beside a capped one with %s pending, beside alone", figure(float64(backlog))),
		unit: "ms", lower: true, bar: 2, ours: entrant{name: beside.name}, peer: entrant{name: alone.name},
	}, beside.p99, alone.p99))
	return nil
}
