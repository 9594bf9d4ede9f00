package redis

import (
	"context"
	"fmt"
	"time"

	"flexiq/pkg/store"
)

// NewTerm implements [store.Retention]. Every registered namespace knows the
// term before it is answered.
func (s *Store) NewTerm(ctx context.Context, holder string) (int64, error) {
	c := s.on(installation, termScript, holder)
	if err := s.run(ctx, once, c); err != nil {
		return 0, s.fail(ctx, "new term", err)
	}
	r := c.list()
	st := standing{term: r.int(), revision: r.int()}
	if err := s.raise(ctx, st); err != nil {
		return 0, s.fail(ctx, "new term", err)
	}
	return st.term, nil
}

// byTime names the index by finished time of each table.
var byTime = map[store.Table]string{store.Archive: "archived", store.DeadLetters: "died"}

// The first numbers of a trim's reply.
const (
	trimDone = iota
	trimUnknown
	trimSuperseded
	trimStale
)

// Trim implements [store.Retention].
func (s *Store) Trim(ctx context.Context, t store.Trim) (store.Trimmed, error) {
	index, known := byTime[t.Table]
	if !known || (t.Keep == nil) == t.Before.IsZero() || t.Limit < 1 || t.Keep != nil && *t.Keep < 0 {
		return store.Trimmed{}, fmt.Errorf("redis: trim of %q must have a limit and exactly one of keep and before", t.Table)
	}
	stamp := []any{"", 0}
	if t.Stamp != nil {
		stamp = []any{t.Stamp.Revision, t.Stamp.Default}
	}
	c := s.on(tag(t.Namespace), trimScript, quotaField(t.Namespace), t.Term, index, stamp[0], stamp[1], maybe(t.Keep), micros(t.Before), min(t.Limit, 500))
	if err := s.run(ctx, once, c); err != nil {
		return store.Trimmed{}, s.fail(ctx, "trim", err)
	}
	r := c.list()
	switch r.int() {
	case trimDone:
		return store.Trimmed{Completed: r.int(), Cancelled: r.int(), Dead: r.int(), Shed: r.int(), More: r.bool()}, nil
	case trimUnknown:
		out, err := s.trimNothing(ctx, &t)
		return out, s.fail(ctx, "trim", err)
	case trimSuperseded:
		return store.Trimmed{Superseded: true}, nil
	case trimStale:
		return store.Trimmed{}, store.ErrStale
	}
	return store.Trimmed{}, s.fail(ctx, "trim", c.strange())
}

// trimNothing answers for a namespace that was never used.
func (s *Store) trimNothing(ctx context.Context, t *store.Trim) (store.Trimmed, error) {
	st, err := s.standing(ctx)
	switch {
	case err != nil:
		return store.Trimmed{}, err
	case t.Term < st.term:
		return store.Trimmed{Superseded: true}, nil
	case t.Stamp != nil && *t.Stamp != store.Stamp{Default: st.revision}:
		return store.Trimmed{}, store.ErrStale
	}
	return store.Trimmed{}, nil
}

// trailsAtOnce is how many trails TrimAudit looks at together.
const trailsAtOnce = 100

// TrimAudit implements [store.Retention]. The list of trails has them by a time
// before which they have no record, so that only those with old ones are asked.
func (s *Store) TrimAudit(ctx context.Context, term int64, before time.Time, limit int) (store.Trimmed, error) {
	out, err := s.trimAudit(ctx, term, micros(before), int64(max(limit, 1)))
	return out, s.fail(ctx, "trim audit", err)
}

func (s *Store) trimAudit(ctx context.Context, term, before, limit int64) (store.Trimmed, error) {
	var out store.Trimmed
	st, err := s.standing(ctx)
	if err != nil || term < st.term {
		out.Superseded = err == nil
		return out, err
	}
	for {
		trails := plain("zrange", s.key(installation, "trails"), "-inf", fmt.Sprintf("(%d", before), "byscore", "limit", 0, trailsAtOnce)
		if err := s.run(ctx, again, trails); err != nil {
			return out, err
		}
		names := trails.list()
		if !names.more() {
			return out, nil
		}
		for names.more() {
			if out.Audit == limit {
				out.More = true
				return out, nil
			}
			superseded, err := s.trimTrail(ctx, names.text(), term, before, limit, &out)
			if err != nil || superseded || out.More {
				return out, err
			}
		}
	}
}

// trimTrail deletes old records of one trail, up to the limit of them all.
func (s *Store) trimTrail(ctx context.Context, ns string, term, before, limit int64, out *store.Trimmed) (superseded bool, err error) {
	c := s.on(tag(ns), trimTrailScript, term, before, limit-out.Audit)
	if err := s.run(ctx, once, c); err != nil {
		return false, err
	}
	r := c.list()
	if r.int() != 0 {
		out.Superseded = out.Audit == 0
		return true, nil
	}
	out.Audit += r.int()
	if out.More = r.bool(); out.More {
		return false, nil
	}
	oldest := max(r.int(), before) // an empty trail gets only later records
	return false, s.run(ctx, again, plain("zadd", s.key(installation, "trails"), "xx", oldest, ns))
}
