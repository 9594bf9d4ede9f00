package admission

import (
	"context"
	"errors"
	"time"

	"flexiq/pkg/configcache"
	"flexiq/pkg/fault"
	"flexiq/pkg/store"
)

const (
	// maxTries bounds how often a call is repeated because its namespace's
	// quota changed under it. Quotas are written by people: a handful of
	// changes within one call's time means that something is wrong.
	maxTries = 5

	// loadTimeout bounds a load of a quota.
	loadTimeout = 5 * time.Second

	// unreadablePause is how long an unreadable quota is believed to be so. It is
	// looked at again for whoever comes later, so that its repair takes effect
	// at once even where no hint of it arrives, but not for each call of a flood.
	unreadablePause = 25 * time.Millisecond

	// jobOverhead is counted in a job's bytes beside its payload.
	jobOverhead = 512
)

// parcel is what one message brought: calls of one namespace, each a unit of
// its own, decided together or, when their quota changed meanwhile, in part.
type parcel struct {
	ctx      context.Context
	ns       string
	calls    []store.Call
	outcomes []store.Outcome // of the calls
	todo     []int           // the calls without an outcome
	tries    int
	done     func([]store.Outcome)
}

// jobs is the parcel's weight in a flush.
func (p *parcel) jobs() int {
	n := 0
	for _, i := range p.todo {
		n += len(p.calls[i].Jobs)
	}
	return n
}

func (p *parcel) bytes() int {
	n := 0
	for _, i := range p.todo {
		for j := range p.calls[i].Jobs {
			n += jobOverhead + len(p.calls[i].Jobs[j].Payload)
		}
	}
	return n
}

// enter starts the decision of a parcel's calls. It does not block.
func (s *Service) enter(p *parcel) {
	p.outcomes = make([]store.Outcome, len(p.calls))
	p.todo = make([]int, len(p.calls))
	for i := range p.todo {
		p.todo[i] = i
	}
	q, ok := s.quotas.Peek(p.ns)
	o, known := s.overrides.Peek(p.ns)
	switch {
	case ok && known && q.Err == nil:
		s.submit(p, q, o)
	case ok && q.Err != nil && s.justUnreadable(p.ns):
		s.finish(p, q.Err)
	default:
		s.load(p, ok && q.Err != nil)
	}
}

// justUnreadable reports whether the namespace's quota was found unreadable a
// moment ago.
func (s *Service) justUnreadable(ns string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	at, found := s.unreadable[ns]
	return found && time.Since(at) < unreadablePause
}

// load gives the parcel to the load of its namespace's quota and overrides, starting one when
// none is running. fresh drops what the cache holds.
func (s *Service) load(p *parcel, fresh bool) {
	s.mu.Lock()
	waiting, running := s.cold[p.ns]
	switch {
	case s.closed:
		s.mu.Unlock()
		s.finish(p, fault.New(fault.Overloaded, "admission is shutting down"))
		return
	case s.colds >= s.cfg.MaxCalls:
		s.mu.Unlock()
		s.finish(p, fault.New(fault.Overloaded, "admission is overloaded: %d calls wait for their quotas", s.cfg.MaxCalls))
		return
	}
	s.cold[p.ns] = append(waiting, p)
	s.colds++
	if !running {
		s.loads.Go(func() { s.loadQuota(p.ns, fresh) })
	}
	s.mu.Unlock()
}

// loadQuota loads a namespace's quota and overrides and lets the parcels go that wait for it.
func (s *Service) loadQuota(ns string, fresh bool) {
	ctx, cancel := context.WithTimeout(s.life, loadTimeout)
	defer cancel()
	if fresh {
		s.quotas.Invalidate(ns, 0)
	}
	q, err := s.quotas.Get(ctx, ns)
	var o configcache.Overrides
	if err == nil && q.Err == nil {
		o, err = s.overrides.Get(ctx, ns)
	}
	switch {
	case err != nil && ctx.Err() != nil:
		err = fault.Wrap(err, fault.StorageUnavailable, "the quota could not be read in time")
	case err == nil && q.Err != nil:
		err = q.Err
		s.warned.Do(func() { s.log.Warn().Str("namespace", ns).Err(err).Msg("unreadable quota") })
	}
	s.mu.Lock()
	if err == nil {
		delete(s.unreadable, ns)
	} else if q.Err != nil {
		s.unreadable[ns] = time.Now()
	}
	waiting := s.cold[ns]
	delete(s.cold, ns)
	s.colds -= len(waiting)
	s.mu.Unlock()
	for _, p := range waiting {
		if err != nil {
			s.finish(p, err)
		} else {
			s.submit(p, q, o)
		}
	}
}

// submit hands a parcel to the group commit, to be judged by q, with the defaults
// of o.
func (s *Service) submit(p *parcel, q configcache.Quota, o configcache.Overrides) {
	for _, i := range p.todo {
		p.calls[i].Quota, p.calls[i].Stamp = q.Quota, q.Stamp
		for k := range p.calls[i].Jobs {
			spec := &p.calls[i].Jobs[k]
			spec.Default(o.Defaults(spec.Queue, spec.Task))
		}
	}
	err := s.group.Submit(p.ns, p.bytes(), p, func(out []store.Outcome, err error) { s.decided(p, out, err) })
	if err != nil {
		s.finish(p, err)
	}
}

// decided takes the outcomes of a parcel's open calls. Those that were judged by
// a quota out of force go round again.
func (s *Service) decided(p *parcel, out []store.Outcome, err error) {
	if err != nil {
		s.finish(p, err)
		return
	}
	var stale []int
	for k, i := range p.todo {
		if errors.Is(out[k].Err, store.ErrStale) {
			stale = append(stale, i)
			continue
		}
		p.outcomes[i] = out[k]
	}
	p.todo = stale
	if len(stale) == 0 {
		s.finish(p, nil)
		return
	}
	s.metrics.stale.Add(float64(len(stale)))
	if p.tries++; p.tries == maxTries {
		s.finish(p, fault.New(fault.Overloaded, "the quota of the namespace keeps changing"))
		return
	}
	s.load(p, true)
}

// finish answers a parcel; err is the outcome of its open calls.
func (s *Service) finish(p *parcel, err error) {
	for _, i := range p.todo {
		p.outcomes[i].Err = err
	}
	p.todo = nil
	for i := range p.calls {
		s.count(p.ns, &p.calls[i], &p.outcomes[i])
	}
	p.done(p.outcomes)
}
