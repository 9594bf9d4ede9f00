package testkit

import (
	"testing"
	"time"
)

// Patience is how long tests wait for what must happen, far longer than it
// takes: only a failing test waits so long.
const Patience = 20 * time.Second

// Eventually waits until something is so that nothing tells of. Where there is
// a channel or a callback, wait for that.
func Eventually(t testing.TB, what string, so func() bool) {
	t.Helper()
	timeout := time.NewTimer(Patience)
	defer timeout.Stop()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !so() {
		select {
		case <-tick.C:
		case <-timeout.C:
			t.Fatalf("not within %s: %s", Patience, what)
		}
	}
}
