//go:build soak

package retention

import (
	"testing"
	"time"

	"flexiq/pkg/testkit"
)

// TestSoakSlowStore lets every call of the store take 200 ms to 1.5 s for half an hour.
func TestSoakSlowStore(t *testing.T) {
	const length = 30 * time.Minute
	everywhere(t, func(f *fixture) {
		soak := testkit.StartSoak(f.T, "retention-slow-store-"+f.in.Kind,
			"three candidates whose every call of the store takes from 200 ms to 1.5 s, for half an hour")
		r := slowRun{f: f, tick: 15 * time.Second, lease: 10 * time.Second, least: 200 * time.Millisecond, most: 1500 * time.Millisecond}
		began := time.Now()
		r.run(func(int) bool { return time.Since(began) >= length })
		terms, expected := r.terms(), int(length/r.tick)
		soak.Figure("lease and tick", "%s and %s", r.lease, r.tick)
		soak.Check(terms <= 2, "%d terms deleted, at most one change is allowed", terms)
		soak.Check(!f.Failed(), "no two terms overlap, by the database's own record of the deletes of each")
		soak.Check(r.sweeps*100 >= expected*95, "%d sweeps of %d ticks, 95 %% are wanted", r.sweeps, expected)
	})
}
