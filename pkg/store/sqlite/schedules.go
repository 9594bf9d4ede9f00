package sqlite

import (
	"context"

	"flexiq/pkg/fault"
	"flexiq/pkg/store"
	"flexiq/pkg/store/admit"
)

const (
	scheduleColumns = `namespace, name, cron, time_zone, job, paused, revision, next_at, last_slot, last_at,
		refused_slot, reason, tries, retry_at, updated_at, updated_by`
	selectSchedule  = `SELECT ` + scheduleColumns + ` FROM schedules WHERE namespace = ? AND name = ?`
	selectSchedules = `SELECT ` + scheduleColumns + ` FROM schedules WHERE namespace = ? AND name > ? ORDER BY name LIMIT ?`
	selectDueNow    = `SELECT ` + scheduleColumns + ` FROM schedules INDEXED BY schedules_due WHERE due_at > 0 AND due_at <= ? ORDER BY due_at LIMIT ?`
	selectDueLater  = `SELECT due_at FROM schedules INDEXED BY schedules_due WHERE due_at > 0 AND due_at > ? ORDER BY due_at LIMIT 1`
	upsertSchedule  = `INSERT INTO schedules (namespace, name, cron, time_zone, job, paused, revision, next_at, due_at,
			refused_slot, reason, tries, retry_at, updated_at, updated_by)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
		ON CONFLICT (namespace, name) DO UPDATE SET cron = excluded.cron, time_zone = excluded.time_zone, job = excluded.job,
			paused = excluded.paused, revision = excluded.revision, next_at = excluded.next_at, due_at = excluded.due_at,
			refused_slot = excluded.refused_slot, reason = excluded.reason, tries = excluded.tries, retry_at = excluded.retry_at,
			updated_at = excluded.updated_at, updated_by = excluded.updated_by`
	fireSchedule = `UPDATE schedules SET next_at = ?1, due_at = ?1, last_slot = ?, last_at = ?, refused_slot = 0, reason = '', tries = 0, retry_at = 0
		WHERE namespace = ? AND name = ?`
	postponeSchedule = `UPDATE schedules SET due_at = ?1, refused_slot = ?, reason = ?, tries = ?, retry_at = ?1 WHERE namespace = ? AND name = ?`
)

func (r *row) schedule() store.Schedule {
	return store.Schedule{
		Namespace: r.text(), Name: r.text(), Cron: r.text(), TimeZone: r.text(), Job: r.bytes(), Paused: r.bool(), Revision: r.int(),
		NextAt: r.time(), LastSlot: r.time(), LastAt: r.time(),
		Refusal:   store.Refusal{Slot: r.time(), Reason: r.text(), Tries: r.int(), RetryAt: r.time()},
		UpdatedAt: r.time(), UpdatedBy: r.text(),
	}
}

// schedule reads one, nil when there is none.
func (t *tx) schedule(ns, name string) (*store.Schedule, error) {
	var found *store.Schedule
	_, err := t.one(selectSchedule, func(r *row) {
		s := r.schedule()
		found = &s
	}, ns, name)
	return found, err
}

// PutSchedule implements [store.Schedules].
func (s *Store) PutSchedule(ctx context.Context, c store.ScheduleChange) (store.Schedule, error) {
	var next store.Schedule
	err := s.write(ctx, "put schedule", func(t *tx) error {
		sp, err := t.space(c.Namespace)
		if err != nil {
			return err
		}
		if err := t.create(sp); err != nil {
			return err
		}
		before, err := t.schedule(c.Namespace, c.Name)
		if err != nil {
			return err
		}
		if next, err = c.Apply(before, t.now); err != nil {
			return err
		}
		err = t.exec(upsertSchedule, next.Namespace, next.Name, next.Cron, next.TimeZone, next.Job, next.Paused, next.Revision,
			next.NextAt, next.DueAt(), next.Refusal.Slot, next.Refusal.Reason, next.Refusal.Tries, next.Refusal.RetryAt,
			next.UpdatedAt, next.UpdatedBy)
		if err != nil {
			return err
		}
		return t.recordDone(c.Audit)
	})
	return next, err
}

