package client

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/fault"
)

const (
	// turnTime is for how long a source's jobs may keep a slot busy in one turn,
	// when there are more sources than slots. One job is always a turn.
	turnTime = 20 * time.Millisecond

	// A source that had nothing is left out of the turns while others have work,
	// for so long for each source there is, within the bounds, and for twice as
	// long each time that it has nothing again. So claims in vain stay few however
	// many sources there are.
	restEach = 10 * time.Millisecond
	minRest  = time.Second
	maxRest  = 4 * time.Second

	// crowded is how long every slot must have been busy for the polls that wait
	// to be withdrawn: what they bring would only be given back.
	crowded = 250 * time.Millisecond

	// waitEach is how long a poll waits at least for each source there is.
	waitEach = 50 * time.Millisecond
)

// stance is what a source does between and in its turns.
type stance uint8

const (
	ready   stance = iota // it stands in the line
	asking                // a claim that does not wait is under way; slots are kept for it
	resting               // it had nothing, or failed
	parked                // a poll waits for its work
	given                 // it is given up
)

// place is what turns know of a source.
type place struct {
	stance   stance
	kept     int                // slots that are kept for the claim under way
	most     int                // jobs to ask for: what it had lately, and one more
	vain     int                // claims in a row that brought nothing
	until    time.Time          // when its rest ends
	failing  bool               // it rests because its last claim failed
	withdraw context.CancelFunc // of the poll that waits
	sent     int64              // how many jobs had started as the poll began, -1 when one ran
	still    int64              // the same, of the last poll that was answered with nothing; -1: none
}

// turns share the slots of a shift among several sources. One goroutine drives
// them; claims are carried out by others.
//
// A source with work is asked in its turn, for a share of the free slots or, as
// long as its jobs are short, for what it had lately. One that has nothing rests
// while others have work. When there are more slots than work, a poll waits for
// each source that has none; what such polls bring at once beyond the slots is
// given back.
type turns struct {
	s       *shift
	answers chan found
	line    []*source // those that are ready, by turn
	counts  [given + 1]int
	kept    int       // slots that are kept for claims under way
	polls   int       // under way
	expect  int       // what sources had lately
	busy    time.Time // since when every slot is busy; zero: they are not
	wakeAt  time.Time // when the first rest ends, or earlier; zero: never
}

// found is what one source's claim brought.
type found struct {
	src  *source
	jobs []*flexiqv1.ClaimedJob
	err  error
}

func newTurns(s *shift) *turns {
	t := &turns{s: s, answers: make(chan found, len(s.sources)), line: make([]*source, len(s.sources)), expect: 1}
	copy(t.line, s.sources)
	for _, src := range s.sources {
		src.place = place{still: -1}
	}
	t.counts[ready] = len(t.line)
	return t
}

func (t *turns) run(ctx context.Context) error {
	own, withdraw := context.WithCancel(ctx)
	defer t.end(withdraw)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		s := t.s
		s.mu.Lock()
		room, held, started, enough, changed := s.room(), !s.idle(), s.started, s.enough(), s.changed
		usual := s.usual
		s.mu.Unlock()
		if ctx.Err() != nil || enough || t.counts[given] == len(s.sources) {
			return t.failure()
		}
		if s.w.opts.Drain && !held && t.drained(started) {
			return t.failure()
		}
		now := time.Now()
		t.rested(now)
		sent := started
		if held {
			sent = -1
		}
		t.fill(own, room, usual, sent, now)
		timer.Reset(t.nextLook(now))
		select {
		case f := <-t.answers:
			t.take(f)
			for n := len(t.answers); n > 0; n-- {
				t.take(<-t.answers)
			}
		case <-changed:
		case <-timer.C:
		case <-ctx.Done():
		}
	}
}

// end withdraws every claim. What it brings all the same is given back.
func (t *turns) end(withdraw context.CancelFunc) {
	withdraw()
	for t.polls > 0 {
		t.take(<-t.answers)
	}
}

// failure joins the errors of the sources that are given up.
func (t *turns) failure() error {
	var errs []error
	for _, src := range t.s.sources {
		if src.failure != nil {
			errs = append(errs, src.failure)
		}
	}
	return errors.Join(errs...)
}

// drained reports whether every source was found without work since the last
// job started.
func (t *turns) drained(started int64) bool {
	for _, src := range t.s.sources {
		if src.failure == nil && src.place.still != started {
			return false
		}
	}
	return true
}

// set changes what a source does.
func (t *turns) set(src *source, to stance) {
	t.counts[src.place.stance]--
	t.counts[to]++
	src.place.stance = to
	if to == ready {
		t.line = append(t.line, src)
	}
}

