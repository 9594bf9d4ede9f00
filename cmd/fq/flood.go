package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"flexiq/pkg/client"
	"flexiq/pkg/fault"
)

// pipelined is how many calls are on their way at once. The client puts them
// into few messages.
const pipelined = 1024

// flood enqueues many jobs, call after call, without waiting for answers.
type flood struct {
	s     *session
	c     *client.Client
	pace  *rate.Limiter // nil: as fast as it goes
	batch int           // jobs in one call
	next  source
	total int // for the progress; 0: unknown
	show  func(*session) reporter
}

// outcome is what became of one call.
type outcome struct {
	position int // of the call, from 0
	first    int // position of its first job
	jobs     int
	results  []client.Result
	err      error
}

// tally counts jobs by what became of them.
type tally struct {
	admitted, rejected, shed, deduplicated, failed int
	took                                           time.Duration
	problem                                        error // the first one
}

func (t *tally) count(o outcome) {
	if o.err != nil {
		if t.problem == nil {
			t.problem = o.err
		}
		if _, ok := client.AsRefusal(o.err); ok {
			t.rejected += o.jobs
		} else {
			t.failed += o.jobs
		}
		return
	}
	for _, r := range o.results {
		switch {
		case r.Shed:
			t.shed++
		case r.Deduplicated:
			t.deduplicated++
		default:
			t.admitted++
		}
	}
}

func (t *tally) jobs() int { return t.admitted + t.rejected + t.shed + t.deduplicated + t.failed }

// newPace limits jobs to a rate, spread evenly; nil for none.
func newPace(text string) (*rate.Limiter, error) {
	if text == "" {
		return nil, nil
	}
	perSecond, burst, err := parseRate(text)
	if err != nil {
		return nil, err
	}
	return rate.NewLimiter(rate.Limit(perSecond), burst), nil
}

// run sends every job, prints every outcome in order, and fails when one was
// not enqueued.
func (f *flood) run() error {
	ctx, stop := context.WithCancel(f.s.ctx)
	defer stop()
	outcomes := make(chan outcome, pipelined)
	var readErr error
	go func() {
		defer close(outcomes)
		readErr = f.feed(ctx, outcomes)
	}()
	c := &collector{f: f, report: f.show(f.s), bar: newProgress(f.s, f.total), waiting: make(map[int]outcome)}
	start := time.Now()
	for o := range outcomes {
		if err := c.take(o); err != nil {
			stop()
		}
	}
	c.tally.took = time.Since(start)
	c.bar.end()
	switch {
	case c.err != nil:
		return c.err
	case readErr != nil && !errors.Is(readErr, context.Canceled):
		return readErr
	}
	if err := c.report.end(c.tally); err != nil {
		return err
	}
	if readErr != nil || c.tally.rejected+c.tally.failed > 0 {
		return errTold
	}
	return nil
}

// collector puts outcomes, which come in any order, into the order of the calls.
type collector struct {
	f       *flood
	report  reporter
	bar     *progress
	tally   tally
	next    int             // position that is to be printed next
	waiting map[int]outcome // for those before them
	err     error           // why there is no use in going on
}

// take takes one outcome. After an error it only counts.
func (c *collector) take(o outcome) error {
	c.tally.count(o)
	c.bar.set(c.tally)
	if c.err == nil && c.f.hopeless(o.err) {
		c.err = o.err
	}
	c.waiting[o.position] = o
	for c.err == nil {
		ready, ok := c.waiting[c.next]
		if !ok {
			return nil
		}
		delete(c.waiting, c.next)
		c.next++
		c.err = c.report.outcome(ready)
	}
	return c.err
}

// hopeless reports whether no later call can fare better: the token is no good,
// or all jobs are alike and the first was malformed.
func (f *flood) hopeless(err error) bool {
	if err == nil {
		return false
	}
	switch fault.Of(err).Reason {
	case fault.Unauthenticated, fault.PermissionDenied:
		return true
	case fault.InvalidRequest, fault.PayloadTooLarge:
		return f.total > 0
	}
	return false
}

// call is a call that waits for a sender.
type call struct {
	outcome
	specs []client.Job
}

// feed reads jobs, gathers them into calls, and hands them to senders, of which
// it starts as many as are needed. It returns when all outcomes are in.
func (f *flood) feed(ctx context.Context, outcomes chan<- outcome) error {
	calls := make(chan call)
	var senders sync.WaitGroup
	defer senders.Wait()
	defer close(calls)
	for position, first, started := 0, 0, 0; ; position++ {
		specs, err := f.gather()
		if werr := f.wait(ctx, len(specs)); werr != nil {
			return werr
		}
		if len(specs) > 0 {
			next := call{outcome{position: position, first: first, jobs: len(specs)}, specs}
			first += len(specs)
			select {
			case calls <- next:
			default:
				if started < pipelined {
					started++
					senders.Go(func() { f.send(ctx, calls, outcomes) })
				}
				calls <- next
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read the jobs: %w", err)
		}
	}
}

// wait waits until the pace allows so many jobs more.
func (f *flood) wait(ctx context.Context, jobs int) error {
	for range jobs {
		if f.pace == nil {
			break
		}
		if err := f.pace.Wait(ctx); err != nil {
			return ctx.Err()
		}
	}
	return ctx.Err()
}

// gather reads the jobs of one call. With an error it may still return some.
func (f *flood) gather() ([]client.Job, error) {
	var specs []client.Job
	for len(specs) < f.batch {
		j, err := f.next()
		if err != nil {
			return specs, err
		}
		specs = append(specs, j)
	}
	return specs, nil
}

func (f *flood) send(ctx context.Context, calls <-chan call, outcomes chan<- outcome) {
	for c := range calls {
		o := c.outcome
		if f.batch == 1 {
			var r client.Result
			if r, o.err = f.c.Enqueue(ctx, c.specs[0]); o.err == nil {
				o.results = []client.Result{r}
			}
		} else {
			o.results, o.err = f.c.EnqueueBatch(ctx, c.specs)
		}
		outcomes <- o
	}
}