// recordDone records what is done with the transaction.
func (t *tx) recordDone(r store.Record) error {
	r.Outcome = "ok"
	return t.record(&r)
}

// DeleteSchedule implements [store.Schedules].
func (s *Store) DeleteSchedule(ctx context.Context, ns, name string, audit store.Record) error {
	return s.write(ctx, "delete schedule", func(t *tx) error {
		if err := t.exec("DELETE FROM schedules WHERE namespace = ? AND name = ?", ns, name); err != nil {
			return err
		}
		if t.Changes() == 0 {
			return fault.Missing("schedule")
		}
		return t.recordDone(audit)
	})
}

// Schedule implements [store.Schedules].
func (s *Store) Schedule(ctx context.Context, ns, name string) (*store.Schedule, error) {
	var found *store.Schedule
	err := s.read(ctx, "schedule", func(t *tx) (err error) {
		found, err = t.schedule(ns, name)
		return err
	})
	if err == nil && found == nil {
		err = fault.Missing("schedule")
	}
	return found, err
}

// ListSchedules implements [store.Schedules].
func (s *Store) ListSchedules(ctx context.Context, ns, after string, limit int) (store.Page[store.Schedule], error) {
	var page store.Page[store.Schedule]
	limit = max(limit, 1)
	err := s.read(ctx, "list schedules", func(t *tx) error {
		page = store.Page[store.Schedule]{}
		return t.each(selectSchedules, func(r *row) bool {
			if len(page.Items) == limit {
				page.Next = page.Items[limit-1].Name
				return false
			}
			page.Items = append(page.Items, r.schedule())
			return true
		}, ns, after, limit+1)
	})
	return page, err
}

// DueSchedules implements [store.Schedules].
func (s *Store) DueSchedules(ctx context.Context, limit int) (store.Due, error) {
	var due store.Due
	err := s.read(ctx, "due schedules", func(t *tx) error {
		due = store.Due{Now: t.now}
		err := t.each(selectDueNow, func(r *row) bool {
			due.Items = append(due.Items, r.schedule())
			return true
		}, t.now, max(limit, 1))
		if err != nil {
			return err
		}
		_, err = t.one(selectDueLater, func(r *row) { due.NextAt = r.time() }, t.now)
		return err
	})
	return due, err
}

// PostponeSchedule implements [store.Schedules].
func (s *Store) PostponeSchedule(ctx context.Context, p store.Postponement) error {
	return s.write(ctx, "postpone schedule", func(t *tx) error {
		now, err := t.schedule(p.Namespace, p.Name)
		if err != nil || !p.Applies(now) {
			return err
		}
		r := p.Refusal
		if err := t.exec(postponeSchedule, r.RetryAt, r.Slot, r.Reason, r.Tries, p.Namespace, p.Name); err != nil {
			return err
		}
		if now.Refusal.Slot.Equal(r.Slot) {
			return nil
		}
		return t.record(&p.Audit)
	})
}

// standing reads where the schedules of the calls' slots stand.
func (t *tx) standing(calls []store.Call, into *admit.Snapshot) error {
	for i := range calls {
		slot := calls[i].Slot
		if slot == nil {
			continue
		}
		s, err := t.schedule(calls[i].Namespace, slot.Schedule)
		if err != nil {
			return err
		}
		if s != nil {
			into.Stand(slot.Schedule, admit.Standing{Revision: s.Revision, Paused: s.Paused, NextAt: s.NextAt})
		}
	}
	return nil
}

// fire moves schedules on.
func (t *tx) fire(ns string, slots []*store.Slot) error {
	for _, s := range slots {
		if err := t.exec(fireSchedule, s.Next, s.At, t.now, ns, s.Schedule); err != nil {
			return err
		}
	}
	return nil
}
