package postgres

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"

	"flexiq/pkg/fault"
	"flexiq/pkg/store"
)

// maxPressed bounds how many namespaces are remembered to be at a limit.
const maxPressed = 10_000

// pressed remembers the namespaces whose last calls were all refused. The zero
// value remembers none.
type pressed struct {
	mu    sync.Mutex
	names map[string]struct{}
}

func (p *pressed) has(namespace string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, ok := p.names[namespace]
	return ok
}

func (p *pressed) set(namespace string, is bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case !is:
		delete(p.names, namespace)
	case len(p.names) < maxPressed:
		if p.names == nil {
			p.names = make(map[string]struct{})
		}
		p.names[namespace] = struct{}{}
	}
}

// refuse decides calls of namespaces that are pressed against a limit without
// their locks, and returns the others. A lock is written to the log of the
// server, and so is a refusal that took it; a flood of calls that are refused
// must not write. What was read was so at some moment after the call had come, and
// that is enough to refuse it. Where anything else came out nothing was done, and the
// namespace's calls are all decided under its lock.
func (s *Store) refuse(ctx context.Context, calls []store.Call, out []store.Outcome) (rest []int) {
	a := &admission{calls: calls, out: out}
	for i := range calls {
		if s.settings == "" && s.pressed.has(calls[i].Namespace) {
			a.units = append(a.units, i)
		} else {
			rest = append(rest, i)
		}
	}
	if len(a.units) == 0 {
		return rest
	}
	slices.SortStableFunc(a.units, func(i, j int) int { return strings.Compare(calls[i].Namespace, calls[j].Namespace) })
	for units := range a.byNamespace() {
		a.names = append(a.names, calls[units[0]].Namespace)
	}
	seen := newSight()
	err := s.tryWrite(ctx, func(ctx context.Context, t *tx) error {
		*seen = *newSight()
		t.repeatable, a.tx = true, t
		b := &batch{sql: s.sql}
		a.see(b, seen)
		return t.send(ctx, b)
	})
	for units := range a.byNamespace() {
		if err == nil {
			if d, _ := a.decide(units, seen); d.refusesAll() {
				for i, unit := range units {
					out[unit] = d.Outcomes[i]
				}
				continue
			}
		}
		s.pressed.set(calls[units[0]].Namespace, false)
		rest = append(rest, units...)
	}
	slices.Sort(rest)
	return rest
}

// refusesAll reports whether a plan refuses every call and writes nothing.
func (d decided) refusesAll() bool {
	for i := range d.Outcomes {
		var f *fault.Error
		if !errors.As(d.Outcomes[i].Err, &f) || f.Reason != fault.QueueFull && f.Reason != fault.RateLimited {
			return false
		}
	}
	return !d.Writes()
}
