package configcache

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync/atomic"
	"time"

	"flexiq/pkg/fault"
)

// slot is what the cache keeps of one key. All of it but used is guarded by
// the cache's lock.
type slot[V any] struct {
	key        string
	entry      *entry[V]
	generation uint64     // raised by every change of the key
	flight     *flight[V] // the load that the last Get of the key waits for
	loading    bool       // a load of the key is under way, of flight or of an outdated one
	retryAt    time.Time  // after a failed load
	used       atomic.Bool

	known    bool // a value was here before, with this revision
	revision int64
}

// entry is a value as it was read.
type entry[V any] struct {
	value    V
	loadedAt time.Time // the start of its load
	epoch    uint64
}

// flight is one load of one key and those who wait for it.
type flight[V any] struct {
	started           bool
	generation, epoch uint64 // as they were at the start

	done  chan struct{} // closed when value and err are set
	value V
	err   error
}

// next is what a Get does when there is no valid entry: wait for the flight,
// or pause and look again.
type next[V any] struct {
	flight *flight[V]
	pause  time.Duration
}

// current reports whether the slot has an entry that no change has voided.
func (c *Cache[V]) current(s *slot[V]) bool {
	return s != nil && s.entry != nil && s.entry.epoch == c.epoch
}

// valid reports whether the slot's entry may be used. Either condition is
// enough: the poll covers everything that was read before it started, and the
// entry's load covers itself.
func (c *Cache[V]) valid(s *slot[V]) bool {
	return c.current(s) && (c.opts.Fresh != nil && c.opts.Fresh() || time.Since(s.entry.loadedAt) < Validity)
}

// use returns the value of a slot's entry and marks the slot as used.
func (c *Cache[V]) use(s *slot[V]) V {
	c.meter.hit()
	if !s.used.Load() { // reading first keeps the cache line shared
		s.used.Store(true)
	}
	return s.entry.value
}

// join returns the key's value, or the flight that will have it. A flight that
// has started under an older generation is not joined: it may have read what
// was before the change.
func (c *Cache[V]) join(key string) (v V, n next[V], err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.slots[key]
	switch {
	case c.closed:
		return v, n, errClosed()
	case c.valid(s):
		return c.use(s), n, nil
	case s == nil:
		s = c.add(key)
	}
	if f := s.flight; f != nil && (!f.started || f.generation == s.generation && f.epoch == c.epoch) {
		c.meter.miss()
		return v, next[V]{flight: f}, nil
	}
	if pause := time.Until(s.retryAt); pause > 0 {
		return v, next[V]{pause: pause}, nil
	}
	c.meter.miss()
	s.flight = &flight[V]{done: make(chan struct{})}
	n.flight = s.flight
	if !s.loading { // else it follows the load that is under way
		c.enqueue(s)
		c.dispatch()
	}
	return v, n, nil
}

// add makes a key's slot, in the place of one that was not used lately when
// the cache is full.
func (c *Cache[V]) add(key string) *slot[V] {
	s := &slot[V]{key: key}
	if evicted := c.ring.add(s, c.opts.MaxEntries); evicted != nil {
		delete(c.slots, evicted.key)
	}
	c.slots[key] = s
	c.meter.size(len(c.slots))
	return s
}

// enqueue lets a slot's flight wait for the next load.
func (c *Cache[V]) enqueue(s *slot[V]) {
	if c.closed {
		var none V
		s.flight.end(none, errClosed())
		s.flight = nil
		return
	}
	c.queue = append(c.queue, s)
}

// dispatch starts loads for what waits: all keys that gathered while the loads
// before were under way go into one.
func (c *Cache[V]) dispatch() {
	for c.active < loadsAtOnce && len(c.queue) > 0 {
		n := min(loadKeys, len(c.queue))
		slots := c.queue[:n:n]
		c.queue = c.queue[n:]
		flights := make([]*flight[V], n)
		for i, s := range slots {
			s.loading = true
			s.flight.started = true
			s.flight.generation, s.flight.epoch = s.generation, c.epoch
			flights[i] = s.flight
		}
		c.active++
		c.loads.Go(func() { c.load(slots, flights) })
	}
}

