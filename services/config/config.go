// Package config is the operators' door: it reads and writes quotas and
// overrides, shows usage and the audit trail, shows, deletes and replays dead letters, and makes
// and revokes tokens. It implements AdminService.
//
// A write is one step of the store, with its audit record in it. Then this
// process's caches let go of the old value, a hint tells the other processes,
// and only then the caller gets its answer. Hints may be lost; every process
// also asks the store once a second, so a lost one costs two seconds. A refused
// write is recorded too, also one that the transport refused (see [refused]).
//
// The namespace is always the token's. A platform token has none: it reaches
// the installation's default quota, tokens of any namespace and the list of
// namespaces, and nothing else.
//
// It also tells of what happens: it streams events, and of all processes that
// run it one tells when a namespace's use of a limit crosses a mark (watch.go).
//
// What needs no I/O stands apart: marks.go (which marks are reached, and who
// watches), limits.go (what a quota means beside a
// usage), ranking.go (the fullest namespaces), minute.go (a sliding minute),
// progress.go (who has caught up with a change).
package config

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"flexiq/pkg/configcache"
	"flexiq/pkg/events"
	"flexiq/pkg/job"
	"flexiq/pkg/rpc"
	"flexiq/pkg/store"
)

// Config is how the service runs.
type Config struct {
	// Process is the name under which this process reports its progress.
	Process string
	// MaxWait is how long a write with wait waits for the processes at most.
	MaxWait time.Duration
	// MaxPayload is how many bytes a job's payload or args may have.
	MaxPayload int
	// Settle is the time after which every process has noticed what the store
	// holds, and what it had let in before is done.
	Settle time.Duration
}

// DefaultConfig waits five seconds, and lets as much time pass as caches may be
// old. Process has no default.
func DefaultConfig() Config {
	return Config{MaxWait: 5 * time.Second, MaxPayload: job.DefaultMaxPayload, Settle: configcache.Validity + settleMargin}
}

// Store is what the service needs of the store.
type Store interface {
	store.Quotas
	store.Tokens
	store.Trail
	store.Jobs
	store.Letters
	store.Settings
	EraseNamespace(ctx context.Context, ns string, limit int) (store.Erased, error)
	store.Schedules
	store.Triggers
	Admit(ctx context.Context, calls []store.Call) ([]store.Outcome, error)
	store.Insight
	store.Overrides
}

// Bus carries hints out and reports in.
type Bus interface {
	// PublishConfig tells every process that an object changed, and flushes.
	PublishConfig(kind store.Kind, key string, revision int64)
	// PublishReady tells the gates that namespaces have new work.
	PublishReady(namespaces []string)
	// CheckTriggerStream makes sure that a stream holds only messages of a namespace's triggers.
	CheckTriggerStream(ctx context.Context, stream, namespace string) error
	// OnStats hears what admission counted.
	OnStats(func(report []byte)) (stop func(), err error)
	// OnSweep hears what retention sweeps did.
	OnSweep(func(report []byte)) (stop func(), err error)
	// OnDispatch hears what gates saw of workers and finished attempts.
	OnDispatch(func(report []byte)) (stop func(), err error)
	// PublishStats counts what this process brought in; see [wire.AdmissionReport].
	PublishStats(report []byte)
	// ListenEvents hears the events of a namespace, given as a token of a subject.
	ListenEvents(nsToken string, f events.Filter) (*events.Listener, error)
	// PublishMarks and OnMarks keep the processes that watch limits from telling of one crossing twice.
	PublishMarks(report []byte)
	OnMarks(func(report []byte)) (stop func(), err error)
	// OnProgress hears how far processes have caught up; see [Report].
	OnProgress(func(report []byte)) (stop func(), err error)
}

// Deps is what the service works with. All but Events and Registerer are required.
type Deps struct {
	Store Store
	Bus   Bus
	// Invalidate makes this process's caches let go of an object.
	Invalidate func(kind store.Kind, key string, revision int64)
	// Cut closes the open NATS connections of a token.
	Cut        func(tokenID string)
	Events     *events.Publisher // nil: nobody is told of anything
	Log        zerolog.Logger
	Registerer prometheus.Registerer // nil: metrics are kept but not shown
}

// Service serves AdminService. Make it with [New].
type Service struct {
	cfg      Config
	store    Store
	deps     Deps
	metrics  *metrics
	minute   minute
	sweeps   sweeps
	crews    crews
	progress *progress
	changed  *changedTokens
	board    *board
	stopped  chan struct{} // closed when Run has ended: streams end
	stopping sync.Once
}

