package dispatchgate

import (
	"errors"
	"time"

	"flexiq/pkg/configcache"
	"flexiq/pkg/fault"
	"flexiq/pkg/store"
)

const (
	// A round asks the store for at most so many claims and jobs, so that one
	// transaction stays short.
	roundWants = 256
	roundJobs  = 1000

	// maxBurst bounds how many claims of one line a round asks for.
	maxBurst = 64

	// maxStale bounds how often in a row a namespace asks again at once because
	// its quota had changed. After that it waits to be woken.
	maxStale = 5

	// A due time that has passed here is tried at once; when that turns out to be
	// too early, because the store's clock is behind ours, after earlyPause, then
	// twice that, and so on.
	earlyPause    = 20 * time.Millisecond
	maxEarlyPause = time.Second
)

// quotaOf looks up a namespace's quota without blocking; false when it has to
// be loaded.
type quotaOf func(ns string) (configcache.Quota, bool)

// pick chooses the claims to ask the store for: by turns between namespaces,
// by turns between the lines of one, in order within a line. Their wants carry
// the limit and the stamp of the quota. Every pick is followed by one result.
func (r *room) pick(quotas quotaOf) []*waiter {
	var picked []*waiter
	jobs := 0
	for len(r.ring) > 0 && len(picked) < roundWants {
		t := r.ring[0]
		l := r.hungryLine(t)
		if l == nil {
			r.leaveRing(t)
			r.tidyTenant(t)
			continue
		}
		q, ok := t.lookUp(quotas)
		if !ok || q.Err != nil {
			r.leaveRing(t)
			if !ok {
				t.hold = loading
				r.cold = append(r.cold, t.name)
			} else {
				r.shut(t)
			}
			continue
		}
		w := l.nextToAsk()
		if jobs > 0 && jobs+w.want.Max > roundJobs {
			break
		}
		jobs += w.want.Max
		w.want.MaxRunning, w.want.Stamp = q.Quota.MaxRunning, q.Stamp
		r.ask(w)
		picked = append(picked, w)
		t.ring = t.ring[1:]
		if l.asked < l.burst && l.nextToAsk() != nil {
			t.ring = append(t.ring, l)
		} else {
			l.queued = false
		}
		r.leaveRing(t)
		r.enter(t)
	}
	return picked
}

// lookUp returns the quota to ask by. One that was just loaded is used even when
// the cache does not hold it: the store compares its stamp anyway.
func (t *tenant) lookUp(quotas quotaOf) (configcache.Quota, bool) {
	if t.quota != nil {
		return *t.quota, true
	}
	return quotas(t.name)
}

// hungryLine is the line whose turn it is; lines that all have left are forgotten.
func (r *room) hungryLine(t *tenant) *line {
	for len(t.ring) > 0 {
		l := t.ring[0]
		if l.nextToAsk() != nil {
			return l
		}
		t.ring = t.ring[1:]
		l.queued = false
		if l.first == nil && l.asked == 0 {
			r.agenda.drop(&l.due)
			delete(t.lines, l.key)
		}
	}
	return nil
}

func (r *room) leaveRing(t *tenant) {
	r.ring = r.ring[1:]
	t.queued = false
}

func (r *room) tidyTenant(t *tenant) {
	if len(t.lines) == 0 && !t.queued && t.hold != loading {
		delete(r.tenants, t.name)
	}
}

func (l *line) nextToAsk() *waiter {
	if l.asked == 0 {
		return l.first
	}
	return l.lastAsk.next
}

func (r *room) ask(w *waiter) {
	l := w.line
	if l.asked == 0 {
		l.picked, l.chosen, l.asOf = l.wakes, l.frees, r.seq
		r.agenda.drop(&l.due)
	}
	w.asked = true
	l.asked++
	l.lastAsk = w
	l.tenant.asked++
	r.asked++
}

// shut parks a namespace whose quota cannot be read: its claims wait and end empty.
func (r *room) shut(t *tenant) {
	t.hold, t.quota = unreadable, nil
	for _, l := range t.lines {
		l.err = nil
	}
	r.park(t)
}

// park takes a namespace's hungry lines out of its ring, as asked.
func (r *room) park(t *tenant) {
	ring := t.ring
	t.ring = nil
	for _, l := range ring {
		l.queued = false
		l.seen = r.seq
		r.endLate(l)
		r.tidy(l)
	}
}

// loaded tells that a namespace's quota has been loaded, or could not be.
func (r *room) loaded(ns string, q configcache.Quota, err error) {
	t := r.tenants[ns]
	if t == nil || t.hold != loading {
		return
	}
	t.hold = open
	if err == nil {
		t.quota = &q
		r.enter(t)
		r.tidyTenant(t)
		return
	}
	for _, l := range t.ring {
		l.err = err
	}
	r.park(t)
	r.tidyTenant(t)
}