// load reads the slots' keys and ends their flights.
func (c *Cache[V]) load(slots []*slot[V], flights []*flight[V]) {
	keys := make([]string, len(slots))
	for i, s := range slots {
		keys[i] = s.key
	}
	started := time.Now()
	values, err := c.read(keys)
	c.meter.loaded(len(keys), err)

	c.mu.Lock()
	defer c.mu.Unlock()
	c.active--
	for i, s := range slots {
		s.loading = false
		if err != nil {
			c.failed(s, flights[i], err)
			continue
		}
		c.landed(s, flights[i], values[i], started)
	}
	c.dispatch()
}

// landed ends a flight with a value. The value is kept only if the key did not
// change meanwhile; those who wait get it in any case, for they asked before
// the change was told.
func (c *Cache[V]) landed(s *slot[V], f *flight[V], v V, started time.Time) {
	if f.generation == s.generation && f.epoch == c.epoch {
		s.entry = &entry[V]{value: v, loadedAt: started, epoch: c.epoch}
		c.measure(s, v)
	}
	f.end(v, nil)
	if s.flight == f {
		s.flight = nil
	} else {
		c.enqueue(s)
	}
}

// failed ends a flight with an error, and with it the one that was to follow:
// the store would most likely fail again, and the key is due for its pause.
func (c *Cache[V]) failed(s *slot[V], f *flight[V], err error) {
	s.retryAt = time.Now().Add(failurePause)
	var none V
	f.end(none, err)
	if s.flight != f {
		s.flight.end(none, err)
	}
	s.flight = nil
}

// measure observes how long a change took to arrive, for keys whose former
// value was known: of others nobody knows what they replace.
func (c *Cache[V]) measure(s *slot[V], v V) {
	if c.opts.Revision == nil {
		return
	}
	revision := c.opts.Revision(v)
	if s.known && revision > s.revision && c.opts.ChangedAt != nil {
		if at := c.opts.ChangedAt(v); !at.IsZero() {
			c.meter.effective(time.Since(at))
		}
	}
	s.known, s.revision = true, revision
}

// read calls the loader under a deadline. The error is always a fault.
func (c *Cache[V]) read(keys []string) (values []V, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fault.Wrap(fmt.Errorf("panic: %v\n%s", r, debug.Stack()), fault.Internal, "internal error")
		}
	}()
	ctx, cancel := context.WithTimeout(c.ctx, loadTimeout)
	defer cancel()
	values, err = c.opts.Load(ctx, keys)
	switch {
	case err == nil && len(values) != len(keys):
		return nil, fault.Wrap(fmt.Errorf("%d values for %d keys", len(values), len(keys)), fault.Internal, "internal error")
	case err != nil && c.ctx.Err() != nil:
		return nil, errClosed()
	case errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled):
		return nil, fault.Wrap(err, fault.StorageUnavailable, "the store did not answer in time")
	case err != nil:
		return nil, fault.Of(err)
	}
	return values, nil
}

func (f *flight[V]) end(v V, err error) {
	f.value, f.err = v, err
	close(f.done)
}

// ring holds the slots for eviction by second chance: a hand goes round, takes
// the mark from a slot that was used since the last round, and evicts one that
// was not. Its zero value is empty.
type ring[V any] struct {
	slots []*slot[V]
	hand  int
}

// add puts a slot in. With size slots already there it takes the place of one
// that nobody used lately and nobody waits for, and returns that one. When all
// are waited for the ring grows, by no more than there are waiting calls.
func (r *ring[V]) add(s *slot[V], size int) (evicted *slot[V]) {
	for steps := 2 * len(r.slots); len(r.slots) >= size && steps > 0; steps-- {
		old := r.slots[r.hand]
		place := r.hand
		r.hand = (r.hand + 1) % len(r.slots)
		if old.flight == nil && !old.loading && !old.used.Swap(false) {
			r.slots[place] = s
			return old
		}
	}
	r.slots = append(r.slots, s)
	return nil
}