// rested puts those whose rest is over into the line.
func (t *turns) rested(now time.Time) {
	if t.wakeAt.IsZero() || now.Before(t.wakeAt) {
		return
	}
	t.wakeAt = time.Time{}
	for _, src := range t.s.sources {
		if src.place.stance != resting {
			continue
		}
		if now.Before(src.place.until) {
			t.wake(src.place.until)
			continue
		}
		src.place.failing = false
		t.set(src, ready)
	}
}

func (t *turns) wake(at time.Time) {
	if t.wakeAt.IsZero() || at.Before(t.wakeAt) {
		t.wakeAt = at
	}
}

// fill claims for the free slots: by turns, and when nobody is left in the line
// by polls that wait.
func (t *turns) fill(ctx context.Context, room int, usual time.Duration, sent int64, now time.Time) {
	room -= t.kept
	for room > 0 && len(t.line) > 0 {
		src := t.line[0]
		t.line = t.line[1:]
		n := t.share(src, room, usual)
		src.place.kept = n
		t.kept += n
		room -= n
		t.set(src, asking)
		t.send(ctx, src, n, 0)
	}
	switch {
	case room > 0:
		t.busy = time.Time{}
		if t.counts[resting] > 0 {
			t.park(ctx, room, sent)
		}
	case t.busy.IsZero():
		t.busy = now
	case now.Sub(t.busy) >= crowded && t.counts[parked] > 0:
		for _, src := range t.s.sources {
			if src.place.stance == parked {
				src.place.withdraw()
			}
		}
	}
}

// share is how many jobs a source is asked for.
func (t *turns) share(src *source, room int, usual time.Duration) int {
	fair := room / (len(t.line) + 1)
	short := 1
	if usual > 0 {
		short = int(min(turnTime/usual, maxClaim))
	}
	return min(room, maxClaim, max(1, fair, min(short, max(src.place.most, t.expect))))
}

// park lets a poll wait for each source that rests for want of work.
func (t *turns) park(ctx context.Context, room int, sent int64) {
	wait := t.s.w.opts.Wait
	if !t.s.w.opts.Drain {
		wait = min(maxWait, max(wait, waitEach*time.Duration(len(t.s.sources))))
		wait -= rand.N(wait/4 + 1) // so that they do not all end together
	}
	share := max(1, room/len(t.s.sources))
	for _, src := range t.s.sources {
		if src.place.stance != resting || src.place.failing {
			continue
		}
		src.place.sent = sent
		t.set(src, parked)
		var own context.Context
		own, src.place.withdraw = context.WithCancel(ctx)
		t.send(own, src, share, wait)
	}
}

// send carries out a claim.
func (t *turns) send(ctx context.Context, src *source, most int, wait time.Duration) {
	t.polls++
	go func() {
		jobs, err := t.s.poll(ctx, src, most, wait)
		t.answers <- found{src: src, jobs: jobs, err: err}
	}()
}

// take starts what a claim brought and decides what its source does next.
func (t *turns) take(f found) {
	src, p := f.src, &f.src.place
	t.polls--
	waited, asked := p.stance == parked, p.kept
	t.kept -= p.kept
	p.kept = 0
	if waited {
		p.withdraw()
	}
	t.s.judge(src, f.err)
	t.s.accept(src, f.jobs)
	switch got := len(f.jobs); {
	case src.failure != nil:
		t.set(src, given)
	case f.err != nil:
		p.failing = !fault.Is(f.err, fault.Cancelled) // else it was withdrawn
		pause := t.rest(0)
		if p.failing {
			pause = src.pause.length()
		}
		t.setResting(src, pause)
	case got == 0:
		if waited {
			p.still = p.sent
		}
		p.most = 1
		t.setResting(src, t.rest(p.vain))
		p.vain++
	case !waited && got < asked: // it has given all it had
		p.most, p.vain, t.expect = got+1, 0, got+1
		t.setResting(src, t.rest(0))
	default:
		p.vain = 0
		if !waited {
			p.most, t.expect = 2*got, max(t.expect, 2*got)
		}
		t.set(src, ready)
	}
}

func (t *turns) setResting(src *source, pause time.Duration) {
	src.place.until = time.Now().Add(pause)
	t.wake(src.place.until)
	t.set(src, resting)
}

// rest is how long a source rests that had nothing so often before.
func (t *turns) rest(vain int) time.Duration {
	base := max(minRest, restEach*time.Duration(len(t.s.sources)))
	return min(base<<min(vain, 2), max(maxRest, base))
}

// nextLook is how long nothing is to be done unless something happens.
func (t *turns) nextLook(now time.Time) time.Duration {
	next := now.Add(time.Hour)
	if !t.wakeAt.IsZero() {
		next = minTime(next, t.wakeAt)
	}
	if !t.busy.IsZero() && t.counts[parked] > 0 {
		next = minTime(next, t.busy.Add(crowded))
	}
	return max(time.Millisecond, next.Sub(now))
}
