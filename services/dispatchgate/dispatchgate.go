// Package dispatchgate gives jobs to waiting workers within every cap, and
// takes them back: claims, heartbeats, settlements, and the recovery of leases
// that ended without a word.
//
// A claim is a long poll. It waits in a room (see room.go), outside any pool,
// and costs memory only; nobody polls the store for it. What may bring it work
// wakes it: a hint from an admission process, a settlement or an expired lease
// that returned a job or freed a slot, a changed quota, the time at which the
// next job is due. A wake-up that is lost costs a second: so often the gate
// asks the store once for all namespaces that wait.
//
// Claims and settlements go to the store together, many of many namespaces in
// one call; the store decides within the caps. A namespace at its cap is not
// asked for again until a slot may be free.
//
// A [Service] takes settlements and heartbeats from [New] until
// [Service.Close], and claims until [Service.Run] ends. So it is stopped in
// this order: end Run, close the doors, Close.
//
// The package is longer than most: the room, which is pure, and the lanes that
// drive it share their types, and neither is of use without the other.
package dispatchgate

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

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
	Lease         time.Duration // of a claim or heartbeat that names none
	MaxReplyBytes int           // of the jobs of one reply; a single job is given whatever its size
	MaxWaiting    int           // claims that wait; more is OVERLOADED
	Lanes         int           // turns in the store at once; 1 is best for an embedded store
	MaxCalls      int           // settlements and heartbeats that wait or are in the store, in calls
	MaxBytes      int           // and in bytes; more is OVERLOADED
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config {
	return Config{
		Lease: job.DefaultLease, MaxReplyBytes: 4 << 20, MaxWaiting: 100_000,
		Lanes: 1, MaxCalls: 4096, MaxBytes: 64 << 20,
	}
}

// Check tells what is wrong with the config, nil when nothing is.
func (c Config) Check() error {
	switch {
	case c.Lease < job.MinLease || c.Lease > job.MaxLease:
		return fmt.Errorf("dispatchgate: the lease must be from %s to %s, got %s", job.MinLease, job.MaxLease, c.Lease)
	case c.MaxReplyBytes < 1<<10:
		return fmt.Errorf("dispatchgate: a reply must be allowed at least 1024 bytes, got %d", c.MaxReplyBytes)
	case c.Lanes < 1:
		return fmt.Errorf("dispatchgate: there must be at least 1 lane, got %d", c.Lanes)
	case c.MaxWaiting < 1 || c.MaxCalls < 1 || c.MaxBytes < 1:
		return fmt.Errorf("dispatchgate: the bounds of what waits must be positive, got %d claims, %d calls and %d bytes",
			c.MaxWaiting, c.MaxCalls, c.MaxBytes)
	}
	return nil
}

// Quotas is the cache of quotas by namespace.
type Quotas interface {
	Get(ctx context.Context, namespace string) (configcache.Quota, error)
	Peek(namespace string) (configcache.Quota, bool)
	Invalidate(namespace string, revision int64)
}

// Hints tells other gates which namespaces have work again, which may have a
// free slot, and which workers have signed off.
type Hints interface {
	PublishReady(namespaces []string)
	PublishFreed(namespaces []string)
	PublishLeft(ns, worker string)
}

// Deps are what the service works with. Store, Quotas and Hints are required.
type Deps struct {
	Store      store.Dispatch
	Quotas     Quotas
	Hints      Hints
	Reports    Reports           // nil: nobody is told of workers and finished attempts
	Events     *events.Publisher // nil: nobody is told of anything
	Log        zerolog.Logger
	Registerer prometheus.Registerer // nil: the metrics are kept for nobody
	Batch      *batch.Metrics        // nil: none
}

const (
	// loadTimeout bounds a load of a quota.
	loadTimeout = 5 * time.Second

	// lookEvery is how often the store is asked for all that wait, and
	// expireEvery how often for leases that ended. A slot of a lost worker, and
	// a job whose hint was lost, wait no longer than that.
	lookEvery   = time.Second
	expireEvery = time.Second
)

// Service is the gate. It is safe for concurrent use.
type Service struct {
	cfg     Config
	store   store.Dispatch
	quotas  Quotas
	hints   Hints
	log     zerolog.Logger
	batch   *batch.Metrics
	metrics *metrics
	roster  *roster
	events  *events.Publisher
	warned  *rate.Sometimes // of unreadable quotas
	failing *rate.Sometimes // of a store that does not serve claims

	seed    maphash.Seed
	lanes   []*lane
	beats   *batch.Group[[]store.Beat, []store.Pulse]
	waiting atomic.Int64
	narrow  sync.Map // namespaces in which a cap of a queue or task was met

	life   context.Context // of the loads of quotas
	end    context.CancelFunc
	mu     sync.Mutex
	closed bool
	loads  sync.WaitGroup
}

