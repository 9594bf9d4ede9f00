package client

import (
	"context"
	"slices"
	"time"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
)

const (
	maxLeases   = 1000        // in one heartbeat
	beatTimeout = time.Second // of one heartbeat, at least
	idleCheck   = time.Hour   // when no lease is held; a new one wakes
)

// beat keeps the leases of one source alive: each is extended every third of
// its length, neighbours in time together. A handler whose lease ended without
// an answer is stopped by our own clock.
func (s *shift) beat(src *source) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-s.talk.Done():
			return
		case <-src.wake:
		case <-timer.C:
		}
		due, next := s.dueBeats(src, time.Now())
		for chunk := range slices.Chunk(due, maxLeases) {
			next = minTime(next, s.extend(src, chunk))
		}
		timer.Reset(max(0, time.Until(s.setDue(src, next))))
	}
}

func minTime(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// setDue keeps the time of the next look, or an earlier one that a new lease
// asked for meanwhile.
func (s *shift) setDue(src *source, next time.Time) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	for a := range s.attempts {
		if a.beats(src) {
			next = minTime(next, a.beatAt)
		}
	}
	src.nextDue = next
	return next
}

// dueBeats lists the leases to extend now and when to look again, and stops the
// handlers whose leases have ended.
func (s *shift) dueBeats(src *source, now time.Time) (due []*attempt, next time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	next = now.Add(idleCheck)
	for a := range s.attempts {
		if !a.beats(src) {
			continue
		}
		if !a.handled && now.After(a.deadline) {
			a.cancel(ErrLeaseLost)
		}
		if !a.beatAt.After(now.Add(a.length / 6)) {
			due = append(due, a)
		}
	}
	return due, next
}

// beats reports whether the attempt's lease is to be kept alive through src. It
// is until its settlement is answered. The caller holds the shift's mu.
func (a *attempt) beats(src *source) bool { return a.src == src && !a.lost && !a.abandoned }

// extend sends one heartbeat and returns when its leases want the next.
func (s *shift) extend(src *source, due []*attempt) time.Time {
	if len(due) == 0 {
		return time.Now().Add(idleCheck)
	}
	req := &flexiqv1.HeartbeatRequest{Extend: duration(s.w.opts.LeaseFor), Worker: s.w.opts.Name}
	shortest := due[0].length
	for _, a := range due {
		req.Leases = append(req.Leases, &flexiqv1.Lease{JobId: a.job.GetId(), Lease: a.lease})
		shortest = min(shortest, a.length)
	}
	sent, res := time.Now(), new(flexiqv1.HeartbeatResponse)
	ctx, cancel := context.WithTimeout(s.talk, min(patience, max(beatTimeout, shortest/3)))
	defer cancel()
	err := src.c.wire.call(ctx, "Heartbeat", req, res)
	if s.talk.Err() == nil {
		s.heard(src, heartbeats, err)
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.w.opts.Log.Debug().Err(err).Int("leases", len(due)).Msg("heartbeat failed; it will be tried again")
		retry := time.Now().Add(min(time.Second, shortest/10))
		for _, a := range due {
			a.beatAt = retry
		}
		return retry
	}
	byJob := make(map[string]*attempt, len(due))
	for _, a := range due {
		a.beatAt, a.deadline = sent.Add(a.length/3), sent.Add(a.length)
		byJob[a.job.GetId()] = a
	}
	for _, id := range res.GetLost() {
		// A job whose outcome is being told may be settled already.
		if a := byJob[id]; a != nil && !a.handled {
			a.lost = true
			a.cancel(ErrLeaseLost)
		}
	}
	for _, id := range res.GetCancelled() {
		if a := byJob[id]; a != nil && !a.handled {
			a.cancel(ErrJobCancelled)
		}
	}
	return sent.Add(shortest / 3)
}
