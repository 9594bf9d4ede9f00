package sqlite

import (
	"context"
	"math"
	"slices"
	"time"

	"flexiq/pkg/fault"
	"flexiq/pkg/store"
)

const (
	overrideColumns = `kind, name, max_concurrent, paused, max_attempts, timeout, priority, updated_at, updated_by`
	selectOverrides = `SELECT ` + overrideColumns + ` FROM overrides WHERE ns = ? ORDER BY kind, name`
	selectOverride  = `SELECT ` + overrideColumns + ` FROM overrides WHERE ns = ? AND kind = ? AND name = ?`
	upsertOverride  = `INSERT INTO overrides (ns, ` + overrideColumns + `) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
		ON CONFLICT (ns, kind, name) DO UPDATE SET max_concurrent = excluded.max_concurrent, paused = excluded.paused,
			max_attempts = excluded.max_attempts, timeout = excluded.timeout, priority = excluded.priority,
			updated_at = excluded.updated_at, updated_by = excluded.updated_by`
	deleteOverride = `DELETE FROM overrides WHERE ns = ? AND kind = ? AND name = ?`
)

func (r *row) override(ns string) store.Override {
	o := store.Override{Namespace: ns, Kind: store.OverrideKind(r.text()), Name: r.text(), MaxConcurrent: r.maybe()}
	if n := r.maybe(); n != nil {
		o.Paused = new(*n != 0)
	}
	if n := r.maybe(); n != nil {
		o.MaxAttempts = new(int32(*n))
	}
	if n := r.maybe(); n != nil {
		o.Timeout = new(time.Duration(*n) * time.Microsecond)
	}
	if n := r.maybe(); n != nil {
		o.Priority = new(int32(*n))
	}
	o.UpdatedAt, o.UpdatedBy = r.time(), r.text()
	return o
}

// Overrides implements [store.Overrides].
func (s *Store) Overrides(ctx context.Context, namespaces []string) ([][]store.Override, error) {
	out := make([][]store.Override, 0, len(namespaces))
	for part := range slices.Chunk(namespaces, interestsAtOnce) {
		err := s.read(ctx, "overrides", func(t *tx) error {
			for _, name := range part {
				sp, err := t.space(name)
				if err != nil {
					return err
				}
				of, err := t.overrides(sp)
				if err != nil {
					return err
				}
				out = append(out, of)
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (t *tx) overrides(sp *space) (out []store.Override, err error) {
	err = t.each(selectOverrides, func(r *row) bool {
		out = append(out, r.override(sp.name))
		return true
	}, sp.id)
	return out, err
}

// PutOverride implements [store.Overrides].
func (s *Store) PutOverride(ctx context.Context, o store.Override, audit store.Record) error {
	return s.setOverride(ctx, "put override", o.Namespace, o.Kind, o.Name, audit, func(t *tx, sp *space, _ *store.Override) (*store.Override, error) {
		if err := t.create(sp); err != nil {
			return nil, err
		}
		var paused, timeout any
		if o.Paused != nil {
			paused = *o.Paused
		}
		if o.Timeout != nil {
			timeout = *o.Timeout
		}
		return &o, t.exec(upsertOverride, sp.id, string(o.Kind), o.Name, number(o.MaxConcurrent), paused, number(o.MaxAttempts), timeout,
			number(o.Priority), t.now, o.UpdatedBy)
	})
}

// ClearOverride implements [store.Overrides].
func (s *Store) ClearOverride(ctx context.Context, ns string, kind store.OverrideKind, name string, audit store.Record) error {
	return s.setOverride(ctx, "clear override", ns, kind, name, audit, func(t *tx, sp *space, old *store.Override) (*store.Override, error) {
		if old == nil {
			return nil, fault.Missing("override")
		}
		return nil, t.exec(deleteOverride, sp.id, string(kind), name)
	})
}

// setOverride changes one override; write gives what it is then.
func (s *Store) setOverride(ctx context.Context, op, ns string, kind store.OverrideKind, name string, audit store.Record,
	write func(t *tx, sp *space, old *store.Override) (*store.Override, error)) error {
	moves := false
	err := s.write(ctx, op, func(t *tx) error {
		sp, err := t.space(ns)
		if err != nil {
			return err
		}
		var old *store.Override
		_, err = t.one(selectOverride, func(r *row) { old = new(r.override(ns)) }, sp.id, string(kind), name)
		if err != nil {
			return err
		}
		now, err := write(t, sp, old)
		if err != nil {
			return err
		}
		audit.Outcome, audit.Old, audit.New = "ok", "", ""
		if old != nil {
			audit.Old = old.JSON()
		}
		if now != nil {
			audit.New = now.JSON()
		}
		if err := t.record(&audit); err != nil {
			return err
		}
		had, has := old != nil && old.Holds(), now != nil && now.Holds()
		if moves = kind == store.OverrideTask && had != has; moves {
			return t.startRelabelling(sp.id, name, has)
		}
		return nil
	})
	if err == nil && moves {
		err = s.relabelFor(ctx, relabelTime, ns)
	}
	return err
}

// number is a number or NULL.
func number[N int32 | int64](n *N) any {
	if n == nil {
		return nil
	}
	return int64(*n)
}

// limit is what an override lets a turn do with a queue or a task.
type limit struct {
	hold store.Hold
	room int64 // 0 when it is paused or at its cap
}

const (
	runningOfQueue = `SELECT coalesce(sum(running), 0) FROM lanes WHERE ns = ? AND queue = ?`
	runningOfTask  = `SELECT coalesce(sum(running), 0) FROM lanes INDEXED BY lanes_lane WHERE ns = ? AND lane = ? AND lane <> ''`
)

// limits are a namespace's overrides as a turn obeys them.
type limits struct{ queues, tasks map[string]*limit }

// limits reads them, with the running jobs of each.
func (t *tx) limits(sp *space) (out limits, err error) {
	all, err := t.overrides(sp)
	if err != nil {
		return out, err
	}
	for i := range all {
		o := &all[i]
		if !o.Holds() {
			continue
		}
		into, count, pause, cap := &out.queues, runningOfQueue, store.HoldPausedQueue, store.HoldQueue
		if o.Kind == store.OverrideTask {
			into, count, pause, cap = &out.tasks, runningOfTask, store.HoldPausedTask, store.HoldTask
		}
		l := &limit{hold: store.Hold{What: pause, Name: o.Name}}
		if !o.IsPaused() {
			running := int64(0)
			if _, err := t.one(count, func(r *row) { running = r.int() }, sp.id, o.Name); err != nil {
				return out, err
			}
			l.hold.What, l.room = cap, max(0, *o.MaxConcurrent-running)
		}
		if *into == nil {
			*into = make(map[string]*limit)
		}
		(*into)[o.Name] = l
	}
	return out, nil
}

// of are those that hold jobs of a queue and a task; either may be nil.
func (l limits) of(queue, task string) [2]*limit { return [2]*limit{l.queues[queue], l.tasks[task]} }

// least is the room of the tighter of two limits.
func least(of [2]*limit) int64 {
	room := int64(math.MaxInt64)
	for _, l := range of {
		if l != nil {
			room = min(room, l.room)
		}
	}
	return room
}
