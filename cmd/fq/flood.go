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

// How much is on its way at once: so many calls, which the client puts into few
// messages, but no more jobs than are answered soon after the command is told
// to stop.
const (
	pipelined     = 1024
	pipelinedJobs = 2048
	leastCalls    = 4
)

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

	unknown int  // may be enqueued or not
	unsent  int  // were never sent; of lines those that were read
	stopped bool // more would have been sent
	sent    int  // jobs that were handed to the client

	took    time.Duration
	problem error // the first one, other than being stopped
}

func (t *tally) count(o outcome) {
	if o.err != nil {
		t.fail(o)
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

func (t *tally) fail(o outcome) {
	if t.problem == nil && !interrupted(o.err) {
		t.problem = o.err
	}
	_, rejected := client.AsRefusal(o.err)
	switch fate := fateOf(o.err); {
	case fate == unknown:
		t.unknown += o.jobs
	case fate == notSent:
		t.unsent += o.jobs
	case rejected:
		t.rejected += o.jobs
	default:
		t.failed += o.jobs
	}
}

// known are the jobs whose outcome is known and not a failure of the call.
func (t *tally) known() int { return t.admitted + t.shed + t.deduplicated }

// jobs are those that were sent.
func (t *tally) jobs() int { return t.known() + t.rejected + t.failed + t.unknown }

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
// not enqueued. Told to stop it sends no more, and waits a while for answers.
func (f *flood) run() error {
	sending, stop := context.WithCancel(f.s.ctx)
	defer stop()
	waiting, giveUp := outlive(sending, f.s.patience)
	defer giveUp()
	outcomes := make(chan outcome, pipelined)
	var sent int
	var readErr error
	go func() {
		defer close(outcomes)
		sent, readErr = f.feed(sending, waiting, outcomes)
	}()
	c := &collector{f: f, report: f.show(f.s), bar: newProgress(f.s, f.total), waiting: make(map[int]outcome)}
	start := time.Now()
	c.collect(outcomes, stop)
	c.tally.took = time.Since(start)
	c.tally.sent, c.tally.stopped = sent, sending.Err() != nil && readErr != nil
	if f.total > 0 {
		c.tally.unsent += f.total - sent
	}
	c.bar.end()
	if c.err != nil && (!c.hopeless || !c.begun()) {
		return c.err
	}
	if err := c.report.end(c.tally); err != nil {
		return err
	}
	switch {
	case readErr != nil && !errors.Is(readErr, context.Canceled):
		return readErr
	case readErr != nil || c.tally.rejected+c.tally.failed+c.tally.unknown+c.tally.unsent > 0:
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

	hopeless bool // err is of a call, and stands in the tally
}

// collect takes all outcomes in. It stops the sending when there is no use in
// going on.
func (c *collector) collect(outcomes <-chan outcome, stop func()) {
	told := c.f.s.ctx.Done()
	for {
		select {
		case o, more := <-outcomes:
			if !more {
				return
			}
			if err := c.take(o); err != nil {
				stop()
			}
		case <-told:
			told = nil
			c.bar.end()
			if !c.f.s.json() {
				c.f.s.remark("stopping: up to %s for the answers of what is on its way; a second signal ends at once", c.f.s.patience)
			}
		}
	}
}

// begun reports whether there is more to tell than one error.
func (c *collector) begun() bool { return c.next > 0 || c.tally.known() > 0 }

// take takes one outcome. When nothing can be printed any more it only counts.
func (c *collector) take(o outcome) error {
	c.tally.count(o)
	c.bar.set(c.tally)
	if c.err == nil && c.f.hopeless(o.err) {
		c.err, c.hopeless = o.err, true
	}
	c.waiting[o.position] = o
	for c.err == nil || c.hopeless && c.begun() {
		ready, ok := c.waiting[c.next]
		if !ok {
			break
		}
		delete(c.waiting, c.next)
		c.next++
		if err := c.report.outcome(ready); err != nil {
			c.err, c.hopeless = err, false
		}
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

// gathered are the jobs of one call, or why there are none.
type gathered struct {
	specs []client.Job
	err   error
}

// read gathers the jobs of each call, in a goroutine of its own because a read
// from a pipe cannot be interrupted: it ends with ctx, or with the read that it
// is in.
func (f *flood) read(ctx context.Context) <-chan gathered {
	all := make(chan gathered)
	go func() {
		for {
			specs, err := f.gather()
			select {
			case all <- gathered{specs, err}:
			case <-ctx.Done():
				return
			}
			if err != nil {
				return
			}
		}
	}()
	return all
}

// feed hands calls to senders, of which it starts as many as are needed, until
// ctx ends. It returns when all outcomes are in, with how many jobs it handed
// over; late bounds their outcomes.
func (f *flood) feed(ctx, late context.Context, outcomes chan<- outcome) (sent int, err error) {
	jobs, calls := f.read(ctx), make(chan call)
	most := min(pipelined, max(leastCalls, pipelinedJobs/f.batch))
	var senders sync.WaitGroup
	defer senders.Wait()
	defer close(calls)
	for position, started := 0, 0; ; position++ {
		var g gathered
		select {
		case g = <-jobs:
		case <-ctx.Done():
			return sent, ctx.Err()
		}
		if err := f.wait(ctx, len(g.specs)); err != nil {
			return sent, err
		}
		if len(g.specs) > 0 {
			next := call{outcome{position: position, first: sent, jobs: len(g.specs)}, g.specs}
			select {
			case calls <- next:
			default:
				if started < most {
					started++
					senders.Go(func() { f.send(late, calls, outcomes) })
				}
				select {
				case calls <- next:
				case <-ctx.Done():
					return sent, ctx.Err()
				}
			}
			sent += len(g.specs)
		}
		switch {
		case errors.Is(g.err, io.EOF):
			return sent, nil
		case g.err != nil:
			return sent, fmt.Errorf("read the jobs: %w", g.err)
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
