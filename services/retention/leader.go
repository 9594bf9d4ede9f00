package retention

import (
	"context"
	"errors"
	"time"

	"flexiq/pkg/lease"
)

// probeEvery is how often a resting leader asks the store for a sign of life.
const probeEvery = 2500 * time.Millisecond

// Run takes part in the election until ctx ends, and sweeps while this process
// leads. It returns nil then.
func (s *Service) Run(ctx context.Context) error {
	if s.elector == nil {
		<-ctx.Done()
		return nil
	}
	return s.elector.Run(ctx, s.lead)
}

func (s *Service) sweeper(term int64) *sweeper {
	return &sweeper{
		store: s.deps.Store, cfg: s.cfg, bounds: s.bounds, log: s.deps.Log, term: term,
		pulse: &pulse{last: time.Now(), patience: s.bounds.patience}, guard: lease.Guard,
		ready: s.deps.Ready, count: s.deps.Count, events: s.deps.Events, holder: s.deps.Holder, retryFrom: make(map[string]string),
	}
}

// lead sweeps under a term until ctx ends or the leadership must.
func (s *Service) lead(ctx context.Context, term int64) error {
	log := s.deps.Log.With().Int64("term", term).Logger()
	log.Info().Msg("leading retention")
	s.metrics.leading.Set(1)
	sw := s.sweeper(term)
	sw.log = log
	err := keepSweeping(ctx, s.cfg.Tick, sw, func(r report, err error, took time.Duration) {
		s.record(r, err, took)
		if s.deps.Tell != nil && err == nil {
			sw.account.tell(term, sw.began, s.deps.Tell)
		}
	})
	s.metrics.leading.Set(0)
	log.Info().AnErr("reason", err).Msg("no longer leading retention")
	return err
}

// sweeps is what a leader does: a sweep, and between sweeps a probe of the store.
type sweeps interface {
	sweep(ctx context.Context) (report, error)
	probe(ctx context.Context) error
}

// keepSweeping sweeps at once and then every tick; while excess is left, and
// after a sweep that failed, a follow-up comes sooner. It returns when ctx ends
// (its error), on errSuperseded and on errSilent.
func keepSweeping(ctx context.Context, tick time.Duration, sw sweeps, done func(report, error, time.Duration)) error {
	for {
		started := time.Now()
		r, err := sw.sweep(ctx)
		took := time.Since(started)
		done(r, err, took)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if errors.Is(err, errSuperseded) || errors.Is(err, errSilent) {
			return err
		}
		if err := rest(ctx, pause(tick, took, r.Left || err != nil), sw); err != nil {
			return err
		}
	}
}

// rest waits and keeps asking whether the store is still there.
func rest(ctx context.Context, d time.Duration, sw sweeps) error {
	for ; d > probeEvery; d -= probeEvery {
		if !wait(ctx, probeEvery) {
			return ctx.Err()
		}
		started := time.Now()
		if err := sw.probe(ctx); errors.Is(err, errSilent) {
			return err
		}
		d -= time.Since(started)
	}
	if !wait(ctx, d) {
		return ctx.Err()
	}
	return nil
}

// record logs and counts one sweep.
func (s *Service) record(r report, err error, took time.Duration) {
	outcome := outcomeDone
	switch {
	case errors.Is(err, errSuperseded):
		outcome = outcomeSuperseded
	case err != nil:
		outcome = outcomeFailed
	case r.Left:
		outcome = outcomeLeft
	}
	s.metrics.swept(r, outcome, took)
	event := s.deps.Log.Debug()
	if r.rows() > 0 || r.Retried > 0 || r.Failed > 0 || r.Unreadable > 0 {
		event = s.deps.Log.Info()
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		event = s.deps.Log.Warn().Err(err)
	}
	event.Str("outcome", outcome).Dur("took", took).
		Int64(kindCompleted, r.Completed).Int64(kindCancelled, r.Cancelled).
		Int64(kindDead, r.Dead).Int64(kindShed, r.Shed).Int64(kindAudit, r.Audit).
		Int64("retried", r.Retried).Int64("blocked", r.Blocked).
		Int("namespaces", r.Namespaces).Int("failed", r.Failed).Int("unreadable", r.Unreadable).
		Msg("retention sweep")
}

// wait waits for d, false when ctx ended first.
func wait(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(max(d, 0))
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
