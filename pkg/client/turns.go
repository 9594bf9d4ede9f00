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

	// While others have work, a source that had nothing rests for so long for each
	// source there is, within the bounds, and for twice as long each time that it
	// has nothing again. So claims in vain stay few however many sources there are.
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
	resting               // it had nothing, and no poll waits for it yet
	failing               // it rests because its last claim failed
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
	withdraw context.CancelFunc // of the poll that waits
	sent     int64              // how many jobs had started as the poll began, -1 when one ran
	still    int64              // the same, of the last poll that was answered with nothing; -1: none
}

// turns share the slots of a shift among several sources. One goroutine drives
// them; claims are carried out by others.
//
// A source with work is asked in its turn, for a share of the free slots or, as
// long as its jobs are short, for what it had lately. A poll waits for each source
// that has none, at the latest when it has rested, while others have work. What
// such polls bring beyond the free slots is given back, and when every slot has
// been busy for a while they are withdrawn: then a source that has rested is asked
// in its turn.
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
		pace := pace{usual: s.usual, ending: s.ending}
		s.mu.Unlock()
		if ctx.Err() != nil || enough || t.counts[given] == len(s.sources) {
			return t.failure()
		}
		if s.w.opts.Drain && !held && t.drained(started) {
			return t.failure()
		}
		now := time.Now()
		var park func(*source)
		if room > 0 {
			sent := started
			if held {
				sent = -1
			}
			park = t.parker(own, room, sent)
		}
		t.rested(now, park)
		t.fill(own, room, pace)
		t.spare(now, park)
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

// rested ends the rests that are over: while slots are free a poll is to wait,
// else the source stands in the line again.
func (t *turns) rested(now time.Time, park func(*source)) {
	if t.wakeAt.IsZero() || now.Before(t.wakeAt) {
		return
	}
	t.wakeAt = time.Time{}
	for _, src := range t.s.sources {
		switch at := src.place.stance; {
		case at != resting && at != failing:
		case now.Before(src.place.until):
			t.wake(src.place.until)
		case at == resting && park != nil:
			park(src)
		default:
			t.set(src, ready)
		}
	}
}

func (t *turns) wake(at time.Time) {
	if t.wakeAt.IsZero() || at.Before(t.wakeAt) {
		t.wakeAt = at
	}
}

// pace is how fast jobs go.
type pace struct {
	usual  time.Duration // of a job; 0: unknown
	ending int           // jobs that are being settled
}

// fill claims for the free slots by turns. A turn of several short jobs is not
// cut down to one that a single free slot has room for, when more are about to
// be free.
func (t *turns) fill(ctx context.Context, free int, p pace) {
	room := free - t.kept
	for room > 0 && len(t.line) > 0 {
		src := t.line[0]
		n := t.share(src, room, p.usual)
		if n > room && t.kept+p.ending > 0 {
			break
		}
		n = min(n, room)
		t.line = t.line[1:]
		src.place.kept = n
		t.kept += n
		room -= n
		t.set(src, asking)
		t.send(ctx, src, n, 0)
	}
}

// spare lets polls wait when nobody stands in the line and slots are free, which
// park tells, and withdraws them when none has been for a while.
func (t *turns) spare(now time.Time, park func(*source)) {
	switch {
	case park != nil:
		t.busy = time.Time{}
		if len(t.line) > 0 || t.counts[resting] == 0 {
			return
		}
		for _, src := range t.s.sources {
			if src.place.stance == resting {
				park(src)
			}
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

// share is how many jobs a source is to be asked for: more than there is room
// for when its jobs are short.
func (t *turns) share(src *source, room int, usual time.Duration) int {
	fair, short := room/len(t.line), 1
	if usual > 0 {
		short = int(min(turnTime/usual, time.Duration(max(1, t.s.w.opts.Slots/4))))
	}
	return min(maxClaim, max(1, fair, min(short, max(src.place.most, t.expect))))
}

// parker returns what lets a poll wait for a source.
func (t *turns) parker(ctx context.Context, free int, sent int64) func(*source) {
	return func(src *source) {
		wait := t.s.w.opts.Wait
		if !t.s.w.opts.Drain {
			wait = min(maxWait, max(wait, waitEach*time.Duration(len(t.s.sources))))
			wait -= rand.N(wait/4 + 1) // so that they do not all end together
		}
		src.place.sent = sent
		t.set(src, parked)
		var own context.Context
		own, src.place.withdraw = context.WithCancel(ctx)
		t.send(own, src, max(1, free/len(t.s.sources)), wait)
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
	case fault.Is(f.err, fault.Cancelled): // withdrawn
		t.pause(src, resting, t.rest(0))
	case f.err != nil:
		t.pause(src, failing, src.pause.length())
	case got == 0:
		if waited {
			p.still = p.sent
		}
		p.most = 1
		t.pause(src, resting, t.rest(p.vain))
		p.vain++
	case !waited && got < asked: // it has given all it had
		p.most, p.vain, t.expect = got+1, 0, got+1
		t.pause(src, resting, t.rest(0))
	default:
		p.vain = 0
		if !waited {
			p.most, t.expect = 2*got, max(t.expect, 2*got)
		}
		t.set(src, ready)
	}
}

func (t *turns) pause(src *source, as stance, d time.Duration) {
	src.place.until = time.Now().Add(d)
	t.wake(src.place.until)
	t.set(src, as)
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
