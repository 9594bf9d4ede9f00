//go:build soak

package redis

import (
	"maps"
	"slices"
	"testing"
	"time"

	"flexiq/pkg/store/storetest"
	"flexiq/pkg/testkit"
)

// TestSoakWriters lets every kind of writer loose on shared namespaces and unique
// keys for a minute.
func TestSoakWriters(t *testing.T) {
	soak := testkit.StartSoak(t, "writers-redis", "a minute of all writers over shared namespaces and unique keys")
	end := time.Now().Add(time.Minute)
	did := storetest.Writers(t, backend, backend.Create(t), func(int) bool { return time.Now().Before(end) })
	unavailable := 0
	for _, kind := range slices.Sorted(maps.Keys(did)) {
		w := did[kind]
		soak.Figure(kind, "%d written in %d operations", w.Units, len(w.Took))
		soak.Durations("  each took", w.Took)
		unavailable += w.Unavailable
		if w.Units == 0 {
			soak.Check(false, "%s wrote something", kind)
		}
	}
	soak.Check(unavailable == 0, "%d operations ended as STORAGE_UNAVAILABLE", unavailable)
}
