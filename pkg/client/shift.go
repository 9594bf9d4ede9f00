package client

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"flexiq/pkg/batch"
	"flexiq/pkg/job"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
)

const (
	// stopPatience is how long handlers have, once their contexts have ended.
	stopPatience = 2 * time.Second
	// lastWords is how long the last settlements have.
	lastWords = 3 * time.Second
)

// shift is one run of a worker: the jobs that it holds, and the slots they
// take. A job takes its slot until its settlement is answered, so the leases
// held are never more than the slots.
type shift struct {
	w       *Worker
	sources []*source

	orders context.Context // ends when the worker is told to stop: nothing starts then
	base   context.Context // of the handlers
	cancel context.CancelCauseFunc

	mu       sync.Mutex
	changed  chan struct{}         // closed and replaced whenever something below changes
	attempts map[*attempt]struct{} // each takes a slot
	current  map[holding]*attempt  // the newest attempt of each job
	giving   int                   // jobs being given back that never took a slot
	started  int64                 // jobs that were started
	ending   int                   // attempts whose handlers have returned
	usual    time.Duration         // what a job takes, by the last ones; 0: none has ended
	closed   bool                  // nothing starts any more

	talk       context.Context // of heartbeats and settlements
	silence    context.CancelFunc
	background sync.WaitGroup // heartbeats
}

// source is one client in a shift, with what goes through it.
type source struct {
	c       *Client
	index   int
	settles *batch.Group[*flexiqv1.Settlement, *flexiqv1.SettleResult]
	pause   pause
	failure error         // no claim ever again
	worked  bool          // a claim was answered
	refused time.Time     // since when the token is not accepted; zero: it is
	silent  time.Time     // since when no claim was answered; zero: the last one was
	wake    chan struct{} // tells the heartbeats of an earlier deadline
	nextDue time.Time     // when heartbeats look next; guarded by the shift's mu
	outage  outage
	place   place // among several
}

// holding names a job of one source.
type holding struct {
	source int
	job    string
}

// attempt is a job that this shift holds.
type attempt struct {
	src    *source
	job    *flexiqv1.Job
	lease  string
	length time.Duration // of the lease
	cancel context.CancelCauseFunc
	took   time.Duration // by the handler, once it has returned

	// Guarded by the shift's mu.
	beatAt    time.Time // when the next heartbeat is due
	deadline  time.Time // when the lease ends, as far as we know
	handled   bool      // the handler has returned
	abandoned bool      // the handler is waited for no longer
	lost      bool      // the server says that the lease is not ours
}

func newShift(ctx context.Context, w *Worker) *shift {
	s := &shift{
		w: w, orders: ctx, changed: make(chan struct{}), attempts: make(map[*attempt]struct{}), current: make(map[holding]*attempt),
	}
	ctx = context.WithoutCancel(ctx) // running jobs outlive the call to stop
	s.base, s.cancel = context.WithCancelCause(ctx)
	s.talk, s.silence = context.WithCancel(ctx)
	for i, c := range w.clients {
		src := &source{c: c, index: i, pause: newPause(), wake: make(chan struct{}, 1)}
		src.settles = s.newSettles(src)
		s.sources = append(s.sources, src)
		s.background.Go(func() { s.beat(src) })
	}
	return s
}

