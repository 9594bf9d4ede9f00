package client

import (
	"context"
	"errors"
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
	// restAfterNothing is how long a source that had nothing is left out of the
	// turns, while others have work.
	restAfterNothing = time.Second
)

// claim claims jobs for free slots until ctx ends, the shift is drained, or
// enough jobs were started. The error is of claims that can never succeed.
func (s *shift) claim(ctx context.Context) error {
	for {
		var room int
		var held, enough bool
		s.await(ctx, func() bool {
			room, held = s.room(), len(s.attempts) > 0
			enough = s.w.opts.MaxJobs > 0 && s.started >= s.w.opts.MaxJobs
			return room > 0 || enough
		})
		if ctx.Err() != nil || enough {
			return s.failure()
		}
		if len(s.sources) > 1 && s.turns(ctx, room) {
			continue
		}
		empty := s.park(ctx, room)
		if err := s.failure(); err != nil && s.live() == 0 {
			return err
		}
		if s.w.opts.Drain && empty && !held {
			return s.failure()
		}
	}
}

// failure joins the errors of the sources that are given up.
func (s *shift) failure() error {
	var errs []error
	for _, src := range s.sources {
		if src.failure != nil {
			errs = append(errs, src.failure)
		}
	}
	return errors.Join(errs...)
}

func (s *shift) live() int {
	n := 0
	for _, src := range s.sources {
		if src.failure == nil {
			n++
		}
	}
	return n
}

// turns asks one source after the other, without waiting, each for its share of
// the free slots, and reports whether any of them had a job. A source that has
// had its turn stands last in the next round.
func (s *shift) turns(ctx context.Context, room int) bool {
	var asked []*source
	for _, src := range s.sources {
		if src.failure == nil && time.Now().After(src.resting) {
			asked = append(asked, src)
		}
	}
	got := false
	for i, src := range asked {
		if room <= 0 || ctx.Err() != nil {
			break
		}
		share := max(1, room/(len(asked)-i))
		jobs, _ := s.ask(ctx, src, share, 0)
		s.last(src)
		if len(jobs) == 0 {
			src.resting = time.Now().Add(restAfterNothing)
			continue
		}
		s.accept(src, jobs)
		got, room = true, room-len(jobs)
	}
	return got
}

// last moves a source to the end of the line.
func (s *shift) last(src *source) {
	line := make([]*source, 0, len(s.sources))
	for _, other := range s.sources {
		if other != src {
			line = append(line, other)
		}
	}
	s.sources = append(line, src)
}

// found is what one source's poll brought.
type found struct {
	src      *source
	jobs     []*flexiqv1.ClaimedJob
	answered bool
}

// park lets all sources wait for work at once. The first that has some ends the
// waiting of the others; what came at the same time is started as far as there
// is room, and the rest given back. It reports whether every source answered
// that there is nothing.
func (s *shift) park(ctx context.Context, room int) bool {
	ctx, withdraw := context.WithCancel(ctx)
	defer withdraw()
	all := make(chan found, len(s.sources))
	waiting, share := 0, max(1, room/max(1, s.live()))
	for _, src := range s.sources {
		if src.failure == nil {
			waiting++
			go func() { all <- s.wait(ctx, src, share) }()
		}
	}
	empty := true
	for range waiting {
		f := <-all
		if len(f.jobs) > 0 {
			withdraw()
			s.accept(f.src, f.jobs)
			f.src.resting = time.Time{}
		}
		empty = empty && f.answered && len(f.jobs) == 0
	}
	return empty
}

// wait polls one source until it has jobs, or for the time of one poll. While
// the server is unavailable it tries again.
func (s *shift) wait(ctx context.Context, src *source, share int) found {
	end := time.Now().Add(s.w.opts.Wait)
	for {
		jobs, err := s.ask(ctx, src, share, max(0, time.Until(end)))
		if err == nil {
			src.pause.reset()
			return found{src: src, jobs: jobs, answered: true}
		}
		if src.failure != nil || ctx.Err() != nil {
			return found{src: src}
		}
		if !sleep(ctx, src.pause.length()) || time.Now().After(end) {
			return found{src: src}
		}
	}
}

// ask sends one claim. An error that no repeat can mend gives the source up.
func (s *shift) ask(ctx context.Context, src *source, most int, wait time.Duration) ([]*flexiqv1.ClaimedJob, error) {
	const maxClaim = 1000
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
	if !src.c.wrongAddress(err) {
		s.heard(src, claims, err)
	}
	if err == nil {
		src.worked, src.refused = true, time.Time{}
		return res.GetJobs(), nil
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
	return nil, f
}

// hopeless reports whether no later claim can fare better. A token that worked
// and now does not may be fine: NATS cannot tell one that was revoked from one
// that cannot be checked for the moment.
func (s *shift) hopeless(src *source, f *fault.Error, now time.Time) bool {
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
