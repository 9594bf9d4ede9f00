// Package admission decides every enqueue and writes it.
//
// A call is checked as it arrives, in the callback that brought it, and handed
// to a group commit: while one flush is in the store, calls gather, and the
// next flush takes them all. Calls are hashed by namespace, so that one
// namespace is in one flush of this process at a time. Nothing in the way in
// blocks and nothing starts a goroutine per call.
//
// The store decides, in the transaction that writes, against the quota in
// force. The quota that this package reads from its cache only says by which
// document the caller wants to be judged: when the store answers that it is
// not in force any more, it is loaded again and the call repeated. Options that a
// job leaves open get their defaults from the overrides in the cache.
//
// A [Service] serves from [New] until [Service.Close]. [Service.Run] is its
// background: the report of what was counted, once a second.
package admission

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"

	"flexiq/pkg/batch"
	"flexiq/pkg/configcache"
	"flexiq/pkg/events"
	"flexiq/pkg/job"
	"flexiq/pkg/rpc"
	"flexiq/pkg/store"
)

// Config is what an operator may choose.
type Config struct {
	MaxPayload int // bytes of a job's payload or args, at most [job.LargestMaxPayload]
	Lanes      int // flushes in the store at once; 1 is best for an embedded store
	MaxCalls   int // calls that wait or are being flushed; more is OVERLOADED
	MaxBytes   int // bytes of those calls
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config {
	return Config{MaxPayload: job.DefaultMaxPayload, Lanes: 1, MaxCalls: 4096, MaxBytes: 64 << 20}
}

// Check tells what is wrong with the config, nil when nothing is.
func (c Config) Check() error {
	switch {
	case c.MaxPayload < 1 || c.MaxPayload > job.LargestMaxPayload:
		return fmt.Errorf("admission: the largest payload must be from 1 to %d bytes, got %d", job.LargestMaxPayload, c.MaxPayload)
	case c.Lanes < 1:
		return fmt.Errorf("admission: there must be at least 1 lane, got %d", c.Lanes)
	case c.MaxCalls < 1 || c.MaxBytes < 1:
		return fmt.Errorf("admission: the bounds of waiting calls must be positive, got %d calls and %d bytes", c.MaxCalls, c.MaxBytes)
	}
	return nil
}

// Quotas is the cache of quotas by namespace.
type Quotas interface {
	Get(ctx context.Context, namespace string) (configcache.Quota, error)
	Peek(namespace string) (configcache.Quota, bool)
	Invalidate(namespace string, revision int64)
}

// Overrides is the cache of overrides by namespace.
type Overrides interface {
	Get(ctx context.Context, namespace string) (configcache.Overrides, error)
	Peek(namespace string) (configcache.Overrides, bool)
}

// Jobs reads jobs; see [store.Jobs].
type Jobs interface {
	Job(ctx context.Context, ns, id string) (*job.Job, error)
	ListJobs(ctx context.Context, ns string, f store.Filter, after string, limit int) (store.Page[job.Job], error)
}

// Hints tells dispatch gates which namespaces got work.
type Hints interface {
	PublishReady(namespaces []string)
}

// Reports takes what was counted, as [wire.AdmissionReport] in JSON.
type Reports interface {
	PublishStats(report []byte)
}

// Deps are what the service works with. Store, Jobs, Quotas, Overrides and Hints
// are required.
type Deps struct {
	Store      store.Admission
	Jobs       Jobs
	Quotas     Quotas
	Overrides  Overrides
	Hints      Hints
	Reports    Reports           // nil: nothing is reported
	Events     *events.Publisher // nil: nobody is told of anything
	Log        zerolog.Logger
	Registerer prometheus.Registerer // nil: the metrics are kept for nobody
	Batch      *batch.Metrics        // nil: none
	Schedules  store.Schedules       // nil: none is fired
	Triggers   store.Triggers        // nil: there are none
	Messages   Messages              // of triggers; nil: none is heard
}

// Service decides enqueue calls. It is safe for concurrent use.
type Service struct {
	cfg       Config
	store     store.Admission
	jobs      Jobs
	quotas    Quotas
	overrides Overrides
	hints     Hints
	log       zerolog.Logger
	metrics   *metrics
	group     *batch.Group[*parcel, []store.Outcome]
	tally     *tally
	schedules store.Schedules
	triggers  *knownTriggers
	messages  Messages
	events    *events.Publisher
	warned    *rate.Sometimes // an unreadable quota is logged now and then, not per call

	life       context.Context // of the loads of quotas
	end        context.CancelFunc
	loads      sync.WaitGroup
	mu         sync.Mutex
	cold       map[string][]*parcel // by namespace: calls that wait for their quota's load
	colds      int                  // how many those are
	unreadable map[string]time.Time // when a namespace's quota was last found to be so
	closed     bool
}

// New makes a service. It serves at once.
func New(cfg Config, deps Deps) (*Service, error) {
	if err := cfg.Check(); err != nil {
		return nil, err
	}
	if deps.Store == nil || deps.Jobs == nil || deps.Quotas == nil || deps.Overrides == nil || deps.Hints == nil {
		return nil, errors.New("admission: store, jobs, quotas, overrides and hints must be given")
	}
	m, err := newMetrics(deps.Registerer)
	if err != nil {
		return nil, fmt.Errorf("admission: metrics: %w", err)
	}
	s := &Service{
		cfg: cfg, store: deps.Store, jobs: deps.Jobs, quotas: deps.Quotas, overrides: deps.Overrides, hints: deps.Hints,
		log: deps.Log, metrics: m, tally: newTally(uuid.NewString(), deps.Reports),
		warned: &rate.Sometimes{Interval: 10 * time.Second}, cold: make(map[string][]*parcel),
		unreadable: make(map[string]time.Time),
		schedules:  deps.Schedules, messages: deps.Messages, events: deps.Events,
		triggers: &knownTriggers{store: deps.Triggers, all: make(map[triggerKey]knownTrigger)},
	}
	s.life, s.end = context.WithCancel(context.Background())
	s.group = batch.New("admit", cfg.Lanes, batch.Options[*parcel]{
		MaxCalls: cfg.MaxCalls, MaxBytes: cfg.MaxBytes, MaxItems: job.MaxBatch,
		Weight: (*parcel).jobs, Metrics: deps.Batch, Log: deps.Log,
	}, s.flush)
	return s, nil
}

// Methods are the methods of ProducerService.
func (s *Service) Methods() []rpc.Method {
	refused := rpc.OnRefused(s.refusedAtTheDoor)
	return []rpc.Method{
		rpc.Async("Enqueue", s.enqueue, refused),
		rpc.Async("EnqueueBatch", s.enqueueBatch, refused),
		rpc.Async("EnqueueCalls", s.enqueueCalls, refused),
		rpc.Unary("GetJob", s.getJob),
		rpc.Unary("ListJobs", s.listJobs),
		rpc.Unary("CancelJobs", s.cancelJobs),
	}
}

// reportEvery is how often the counts are reported.
const reportEvery = time.Second

// Run fires schedules, hears the messages of triggers and reports what was
// counted until ctx ends, the rest included. It fails when it cannot subscribe.
func (s *Service) Run(ctx context.Context) error {
	parts, ctx := errgroup.WithContext(ctx)
	if s.schedules != nil {
		parts.Go(func() error { s.fireSchedules(ctx); return nil })
	}
	if s.messages != nil && s.triggers.store != nil {
		parts.Go(func() error { return s.hearTriggers(ctx) })
	}
	parts.Go(func() error { return s.report(ctx) })
	return parts.Wait()
}

func (s *Service) report(ctx context.Context) error {
	tick := time.NewTicker(reportEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			s.tally.report()
			return nil
		case <-tick.C:
			s.tally.report()
		}
	}
}

// Close decides what was handed in and then refuses every call with
// OVERLOADED. The doors are to be closed before. It may be called twice.
func (s *Service) Close(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	loaded := make(chan struct{})
	go func() { s.loads.Wait(); close(loaded) }()
	select {
	case <-loaded:
	case <-ctx.Done(): // the loads give up with life
	}
	s.end()
	<-loaded
	err := s.group.Close(ctx)
	s.tally.report()
	return err
}