// note tells everyone who waits that something changed. The caller holds mu.
func (s *shift) note() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// await waits until done, which is called under mu, and reports it; false when
// ctx ended first.
func (s *shift) await(ctx context.Context, done func() bool) bool {
	for {
		s.mu.Lock()
		ok, changed := done(), s.changed
		s.mu.Unlock()
		if ok {
			return true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}

// room is how many jobs may start now. The caller holds mu.
func (s *shift) room() int {
	room := s.w.opts.Slots - len(s.attempts)
	if s.w.opts.MaxJobs > 0 {
		room = min(room, int(min(s.w.opts.MaxJobs-s.started, int64(s.w.opts.Slots))))
	}
	if s.closed || s.orders.Err() != nil {
		return 0
	}
	return max(0, room)
}

// accept starts the jobs that there is room for and gives the others back.
func (s *shift) accept(src *source, jobs []*flexiqv1.ClaimedJob) {
	for _, cj := range jobs {
		s.mu.Lock()
		if s.room() == 0 {
			s.giving++
			s.mu.Unlock()
			go s.giveBack(src, cj)
			continue
		}
		a, ctx := s.admit(src, cj)
		s.mu.Unlock()
		go s.run(ctx, a)
	}
}

// admit takes a slot for a job. The caller holds mu.
func (s *shift) admit(src *source, cj *flexiqv1.ClaimedJob) (*attempt, context.Context) {
	now, key := time.Now(), holding{src.index, cj.GetJob().GetId()}
	if old := s.current[key]; old != nil {
		// The server gave out the job again, so the old lease is gone.
		old.lost = true
		old.cancel(ErrLeaseLost)
	}
	a := &attempt{src: src, job: cj.GetJob(), lease: cj.GetLease(), length: s.leaseLength(cj)}
	a.beatAt, a.deadline = now.Add(a.length/3), now.Add(a.length)
	ctx, cancel := context.WithCancelCause(s.base)
	a.cancel = cancel
	if d := cj.GetTimeout().AsDuration(); d > 0 {
		var stop context.CancelFunc
		ctx, stop = context.WithTimeout(ctx, d)
		a.cancel = func(cause error) { cancel(cause); stop() }
	}
	s.attempts[a], s.current[key] = struct{}{}, a
	s.started++
	if src.nextDue.IsZero() || a.beatAt.Before(src.nextDue) {
		src.nextDue = a.beatAt
		select {
		case src.wake <- struct{}{}:
		default:
		}
	}
	return a, ctx
}

// leaseLength is measured between two times of the server's clock: the
// client's own clock may be wrong.
func (s *shift) leaseLength(cj *flexiqv1.ClaimedJob) time.Duration {
	started, expires := cj.GetJob().GetStartedAt(), cj.GetLeaseExpiresAt()
	if started != nil && expires != nil {
		if d := expires.AsTime().Sub(started.AsTime()); d > 0 {
			return d
		}
	}
	if s.w.opts.LeaseFor > 0 {
		return s.w.opts.LeaseFor
	}
	return job.DefaultLease
}

// run runs the handler and settles, whatever the handler does.
func (s *shift) run(ctx context.Context, a *attempt) {
	t, began := &Task{job: a.job}, time.Now()
	err := fmt.Errorf("the handler ended its goroutine")
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
		cause := context.Cause(ctx)
		a.cancel(nil)
		a.took = time.Since(began)
		s.conclude(a, t, err, cause)
	}()
	err = s.w.handler(t.Name())(ctx, t)
}

// conclude ends an attempt whose handler has returned.
func (s *shift) conclude(a *attempt, t *Task, err, cause error) {
	s.mu.Lock()
	a.handled = true
	if !a.abandoned {
		s.ending++
	}
	if s.usual == 0 {
		s.usual = a.took
	}
	s.usual += (a.took - s.usual) / 8
	abandoned, lost := a.abandoned, a.lost
	s.mu.Unlock()
	switch {
	case abandoned: // it was released, and is no longer held
		return
	case lost:
		s.w.lost.Add(1)
		s.w.opts.Log.Warn().Str("job", a.job.GetId()).Msg("the lease was lost; what the job did is not counted")
	default:
		s.settle(a, settlement(a, t, err, cause))
	}
	s.drop(a)
}

// drop frees a job's slot.
func (s *shift) drop(a *attempt) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := holding{a.src.index, a.job.GetId()}
	delete(s.attempts, a)
	if a.handled && !a.abandoned {
		s.ending--
	}
	if s.current[key] == a {
		delete(s.current, key)
	}
	s.note()
}

// giveBack releases a job that came when there was no room for it.
func (s *shift) giveBack(src *source, cj *flexiqv1.ClaimedJob) {
	a := &attempt{src: src, job: cj.GetJob(), lease: cj.GetLease(), length: s.leaseLength(cj)}
	a.deadline = time.Now().Add(a.length)
	s.settle(a, release(a))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.giving--
	s.note()
}

// idle reports whether the shift holds nothing. The caller holds mu.
func (s *shift) idle() bool { return len(s.attempts) == 0 && s.giving == 0 }

// finish ends the shift: jobs run on until ctx ends and the grace is over, then
// their contexts end, and what is left is released.
func (s *shift) finish(ctx context.Context) {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	done := s.await(ctx, s.idle)
	if !done && s.w.opts.Grace > 0 {
		done = s.awaitFor(s.w.opts.Grace)
	}
	s.cancel(ErrStopping)
	if !done && !s.awaitFor(stopPatience) {
		s.abandon()
		s.awaitFor(lastWords)
	}
	s.silence()
	s.background.Wait()
	bye, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastWords)
	defer cancel()
	for _, src := range s.sources {
		if err := src.settles.Close(bye); err != nil {
			s.w.opts.Log.Warn().Err(err).Msg("not every settlement was answered before the worker ended")
		}
	}
	s.signOff(bye)
}

// signOff tells that nothing more comes from this worker. When that is lost, it
// is listed for a while longer.
func (s *shift) signOff(ctx context.Context) {
	var calls sync.WaitGroup
	for _, src := range s.sources {
		if !src.worked {
			continue
		}
		calls.Go(func() {
			req := &flexiqv1.HeartbeatRequest{Worker: s.w.opts.Name, Leaving: true}
			if err := src.c.wire.call(ctx, "Heartbeat", req, new(flexiqv1.HeartbeatResponse)); err != nil {
				s.w.opts.Log.Debug().Err(err).Msg("not signed off")
			}
		})
	}
	calls.Wait()
}

func (s *shift) awaitFor(d time.Duration) bool {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	return s.await(ctx, s.idle)
}

// abandon releases the jobs whose handlers do not return.
func (s *shift) abandon() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for a := range s.attempts {
		if a.handled || a.lost {
			continue
		}
		a.abandoned = true
		go func() {
			s.settle(a, release(a))
			s.drop(a)
		}()
	}
}
