// Package configcache keeps quotas, overrides and tokens for two seconds, and
// lets go of them at once when a hint says that they changed.
//
// The two seconds are kept in bulk. Reloading each key when it is two seconds
// old would cost thousands of loads a second with thousands of namespaces, so
// a [Poller] asks the store once a second what changed, and an entry is valid
// while the last good poll started less than two seconds ago, or the entry's
// own load did. Both are starts, by the monotonic clock: an answer says
// nothing about what happened after it was asked for. A store that does not
// answer therefore makes entries invalid, never old ones valid.
//
// Hints make a change effective sooner and are never needed for it. A hint
// drops the entry and bumps the key's generation, and a load stores its result
// only if the generation is still the one that it started under, so a read
// from before the change cannot put the old value back. Because a lost,
// doubled, late or forged hint costs at most one load, nothing here depends on
// the order in which the network delivers.
//
// What is kept: values and their absence (a loader gives a V for each key,
// whether there is something or not). Never an error: every error that Get
// returns comes from a load that ended after the Get began.
package configcache

import (
	"context"
	"sync"
	"time"

	"flexiq/pkg/fault"
)

const (
	// Validity is how long what was read from the store is believed.
	Validity = 2 * time.Second
	// DefaultMaxEntries bounds a cache when [Options] do not.
	DefaultMaxEntries = 100_000

	// loadTimeout is the deadline of one load. No longer than the validity, so
	// that no Get answers with what was read longer ago than that.
	loadTimeout = Validity
	// failurePause is how long a key is not loaded after a failed load.
	failurePause = 100 * time.Millisecond
	// loadKeys bounds the keys of one load.
	loadKeys = 500
	// loadsAtOnce bounds the loads in flight. A second one keeps a query that
	// hangs on a dead connection from holding up every other key.
	loadsAtOnce = 2
)

// Options configure a [Cache]. Load is required.
type Options[V any] struct {
	// Name labels the metrics.
	Name string
	// Load reads the values of many keys in one query, in the order of the
	// keys. Absence is a V too. The context has a deadline of two seconds. An
	// error is the answer to every Get that waits for one of the keys.
	Load func(ctx context.Context, keys []string) ([]V, error)
	// Revision tells a value's revision, so that a hint of a revision that is
	// already here changes nothing. Nil: every hint drops the entry.
	Revision func(V) int64
	// ChangedAt tells when a value was written, for the metric of how long a
	// change took to get here; a zero time is not measured. Nil: not measured.
	ChangedAt func(V) time.Time
	// Fresh tells that all changes of the last two seconds have been heard of,
	// as [Poller.Fresh] does. Nil: an entry is valid for two seconds from the
	// start of its own load.
	Fresh func() bool
	// MaxEntries bounds the entries; those not used lately go first. 0 is 100 000.
	MaxEntries int
	// Metrics may be nil.
	Metrics *Metrics
}

// Cache holds values by key. Make one with [New]; all its methods are safe for
// concurrent use. Values are shared: nobody may change what a V points to.
type Cache[V any] struct {
	opts  Options[V]
	meter meter

	ctx   context.Context // of the loads; ended by Close
	stop  context.CancelFunc
	loads sync.WaitGroup

	mu     sync.RWMutex
	closed bool
	epoch  uint64 // raised by DropAll: entries and loads of an older one are void
	slots  map[string]*slot[V]
	ring   ring[V]    // the same slots, for eviction
	queue  []*slot[V] // slots whose flight waits for a load
	active int        // loads in flight
}

// New makes a cache.
func New[V any](opts Options[V]) *Cache[V] {
	if opts.MaxEntries == 0 {
		opts.MaxEntries = DefaultMaxEntries
	}
	ctx, stop := context.WithCancel(context.Background())
	return &Cache[V]{
		opts:  opts,
		meter: opts.Metrics.of(opts.Name),
		ctx:   ctx,
		stop:  stop,
		slots: make(map[string]*slot[V]),
	}
}

// Get returns the key's value, from a valid entry or else from the store. Of
// many that ask for a key at once one loads it. It fails with what the load
// failed with, with STORAGE_UNAVAILABLE after Close, and with DEADLINE_EXCEEDED
// or CANCELED when the context ends first. For 100 ms after a failed load of
// the key it waits before it loads again.
func (c *Cache[V]) Get(ctx context.Context, key string) (V, error) {
	for {
		v, n, err := c.join(key)
		switch {
		case n.flight != nil:
			select {
			case <-n.flight.done:
				return n.flight.value, n.flight.err
			case <-ctx.Done():
				return v, fault.Of(ctx.Err())
			}
		case n.pause <= 0:
			return v, err
		}
		select {
		case <-time.After(n.pause):
		case <-c.ctx.Done():
		case <-ctx.Done():
			return v, fault.Of(ctx.Err())
		}
	}
}

// Peek returns the value of a valid entry, and whether there is one. It never
// waits for a load and starts none.
func (c *Cache[V]) Peek(key string) (V, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	s := c.slots[key]
	if !c.valid(s) {
		var none V
		return none, false
	}
	return c.use(s), true
}

// Invalidate says that the key's value changed. The entry is dropped, and the
// result of a load that is already under way is not kept. With a revision that
// the entry already has, or an older one, it does nothing. Revision 0 is
// unconditional.
func (c *Cache[V]) Invalidate(key string, revision int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.slots[key]
	if s == nil {
		return // neither an entry nor a load: the next Get reads what is in force
	}
	if revision != 0 && c.opts.Revision != nil && c.current(s) && revision <= c.opts.Revision(s.entry.value) {
		return
	}
	s.generation++
	s.entry = nil
}

// DropAll says that anything may have changed: after a reconnect, when hints
// may have been lost, or when the default of many keys changed.
func (c *Cache[V]) DropAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.epoch++
}

// count counts the entries that are so, as they were read last.
func (c *Cache[V]) count(so func(V) bool) (n int) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	for _, s := range c.slots {
		if c.current(s) && so(s.entry.value) {
			n++
		}
	}
	return n
}

// Close cancels the loads that are under way and waits for them; every later
// Get fails. Closing twice is safe.
func (c *Cache[V]) Close() {
	c.mu.Lock()
	c.closed = true
	waiting := c.queue
	c.queue = nil
	for _, s := range waiting {
		c.enqueue(s) // which ends its flight, now that the cache is closed
	}
	c.mu.Unlock()
	c.stop()
	c.loads.Wait()
}

func errClosed() error {
	return fault.New(fault.StorageUnavailable, "the process is shutting down")
}
