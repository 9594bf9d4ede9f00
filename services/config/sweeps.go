package config

import (
	"sync"
	"time"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/wire"
)

// sweeps remembers the last retention sweep that it heard of. The zero value
// has heard of none.
type sweeps struct {
	mu   sync.Mutex
	last wire.SweepReport
}

// hear takes a report, or a part of one.
func (s *sweeps) hear(r wire.SweepReport) {
	s.mu.Lock()
	defer s.mu.Unlock()
	newer := r.Term > s.last.Term || r.Term == s.last.Term && r.At > s.last.At
	switch {
	case newer:
		s.last = r
	case r.Term == s.last.Term && r.At == s.last.At:
		if s.last.Namespaces == nil {
			s.last.Namespaces = make(map[string]wire.SweepCounts, len(r.Namespaces))
		}
		for ns, c := range r.Namespaces {
			s.last.Namespaces[ns] = c
		}
	}
}

// of is what the last sweep did in a namespace, nil when none was heard of.
func (s *sweeps) of(ns string) *flexiqv1.LastSweep {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last.At == 0 {
		return nil
	}
	c := s.last.Namespaces[ns]
	return &flexiqv1.LastSweep{
		Time: wire.Stamp(time.UnixMicro(s.last.At)), Completed: c.Completed, Cancelled: c.Cancelled, Dead: c.Dead, Shed: c.Shed,
		Retried: c.Retried, Blocked: c.Blocked, Left: c.Left, Skipped: c.Skipped,
	}
}

// hearSweep takes a report of the retention leader.
func (s *Service) hearSweep(data []byte) {
	r, err := wire.ParseSweepReport(data)
	if err != nil {
		s.metrics.badReports.Inc()
		s.deps.Log.Debug().Err(err).Msg("bad report")
		return
	}
	s.sweeps.hear(r)
	s.board.swept(r)
}
