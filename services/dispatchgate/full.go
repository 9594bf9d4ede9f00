package dispatchgate

import "time"

// A namespace is full when the store left due work of it for want of a slot.
// It then leaves the rounds: none of its lines is asked for, new work is no
// news to it, and a claim that comes is told what is known. It is back when a
// slot may be free, which settlements, ended leases and other gates tell, or
// when its limits may have moved.
//
// Should such news be lost, one of its lines is asked for in each look round
// and finds the free slot. And when it is back, few claims are asked for at
// first, twice as many after each round in which all got work: one free slot
// does not make the store answer everybody who waits.

// A pause, or the cap of a queue or a task, holds back only some of a
// namespace's work, so that new work may be other work, and its lines are asked
// for. When that was in vain again and again they are asked for less often: a
// pause between two askings grows from vainPause to maxVainPause.

const (
	// fullFor is how long a claim that comes relies on the last answer.
	fullFor = 250 * time.Millisecond

	manyVain     = 4
	vainPause    = time.Millisecond
	maxVainPause = 100 * time.Millisecond
)

// known reports whether a claim that comes now need not be asked for.
func (t *tenant) known(now time.Time) bool {
	return t.full && t.hold == open && now.Sub(t.fullAt) < fullFor
}

// probe is the line of a full namespace to look for, nil when one of them is
// being asked for anyway. When nobody knows of due work any more it is not full.
func (t *tenant) probe() *line {
	busy := false
	for _, l := range t.lines {
		if l.held && l.idle() {
			return l
		}
		busy = busy || l.first != nil && !l.idle()
	}
	t.full = busy
	return nil
}

// note learns from an answer to a line whether the namespace is full. A free
// slot that was told of meanwhile may be younger than the answer.
func (r *room) note(l *line, v verdict, now time.Time) {
	t := l.tenant
	l.held, l.narrow = v.capped, v.narrow
	if v.narrow && v.granted == 0 {
		l.vain++
		l.resume = now.Add(min(vainPause<<min(max(0, l.vain-manyVain), 10), maxVainPause))
	} else {
		l.vain = 0
	}
	switch {
	case v.capped && l.frees == l.chosen:
		t.full, t.fullAt = true, now
		t.burst = max(1, v.granted)
		l.seen = r.seq
		r.endLate(l)
		r.park(t)
	case v.capped:
		r.hunger(l)
	case v.granted > 0:
		t.burst = min(2*t.burst, roundWants)
		if t.full { // the others do not know yet
			r.wakeTenant(t)
		}
	}
}

// freed tells that a slot of a namespace may be free. It matters to one that is
// full, to a line that a narrower cap held, and to those that may just be told so.
func (r *room) freed(ns string) {
	t := r.tenants[ns]
	if t == nil {
		return
	}
	if t.full {
		r.wakeTenant(t)
		return
	}
	for _, l := range t.lines {
		if l.asked > 0 || l.narrow {
			l.frees++
			r.wakeLine(l)
		}
	}
}