// New makes the service. It starts nothing.
func New(cfg Config, deps Deps) (*Service, error) {
	switch {
	case cfg.Process == "":
		return nil, errors.New("config needs the process's name")
	case cfg.MaxWait <= 0:
		return nil, fmt.Errorf("config: the longest wait must be positive, got %s", cfg.MaxWait)
	case deps.Store == nil || deps.Bus == nil || deps.Invalidate == nil || deps.Cut == nil:
		return nil, errors.New("config needs a store, a bus, caches to invalidate and connections to cut")
	}
	m, err := newMetrics(deps.Registerer)
	if err != nil {
		return nil, fmt.Errorf("config metrics: %w", err)
	}
	return &Service{
		cfg: cfg, store: deps.Store, deps: deps, metrics: m,
		progress: newProgress(cfg.Process), changed: newChangedTokens(),
		board: newBoard(cfg.Process + "/" + uuid.NewString()), stopped: make(chan struct{}),
	}, nil
}

// Methods are the methods of AdminService, for the doors.
func (s *Service) Methods() []rpc.Method {
	return []rpc.Method{
		rpc.Unary("GetQuota", s.getQuota),
		write(s, "SetQuota", s.setQuota),
		write(s, "EditQuota", s.editQuota),
		write(s, "ClearQuota", s.clearQuota),
		rpc.Unary("GetUsage", s.getUsage),
		rpc.Unary("ListNamespaces", s.listNamespaces),
		rpc.Unary("ListQueues", s.listQueues),
		rpc.Unary("ListWorkers", s.listWorkers),
		rpc.Unary("Explain", s.explain),
		rpc.Unary("ListDeadLetters", s.listDeadLetters),
		rpc.Unary("GetDeadLetter", s.getDeadLetter),
		write(s, "DeleteDeadLetters", s.deleteDeadLetters),
		write(s, "ReplayDeadLetters", s.replayDeadLetters),
		write(s, "PutSchedule", s.putSchedule),
		write(s, "DeleteSchedule", s.deleteSchedule),
		write(s, "PauseSchedule", s.pauseSchedule),
		write(s, "ResumeSchedule", s.resumeSchedule),
		write(s, "RunSchedule", s.runSchedule),
		rpc.Unary("ListSchedules", s.listSchedules),
		write(s, "PutTrigger", s.putTrigger),
		write(s, "DeleteTrigger", s.deleteTrigger),
		rpc.Unary("ListTriggers", s.listTriggers),
		write(s, "SetOverride", s.setOverride),
		write(s, "ClearOverride", s.clearOverride),
		rpc.Unary("ListOverrides", s.listOverrides),
		rpc.Unary("ListAudit", s.listAudit),
		write(s, "CreateToken", s.createToken),
		rpc.Unary("ListTokens", s.listTokens),
		write(s, "RevokeToken", s.revokeToken),
		write(s, "ExchangeToken", s.exchangeToken),
		write(s, "DeleteNamespace", s.deleteNamespace),
		rpc.Unary("GetSetting", s.getSetting),
		rpc.Unary("ListSettings", s.listSettings),
		write(s, "PutSetting", s.putSetting),
		write(s, "DeleteSetting", s.deleteSetting),
		rpc.Stream("WatchEvents", s.watchEvents),
	}
}

// Run hears reports, watches the use of limits, and cuts the connections of
// tokens that were revoked by other processes, until ctx ends; then it ends the
// streams of events and returns nil. It fails when it cannot subscribe.
func (s *Service) Run(ctx context.Context) error {
	defer s.stopping.Do(func() { close(s.stopped) })
	stopStats, err := s.deps.Bus.OnStats(s.hearStats)
	if err != nil {
		return fmt.Errorf("hear admission's reports: %w", err)
	}
	defer stopStats()
	stopSweep, err := s.deps.Bus.OnSweep(s.hearSweep)
	if err != nil {
		return fmt.Errorf("hear retention's reports: %w", err)
	}
	defer stopSweep()
	stopDispatch, err := s.deps.Bus.OnDispatch(s.hearDispatch)
	if err != nil {
		return fmt.Errorf("hear the gates' reports: %w", err)
	}
	defer stopDispatch()
	s.crews.listen(time.Now())
	stopProgress, err := s.deps.Bus.OnProgress(s.hearProgress)
	if err != nil {
		return fmt.Errorf("hear progress: %w", err)
	}
	defer stopProgress()
	s.progress.listen(time.Now())
	stopMarks, err := s.deps.Bus.OnMarks(s.hearMarks)
	if err != nil {
		return fmt.Errorf("hear the use of limits: %w", err)
	}
	defer stopMarks()
	var watching sync.WaitGroup
	watching.Go(func() { s.watchMarks(ctx) })
	s.cutRevoked(ctx)
	watching.Wait()
	return nil
}

// announce lets go of an object here and tells the other processes.
func (s *Service) announce(kind store.Kind, key string, revision int64) {
	s.deps.Invalidate(kind, key, revision)
	s.deps.Bus.PublishConfig(kind, key, revision)
}

// Changed takes the news that an object changed, from a hint or from a poll of
// the store. It does not block.
func (s *Service) Changed(kind store.Kind, key string) {
	switch kind {
	case store.KindToken:
		s.changed.add(key)
	case store.KindQuota:
		s.board.moved(key)
	}
}
