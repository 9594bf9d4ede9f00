package storetest

import (
	"sync"
	"time"
)

// Clock is a store's clock in a test. It stands still until it is moved, in
// either direction. All handles of one case share one.
type Clock struct {
	mu  sync.Mutex
	now time.Time
}

// epoch is when every case starts.
var epoch = time.Date(2026, 3, 8, 6, 30, 0, 0, time.UTC)

// Now returns the time of the clock, whole microseconds in UTC.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// Advance moves the clock on, or back when d is negative.
func (c *Clock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// Set moves the clock to an instant.
func (c *Clock) Set(t time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = t
}
