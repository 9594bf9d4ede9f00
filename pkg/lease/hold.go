package lease

import (
	"context"
	"errors"
	"sync"
	"time"
)

// ErrLost is why a leader's context ended when the lease was lost: it could
// not be renewed in time, or somebody else has it.
var ErrLost = errors.New("the lease is over")

// Guard returns nil only while the lease holds that lead's context (or one
// made from it) stands for, and the context has not ended. It looks at the
// monotonic clock, so it is right also when the process was stopped and no
// timer has fired yet. A leader asks it right before each act. The error is
// [ErrLost] or the context's; a context without a lease gets ErrLost.
func Guard(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	h, ok := ctx.Value(holdKey{}).(*hold)
	if !ok {
		return ErrLost
	}
	return h.check()
}

type holdKey struct{}

// timing is what follows from the length of a lease.
type timing struct {
	ttl    time.Duration
	call   time.Duration // the deadline of one call of the server
	margin time.Duration // how long before its end a lease is not trusted any more
	renew  time.Duration // from one renewal to the next
	retry  time.Duration // after a renewal without a known outcome
	poll   time.Duration // from one look at somebody else's lease to the next
}

func timingOf(ttl time.Duration) timing {
	call := min(2*time.Second, ttl/5)
	return timing{ttl: ttl, call: call, margin: call, renew: ttl / 3, retry: call / 4, poll: min(time.Second, ttl/5)}
}

// hold is a lease that was won.
type hold struct {
	timing timing

	// Of the goroutine that renews.
	revision uint64
	started  time.Time // of the last good write

	mu    sync.Mutex
	until time.Time // by the monotonic clock
	lost  bool
}

// newHold is the lease that a write made, which was started at a time of the
// monotonic clock and has a revision now.
func newHold(t timing, started time.Time, revision uint64) *hold {
	h := &hold{timing: t}
	h.renewed(started, revision)
	return h
}

// renewed extends the lease. It counts from the start of the write, because
// the server may have taken it at any time after. A lease that is over stays so.
func (h *hold) renewed(started time.Time, revision uint64) {
	h.started, h.revision = started, revision
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.lost && (h.until.IsZero() || time.Now().Before(h.until)) {
		h.until = started.Add(h.timing.ttl - h.timing.margin)
	}
}

// end makes the lease over.
func (h *hold) end() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lost = true
}

// check returns nil while the lease holds.
func (h *hold) check() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.lost || !time.Now().Before(h.until) {
		return ErrLost
	}
	return nil
}

// left is how long the lease still holds; negative when it is over.
func (h *hold) left() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return time.Until(h.until)
}