// result takes what the store said to the claims that pick chose; err is the
// answer to all.
func (r *room) result(picked []*waiter, grants []store.Grant, err error, now time.Time) {
	for i, w := range picked {
		l := w.line
		w.asked = false
		l.asked--
		l.tenant.asked--
		r.asked--
		v := &l.verdict
		switch {
		case err != nil:
			v.err = err
		case errors.Is(grants[i].Err, store.ErrStale):
			v.stale = true
		case grants[i].Err != nil:
			v.err = grants[i].Err
		default:
			r.granted(w, &grants[i])
		}
		if !w.done && (w.gone || r.closed) {
			r.end(w)
		}
		if l.asked == 0 {
			r.conclude(l, now)
		}
	}
}

func (r *room) granted(w *waiter, g *store.Grant) {
	v := &w.line.verdict
	for _, h := range g.Held {
		if h.What == store.HoldMaxRunning {
			v.capped = true
		} else {
			v.narrow = true
		}
	}
	if len(g.Jobs) == 0 {
		v.drained, v.nextAt = true, g.NextAt
		return
	}
	v.granted++
	r.remove(w)
	r.out = append(r.out, reply{w: w, jobs: g.Jobs, gone: w.gone})
}

// conclude decides how a line goes on after the store's answers.
func (r *room) conclude(l *line, now time.Time) {
	t, v := l.tenant, l.verdict
	woken := l.wakes != l.picked
	if v.granted > 0 {
		l.early = 0
	}
	l.verdict, l.lastAsk, t.quota = verdict{}, nil, nil
	switch {
	case v.stale && t.stale < maxStale:
		r.hunger(l)
		if t.hold == open {
			t.stale++
			t.hold = loading
			r.stale = append(r.stale, t.name)
			r.outOfRing(t)
		}
	case v.stale:
		t.stale = 0
		r.fail(l, fault.New(fault.Overloaded, "the quota of the namespace keeps changing"), woken)
	case v.err != nil:
		r.fail(l, v.err, woken)
	case v.drained || v.capped || v.narrow:
		t.stale, l.err = 0, nil
		l.burst = min(max(1, v.granted), maxBurst)
		l.seen = l.asOf
		r.endLate(l)
		r.note(l, v, now)
		switch {
		case t.full:
			r.agenda.drop(&l.due)
		case woken:
			r.hunger(l)
		default:
			r.await(l, v.nextAt, now)
		}
	default:
		t.stale, l.err = 0, nil
		l.burst = min(2*l.burst, maxBurst)
		r.note(l, v, now)
		r.hunger(l)
	}
	r.enter(t)
	r.tidy(l)
}

// fail parks a line that the store could not serve; the look round once a
// second asks again.
func (r *room) fail(l *line, err error, woken bool) {
	l.err = err
	l.seen = l.asOf
	r.endLate(l)
	if woken {
		r.hunger(l)
	}
}

// outOfRing takes a namespace out of the room's ring before its turn.
func (r *room) outOfRing(t *tenant) {
	if !t.queued {
		return
	}
	for i, other := range r.ring {
		if other == t {
			r.ring = append(r.ring[:i:i], r.ring[i+1:]...)
			break
		}
	}
	t.queued = false
}

// await parks a line until its next job is due.
func (r *room) await(l *line, nextAt, now time.Time) {
	switch {
	case nextAt.IsZero():
		l.early = 0
		r.agenda.drop(&l.due)
	case nextAt.After(now):
		l.early = 0
		r.agenda.set(&l.due, nextAt)
	default:
		pause := time.Duration(0)
		if l.early > 0 {
			pause = min(earlyPause<<min(l.early-1, 10), maxEarlyPause)
		}
		l.early++
		r.agenda.set(&l.due, now.Add(pause))
	}
}

// parked lists the lines that wait to be woken, and wakes the namespaces whose
// quota could not be read, to look again.
func (r *room) parked() []*line {
	var out []*line
	for _, t := range r.tenants {
		if t.hold == unreadable {
			r.wakeTenant(t)
			continue
		}
		if t.full {
			if l := t.probe(); l != nil {
				out = append(out, l)
			}
			if t.full {
				continue
			}
		}
		for _, l := range t.lines {
			if l.idle() {
				out = append(out, l)
			}
		}
	}
	return out
}

// idle reports whether claims wait in a line that nobody is asked for.
func (l *line) idle() bool { return !l.queued && l.asked == 0 && l.first != nil }

// looked takes what the look round found for a line that was parked.
func (r *room) looked(l *line, found store.Readiness, now time.Time) {
	if !l.idle() || l.tenant.lines[l.key] != l {
		return
	}
	if found.Ready {
		r.wakeLine(l)
		return
	}
	l.err, l.held = nil, false
	if found.NextAt.After(now) {
		r.await(l, found.NextAt, now)
	}
}
