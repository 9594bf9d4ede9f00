package admission

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"golang.org/x/sync/errgroup"

	"flexiq/pkg/fault"
	"flexiq/pkg/schedule"
	"flexiq/pkg/store"
	"flexiq/pkg/wire"
)

const (
	// lookEvery bounds how late a schedule is seen that another process has put.
	lookEvery = time.Second
	// leastLook keeps a store that answers oddly from being asked in a loop.
	leastLook = 50 * time.Millisecond
	// dueAtOnce is how many schedules are fired in a round, and firesAtOnce at a time.
	dueAtOnce   = 200
	firesAtOnce = 32
	// fireTimeout bounds one firing.
	fireTimeout = 20 * time.Second
)

// fireSchedules fires what is due until ctx ends. Every process does it: the
// store lets one of them have a slot.
func (s *Service) fireSchedules(ctx context.Context) {
	for {
		wait := time.NewTimer(s.fireDue(ctx))
		select {
		case <-ctx.Done():
			wait.Stop()
			return
		case <-wait.C:
		}
	}
}

// fireDue fires the schedules that are due and tells when to look again.
func (s *Service) fireDue(ctx context.Context) time.Duration {
	due, err := s.schedules.DueSchedules(ctx, dueAtOnce)
	if err != nil {
		if ctx.Err() == nil {
			s.log.Warn().Err(err).Msg("due schedules could not be read")
		}
		return lookEvery
	}
	var fires errgroup.Group
	fires.SetLimit(firesAtOnce)
	for i := range due.Items {
		fires.Go(func() error {
			s.fire(ctx, &due.Items[i], due.Now)
			return nil
		})
	}
	_ = fires.Wait() // each has told its own error
	switch {
	case len(due.Items) == dueAtOnce:
		return leastLook
	case !due.NextAt.IsZero():
		return min(max(due.NextAt.Sub(due.Now), leastLook), lookEvery)
	}
	return lookEvery
}

// fire makes the job of the latest slot that is due. A slot that is refused is
// put off.
func (s *Service) fire(ctx context.Context, one *store.Schedule, now time.Time) {
	ctx, cancel := context.WithTimeout(ctx, fireTimeout)
	defer cancel()
	slot := store.Slot{Schedule: one.Name, Revision: one.Revision, Due: one.NextAt, At: one.NextAt}
	out, err := s.fireSlot(ctx, one, &slot, now)
	switch {
	case err == nil && out.Repeat: // another process made it in this instant
		return
	case err == nil:
		s.metrics.fired.Inc()
		return
	case errors.Is(err, store.ErrSlot), errors.Is(err, context.Canceled):
		return // another process had it, or somebody changed the schedule, or this process stops
	}
	if err := s.postpone(ctx, one, slot, now, err); err != nil {
		s.log.Warn().Err(err).Str("namespace", one.Namespace).Msg("a refused slot could not be put off")
	}
}

func (s *Service) fireSlot(ctx context.Context, one *store.Schedule, slot *store.Slot, now time.Time) (store.Outcome, error) {
	spec, err := schedule.Parse(one.Cron, one.TimeZone)
	if err != nil {
		return store.Outcome{}, fault.Wrap(err, fault.Internal, "the stored schedule cannot be read")
	}
	slot.At = spec.Last(one.NextAt, now)
	slot.Next = spec.Next(slot.At)
	j, err := wire.SlotSpec(one.Job, slot.At, s.cfg.MaxPayload)
	if err != nil {
		return store.Outcome{}, err
	}
	// Whoever fires this slot makes this job: a try whose answer was lost is seen
	// to be the same.
	j.ID = derivedID(slot.At, "schedule", one.Namespace, one.Name, slot.At.Format(time.RFC3339), one.UpdatedAt.Format(time.RFC3339Nano))
	call := innerCall(one.Namespace, "schedule:"+one.Name, one.UpdatedBy, j)
	call.Slot = slot
	return s.decide(ctx, call)
}

// postpone notes a refusal. It is recorded in the namespace's audit trail once
// for each slot, however often that is tried.
func (s *Service) postpone(ctx context.Context, one *store.Schedule, slot store.Slot, now time.Time, cause error) error {
	r := store.Refusal{Slot: slot.At, Reason: string(fault.Of(cause).Reason), Tries: 1}
	if one.Refusal.Slot.Equal(slot.At) {
		r.Tries = one.Refusal.Tries + 1
	} else {
		s.metrics.slotsRefused.Inc()
	}
	r.RetryAt = now.Add(schedule.Pause(r.Tries))
	if !slot.Next.IsZero() && slot.Next.Before(r.RetryAt) {
		r.RetryAt = slot.Next // then that slot takes this one's place
	}
	told, _ := json.Marshal(map[string]string{"slot": slot.At.Format(time.RFC3339), "message": fault.Of(cause).Message}) // it always marshals
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), fireTimeout)
	defer cancel()
	return s.schedules.PostponeSchedule(ctx, store.Postponement{
		Namespace: one.Namespace, Name: one.Name, Revision: one.Revision, Due: one.NextAt, Refusal: r,
		Audit: store.Record{
			Namespace: one.Namespace, TokenID: one.UpdatedBy, Door: "schedule", Operation: "fire-schedule",
			TargetKind: "schedule", Target: one.Name, Outcome: r.Reason, New: string(told),
		},
	})
}
