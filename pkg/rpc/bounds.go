package rpc

import "sync"

// Bounds of what a door holds at once.
const (
	MaxCalls = 4096     // calls being worked on
	MaxPolls = 1 << 17  // long polls, which cost memory alone
	MaxBytes = 64 << 20 // bodies of calls being worked on
)

// Bounds counts what is in flight. One namespace may take three quarters, so
// that its flood does not turn everybody else away. It is safe for concurrent
// use.
type Bounds struct {
	calls int
	bytes int64

	mu   sync.Mutex
	all  load
	each map[string]*load
}

type load struct {
	calls int
	bytes int64
}

// NewBounds makes bounds for calls and the bytes of their bodies.
func NewBounds(calls int, bytes int64) *Bounds {
	return &Bounds{calls: calls, bytes: bytes, each: make(map[string]*load)}
}

// Enter takes room for one call of a namespace, and reports whether there was
// any. What was taken is given back by Leave. A call larger than the bound
// passes when nothing else is in flight.
func (b *Bounds) Enter(ns string, bytes int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	own := b.each[ns]
	if own == nil {
		own = &load{}
	}
	if !b.all.fits(bytes, b.calls, b.bytes) || !own.fits(bytes, max(1, b.calls/4*3), b.bytes/4*3) {
		return false
	}
	b.each[ns] = own
	own.add(1, bytes)
	b.all.add(1, bytes)
	return true
}

// Leave gives back what Enter took.
func (b *Bounds) Leave(ns string, bytes int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	own := b.each[ns]
	own.add(-1, -bytes)
	b.all.add(-1, -bytes)
	if own.calls == 0 {
		delete(b.each, ns)
	}
}

func (l load) fits(bytes int64, maxCalls int, maxBytes int64) bool {
	return l.calls < maxCalls && (l.calls == 0 || l.bytes+bytes <= maxBytes)
}

func (l *load) add(calls int, bytes int64) {
	l.calls += calls
	l.bytes += bytes
}
