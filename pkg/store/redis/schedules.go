package redis

import (
	"context"
	"slices"
	"time"

	"flexiq/pkg/fault"
	"flexiq/pkg/store"
)

// Namespaces that may have schedules, or triggers of streams, stand on lists of
// the installation. They are put there before, and stay.
const (
	scheduledList = "scheduled"
	streamedList  = "streamed"
)

// enlist puts a namespace on a list and registers it.
func (s *Store) enlist(ctx context.Context, list, ns string) (standing, error) {
	st, _, err := s.register(ctx, []string{ns}, false, true)
	if err == nil && list != "" {
		err = s.run(ctx, again, plain("zadd", s.key(installation, list), 0, ns))
	}
	return st, err
}

// enlisted reads a list after a name.
func (s *Store) enlisted(ctx context.Context, list, after string) ([]string, error) {
	from := "-"
	if after != "" {
		from = "(" + after
	}
	c := plain("zrange", s.key(installation, list), from, "+", "bylex", "limit", 0, atOnce)
	if err := s.run(ctx, again, c); err != nil {
		return nil, err
	}
	var out []string
	for r := c.list(); r.more(); {
		out = append(out, r.text())
	}
	return out, nil
}

// done is a record of what is done with the change that it tells of.
func done(r store.Record) string {
	r.Outcome = "ok"
	return record(&r)
}

// PutSchedule implements [store.Schedules].
func (s *Store) PutSchedule(ctx context.Context, c store.ScheduleChange) (store.Schedule, error) {
	st, err := s.enlist(ctx, scheduledList, c.Namespace)
	if err != nil {
		return store.Schedule{}, s.fail(ctx, "put schedule", err)
	}
	cmd := s.on(tag(c.Namespace), putScheduleScript, st.revision, st.term, c.Name, c.Revision, flag(c.KeepNext), c.Cron, c.TimeZone, c.Job,
		flag(c.Paused), micros(c.NextAt), c.UpdatedBy, done(c.Audit))
	if err := s.run(ctx, once, cmd); err != nil {
		return store.Schedule{}, s.fail(ctx, "put schedule", err)
	}
	r := cmd.list()
	if !r.more() {
		return store.Schedule{}, fault.New(fault.RevisionMismatch, "the schedule was changed or fired meanwhile")
	}
	return readSchedule(c.Namespace, c.Name, r), nil
}

// readSchedule reads the values of FORM.
func readSchedule(ns, name string, r *list) store.Schedule {
	s := store.Schedule{
		Namespace: ns, Name: name, Cron: r.text(), TimeZone: r.text(), Job: []byte(r.text()), Paused: r.bool(), Revision: r.int(),
		NextAt: r.time(), LastSlot: r.time(), LastAt: r.time(),
	}
	s.Refusal = store.Refusal{Slot: r.time(), Reason: r.text(), Tries: r.int(), RetryAt: r.time()}
	s.UpdatedAt, s.UpdatedBy = r.time(), r.text()
	return s
}

// DeleteSchedule implements [store.Schedules].
func (s *Store) DeleteSchedule(ctx context.Context, ns, name string, audit store.Record) error {
	c := s.on(tag(ns), deleteScheduleScript, name, done(audit))
	if err := s.run(ctx, once, c); err != nil {
		return s.fail(ctx, "delete schedule", err)
	}
	if c.int() == 0 {
		return fault.Missing("schedule")
	}
	return nil
}

// schedules runs the script that reads them.
func (s *Store) schedules(ns, how, name string, limit int) *command {
	return s.on(tag(ns), listSchedulesScript, how, name, limit)
}

func readSchedules(ns string, r *list) (out []store.Schedule) {
	for r.more() {
		out = append(out, readSchedule(ns, r.text(), r.list()))
	}
	return out
}

// Schedule implements [store.Schedules].
func (s *Store) Schedule(ctx context.Context, ns, name string) (*store.Schedule, error) {
	c := s.schedules(ns, "name", name, 1)
	if err := s.run(ctx, again, c); err != nil {
		return nil, s.fail(ctx, "schedule", err)
	}
	r := c.list()
	r.int()
	r.int()
	if !r.more() {
		return nil, fault.Missing("schedule")
	}
	return &readSchedules(ns, r)[0], nil
}

// ListSchedules implements [store.Schedules].
func (s *Store) ListSchedules(ctx context.Context, ns, after string, limit int) (store.Page[store.Schedule], error) {
	limit = max(limit, 1)
	c := s.schedules(ns, "list", after, limit+1)
	if err := s.run(ctx, again, c); err != nil {
		return store.Page[store.Schedule]{}, s.fail(ctx, "list schedules", err)
	}
	r := c.list()
	r.int()
	r.int()
	page := store.Page[store.Schedule]{Items: readSchedules(ns, r)}
	if len(page.Items) > limit {
		page.Items = page.Items[:limit]
		page.Next = page.Items[limit-1].Name
	}
	return page, nil
}

// DueSchedules implements [store.Schedules].
func (s *Store) DueSchedules(ctx context.Context, limit int) (store.Due, error) {
	limit = max(limit, 1)
	var due store.Due
	for after := ""; ; {
		names, err := s.enlisted(ctx, scheduledList, after)
		if err != nil {
			return store.Due{}, s.fail(ctx, "due schedules", err)
		}
		cmds := make([]*command, len(names))
		for i, ns := range names {
			cmds[i] = s.schedules(ns, "due", "", limit)
		}
		if err := s.run(ctx, again, cmds...); err != nil {
			return store.Due{}, s.fail(ctx, "due schedules", err)
		}
		for i, ns := range names {
			r := cmds[i].list()
			due.Now = later(due.Now, r.time())
			due.NextAt = sooner(due.NextAt, r.time())
			due.Items = append(due.Items, readSchedules(ns, r)...)
		}
		if len(names) < atOnce {
			break
		}
		after = names[len(names)-1]
	}
	slices.SortStableFunc(due.Items, func(a, b store.Schedule) int { return a.DueAt().Compare(b.DueAt()) })
	if len(due.Items) > limit {
		due.Items = due.Items[:limit]
	}
	return due, nil
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// sooner is the earlier of two times, zero being none.
func sooner(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// PostponeSchedule implements [store.Schedules].
func (s *Store) PostponeSchedule(ctx context.Context, p store.Postponement) error {
	r := p.Refusal
	c := s.on(tag(p.Namespace), postponeScript, p.Name, p.Revision, micros(p.Due), micros(r.Slot), r.Reason, r.Tries, micros(r.RetryAt), record(&p.Audit))
	return s.fail(ctx, "postpone schedule", s.run(ctx, again, c))
}
