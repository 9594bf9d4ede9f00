package client

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/fault"
)

const (
	// pollSlack is how much longer than asked for an answer may take.
	pollSlack = 5 * time.Second
	// defaultTrust is how long a worker goes on with a token that worked and is
	// refused now.
	defaultTrust = time.Minute
	// maxClaim is how many jobs one claim may ask for.
	maxClaim = 1000
)

// claim claims jobs for free slots until ctx ends, the shift is drained, or
// enough jobs were started. The error is of claims that can never succeed.
func (s *shift) claim(ctx context.Context) error {
	if len(s.sources) > 1 {
		return newTurns(s).run(ctx)
	}
	src := s.sources[0]
	for {
		var room int
		var held, enough bool
		s.await(ctx, func() bool {
			room, held = s.room(), len(s.attempts) > 0
			enough = s.enough()
			return room > 0 || enough
		})
		if ctx.Err() != nil || enough {
			return nil
		}
		empty := s.wait(ctx, src, room)
		if src.failure != nil {
			return src.failure
		}
		if s.w.opts.Drain && empty && !held {
			return nil
		}
	}
}

// enough reports whether no more jobs are to be started. The caller holds mu.
func (s *shift) enough() bool { return s.w.opts.MaxJobs > 0 && s.started >= s.w.opts.MaxJobs }

// wait polls a source until it has jobs, which it starts, or for the time of one
// poll, and reports whether there was nothing. While the server is unavailable
// it tries again.
func (s *shift) wait(ctx context.Context, src *source, room int) (empty bool) {
	end := time.Now().Add(s.w.opts.Wait)
	for {
		jobs, err := s.poll(ctx, src, room, max(0, time.Until(end)))
		s.judge(src, err)
		if err == nil {
			s.accept(src, jobs)
			return len(jobs) == 0
		}
		if src.failure != nil || !sleep(ctx, src.pause.length()) || time.Now().After(end) {
			return false
		}
	}
}

// poll sends one claim.
func (s *shift) poll(ctx context.Context, src *source, most int, wait time.Duration) ([]*flexiqv1.ClaimedJob, error) {
	req := &flexiqv1.ClaimRequest{
		Queues:   s.w.opts.Queues,
		MaxJobs:  int32(min(most, maxClaim)),
		LeaseFor: duration(s.w.opts.LeaseFor),
		Worker:   s.w.opts.Name,
		Slots:    int32(min(s.w.opts.Slots, 1<<30)),
	}
	if wait > 0 {
		req.Wait = durationpb.New(wait)
	}
	ctx, cancel := context.WithTimeout(ctx, wait+pollSlack)
	defer cancel()
	res, err := src.c.wire.poll(ctx, req)
	if err != nil {
		return nil, fault.Of(err)
	}
	return res.GetJobs(), nil
}

// judge takes in how a claim ended. An error that no repeat can mend gives the
// source up.
func (s *shift) judge(src *source, err error) {
	if !src.c.wrongAddress(err) {
		s.heard(src, claims, err)
	}
	if err == nil {
		src.worked, src.refused, src.silent = true, time.Time{}, time.Time{}
		src.pause.reset()
		return
	}
	f := fault.Of(err)
	switch log := s.w.opts.Log; {
	case f.Reason == fault.Cancelled: // withdrawn
	case s.hopeless(src, f, time.Now()):
		src.failure = f
		if len(s.w.clients) == 1 {
			break // Run returns it
		}
		log.Error().Err(f).Str("token", src.c.TokenID()).Msg("no more jobs are claimed with this token")
	default:
		log.Debug().Err(f).Str("token", src.c.TokenID()).Msg("claim failed; it will be tried again")
	}
}

// drainPatience is how long a draining worker waits for a server that does not
// answer: nobody can say that no work is left. Others wait for ever.
const drainPatience = 30 * time.Second

// hopeless reports whether no later claim can fare better. A token that worked
// and now does not may be fine: NATS cannot tell one that was revoked from one
// that cannot be checked for the moment.
func (s *shift) hopeless(src *source, f *fault.Error, now time.Time) bool {
	if src.silent.IsZero() {
		src.silent = now
	}
	if s.w.opts.Drain && unknown(f) && now.Sub(src.silent) >= s.w.silence {
		return true
	}
	switch f.Reason {
	case fault.PermissionDenied, fault.InvalidRequest, fault.Unimplemented:
		return true
	case fault.Unauthenticated:
		if src.refused.IsZero() {
			src.refused = now
		}
		return !src.worked || now.Sub(src.refused) >= s.w.trust
	case Unreachable:
		return src.c.wrongAddress(f)
	}
	return false
}
