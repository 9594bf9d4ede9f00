package client

import (
	"context"
	"math/rand/v2"
	"time"

	"flexiq/pkg/fault"
)

// patience is how long one try waits for an answer. Requests and replies on
// NATS can be lost with a connection, and nothing tells; a repeat finds out.
const patience = 10 * time.Second

// A pause grows from the first to the longest, the upper half of it random, so
// that callers which failed together do not come back together.
type pause struct {
	first, longest time.Duration
	next           time.Duration
}

func newPause() pause { return pause{first: 50 * time.Millisecond, longest: 2 * time.Second} }

func (p *pause) reset() { p.next = 0 }

// length returns how long to pause now.
func (p *pause) length() time.Duration {
	p.next = min(max(p.first, 2*p.next), p.longest)
	return p.next/2 + rand.N(p.next/2+1)
}

// sleep pauses for d, or until ctx ends, and reports whether ctx lives.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

// unknown reports whether a failed try may pass when it is repeated unchanged:
// the server was unavailable, or nobody knows what it did.
func unknown(err error) bool {
	switch f := fault.Of(err); f.Reason {
	case fault.StorageUnavailable, fault.Overloaded, fault.DeadlineExceeded, Unreachable:
		return true
	default:
		return false
	}
}

// wrongAddress reports whether err is of the first contact: what was never
// there is told at once, and only what was there is waited for.
func (c *Client) wrongAddress(err error) bool { return fault.Is(err, Unreachable) && !c.wire.met() }

// repeat tries until a try succeeds or fails for good, for at most RetryFor
// and within ctx. It returns the error of the last try.
func (c *Client) repeat(ctx context.Context, try func(context.Context) error) error {
	start, wait := time.Now(), newPause()
	for {
		err := try(ctx)
		if err == nil {
			return nil
		}
		delay, again := c.again(err, &wait, time.Since(start))
		if !again || ctx.Err() != nil {
			return fault.Of(err)
		}
		if end, ok := ctx.Deadline(); ok && time.Until(end) <= delay {
			return fault.Of(err)
		}
		if !sleep(ctx, delay) {
			return fault.Of(err)
		}
	}
}

// patiently bounds one try of a call that has no bound of its own.
func patiently(ctx context.Context, try func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return try(ctx)
}

// again decides whether to try again after err, and when.
func (c *Client) again(err error, wait *pause, since time.Duration) (time.Duration, bool) {
	if c.wrongAddress(err) {
		return 0, false
	}
	if unknown(err) {
		delay := wait.length()
		return delay, since+delay < c.opts.RetryFor
	}
	if !c.opts.RetryRefusals {
		return 0, false
	}
	r, ok := AsRefusal(err)
	if !ok || r.Never {
		return 0, false
	}
	return r.RetryAfter + rand.N(r.RetryAfter/8+time.Millisecond), true
}
