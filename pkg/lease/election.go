package lease

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// firstLook is the pause before a look after a notice that the key was given
// back; the pauses then double up to the usual one. The notice can be here
// before the server has carried out what it tells of.
const firstLook = 10 * time.Millisecond

// campaign tries to win the lease until it does or the context ends (nil).
func (e *Elector) campaign(ctx context.Context, freed <-chan struct{}) *hold {
	t := timingOf(e.opts.TTL)
	pause := time.Duration(0)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-freed:
			pause = firstLook
			timer.Reset(pause)
			continue
		case <-timer.C:
		}
		h, err := e.try(ctx, t)
		if h != nil {
			return h
		}
		if err != nil && ctx.Err() == nil {
			e.follows("")
			e.troubled(problemOf(err), err)
		}
		if pause = 2 * pause; pause == 0 || pause > t.poll {
			pause = t.poll - rand.N(t.poll/4) // so that candidates spread out
		}
		timer.Reset(pause)
	}
}

// notReadyError is what [Options.Ready] said.
type notReadyError struct{ error }

func (e notReadyError) Unwrap() error { return e.error }

// problemOf names what kind of trouble an error is.
func problemOf(err error) string {
	switch {
	case errors.As(err, new(notReadyError)):
		return notReady
	case errors.Is(err, jetstream.ErrJetStreamNotEnabled), errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount),
		errors.Is(err, nats.ErrNoResponders):
		return noJS
	}
	return noJetStream
}

// try looks at the key and takes it if it is free. No hold and no error: it is
// somebody else's.
func (e *Elector) try(ctx context.Context, t timing) (*hold, error) {
	looking, cancel := context.WithTimeout(ctx, 2*t.call) // open and read
	defer cancel()
	if err := e.open(looking); err != nil {
		return nil, err
	}
	now, err := e.read(looking)
	if err != nil {
		e.bucket = nil // it may be gone: open it again
		return nil, err
	}
	if now != nil && now.Session != e.session {
		e.follows(now.Holder)
		e.troubled("", nil)
		return nil, nil
	}
	e.follows("")
	if err := e.ready(ctx); err != nil {
		return nil, err
	}
	revision := uint64(0)
	if now != nil {
		revision = now.revision // left from a write whose outcome was not known
	}
	return e.take(ctx, t, revision)
}

func (e *Elector) ready(ctx context.Context) error {
	if e.opts.Ready == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if err := e.opts.Ready(ctx); err != nil {
		return notReadyError{err}
	}
	return nil
}

// take writes the key, which had the given revision. It goes on when ctx ends,
// so that nothing is left behind unknowingly.
func (e *Elector) take(ctx context.Context, t timing, revision uint64) (*hold, error) {
	ctx = context.WithoutCancel(ctx)
	started, now, ok, err := e.write(ctx, revision, t.call)
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, nil // another was quicker
	}
	settling, cancel := context.WithTimeout(ctx, t.call)
	defer cancel()
	exact, err := e.settle(settling)
	if err != nil {
		e.release(ctx, newHold(t, started, now.revision))
		return nil, err
	}
	return newHold(exact, started, now.revision), nil
}

// reign leads: it gets a term, calls lead, and keeps the lease until lead has
// returned.
func (e *Elector) reign(ctx context.Context, h *hold, lead func(context.Context, int64) error) error {
	leading, end := context.WithCancelCause(context.WithValue(ctx, holdKey{}, h))
	defer end(nil)
	keeping, stopKeeping := context.WithCancel(context.WithoutCancel(ctx))
	kept := make(chan struct{})
	go func() {
		defer close(kept)
		e.keep(keeping, h, end)
	}()
	err := e.rule(leading, lead)
	if cause := context.Cause(leading); errors.Is(err, context.Canceled) && cause != nil {
		err = cause
	}
	stopKeeping()
	<-kept
	h.end()
	e.follows("")
	e.release(ctx, h)
	return err
}

// rule gets the term and leads. The error is nil when nothing was wrong: lead
// gave up by itself, or ctx ended.
func (e *Elector) rule(ctx context.Context, lead func(context.Context, int64) error) error {
	asking, cancel := context.WithTimeout(ctx, termTimeout)
	term, err := e.opts.Term(asking)
	cancel()
	if err != nil {
		if ctx.Err() == nil {
			e.troubled(noTerm, err)
		}
		return err
	}
	if err := Guard(ctx); err != nil {
		return err
	}
	e.leads(term)
	e.opts.Log.Info().Int64("term", term).Msg("leadership won")
	return lead(ctx, term)
}

// keep renews the lease until ctx ends. When it is lost, or its time is up, it
// ends the leadership and returns.
func (e *Elector) keep(ctx context.Context, h *hold, end func(cause error)) {
	pause := time.Until(h.started.Add(h.timing.renew))
	for rest(ctx, min(pause, h.left())) {
		if h.check() == nil {
			pause = e.renew(ctx, h)
		}
		if err := h.check(); err != nil {
			end(err)
			return
		}
	}
}

// renew writes the key once more and returns the pause before the next time.
func (e *Elector) renew(ctx context.Context, h *hold) (pause time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, h.left())
	defer cancel()
	started, now, ok, err := e.write(ctx, h.revision, h.timing.call)
	switch {
	case err != nil: // unknown: the lease holds as long as it did
		if ctx.Err() == nil {
			e.troubled(problemOf(err), err)
		}
		return h.timing.retry
	case ok:
		e.troubled("", nil)
		h.renewed(started, now.revision)
		return time.Until(started.Add(h.timing.renew))
	case now != nil && now.Session == e.session:
		h.revision = now.revision // an earlier write came through; when, nobody knows
		return 0
	}
	h.end() // it lapsed, or somebody else has it
	return 0
}
