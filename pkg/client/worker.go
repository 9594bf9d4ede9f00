package client

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"flexiq/pkg/fault"
	"flexiq/pkg/job"
	"flexiq/pkg/namespace"
)

// Defaults of [WorkerOptions].
const (
	DefaultSlots = 10
	DefaultWait  = 5 * time.Second
	DefaultGrace = 30 * time.Second
)

const (
	drainWait = time.Second // for how long a drained queue must stay empty
	maxWait   = time.Minute
)

// WorkerOptions say what a worker takes and how it runs it. The zero value
// takes jobs of every queue, ten at a time, for ever.
type WorkerOptions struct {
	// Queues to take from. Empty: all of the namespace.
	Queues []string

	// Slots is how many jobs run at once. 0: [DefaultSlots].
	Slots int

	// Name is what operators see. Empty: program, host and process id.
	Name string

	// LeaseFor is how long the server waits for a sign of life before it gives
	// a job to another worker, 1 s to 1 h. 0: what the installation says, 30 s.
	LeaseFor time.Duration

	// Wait is how long one claim waits for work. It is what a claim costs that
	// was lost together with the process that held it. 0: [DefaultWait]; at
	// most 1 minute.
	Wait time.Duration

	// Grace is how long running jobs may go on once the worker is told to stop;
	// those that are left then are released with no attempt spent. 0:
	// [DefaultGrace]; negative: none.
	Grace time.Duration

	// Drain ends the worker when no job has been ready, or running here, for a
	// second.
	Drain bool

	// MaxJobs ends the worker after so many jobs were started. 0: no bound.
	MaxJobs int64

	// Log tells of lost leases, of refused settlements, and once of each time
	// without a server. The zero value is silent.
	Log zerolog.Logger
}

// WorkerStats count what a worker has done with the jobs it claimed.
type WorkerStats struct {
	// Failed jobs are tried again, Dead ones not: their handler or their last
	// attempt was the end of them.
	Completed, Failed, Dead, Released int64
	// Lost jobs ran here, but their outcome came too late to count.
	Lost int64
}

// Worker claims jobs and runs them. Make one with [NewWorker], say how with
// Handle, and call Run.
type Worker struct {
	opts     WorkerOptions
	clients  []*Client
	running  atomic.Bool
	mu       sync.Mutex
	handlers map[string]Handler
	fallback Handler
	trust    time.Duration // see defaultTrust
	silence  time.Duration // see drainPatience

	completed, failed, dead, released, lost atomic.Int64
}

// NewWorker makes a worker of one client, or of several: it then shares its
// slots between their namespaces by turns. The clients stay the caller's to
// close, after Run has returned.
func NewWorker(o WorkerOptions, clients ...*Client) (*Worker, error) {
	if len(clients) == 0 {
		return nil, errors.New("a worker needs a client")
	}
	o.fill()
	if err := o.check(); err != nil {
		return nil, err
	}
	return &Worker{opts: o, clients: clients, handlers: make(map[string]Handler), trust: defaultTrust, silence: drainPatience}, nil
}

func (o *WorkerOptions) fill() {
	if o.Slots == 0 {
		o.Slots = DefaultSlots
	}
	if o.Wait == 0 {
		o.Wait = DefaultWait
	}
	if o.Drain {
		o.Wait = drainWait
	}
	if o.Grace == 0 {
		o.Grace = DefaultGrace
	}
	if o.Name == "" {
		host, err := os.Hostname()
		if err != nil {
			host = "unknown"
		}
		o.Name = fmt.Sprintf("%s@%s:%d", filepath.Base(os.Args[0]), host, os.Getpid())
	}
}

func (o *WorkerOptions) check() error {
	if o.Slots < 1 {
		return fault.Invalid("slots", "must be at least 1, got %d", o.Slots)
	}
	if o.LeaseFor != 0 && (o.LeaseFor < job.MinLease || o.LeaseFor > job.MaxLease) {
		return fault.Invalid("lease_for", "must be from %s to %s, got %s", job.MinLease, job.MaxLease, o.LeaseFor)
	}
	if o.Wait < 0 || o.Wait > maxWait {
		return fault.Invalid("wait", "must be at most %s, got %s", maxWait, o.Wait)
	}
	if o.MaxJobs < 0 {
		return fault.Invalid("max_jobs", "must be at least 1, or 0 for no bound, got %d", o.MaxJobs)
	}
	if err := namespace.Check(o.Name); err != nil {
		return fault.Invalid("worker", "%v", err)
	}
	for i, q := range o.Queues {
		if err := namespace.Check(q); err != nil {
			return fault.Invalid(fmt.Sprintf("queues[%d]", i), "%v", err)
		}
	}
	o.Queues = slices.Clone(o.Queues)
	return nil
}

// Handle sets what runs the jobs of one task, and panics when the task has a
// handler already. A job of a task without a handler fails.
func (w *Worker) Handle(task string, h Handler) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if h == nil || w.handlers[task] != nil {
		panic(fmt.Sprintf("client: task %q needs exactly one handler", task))
	}
	w.handlers[task] = h
}

// HandleAll sets what runs the jobs of every task that has no handler of its own.
func (w *Worker) HandleAll(h Handler) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fallback = h
}

func (w *Worker) handler(task string) Handler {
	w.mu.Lock()
	defer w.mu.Unlock()
	if h := w.handlers[task]; h != nil {
		return h
	}
	if w.fallback != nil {
		return w.fallback
	}
	return func(context.Context, *Task) error {
		return fmt.Errorf("this worker has no handler for the task %q", task)
	}
}

// Stats tells what the worker has done so far.
func (w *Worker) Stats() WorkerStats {
	return WorkerStats{
		Completed: w.completed.Load(),
		Failed:    w.failed.Load(),
		Dead:      w.dead.Load(),
		Released:  w.released.Load(),
		Lost:      w.lost.Load(),
	}
}

// Run works until ctx ends, and returns nil after an orderly stop: nothing is
// claimed any more, what arrives late is released, running jobs get their
// grace. It also returns when the worker is drained or has started MaxJobs,
// and with the error of a claim that can never succeed, such as
// PERMISSION_DENIED, or UNAUTHENTICATED for a minute. A server that is
// unavailable is waited for, one that was never there is not: see [Dial].
func (w *Worker) Run(ctx context.Context) error {
	if !w.running.CompareAndSwap(false, true) {
		return errors.New("the worker is running already")
	}
	defer w.running.Store(false)
	s := newShift(ctx, w)
	err := s.claim(ctx)
	s.finish(ctx)
	return err
}
