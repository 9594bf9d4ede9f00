package postgres

import (
	"context"
	"time"

	"flexiq/pkg/fault"
	"flexiq/pkg/store"
	"flexiq/pkg/store/admit"
)

const scheduleColumns = `s.namespace, s.name, s.cron, s.time_zone, s.job, s.paused, s.revision, s.next_at, s.last_slot, s.last_at,
	s.refused_slot, s.reason, s.tries, s.retry_at, s.updated_at, s.updated_by`

var (
	selectSchedule  = statement(`select ` + scheduleColumns + ` from flexiq.schedules s where namespace = $1 and name = $2`)
	selectSchedules = statement(`select ` + scheduleColumns + ` from flexiq.schedules s
		where namespace = $1 and name > $2 order by namespace, name limit $3`)
	selectDue = statement(`select ` + scheduleColumns + ` from flexiq.schedules s
		where due_at > 0 and due_at <= ` + nowOr1 + ` order by due_at limit $2`)
	selectDueLater = statement(`select n.at, coalesce((select due_at from flexiq.schedules
		where due_at > 0 and due_at > n.at order by due_at limit 1), 0) from (select ` + nowOr1 + ` as at) n`)
	selectStanding = statement(`select s.namespace, s.name, s.revision, s.paused, s.next_at from unnest($1::text[], $2::text[]) u(ns, name)
		cross join lateral (select * from flexiq.schedules where namespace = u.ns and name = u.name limit 1) s`)
	upsertSchedule = statement(`insert into flexiq.schedules (namespace, name, cron, time_zone, job, paused, revision, next_at, due_at,
			refused_slot, reason, tries, retry_at, updated_at, updated_by)
		values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)
		on conflict (namespace, name) do update set cron = excluded.cron, time_zone = excluded.time_zone, job = excluded.job,
			paused = excluded.paused, revision = excluded.revision, next_at = excluded.next_at, due_at = excluded.due_at,
			refused_slot = excluded.refused_slot, reason = excluded.reason, tries = excluded.tries, retry_at = excluded.retry_at,
			updated_at = excluded.updated_at, updated_by = excluded.updated_by`)
	deleteSchedule = statement(`delete from flexiq.schedules where namespace = $1 and name = $2`)
	fireSchedules  = statement(`update flexiq.schedules set next_at = u.next, due_at = u.next, last_slot = u.slot, last_at = $5,
			refused_slot = 0, reason = '', tries = 0, retry_at = 0
		from (
			select s.ctid as tid, u.* from unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[]) u(ns, name, slot, next)
			cross join lateral (select ctid from flexiq.schedules where namespace = u.ns and name = u.name limit 1) s
		) u where schedules.ctid = u.tid`)
	postponeSchedule = statement(`update flexiq.schedules set due_at = $3, refused_slot = $4, reason = $5, tries = $6, retry_at = $3
		where namespace = $1 and name = $2`)
)

func scanSchedule(scan func(...any) error) (store.Schedule, error) {
	var s store.Schedule
	var next, lastSlot, last, refused, retry, updated int64
	err := scan(&s.Namespace, &s.Name, &s.Cron, &s.TimeZone, &s.Job, &s.Paused, &s.Revision, &next, &lastSlot, &last,
		&refused, &s.Refusal.Reason, &s.Refusal.Tries, &retry, &updated, &s.UpdatedBy)
	s.NextAt, s.LastSlot, s.LastAt = instant(next), instant(lastSlot), instant(last)
	s.Refusal.Slot, s.Refusal.RetryAt, s.UpdatedAt = instant(refused), instant(retry), instant(updated)
	return s, err
}

// schedule queues the reading of one.
func (b *batch) schedule(ns, name string, into **store.Schedule) {
	*into = nil
	b.each(selectSchedule, func(scan func(...any) error) error {
		s, err := scanSchedule(scan)
		*into = &s
		return err
	}, ns, storable(name))
}

// create makes sure that a namespace has its row, so that it can be locked.
func (s *Store) create(ctx context.Context, op, ns string) error {
	return s.write(ctx, op, func(ctx context.Context, t *tx) error {
		t.repeatable = true
		return t.commit(ctx, func(b *batch) { b.exec(createNamespaces, []string{ns}) })
	})
}

// locked runs decide, under the lock of a namespace, with what read has read; it
// commits what decide queues, and nothing when that is nil.
func (s *Store) locked(ctx context.Context, op, ns string, read func(*batch), decide func(now time.Time) (func(*batch), error)) error {
	return s.write(ctx, op, func(ctx context.Context, t *tx) error {
		var now time.Time
		held := make(map[string]bool)
		err := t.read(ctx, func(b *batch) {
			b.lock([]string{ns}, locking{}, held)
			s.time(b, &now)
			read(b)
		})
		if err != nil {
			return err
		}
		queue, err := decide(now)
		if err != nil || queue == nil {
			return err
		}
		if !held[ns] {
			return errHeld // it was erased since it got its row: nothing may be written beside the lock
		}
		return t.commit(ctx, queue)
	})
}

