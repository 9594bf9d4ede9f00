package dispatchgate

import (
	"context"
	"fmt"
	"sync"
	"time"

	"flexiq/pkg/batch"
	"flexiq/pkg/fault"
	"flexiq/pkg/job"
	"flexiq/pkg/store"
)

// lane serves a share of the namespaces: it guards their room and gathers their
// settlements. While one turn is in the store, settlements and hungry claims
// gather, and the next turn takes both in one step, the settlements first, so
// that a slot which they free is given away in the same step.
type lane struct {
	gate  *Service
	turns *batch.Group[*op, []store.Settled]

	mu      sync.Mutex
	room    *room
	calling bool // a call for a turn is in the group
	timer   *time.Timer
	timerAt time.Time     // zero: not set
	quiet   chan struct{} // closed when the room is closed and nobody is asked for
}

// op is what a lane's group gathers: the settlements of one call, or nothing,
// which only calls for a turn.
type op struct{ settlements []store.Settlement }

func newLane(gate *Service) *lane {
	l := &lane{gate: gate, room: newRoom(), quiet: make(chan struct{})}
	l.timer = time.AfterFunc(time.Hour, l.tick)
	l.timer.Stop()
	l.turns = batch.New("turn", 1, batch.Options[*op]{
		MaxCalls: gate.cfg.MaxCalls, MaxBytes: gate.cfg.MaxBytes, MaxItems: job.MaxBatch,
		Weight:  func(o *op) int { return len(o.settlements) },
		Metrics: gate.batch, Log: gate.log,
	}, l.turn)
	return l
}

// with changes the room and carries out what follows from it.
func (l *lane) with(change func(r *room)) {
	l.mu.Lock()
	change(l.room)
	l.carryOut()
}

// carryOut does what the room wants done. It is entered with the lock held and
// releases it.
func (l *lane) carryOut() {
	r := l.room
	out, cold, stale := r.out, r.cold, r.stale
	r.out, r.cold, r.stale = nil, nil, nil
	call := len(r.ring) > 0 && !l.calling
	l.calling = l.calling || call
	l.arm()
	if r.closed && r.asked == 0 {
		select {
		case <-l.quiet:
		default:
			close(l.quiet)
		}
	}
	l.mu.Unlock()

	for _, ns := range cold {
		l.load(ns, false)
	}
	for _, ns := range stale {
		l.load(ns, true)
	}
	if call {
		// Every turn serves the room, and a full group has one to come. The look
		// round calls again should even that have been missed.
		if err := l.turns.Submit("", 0, &op{}, l.called); err != nil {
			l.mu.Lock()
			l.calling = false
			l.mu.Unlock()
		}
	}
	for _, a := range out {
		if a.gone {
			l.gate.release(a.w.want.Namespace, a.jobs)
		} else {
			a.w.answer(a.jobs, a.err)
		}
	}
}

// called ends a call for a turn; the room may want another one by now.
func (l *lane) called([]store.Settled, error) {
	l.with(func(*room) { l.calling = false })
}

// arm sets the timer to the room's next appointment.
func (l *lane) arm() {
	at := l.room.next()
	switch {
	case at.Equal(l.timerAt):
	case at.IsZero():
		l.timer.Stop()
	default:
		l.timer.Reset(max(0, time.Until(at)))
	}
	l.timerAt = at
}

func (l *lane) tick() {
	l.with(func(r *room) {
		l.timerAt = time.Time{}
		r.tick(time.Now())
	})
}

// load loads a namespace's quota outside the lane.
func (l *lane) load(ns string, fresh bool) {
	l.gate.spawn(func(life context.Context) {
		ctx, cancel := context.WithTimeout(life, loadTimeout)
		defer cancel()
		if fresh {
			l.gate.metrics.stale.Inc()
			l.gate.quotas.Invalidate(ns, 0)
		}
		q, err := l.gate.quotas.Get(ctx, ns)
		if err != nil && ctx.Err() != nil {
			err = fault.Wrap(err, fault.StorageUnavailable, "the quota could not be read in time")
		}
		if err == nil && q.Err != nil {
			l.gate.warned.Do(func() { l.gate.log.Warn().Str("namespace", ns).Err(q.Err).Msg("unreadable quota") })
		}
		l.with(func(r *room) { r.loaded(ns, q, err) })
	})
}

// turn is the group's flush: one store call for settlements and claims.
func (l *lane) turn(ctx context.Context, ops []*op) ([][]store.Settled, error) {
	var settlements []store.Settlement
	for _, o := range ops {
		settlements = append(settlements, o.settlements...)
	}
	picked := l.pick(settlements)
	if len(settlements) == 0 && len(picked) == 0 {
		return make([][]store.Settled, len(ops)), nil
	}
	settled, grants, err := l.ask(ctx, settlements, picked)
	l.with(func(r *room) { r.result(picked, grants, err, time.Now()) })
	if err != nil {
		if len(settlements) == 0 {
			l.gate.failing.Do(func() { l.gate.log.Warn().Err(err).Msg("claims could not be served") })
		}
		return nil, err
	}
	l.gate.countSettled(settlements, settled)
	l.gate.roster.settled(settlements, settled)
	l.gate.noteHolds(picked, grants)
	l.gate.tellSettled(settlements, settled)
	l.gate.tellStarted(picked, grants)
	l.gate.hintReturned(settlements, settled, picked, grants)
	out := make([][]store.Settled, len(ops))
	for i, o := range ops {
		out[i], settled = settled[:len(o.settlements)], settled[len(o.settlements):]
	}
	return out, nil
}

// pick chooses the claims of a turn, knowing what its settlements may free.
func (l *lane) pick(settlements []store.Settlement) []*waiter {
	var picked []*waiter
	l.with(func(r *room) {
		for i := range settlements {
			s := &settlements[i]
			r.freed(s.Namespace)
			if s.Outcome == job.Failed || s.Outcome == job.Released {
				r.wake(s.Namespace)
			}
		}
		picked = r.pick(l.gate.quotas.Peek)
	})
	return picked
}

// ask does the store call. A panic in it must not leave the claims asked for ever.
func (l *lane) ask(ctx context.Context, settlements []store.Settlement, picked []*waiter) (settled []store.Settled, grants []store.Grant, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fault.Wrap(fmt.Errorf("panic: %v", p), fault.Internal, "internal error")
		}
	}()
	wants := make([]store.Want, len(picked))
	for i, w := range picked {
		wants[i] = w.want
	}
	defer l.gate.metrics.timeTurn(time.Now())
	// The next turn may begin while this one waits for the disk: its settlements
	// are decided, and their answers are not to be given out before.
	settled, grants, err = l.gate.store.Turn(store.OnDecided(ctx, func() { batch.Decided(ctx) }), settlements, wants)
	if err == nil && (len(settled) != len(settlements) || len(grants) != len(wants)) {
		err = fault.New(fault.Internal, "internal error")
	}
	return settled, grants, err
}

// settle hands in the settlements of one call.
func (l *lane) settle(ns string, items []store.Settlement, done func([]store.Settled, error)) error {
	return l.turns.Submit(ns, settlementBytes(items), &op{settlements: items}, done)
}

func settlementBytes(items []store.Settlement) int {
	const frame = 256
	n := 0
	for i := range items {
		n += frame + len(items[i].Error) + len(items[i].Result)
	}
	return n
}

// close refuses further settlements after those that are in. The room is closed before.
func (l *lane) close(ctx context.Context) error {
	err := l.turns.Close(ctx)
	l.mu.Lock()
	l.timer.Stop()
	l.mu.Unlock()
	return err
}
