// Package batch turns many concurrent calls into few store calls (group
// commit).
//
// A [Group] has lanes, and each lane flushes one batch at a time. A call is
// hashed to its lane by a key, the namespace, so that a namespace is in one
// flush at a time and its calls stay in the order in which they came. A call
// that finds its lane idle is flushed at once and waits for nobody. While a
// flush is under way the arriving calls gather, and the next flush takes them
// together: the more load, the cheaper a call, without a timer or a tuning knob.
//
// A flush whose outcome is decided, and which only waits for the disk, may let
// the next one begin with [Decided].
//
// When more waits than one flush holds, the keys take turns by weight, so that
// one key's backlog cannot fill the flushes of the others (see queue). The
// bounds are calls and bytes, never goroutines; a call beyond them is refused
// at once with OVERLOADED, because a queue that only grows answers nobody.
package batch

import (
	"context"
	"fmt"
	"hash/maphash"
	"runtime"
	"runtime/debug"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"flexiq/pkg/fault"
)

// The defaults of [Options].
const (
	DefaultMaxCalls     = 4096
	DefaultMaxBytes     = 64 << 20
	DefaultMaxItems     = 1000
	DefaultFlushTimeout = 30 * time.Second
	DefaultMaxTails     = 2
)

// Options bound a [Group]. The zero value has the defaults.
type Options[In any] struct {
	// MaxCalls bounds the calls that wait or are being flushed, over all lanes;
	// 0 is 4096. One key may hold half of them.
	MaxCalls int
	// MaxBytes bounds their bytes; 0 is 64 MiB. One key may hold half of them.
	MaxBytes int
	// MaxItems bounds the weight of one flush; 0 is 1000. A call that weighs
	// more by itself is flushed alone.
	MaxItems int
	// Weight is what one call weighs, its number of jobs for example; at least
	// 1 is counted. Nil: every call weighs 1. It must be quick and not block.
	Weight func(In) int
	// FlushTimeout is the deadline of one flush; 0 is 30 s.
	FlushTimeout time.Duration
	// MaxTails bounds the flushes of a lane that called [Decided] and have not
	// returned; 0 is 2. That is enough to keep a store busy while its disk works,
	// and keeps the groups large.
	MaxTails int
	// MinShare makes flushes overlap that call [Decided] at their beginning: one
	// takes its share of the calls that wait or are being flushed, as many of them as
	// flushes may be under way, but no fewer than MinShare. Without it callers in a
	// closed loop end up in one flush, all waiting for it together. 0: it takes all.
	MinShare int
	// Metrics may be nil.
	Metrics *Metrics
	// Log tells of panics in callbacks, the only failures that nobody is told of.
	Log zerolog.Logger
}

func (o Options[In]) withDefaults() Options[In] {
	if o.MaxCalls == 0 {
		o.MaxCalls = DefaultMaxCalls
	}
	if o.MaxBytes == 0 {
		o.MaxBytes = DefaultMaxBytes
	}
	if o.MaxItems == 0 {
		o.MaxItems = DefaultMaxItems
	}
	if o.FlushTimeout == 0 {
		o.FlushTimeout = DefaultFlushTimeout
	}
	if o.MaxTails == 0 {
		o.MaxTails = DefaultMaxTails
	}
	return o
}

// weigh returns what a call counts for.
func (o Options[In]) weigh(in In) int {
	if o.Weight == nil {
		return 1
	}
	return max(1, o.Weight(in))
}

// Group gathers calls and flushes them together. Make one with [New]; all its
// methods are safe for concurrent use. It has no goroutine while it is idle.
type Group[In, Out any] struct {
	opts  Options[In]
	flush func(ctx context.Context, in []In) ([]Out, error)
	meter meter
	seed  maphash.Seed

	ctx  context.Context // of the flushes; ended by a Close that runs out of patience
	stop context.CancelFunc

	mu     sync.Mutex
	closed bool
	idle   chan struct{} // closed when the group is closed and nothing is in it
	calls  int           // waiting or being flushed
	bytes  int
	keys   map[string]*turn[In, Out] // every key that has such calls
	lanes  []queue[In, Out]
}

// New makes a group; name labels its metrics. flush gets at least one call,
// the calls of a key in the order of their submission, and answers each of
// them in order; an error is the answer to all. It is called by at most lanes
// (at least 1) goroutines at once, not counting those that called [Decided],
// and must return soon after its context ends.
func New[In, Out any](name string, lanes int, opts Options[In], flush func(ctx context.Context, in []In) ([]Out, error)) *Group[In, Out] {
	ctx, stop := context.WithCancel(context.Background())
	return &Group[In, Out]{
		opts:  opts.withDefaults(),
		flush: flush,
		meter: opts.Metrics.of(name),
		seed:  maphash.MakeSeed(),
		ctx:   ctx,
		stop:  stop,
		idle:  make(chan struct{}),
		keys:  make(map[string]*turn[In, Out]),
		lanes: make([]queue[In, Out], max(1, lanes)),
	}
}

