package redis

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"flexiq/pkg/fault"
	"flexiq/pkg/store"
)

// relabelTime is what a change of an override may take for moving jobs.
const relabelTime = time.Second

func overrideField(kind store.OverrideKind, name string) string { return string(kind) + ":" + name }

// readOverride reads a field and its value: the cap, 1 when it is paused, when
// and, with its length, by whom it was set, and all that is set as the trail
// shows it.
func readOverride(ns, field, value string) (store.Override, error) {
	o := store.Override{Namespace: ns}
	kind, name, _ := strings.Cut(field, ":")
	o.Kind, o.Name = store.OverrideKind(kind), name
	parts := strings.SplitN(value, ";", 5)
	bad := fmt.Errorf("redis: the override %s of namespace %s cannot be read", field, ns)
	if len(parts) != 5 {
		return o, bad
	}
	n, err := strconv.Atoi(parts[3])
	if err != nil || n < 0 || n > len(parts[4]) {
		return o, bad
	}
	o.UpdatedAt, o.UpdatedBy = instant(integer(parts[2])), parts[4][:n]
	set := struct {
		MaxConcurrent *int64         `json:"max_concurrent"`
		Paused        *bool          `json:"paused"`
		MaxAttempts   *int32         `json:"max_attempts"`
		Timeout       *time.Duration `json:"timeout_ns"`
		Priority      *int32         `json:"priority"`
	}{}
	if err := json.Unmarshal([]byte(parts[4][n:]), &set); err != nil {
		return o, bad
	}
	o.MaxConcurrent, o.Paused, o.MaxAttempts, o.Timeout, o.Priority = set.MaxConcurrent, set.Paused, set.MaxAttempts, set.Timeout, set.Priority
	return o, nil
}

// Overrides implements [store.Overrides].
func (s *Store) Overrides(ctx context.Context, namespaces []string) ([][]store.Override, error) {
	cmds := make([]*command, len(namespaces))
	for i, ns := range namespaces {
		cmds[i] = plain("hgetall", s.key(tag(ns), "overrides"))
	}
	if err := s.run(ctx, again, cmds...); err != nil {
		return nil, s.fail(ctx, "overrides", err)
	}
	out := make([][]store.Override, len(namespaces))
	for i, c := range cmds {
		for r := c.list(); r.more(); {
			field := r.text()
			o, err := readOverride(namespaces[i], field, r.text())
			if err != nil {
				return nil, s.fail(ctx, "overrides", err)
			}
			out[i] = append(out[i], o)
		}
		slices.SortFunc(out[i], func(a, b store.Override) int { return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name)) })
	}
	return out, nil
}

// PutOverride implements [store.Overrides].
func (s *Store) PutOverride(ctx context.Context, o store.Override, audit store.Record) error {
	most := any("")
	if o.MaxConcurrent != nil {
		most = *o.MaxConcurrent
	}
	err := s.setOverride(ctx, o.Namespace, overrideField(o.Kind, o.Name), 1, most, flag(o.IsPaused()), o.JSON(), o.UpdatedBy, fixed(&audit))
	return s.fail(ctx, "put override", err)
}

// ClearOverride implements [store.Overrides].
func (s *Store) ClearOverride(ctx context.Context, ns string, kind store.OverrideKind, name string, audit store.Record) error {
	field := overrideField(kind, name)
	c := plain("hexists", s.key(tag(ns), "overrides"), field)
	err := s.run(ctx, again, c)
	switch {
	case err != nil:
	case c.int() == 0:
		err = fault.Missing("override") // and nothing is registered for it
	default:
		err = s.setOverride(ctx, ns, field, 0, "", "", "", "", fixed(&audit))
	}
	return s.fail(ctx, "clear override", err)
}

// setOverride changes one override and moves jobs between lanes, if it has to.
func (s *Store) setOverride(ctx context.Context, ns, field string, change ...any) error {
	a, err := s.announce(ctx, string(store.KindOverride)+":"+ns, ns)
	if err != nil {
		return err
	}
	c := s.on(tag(ns), overrideScript, append([]any{a.revision, a.term, field}, change...)...)
	if err := s.run(ctx, once, c); err != nil {
		return err // what was announced stands for a minute: nobody knows whether it was done
	}
	if err := s.finish(ctx, a, c.int() != 0); err != nil {
		return err
	}
	switch c.int() {
	case 0:
		return fault.Missing("override")
	case 2:
		return s.relabelFor(ctx, relabelTime, ns)
	}
	return nil
}

// relabelFor moves jobs of a namespace for a while, or to the end. What it
// leaves, the turns of the namespace do.
func (s *Store) relabelFor(ctx context.Context, d time.Duration, ns string) error {
	for until, more := time.Now().Add(d), true; more && time.Now().Before(until); {
		c := s.on(tag(ns), relabelScript)
		if err := s.run(ctx, again, c); err != nil {
			return err
		}
		more = c.int() == 1
	}
	return nil
}
