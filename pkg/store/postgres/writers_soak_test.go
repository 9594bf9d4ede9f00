//go:build soak

package postgres

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
	url, schema := testkit.PostgresSchema(t)
	before := deadlocks(t, url)
	soak := testkit.StartSoak(t, "writers-postgres", "a minute of all writers over shared namespaces and unique keys")
	end := time.Now().Add(time.Minute)
	did := storetest.Writers(t, backend, url+" "+schema, func(int) bool { return time.Now().Before(end) })
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
	testkit.Eventually(t, "the server's statistics are up to date", func() bool {
		return ask(t, url, `select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid() and state <> 'idle'`) == 0
	})
	n := deadlocks(t, url) - before
	soak.Check(n == 0, "%d deadlocks by the server's own count", n)
	consistent(t, url, schema)
}