// Submit hands in one call of a key and the number of bytes that it occupies.
// It never blocks. Without an error done is called exactly once, from another
// goroutine, when the call's flush has ended; it must be quick, because the
// lane waits for it. The error is OVERLOADED, when the group is full or
// closed, and then done is never called.
func (g *Group[In, Out]) Submit(key string, bytes int, in In, done func(Out, error)) error {
	c := call[In, Out]{in: in, done: done, bytes: bytes, weight: g.opts.weigh(in)}

	g.mu.Lock()
	defer g.mu.Unlock()
	t := g.keys[key]
	if err := g.admit(t, bytes); err != nil {
		return err
	}
	if t == nil {
		t = &turn[In, Out]{key: key, lane: int(maphash.String(g.seed, key) % uint64(len(g.lanes)))}
		g.keys[key] = t
	}
	c.of = t
	g.calls++
	g.bytes += bytes
	t.calls++
	t.bytes += bytes
	lane := &g.lanes[t.lane]
	lane.push(c)
	if !lane.busy {
		lane.busy = true
		go g.run(lane)
	}
	return nil
}

// admit refuses a call beyond the bounds. A key may hold half of each, so that
// one tenant's flood leaves the others a way in; it is no less than half
// because an installation may have one tenant only. Whatever its size, a call
// that finds nothing else of its key or of the group passes the bounds of bytes.
func (g *Group[In, Out]) admit(t *turn[In, Out], bytes int) error {
	full := ""
	switch {
	case g.closed:
		g.meter.refused("closed")
		return fault.New(fault.Overloaded, "the process is shutting down")
	case g.calls >= g.opts.MaxCalls:
		full = "calls"
	case g.bytes > 0 && g.bytes+bytes > g.opts.MaxBytes:
		full = "bytes"
	case t != nil && t.calls >= max(1, g.opts.MaxCalls/2):
		full = "key_calls"
	case t != nil && t.bytes > 0 && t.bytes+bytes > g.opts.MaxBytes/2:
		full = "key_bytes"
	default:
		return nil
	}
	g.meter.refused(full)
	return fault.New(fault.Overloaded, "too many calls are in flight; try again")
}

// Do submits a call and waits for its answer. When the context ends first, the
// error is DEADLINE_EXCEEDED or CANCELED and the call may still be carried out.
func (g *Group[In, Out]) Do(ctx context.Context, key string, bytes int, in In) (Out, error) {
	type answer struct {
		out Out
		err error
	}
	answered := make(chan answer, 1)
	var none Out
	if err := g.Submit(key, bytes, in, func(out Out, err error) { answered <- answer{out, err} }); err != nil {
		return none, err
	}
	select {
	case a := <-answered:
		return a.out, a.err
	case <-ctx.Done():
		return none, fault.Of(ctx.Err())
	}
}

// Close refuses further calls, flushes what is in and waits until every
// callback has returned. When the context ends first, the flushes are
// cancelled, what still waits is answered with OVERLOADED in the background,
// and the error is the context's; a later Close waits for that. Closing twice
// is safe.
func (g *Group[In, Out]) Close(ctx context.Context) error {
	g.mu.Lock()
	if !g.closed {
		g.closed = true
		if !g.anyBusy() {
			close(g.idle)
		}
	}
	g.mu.Unlock()

	defer g.stop()
	select {
	case <-g.idle:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("close batch group: %w", ctx.Err())
	}
}

func (g *Group[In, Out]) anyBusy() bool {
	for i := range g.lanes {
		if g.lanes[i].busy || g.lanes[i].tails > 0 {
			return true
		}
	}
	return false
}

type decidedKey struct{}

// Decided tells, from within a flush, that the outcomes of its calls are fixed
// and visible, so that the lane's next flush may begin: what is left is waiting,
// for a disk for example. ctx is the flush's. The order in which calls of a key
// are decided stays that of their submission; answers may then overtake each
// other. A flush of calls whose order does not matter may call it at its
// beginning. It does nothing outside of a flush, or the second time.
func Decided(ctx context.Context) {
	if next, ok := ctx.Value(decidedKey{}).(func()); ok {
		next()
	}
}

