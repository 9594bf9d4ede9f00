package dispatchgate

import (
	"context"
	"time"

	"flexiq/pkg/fault"
	"flexiq/pkg/store"
)

const (
	// expireBatch is how many leases one store call ends.
	expireBatch = 500

	// storeTimeout bounds one store call of the background.
	storeTimeout = 10 * time.Second
)

// expire ends the attempts whose leases have ended, all of them. Every gate
// does it; each lease is ended by one.
func (s *Service) expire(ctx context.Context) {
	for ctx.Err() == nil {
		ended, err := s.expireSome(ctx)
		if err != nil {
			if ctx.Err() == nil {
				s.failing.Do(func() { s.log.Warn().Err(err).Msg("ended leases could not be recovered") })
			}
			return
		}
		if len(ended) > 0 {
			s.returned(ended)
		}
		if len(ended) < expireBatch {
			return
		}
	}
}

func (s *Service) expireSome(ctx context.Context) ([]store.Ended, error) {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	return s.store.Expire(ctx, expireBatch)
}

// returned wakes whoever waits for the jobs or the slots of ended attempts,
// here and in the other gates.
func (s *Service) returned(ended []store.Ended) {
	var namespaces []string
	seen := make(map[string]bool)
	s.roster.expired(ended)
	s.tellExpired(ended)
	s.log.Info().Int("jobs", len(ended)).Msg("leases ended without a settlement")
	for _, e := range ended {
		s.metrics.expired(e.State)
		s.log.Debug().Str("namespace", e.Namespace).Str("queue", e.Queue).Str("job", e.JobID).
			Str("state", string(e.State)).Msg("lease ended")
		if !seen[e.Namespace] {
			seen[e.Namespace] = true
			namespaces = append(namespaces, e.Namespace)
		}
	}
	s.Freed(namespaces)
	s.Woken(namespaces)
	s.hints.PublishFreed(namespaces)
	s.hints.PublishReady(namespaces)
}

// lookRound asks the store once for everything that waits here, so that a lost
// hint costs no more than the interval.
func (s *Service) lookRound(ctx context.Context) {
	var (
		parked    [][]*line
		interests []store.Interest
	)
	for _, l := range s.lanes {
		var lines []*line
		l.with(func(r *room) {
			lines = r.parked()
			for _, p := range lines {
				interests = append(interests, store.Interest{Namespace: p.tenant.name, Queues: p.queues})
			}
		})
		parked = append(parked, lines)
	}
	if len(interests) == 0 {
		return
	}
	found, err := s.ready(ctx, interests)
	if err != nil {
		if ctx.Err() != nil {
			return
		}
		s.failing.Do(func() { s.log.Warn().Err(err).Msg("the store could not be asked for waiting work") })
		return
	}
	for i, l := range s.lanes {
		l.with(func(r *room) {
			for k, p := range parked[i] {
				r.looked(p, found[k], time.Now())
			}
		})
		found = found[len(parked[i]):]
	}
}

func (s *Service) ready(ctx context.Context, interests []store.Interest) ([]store.Readiness, error) {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	found, err := s.store.Ready(ctx, interests)
	if err == nil && len(found) != len(interests) {
		err = fault.New(fault.Internal, "%d answers to %d interests", len(found), len(interests))
	}
	return found, err
}
