package model

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"flexiq/pkg/fault"
	"flexiq/pkg/store"
)

// name is that of a schedule or a trigger.
type name struct{ ns, name string }

// producers is what enqueues by the clock or for requests from outside.
type producers struct {
	schedules  map[name]*store.Schedule
	triggers   map[name]*store.Trigger
	signatures map[string]time.Time // until when, by namespace and signature
}

func newProducers() producers {
	return producers{map[name]*store.Schedule{}, map[name]*store.Trigger{}, map[string]time.Time{}}
}

// after lists what stands after a place, in order, with the place of the last
// when there are more.
func after[V any](all map[name]*V, from name, limit int, match func(*V) bool) (items []V, last name, more bool) {
	keys := make([]name, 0, len(all))
	for k := range all {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b name) int { return cmp.Or(cmp.Compare(a.ns, b.ns), cmp.Compare(a.name, b.name)) })
	for _, k := range keys {
		if cmp.Or(cmp.Compare(k.ns, from.ns), cmp.Compare(k.name, from.name)) <= 0 || !match(all[k]) {
			continue
		}
		if len(items) == limit {
			return items, last, true
		}
		items, last = append(items, *all[k]), k
	}
	return items, last, false
}

// PutSchedule implements [store.Schedules].
func (s *Store) PutSchedule(_ context.Context, c store.ScheduleChange) (store.Schedule, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before, now := s.schedules[name{c.Namespace, c.Name}], s.clock()
	next := c.Schedule
	next.LastSlot, next.LastAt, next.Refusal = time.Time{}, time.Time{}, store.Refusal{}
	next.Revision, next.UpdatedAt = now.UnixMicro(), now
	switch {
	case before == nil && c.Revision != 0, before != nil && c.Revision != 0 && c.Revision != before.Revision:
		return store.Schedule{}, fault.New(fault.RevisionMismatch, "the schedule was changed or fired meanwhile")
	case before != nil && !c.KeepNext && !c.NextAt.IsZero() && !c.NextAt.After(before.LastSlot):
		return store.Schedule{}, fault.New(fault.RevisionMismatch, "the schedule was changed or fired meanwhile")
	case before != nil:
		next.LastSlot, next.LastAt = before.LastSlot, before.LastAt
		if next.Revision <= before.Revision {
			next.Revision = before.Revision + 1
		}
	}
	if c.KeepNext {
		next.NextAt = time.Time{}
		if before != nil {
			next.NextAt, next.Refusal = before.NextAt, before.Refusal
		}
	}
	s.space(c.Namespace)
	s.schedules[name{c.Namespace, c.Name}] = &next
	s.done(c.Audit)
	return next, nil
}

// done records what is done.
func (s *Store) done(r store.Record) {
	r.Outcome = "ok"
	s.record(r)
}

// DeleteSchedule implements [store.Schedules].
func (s *Store) DeleteSchedule(_ context.Context, ns, which string, audit store.Record) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.schedules[name{ns, which}] == nil {
		return fault.Missing("schedule")
	}
	delete(s.schedules, name{ns, which})
	s.done(audit)
	return nil
}

// Schedule implements [store.Schedules].
func (s *Store) Schedule(_ context.Context, ns, which string) (*store.Schedule, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	found := s.schedules[name{ns, which}]
	if found == nil {
		return nil, fault.Missing("schedule")
	}
	one := *found
	return &one, nil
}

// ListSchedules implements [store.Schedules].
func (s *Store) ListSchedules(_ context.Context, ns, from string, limit int) (store.Page[store.Schedule], error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	items, last, more := after(s.schedules, name{ns, from}, limit, func(one *store.Schedule) bool { return one.Namespace == ns })
	page := store.Page[store.Schedule]{Items: items}
	if more {
		page.Next = last.name
	}
	return page, nil
}

// DueSchedules implements [store.Schedules].
func (s *Store) DueSchedules(_ context.Context, limit int) (store.Due, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	due := store.Due{Now: s.clock()}
	for _, one := range s.schedules {
		at := one.NextAt
		if one.Refusal.RetryAt.After(at) {
			at = one.Refusal.RetryAt
		}
		switch {
		case one.Paused || one.NextAt.IsZero():
		case !at.After(due.Now):
			due.Items = append(due.Items, *one)
		case due.NextAt.IsZero() || at.Before(due.NextAt):
			due.NextAt = at
		}
	}
	slices.SortFunc(due.Items, func(a, b store.Schedule) int { return a.DueAt().Compare(b.DueAt()) })
	due.Items = due.Items[:min(limit, len(due.Items))]
	return due, nil
}

// standing finds a schedule that stands at a slot and is not paused.
func (s *Store) standing(ns, which string, revision int64, at time.Time) *store.Schedule {
	one := s.schedules[name{ns, which}]
	if one == nil || one.Paused || one.Revision != revision || !one.NextAt.Equal(at) {
		return nil
	}
	return one
}

// PostponeSchedule implements [store.Schedules].
func (s *Store) PostponeSchedule(_ context.Context, p store.Postponement) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	one := s.standing(p.Namespace, p.Name, p.Revision, p.Due)
	if one == nil {
		return nil
	}
	if !one.Refusal.Slot.Equal(p.Refusal.Slot) {
		s.record(p.Audit)
	}
	one.Refusal = p.Refusal
	return nil
}

// PutTrigger implements [store.Triggers].
func (s *Store) PutTrigger(_ context.Context, t store.Trigger, audit store.Record) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	t.UpdatedAt = s.clock()
	s.space(t.Namespace)
	s.triggers[name{t.Namespace, t.Name}] = &t
	s.done(audit)
	return nil
}

// DeleteTrigger implements [store.Triggers].
func (s *Store) DeleteTrigger(_ context.Context, ns, which string, audit store.Record) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.triggers[name{ns, which}] == nil {
		return fault.Missing("trigger")
	}
	delete(s.triggers, name{ns, which})
	s.done(audit)
	return nil
}

// Trigger implements [store.Triggers].
func (s *Store) Trigger(_ context.Context, ns, which string) (*store.Trigger, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	found := s.triggers[name{ns, which}]
	if found == nil {
		return nil, fault.Missing("trigger")
	}
	one := *found
	return &one, nil
}

// ListTriggers implements [store.Triggers].
func (s *Store) ListTriggers(_ context.Context, ns, from string, limit int) (store.Page[store.Trigger], error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	items, last, more := after(s.triggers, name{ns, from}, limit, func(one *store.Trigger) bool { return one.Namespace == ns })
	page := store.Page[store.Trigger]{Items: items}
	if more {
		page.Next = last.name
	}
	return page, nil
}

// StreamTriggers implements [store.Triggers].
func (s *Store) StreamTriggers(_ context.Context, from string, limit int) (store.Page[store.Trigger], error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ns, which, _ := strings.Cut(from, "\x00")
	items, last, more := after(s.triggers, name{ns, which}, limit, func(one *store.Trigger) bool { return one.Stream != "" })
	page := store.Page[store.Trigger]{Items: items}
	if more {
		page.Next = last.ns + "\x00" + last.name
	}
	return page, nil
}