// New makes a service. Claims wait from then on, but nothing is looked for
// before Run.
func New(cfg Config, deps Deps) (*Service, error) {
	if err := cfg.Check(); err != nil {
		return nil, err
	}
	if deps.Store == nil || deps.Quotas == nil || deps.Hints == nil {
		return nil, errors.New("dispatchgate: store, quotas and hints must be given")
	}
	s := &Service{
		cfg: cfg, store: deps.Store, quotas: deps.Quotas, hints: deps.Hints, log: deps.Log, batch: deps.Batch,
		warned: &rate.Sometimes{Interval: 10 * time.Second}, failing: &rate.Sometimes{Interval: 10 * time.Second},
		seed: maphash.MakeSeed(), roster: newRoster(deps.Reports), events: deps.Events,
	}
	var err error
	if s.metrics, err = newMetrics(deps.Registerer, func() float64 { return float64(s.waiting.Load()) }); err != nil {
		return nil, fmt.Errorf("dispatchgate: metrics: %w", err)
	}
	s.life, s.end = context.WithCancel(context.Background())
	for range cfg.Lanes {
		s.lanes = append(s.lanes, newLane(s))
	}
	s.beats = batch.New("heartbeat", cfg.Lanes, batch.Options[[]store.Beat]{
		MaxCalls: cfg.MaxCalls, MaxBytes: cfg.MaxBytes, MaxItems: job.MaxBatch,
		Weight:  func(b []store.Beat) int { return len(b) },
		Metrics: deps.Batch, Log: deps.Log,
	}, s.beat)
	return s, nil
}

// Methods are the methods of WorkerService.
func (s *Service) Methods() []rpc.Method {
	return []rpc.Method{
		rpc.Async("Claim", s.claim, rpc.OnUndelivered(s.undelivered)),
		rpc.Async("Heartbeat", s.heartbeat),
		rpc.Async("Settle", s.settle),
	}
}

// Run recovers leases that ended and looks for work that no hint told of,
// until ctx ends. Then it stops claims and returns when none is under way.
func (s *Service) Run(ctx context.Context) error {
	g := new(errgroup.Group)
	g.Go(func() error { s.every(ctx, expireEvery, s.expire); return nil })
	g.Go(func() error { s.every(ctx, lookEvery, s.lookRound); return nil })
	g.Go(func() error { s.every(ctx, reportEvery, s.roster.report); return nil })
	err := g.Wait()
	s.StopClaims()
	for _, l := range s.lanes {
		<-l.quiet // a turn has a deadline
	}
	return err
}

// every calls do at an interval until ctx ends.
func (s *Service) every(ctx context.Context, interval time.Duration, do func(context.Context)) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			do(ctx)
		}
	}
}

// StopClaims answers every waiting claim empty, and from then on every claim
// that comes. The claims that the store is being asked for get what it gives.
// Settlements and heartbeats go on. The end of Run implies it.
func (s *Service) StopClaims() {
	for _, l := range s.lanes {
		l.with((*room).close)
	}
}

// Close carries out what was handed in and then refuses settlements and
// heartbeats with OVERLOADED. The doors are to be closed before. It may be
// called twice.
func (s *Service) Close(ctx context.Context) error {
	s.StopClaims()
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.end()
	s.loads.Wait() // life has ended: they give up
	var errs []error
	for _, l := range s.lanes {
		errs = append(errs, l.close(ctx))
	}
	return errors.Join(append(errs, s.beats.Close(ctx))...)
}

// Woken tells that namespaces got work. It does not block.
func (s *Service) Woken(namespaces []string) { s.each(namespaces, (*room).wake) }

// Freed tells that slots of namespaces may be free. It does not block.
func (s *Service) Freed(namespaces []string) { s.each(namespaces, (*room).freed) }

// Left tells that a worker has signed off: its claims that still wait are ended,
// so that no job is claimed for it. It does not block.
func (s *Service) Left(ns, worker string) { s.left(ns, worker, false) }

func (s *Service) left(ns, worker string, told bool) {
	s.laneOf(ns).with(func(r *room) { r.dismiss(ns, worker) })
	s.roster.leaves(ns, worker, told)
}

// each tells the rooms of namespaces.
func (s *Service) each(namespaces []string, tell func(r *room, ns string)) {
	for _, l := range s.lanes {
		l.with(func(r *room) {
			for _, ns := range namespaces { // those of other lanes are not in the room
				tell(r, ns)
			}
		})
	}
}

// QuotaChanged tells that the limits of a namespace are others, its quota's or
// an override's, and that the cache knows; the empty name means every
// namespace. It does not block.
func (s *Service) QuotaChanged(ns string) {
	if ns != "" {
		s.each([]string{ns}, (*room).reopen)
		return
	}
	for _, l := range s.lanes {
		l.with((*room).wakeAll)
	}
}

func (s *Service) laneOf(ns string) *lane {
	return s.lanes[maphash.String(s.seed, ns)%uint64(len(s.lanes))]
}

// spawn runs a load until the service closes.
func (s *Service) spawn(load func(life context.Context)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.loads.Go(func() { load(s.life) })
	}
}