// run flushes a lane until nothing waits in it, or until a flush lets another
// goroutine go on with the lane.
func (g *Group[In, Out]) run(lane *queue[In, Out]) {
	for {
		// Callers that are ready to run hand in first: those who were answered just
		// now and come again, for example. Else the first of them would be flushed
		// alone and the others would wait for it. It costs a lone call nothing.
		runtime.Gosched()
		calls := g.next(lane)
		if len(calls) == 0 {
			return
		}
		f := &flight{}
		started := time.Now()
		outs, err := g.answer(calls, sync.OnceFunc(func() { g.decided(lane, f) }))
		g.meter.flushed(len(calls), time.Since(started), err)
		g.release(calls)
		for i, c := range calls {
			var out Out
			if err == nil {
				out = outs[i]
			}
			g.call(c, out, err)
		}
		if !g.landed(lane, f) {
			return
		}
	}
}

// flight is a flush under way.
type flight struct {
	passed bool // it is a tail: another flush has the lane, or may
	ended  bool
}

// decided gives the lane to the next flush, as soon as there are not too many
// tails.
func (g *Group[In, Out]) decided(lane *queue[In, Out], f *flight) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case f.ended: // told too late
	case lane.tails == g.opts.MaxTails:
		lane.holds = f
	case g.pass(lane, f):
		go g.run(lane)
	}
}

// pass makes the flush that has the lane a tail. It reports whether calls wait:
// then the caller sees to it that the lane goes on.
func (g *Group[In, Out]) pass(lane *queue[In, Out], f *flight) bool {
	f.passed = true
	lane.tails++
	lane.busy = len(lane.turns) > 0
	return lane.busy
}

// landed ends a flush. It reports whether this goroutine is to go on with the lane.
func (g *Group[In, Out]) landed(lane *queue[In, Out], f *flight) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	f.ended = true
	if !f.passed {
		lane.holds = nil
		return true
	}
	lane.tails--
	if held := lane.holds; held != nil {
		lane.holds = nil
		return g.pass(lane, held)
	}
	if !lane.busy && len(lane.turns) > 0 {
		lane.busy = true
		return true
	}
	g.rest()
	return false
}

// rest tells a closed group's Close that nothing is in it, if that is so.
func (g *Group[In, Out]) rest() {
	if g.closed && !g.anyBusy() {
		close(g.idle)
	}
}

// next takes the calls of the lane's next flush. With none left the lane is idle.
func (g *Group[In, Out]) next(lane *queue[In, Out]) []call[In, Out] {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.meter.inFlight(g.calls)
	if calls := lane.take(g.opts.MaxItems, g.share()); len(calls) > 0 {
		return calls
	}
	lane.busy = false
	g.rest()
	return nil
}

// share is how many calls one flush takes at most.
func (g *Group[In, Out]) share() int {
	if g.opts.MinShare == 0 {
		return g.calls
	}
	return max(g.opts.MinShare, (g.calls+g.opts.MaxTails)/(g.opts.MaxTails+1))
}

// release gives the calls' room back, before their callbacks run: a callback
// may make somebody submit again.
func (g *Group[In, Out]) release(calls []call[In, Out]) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, c := range calls {
		g.calls--
		g.bytes -= c.bytes
		c.of.calls--
		c.of.bytes -= c.bytes
		if c.of.calls == 0 {
			delete(g.keys, c.of.key)
		}
	}
	g.meter.inFlight(g.calls)
}

// answer flushes; a panic is an INTERNAL error of this flush alone.
func (g *Group[In, Out]) answer(calls []call[In, Out], decided func()) (outs []Out, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fault.Wrap(fmt.Errorf("panic: %v\n%s", r, debug.Stack()), fault.Internal, "internal error")
		}
	}()
	if g.ctx.Err() != nil {
		return nil, fault.New(fault.Overloaded, "the process is shutting down")
	}
	ctx, cancel := context.WithTimeout(g.ctx, g.opts.FlushTimeout)
	defer cancel()
	ctx = context.WithValue(ctx, decidedKey{}, decided)
	ins := make([]In, len(calls))
	for i, c := range calls {
		ins[i] = c.in
	}
	outs, err = g.flush(ctx, ins)
	if err == nil && len(outs) != len(ins) {
		err = fault.Wrap(fmt.Errorf("%d answers to %d calls", len(outs), len(ins)), fault.Internal, "internal error")
	}
	return outs, err
}

// call tells a caller its answer. A panic there must not keep the others from theirs.
func (g *Group[In, Out]) call(c call[In, Out], out Out, err error) {
	defer func() {
		if r := recover(); r != nil {
			g.opts.Log.Error().Interface("panic", r).Bytes("stack", debug.Stack()).Msg("batch callback panicked")
		}
	}()
	c.done(out, err)
}
