// Package retention deletes history: what is older than the age windows of the
// installation, and what is over the row ceilings of the quotas.
//
// Any number of processes may run it; one leads at a time, elected through a
// lease (package lease). The store issues each leader a term, and every delete
// carries it, so that a leader which was cut off or frozen deletes nothing once
// another was elected. A leader stops at the first answer that names a newer
// term, and resigns when the store has been silent for ten seconds.
//
// A sweep applies the windows first and the ceilings then, oldest rows first,
// by (finished time, id), to exactly the ceiling. It goes through the
// namespaces a page at a time and gives them turns of one batch each, at most
// twenty a table, so that one far over a lowered ceiling converges over several
// sweeps and holds up nobody. Then dead letters of a certain age are retried, if
// that is wanted (retries.go). A namespace that fails or whose quota cannot be
// read is skipped with a warning. Without JetStream there is no leader and
// nothing is deleted; [Service.Check] says so.
//
// What to delete is decided in plan.go without any I/O, sweep.go carries it
// out, leader.go says when.
package retention

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"flexiq/pkg/events"
	"flexiq/pkg/fault"
	"flexiq/pkg/lease"
	"flexiq/pkg/store"
)

// Config is how a process sweeps.
type Config struct {
	// Maintenance takes part in the election. Off, the service does nothing.
	Maintenance bool
	// Tick is the time from one sweep's start to the next, 100 ms to 24 h.
	Tick time.Duration
	// ArchiveAge is how long completed and cancelled jobs are kept; 0 is for ever.
	ArchiveAge time.Duration
	// DeadAge is how long dead letters are kept; 0 is for ever.
	DeadAge time.Duration
	// AuditAge is how long the audit trail is kept; 0 is for ever.
	AuditAge time.Duration
	// DeadRetryAge is how long a dead letter that was not shed lies before it is
	// retried automatically; 0 is never.
	DeadRetryAge time.Duration
	// DeadRetryMost is how often each is retried at most, 1 to 255.
	DeadRetryMost int32
	// Lease is the life of the leader's lease, at least 500 ms; 0 is 15 s.
	Lease time.Duration
}

// DefaultConfig is a sweep a minute; archive 30 days, dead letters and
// audit 90.
func DefaultConfig() Config {
	const day = 24 * time.Hour
	return Config{Maintenance: true, Tick: time.Minute, ArchiveAge: 30 * day, DeadAge: 90 * day, AuditAge: 90 * day, DeadRetryMost: 3}
}

func (c Config) check() error {
	if c.Tick < 100*time.Millisecond || c.Tick > 24*time.Hour {
		return fmt.Errorf("retention tick must be from 100ms to 24h, got %s", c.Tick)
	}
	if c.Lease != 0 && c.Lease < lease.MinTTL {
		return fmt.Errorf("leader lease must be at least %s, got %s", lease.MinTTL, c.Lease)
	}
	if c.DeadRetryAge > 0 && (c.DeadRetryMost < 1 || c.DeadRetryMost > 255) {
		return fmt.Errorf("automatic retries of a dead letter must be from 1 to 255, got %d", c.DeadRetryMost)
	}
	if c.ArchiveAge < 0 || c.DeadAge < 0 || c.AuditAge < 0 || c.DeadRetryAge < 0 {
		return errors.New("retention ages must not be negative")
	}
	return nil
}

// Store is what the service needs of the store.
type Store interface {
	NewTerm(ctx context.Context, holder string) (int64, error)
	Trim(ctx context.Context, t store.Trim) (store.Trimmed, error)
	TrimAudit(ctx context.Context, term int64, before time.Time, limit int) (store.Trimmed, error)
	Namespaces(ctx context.Context, after string, limit int) (store.Page[string], error)
	Usage(ctx context.Context, namespaces []string) ([]store.Usage, error)
	Quotas(ctx context.Context, namespaces []string) ([]store.Document, error)
	Retryable(ctx context.Context, q store.Retryable) (store.Page[string], error)
	Replay(ctx context.Context, r store.Replay) ([]store.Replayed, error)
}

// Deps is what the service works with.
type Deps struct {
	Store Store
	// JetStream keeps the lease. Nil: there is none, so nobody leads.
	JetStream jetstream.JetStream
	// Ready tells the gates of namespaces whose dead letters went back to pending;
	// nil: they find out by themselves.
	Ready func(namespaces []string)
	// Tell takes what a sweep did by namespace, as [wire.SweepReport] in JSON;
	// nil: nobody is told.
	Tell func(report []byte)
	// Count takes how many dead letters of a namespace went back to pending, as
	// [wire.AdmissionReport] in JSON; nil: nobody counts.
	Count func(report []byte)
	// Events tells tenants of them; nil: they are not told.
	Events *events.Publisher
	// Holder is this process's name in the election, for people.
	Holder     string
	Log        zerolog.Logger
	Registerer prometheus.Registerer // nil: metrics are kept but not shown
}

// Service is one process's part in retention. Make it with [New].
type Service struct {
	cfg     Config
	deps    Deps
	bounds  bounds
	metrics *metrics
	elector *lease.Elector // nil: out of the election
}

// New makes the service. It starts nothing.
func New(cfg Config, deps Deps) (*Service, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	if deps.Store == nil {
		return nil, errors.New("retention needs a store")
	}
	m, err := newMetrics(deps.Registerer)
	if err != nil {
		return nil, fmt.Errorf("retention metrics: %w", err)
	}
	s := &Service{cfg: cfg, deps: deps, bounds: normalBounds, metrics: m}
	if cfg.Maintenance && deps.JetStream != nil {
		s.elector = lease.New(deps.JetStream, lease.Options{
			Key:    leaseKey,
			Holder: deps.Holder,
			TTL:    cfg.Lease,
			Term:   func(ctx context.Context) (int64, error) { return deps.Store.NewTerm(ctx, deps.Holder) },
			Ready:  func(ctx context.Context) error { return s.sweeper(0).probe(ctx) },
			Log:    deps.Log,
		})
	}
	return s, nil
}

// leaseKey is what is led, in the lease bucket.
const leaseKey = "retention"

// Role is a process's part in the election.
type Role string

// The roles.
const (
	Leader   Role = "leader"
	Follower Role = "follower" // another process leads, or an election is on
	Off      Role = "off"      // kept out of the election by its configuration
	Nobody   Role = "nobody"   // there can be no leader now, and so no deletes
)

// State is how things stand, for health.
type State struct {
	Role   Role
	Reason string // of Nobody
	Term   int64  // of Leader
}

// State tells this process's part.
func (s *Service) State() State {
	switch {
	case !s.cfg.Maintenance:
		return State{Role: Off}
	case s.elector == nil:
		return State{Role: Nobody, Reason: "no JetStream"}
	}
	st := s.elector.State()
	switch {
	case st.Leading:
		return State{Role: Leader, Term: st.Term}
	case st.Problem != "":
		return State{Role: Nobody, Reason: st.Problem}
	}
	return State{Role: Follower}
}

// Check is for health: an error when history cannot be deleted because there
// can be no leader. The installation is degraded then, not unready.
func (s *Service) Check(context.Context) error {
	if st := s.State(); st.Role == Nobody {
		return fault.New(fault.StorageUnavailable, "no retention: %s", st.Reason)
	}
	return nil
}
