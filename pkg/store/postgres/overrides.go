package postgres

import (
	"context"
	"time"

	"flexiq/pkg/fault"
	"flexiq/pkg/store"
)

const overrideColumns = `kind, name, max_concurrent, paused, max_attempts, timeout, priority, updated_at, updated_by`

var (
	selectOverrides = statement(`select u.at, o.* from unnest($1::int[], $2::text[]) u(at, ns)
		cross join lateral (select ` + overrideColumns + ` from flexiq.overrides where ns = u.ns order by ns, kind, name) o order by u.at, o.kind, o.name`)
	selectOverride = statement(`select 0, ` + overrideColumns + ` from flexiq.overrides where ns = $1 and kind = $2 and name = $3`)
	upsertOverride = statement(`insert into flexiq.overrides (ns, ` + overrideColumns + `) values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
		on conflict (ns, kind, name) do update set max_concurrent = excluded.max_concurrent, paused = excluded.paused,
			max_attempts = excluded.max_attempts, timeout = excluded.timeout, priority = excluded.priority,
			updated_at = excluded.updated_at, updated_by = excluded.updated_by`)
	deleteOverride = statement(`delete from flexiq.overrides where ns = $1 and kind = $2 and name = $3`)
)

func scanOverride(scan func(...any) error) (at int32, o store.Override, err error) {
	var timeout *int64
	var updated int64
	err = scan(&at, (*string)(&o.Kind), &o.Name, &o.MaxConcurrent, &o.Paused, &o.MaxAttempts, &timeout, &o.Priority, &updated, &o.UpdatedBy)
	if timeout != nil {
		o.Timeout = new(time.Duration(*timeout))
	}
	o.UpdatedAt = instant(updated)
	return at, o, err
}

// Overrides implements [store.Overrides].
func (s *Store) Overrides(ctx context.Context, namespaces []string) ([][]store.Override, error) {
	out := make([][]store.Override, len(namespaces))
	places := make([]int32, len(namespaces))
	for i := range places {
		places[i] = int32(i)
	}
	err := s.query(ctx, "overrides", func(b *batch) {
		clear(out)
		b.each(selectOverrides, func(scan func(...any) error) error {
			at, o, err := scanOverride(scan)
			o.Namespace = namespaces[at]
			out[at] = append(out[at], o)
			return err
		}, places, namespaces)
	})
	return out, err
}

// PutOverride implements [store.Overrides].
func (s *Store) PutOverride(ctx context.Context, o store.Override, audit store.Record) error {
	err := s.write(ctx, "put override", func(ctx context.Context, t *tx) error {
		t.repeatable = true
		return t.commit(ctx, func(b *batch) { b.exec(createNamespaces, []string{o.Namespace}) })
	})
	if err != nil {
		return err
	}
	return s.setOverride(ctx, "put override", &overriding{ns: o.Namespace, kind: o.Kind, name: o.Name, now: &o, audit: audit})
}

// ClearOverride implements [store.Overrides].
func (s *Store) ClearOverride(ctx context.Context, ns string, kind store.OverrideKind, name string, audit store.Record) error {
	if storable(name) != name {
		return fault.Missing("override")
	}
	return s.setOverride(ctx, "clear override", &overriding{ns: ns, kind: kind, name: name, audit: audit})
}

// overriding is one change of an override.
type overriding struct {
	ns, name string
	kind     store.OverrideKind
	now      *store.Override // nil clears
	audit    store.Record
	moves    bool // jobs move between lanes
}

func (s *Store) setOverride(ctx context.Context, op string, c *overriding) error {
	err := s.write(ctx, op, c.try)
	if err == nil && c.moves {
		err = s.relabelFor(ctx, relabelTime, c.ns)
	}
	return s.fail(ctx, op, err)
}

func (c *overriding) try(ctx context.Context, t *tx) error {
	var old *store.Override
	var now time.Time
	held := make(map[string]bool)
	err := t.read(ctx, func(b *batch) {
		b.lock([]string{c.ns}, locking{}, held)
		t.s.time(b, &now)
		b.each(selectOverride, func(scan func(...any) error) error {
			_, o, err := scanOverride(scan)
			old = &o
			return err
		}, c.ns, string(c.kind), c.name)
	})
	if err != nil {
		return err
	}
	if c.now == nil && old == nil {
		return fault.Missing("override")
	}
	if !held[c.ns] {
		return errHeld // it was erased since it got its row
	}
	r := c.audit
	r.Outcome, r.Old, r.New = "ok", "", ""
	if old != nil {
		r.Old = old.JSON()
	}
	had, has := old != nil && old.Holds(), c.now != nil && c.now.Holds()
	c.moves = c.kind == store.OverrideTask && had != has
	return t.commit(ctx, func(b *batch) {
		if o := c.now; o != nil {
			r.New = o.JSON()
			b.exec(upsertOverride, c.ns, string(c.kind), c.name, o.MaxConcurrent, o.Paused, o.MaxAttempts, (*int64)(o.Timeout), o.Priority,
				micros(now), o.UpdatedBy)
		} else {
			b.exec(deleteOverride, c.ns, string(c.kind), c.name)
		}
		if c.moves {
			label := ""
			if has {
				label = c.name
			}
			b.exec(relabelRunning, c.ns, c.name, label)
			b.exec(markRelabel, c.ns)
		}
		b.record(&r, now)
	})
}
