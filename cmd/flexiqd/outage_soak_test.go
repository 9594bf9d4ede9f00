//go:build soak

package main

import (
	"slices"
	"testing"
	"time"

	"flexiq/pkg/testkit"
)

// TestSoakKilledDatabase kills the database ten times under load and measures how
// soon the services are back.
func TestSoakKilledDatabase(t *testing.T) {
	const most = 5 * time.Second
	eachDatabase(t, func(t *testing.T, db database) {
		soak := testkit.StartSoak(t, "killed-database-"+db.kind, "the database is killed ten times under load")
		o := newOutage(t, db)
		for range 10 {
			o.round(t)
		}
		o.end(t)
		for _, d := range o.doors {
			soak.Figure(d.name, "%d jobs acknowledged; refused: %v", d.acked.count(), d.reasons)
			soak.Durations("  first one after it", d.back)
			soak.Check(slices.Max(d.back) <= most, "%s: jobs are acknowledged within %s of the database's return", d.name, most)
		}
		soak.Durations("ready after it", o.ready)
		soak.Check(slices.Max(o.ready) <= most, "the daemon is ready within %s of the database's return", most)
		soak.Check(!t.Failed(), "every acknowledged job is there, callers were told STORAGE_UNAVAILABLE alone")
	})
}
