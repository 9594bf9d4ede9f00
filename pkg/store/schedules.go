package store

import (
	"context"
	"errors"
	"time"

	"flexiq/pkg/fault"
)

// ErrSlot is the outcome of a call with a slot at which its schedule does not
// stand any more: another process fired it, or somebody changed or paused the
// schedule. Nothing was written.
var ErrSlot = errors.New("the schedule does not stand at the slot")

// Schedules keeps what enqueues by the clock. A schedule is fired by [Admission.Admit]
// with a [Slot]. Slots are computed by the caller, the store only compares them.
type Schedules interface {
	// PutSchedule creates or replaces a schedule and writes the audit record, in one
	// step, and returns it as it now is. Its revision rises, by deletions too; what
	// is known of its last run stays. With a revision it first compares: another
	// one is REVISION_MISMATCH and changes nothing.
	PutSchedule(ctx context.Context, c ScheduleChange) (Schedule, error)
	// DeleteSchedule removes one and writes the audit record; NOT_FOUND.
	DeleteSchedule(ctx context.Context, ns, name string, audit Record) error
	// Schedule reads one; NOT_FOUND.
	Schedule(ctx context.Context, ns, name string) (*Schedule, error)
	// ListSchedules lists a namespace's schedules by name.
	ListSchedules(ctx context.Context, ns, after string, limit int) (Page[Schedule], error)
	// DueSchedules finds at most limit schedules of all namespaces that are due
	// now and not paused, those that wait longest first.
	DueSchedules(ctx context.Context, limit int) (Due, error)
	// PostponeSchedule notes that a due slot was refused and is tried again later.
	// The audit record is written with the first refusal of the slot and not with
	// those that follow. A schedule that does not stand at the slot any more stays
	// as it is, which is no error.
	PostponeSchedule(ctx context.Context, p Postponement) error
}

// Schedule enqueues a job at each of its slots.
type Schedule struct {
	Namespace string
	Name      string
	Cron      string
	TimeZone  string
	Job       []byte // as the caller encodes it
	Paused    bool
	Revision  int64     // rises with each Put
	NextAt    time.Time // the slot at which it stands, zero: none will come
	LastSlot  time.Time // the last slot that was admitted or shed, zero: none
	LastAt    time.Time // when that was
	Refusal   Refusal   // of the slot that is due, zero: none
	UpdatedAt time.Time
	UpdatedBy string // token id
}

// Refusal is what became of a slot so far.
type Refusal struct {
	Slot    time.Time
	Reason  string
	Tries   int64
	RetryAt time.Time
}

// ScheduleChange is a new form of a schedule.
type ScheduleChange struct {
	Schedule // its revision, if not 0, is compared; last run, refusal and update are the store's
	// KeepNext leaves the slot at which the schedule stands, and its refusal.
	KeepNext bool
	Audit    Record
}

// Due are schedules that are due.
type Due struct {
	Items  []Schedule
	Now    time.Time // the store's clock
	NextAt time.Time // when the next of the others is due, zero: none
}

// Slot makes a call the firing of a schedule: it is decided only while the
// schedule stands there, and when it is admitted or shed the schedule moves on to
// Next in the same step. A refused call leaves the schedule where it is.
type Slot struct {
	Schedule string
	Revision int64
	Due      time.Time // NextAt of the schedule
	At       time.Time // the slot that is fired: the latest that is due
	Next     time.Time // zero: none will come
}

// Postponement puts off a refused slot.
type Postponement struct {
	Namespace string
	Name      string
	Revision  int64
	Due       time.Time
	Refusal   Refusal
	Audit     Record
}

// DueAt is when the schedule is to be looked at, zero: not by itself.
func (s *Schedule) DueAt() time.Time {
	switch {
	case s.Paused:
		return time.Time{}
	case s.Refusal.RetryAt.After(s.NextAt):
		return s.Refusal.RetryAt
	}
	return s.NextAt
}

// Apply is the schedule that a change makes of the present one, nil when there is
// none, at an instant.
func (c *ScheduleChange) Apply(before *Schedule, now time.Time) (Schedule, error) {
	if before == nil {
		before = &Schedule{}
	}
	if c.Revision != 0 && c.Revision != before.Revision {
		return Schedule{}, fault.New(fault.RevisionMismatch, "the schedule was changed or fired meanwhile")
	}
	if !c.KeepNext && !c.Schedule.NextAt.IsZero() && !c.Schedule.NextAt.After(before.LastSlot) {
		return Schedule{}, fault.New(fault.RevisionMismatch, "the schedule was changed or fired meanwhile")
	}
	next := c.Schedule
	next.Revision = max(before.Revision+1, now.UnixMicro())
	next.LastSlot, next.LastAt, next.Refusal, next.UpdatedAt = before.LastSlot, before.LastAt, Refusal{}, now
	if c.KeepNext {
		next.NextAt, next.Refusal = before.NextAt, before.Refusal
	}
	return next, nil
}

// Applies reports whether the schedule, nil when there is none, stands where it is to be put off.
func (p *Postponement) Applies(now *Schedule) bool {
	return now != nil && !now.Paused && now.Revision == p.Revision && now.NextAt.Equal(p.Due)
}