// PutSchedule implements [store.Schedules].
func (s *Store) PutSchedule(ctx context.Context, c store.ScheduleChange) (store.Schedule, error) {
	if err := s.create(ctx, "put schedule", c.Namespace); err != nil {
		return store.Schedule{}, err
	}
	var before *store.Schedule
	var next store.Schedule
	err := s.locked(ctx, "put schedule", c.Namespace, func(b *batch) { b.schedule(c.Namespace, c.Name, &before) },
		func(now time.Time) (_ func(*batch), err error) {
			if next, err = c.Apply(before, now); err != nil {
				return nil, err
			}
			return func(b *batch) {
				b.exec(upsertSchedule, next.Namespace, next.Name, next.Cron, next.TimeZone, next.Job, next.Paused, next.Revision,
					micros(next.NextAt), micros(next.DueAt()), micros(next.Refusal.Slot), next.Refusal.Reason, next.Refusal.Tries,
					micros(next.Refusal.RetryAt), micros(now), next.UpdatedBy)
				b.done(&c.Audit, now)
			}, nil
		})
	return next, err
}

// DeleteSchedule implements [store.Schedules].
func (s *Store) DeleteSchedule(ctx context.Context, ns, name string, audit store.Record) error {
	var before *store.Schedule
	return s.locked(ctx, "delete schedule", ns, func(b *batch) { b.schedule(ns, name, &before) },
		func(now time.Time) (func(*batch), error) {
			if before == nil {
				return nil, fault.Missing("schedule")
			}
			return func(b *batch) {
				b.exec(deleteSchedule, ns, name)
				b.done(&audit, now)
			}, nil
		})
}

// Schedule implements [store.Schedules].
func (s *Store) Schedule(ctx context.Context, ns, name string) (*store.Schedule, error) {
	var found *store.Schedule
	err := s.query(ctx, "schedule", func(b *batch) { b.schedule(ns, name, &found) })
	if err == nil && found == nil {
		err = fault.Missing("schedule")
	}
	return found, err
}

// ListSchedules implements [store.Schedules].
func (s *Store) ListSchedules(ctx context.Context, ns, after string, limit int) (store.Page[store.Schedule], error) {
	var page store.Page[store.Schedule]
	limit = max(limit, 1)
	err := s.query(ctx, "list schedules", func(b *batch) {
		page = store.Page[store.Schedule]{}
		b.each(selectSchedules, func(scan func(...any) error) error {
			one, err := scanSchedule(scan)
			if err == nil && len(page.Items) < limit {
				page.Items = append(page.Items, one)
			} else if err == nil {
				page.Next = page.Items[limit-1].Name
			}
			return err
		}, ns, storable(after), limit+1)
	})
	return page, err
}

// DueSchedules implements [store.Schedules].
func (s *Store) DueSchedules(ctx context.Context, limit int) (store.Due, error) {
	var due store.Due
	err := s.query(ctx, "due schedules", func(b *batch) {
		due = store.Due{}
		b.each(selectDue, func(scan func(...any) error) error {
			one, err := scanSchedule(scan)
			due.Items = append(due.Items, one)
			return err
		}, s.override(), max(limit, 1))
		b.each(selectDueLater, func(scan func(...any) error) error {
			var now, next int64
			err := scan(&now, &next)
			due.Now, due.NextAt = instant(now), instant(next)
			return err
		}, s.override())
	})
	return due, err
}

// PostponeSchedule implements [store.Schedules].
func (s *Store) PostponeSchedule(ctx context.Context, p store.Postponement) error {
	var present *store.Schedule
	return s.locked(ctx, "postpone schedule", p.Namespace, func(b *batch) { b.schedule(p.Namespace, p.Name, &present) },
		func(now time.Time) (func(*batch), error) {
			if !p.Applies(present) {
				return nil, nil
			}
			return func(b *batch) {
				r := p.Refusal
				b.exec(postponeSchedule, p.Namespace, p.Name, micros(r.RetryAt), micros(r.Slot), storable(r.Reason), r.Tries)
				if !present.Refusal.Slot.Equal(r.Slot) {
					b.record(&p.Audit, now)
				}
			}, nil
		})
}

// standing queues the reading of where the schedules of the calls' slots stand.
func (a *admission) standing(b *batch, into map[string]map[string]admit.Standing) {
	var ns, names []string
	for _, u := range a.units {
		if slot := a.calls[u].Slot; slot != nil {
			ns, names = append(ns, a.calls[u].Namespace), append(names, slot.Schedule)
		}
	}
	if len(ns) == 0 {
		return
	}
	b.each(selectStanding, func(scan func(...any) error) error {
		var space, name string
		var at admit.Standing
		var next int64
		err := scan(&space, &name, &at.Revision, &at.Paused, &next)
		at.NextAt = instant(next)
		put(into, space, name, at)
		return err
	}, ns, names)
}

// fired are schedules that move on.
type fired struct {
	ns, name   []string
	slot, next []int64
}

func (f *fired) add(ns string, slots []*store.Slot) {
	for _, s := range slots {
		f.ns, f.name = append(f.ns, ns), append(f.name, s.Schedule)
		f.slot, f.next = append(f.slot, micros(s.At)), append(f.next, micros(s.Next))
	}
}

func (f *fired) write(b *batch, now time.Time) {
	if len(f.ns) > 0 {
		b.exec(fireSchedules, f.ns, f.name, f.slot, f.next, micros(now))
	}
}
