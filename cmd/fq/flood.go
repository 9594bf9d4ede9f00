package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"golang.org/x/time/rate"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
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

	sent int // calls, and so the next position
}

// reporter prints what became of calls, in their order.
type reporter interface {
	outcome(o outcome) error
	end(t tally) error
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
	calls, outcomes := make(chan outcomeOf), make(chan outcome, pipelined)
	var senders sync.WaitGroup
	var readErr error
	go func() {
		defer close(outcomes)
		readErr = f.feed(ctx, &senders, calls, outcomes)
		senders.Wait()
	}()
	report, bar := f.show(f.s), newProgress(f.s, f.total)
	var t tally
	start := time.Now()
	var fatal, printErr error
	waiting := make(map[int]outcome) // until those before them are in
	for next := 0; ; {
		o, ok := <-outcomes
		if !ok {
			break
		}
		t.count(o)
		bar.set(t)
		if fatal == nil && f.hopeless(o.err) {
			fatal = o.err
			stop()
		}
		for waiting[o.position] = o; ; next++ {
			ready, ok := waiting[next]
			if !ok {
				break
			}
			delete(waiting, next)
			if printErr == nil && fatal == nil {
				if printErr = report.outcome(ready); printErr != nil {
					stop()
				}
			}
		}
	}
	t.took = time.Since(start)
	bar.end()
	switch {
	case fatal != nil:
		return fatal
	case printErr != nil:
		return printErr
	}
	if err := report.end(t); err != nil {
		return err
	}
	return f.verdict(t, readErr)
}

// verdict says whether everything was done.
func (f *flood) verdict(t tally, readErr error) error {
	if readErr != nil {
		return readErr
	}
	if t.rejected+t.failed > 0 {
		return errTold
	}
	return nil
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

// outcomeOf is a call that waits for a sender.
type outcomeOf struct {
	outcome
	specs []client.Job
}

// feed reads jobs, gathers them into calls, and hands them to senders, of which
// it starts as many as are needed.
func (f *flood) feed(ctx context.Context, senders *sync.WaitGroup, calls chan outcomeOf, outcomes chan<- outcome) error {
	defer close(calls)
	first, started := 0, 0
	for position := 0; ; position++ {
		specs, err := f.gather()
		if len(specs) > 0 && ctx.Err() == nil {
			if f.pace != nil {
				for range specs {
					if f.pace.Wait(ctx) != nil {
						return ctx.Err()
					}
				}
			}
			call := outcomeOf{outcome{position: position, first: first, jobs: len(specs)}, specs}
			first += len(specs)
			select {
			case calls <- call:
			default:
				if started < pipelined {
					started++
					senders.Go(func() { f.send(ctx, calls, outcomes) })
				}
				calls <- call
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("read the jobs: %w", err)
		case ctx.Err() != nil:
			return ctx.Err()
		}
	}
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

func (f *flood) send(ctx context.Context, calls <-chan outcomeOf, outcomes chan<- outcome) {
	for call := range calls {
		o := call.outcome
		if f.batch == 1 {
			var r client.Result
			if r, o.err = f.c.Enqueue(ctx, call.specs[0]); o.err == nil {
				o.results = []client.Result{r}
			}
		} else {
			o.results, o.err = f.c.EnqueueBatch(ctx, call.specs)
		}
		outcomes <- o
	}
}

// summary prints how many jobs fared how.
type summary struct{ s *session }

func showSummary(s *session) reporter { return summary{s} }

func (r summary) outcome(outcome) error { return nil }

func (r summary) end(t tally) error {
	seconds := t.took.Seconds()
	if r.s.json() {
		_, err := fmt.Fprintf(r.s.out,
			`{"jobs":%d,"admitted":%d,"rejected":%d,"shed":%d,"deduplicated":%d,"failed":%d,"seconds":%.3f}`+"\n",
			t.jobs(), t.admitted, t.rejected, t.shed, t.deduplicated, t.failed, seconds)
		return err
	}
	var tab table
	tab.row("admitted", t.admitted)
	tab.row("rejected", t.rejected)
	tab.row("shed", t.shed)
	if t.deduplicated > 0 {
		tab.row("deduplicated", t.deduplicated)
	}
	if t.failed > 0 {
		tab.row("failed", t.failed)
	}
	if err := tab.write(r.s.out); err != nil {
		return err
	}
	r.s.remark("%d jobs in %.1fs, %.0f/s", t.jobs(), seconds, float64(t.jobs())/max(seconds, 0.001))
	if t.problem != nil {
		r.s.remark("the first that was not enqueued:")
		r.s.complain(fault.Of(t.problem))
	}
	return nil
}

// outcomes prints the id of each job, or as JSON the outcome of each call.
type outcomes struct {
	s       *session
	printed int
}

func showOutcomes(s *session) reporter { return &outcomes{s: s} }

func (r *outcomes) outcome(o outcome) error {
	if r.s.json() {
		return r.json(o)
	}
	if o.err != nil {
		place := fmt.Sprintf("line %d", o.first+1)
		if o.jobs > 1 {
			place = fmt.Sprintf("lines %d to %d", o.first+1, o.first+o.jobs)
		}
		r.s.remark("%s:", place)
		r.s.complain(fault.Of(o.err))
		return nil
	}
	for _, result := range o.results {
		if _, err := fmt.Fprintln(r.s.out, clean(orDash(result.ID))); err != nil {
			return err
		}
	}
	return nil
}

func (r *outcomes) json(o outcome) error {
	m := new(flexiqv1.EnqueueOutcome)
	for _, result := range o.results {
		m.Results = append(m.Results, resultMessage(result))
	}
	if o.err != nil {
		f := fault.Of(o.err)
		m.Error = &flexiqv1.CallError{Code: string(f.Reason.Code()), Reason: string(f.Reason), Message: f.Message, Details: f.Details}
	}
	b := []byte(",")
	if r.printed == 0 {
		b = []byte(`{"outcomes":[`)
	}
	r.printed++
	b, err := appendMessage(b, m.ProtoReflect())
	if err != nil {
		return err
	}
	_, err = r.s.out.Write(b)
	return err
}

func (r *outcomes) end(t tally) error {
	if r.s.json() {
		if r.printed == 0 {
			_, err := io.WriteString(r.s.out, "{\"outcomes\":[]}\n")
			return err
		}
		_, err := io.WriteString(r.s.out, "]}\n")
		return err
	}
	if t.rejected+t.failed+t.shed > 0 {
		r.s.remark("%d admitted, %d rejected, %d shed, %d failed", t.admitted, t.rejected, t.shed, t.failed)
	}
	return nil
}
