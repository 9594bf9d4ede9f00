//go:build soak

package retention

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"flexiq/pkg/testkit"
)

// TestSoakHistory sweeps a namespace that is 400 000 rows over its ceiling, among
// 500 others, on one backend after the other, and measures the claims of still
// others with the sweeps and, in turns, without.
func TestSoakHistory(t *testing.T) {
	for _, kind := range []string{"sqlite", "postgres", "redis"} {
		t.Run(kind, func(t *testing.T) {
			soak := testkit.StartSoak(t, "retention-history-"+kind,
				"one namespace 400 000 rows over a ceiling of 20 000, 500 others 50 over, 300 rows/s arriving, while workers claim elsewhere")
			f := newFixtureIn(t, alone[kind](t))
			f.now = time.Time{}
			c := &crowd{
				f: f, over: 400_000, keep: 20_000, others: 500, otherOver: 50, otherKeep: 20, rate: 300,
				claimers: 4, claimEvery: 20 * time.Millisecond, tick: time.Second, patience: 15 * time.Minute,
				bounds: normalBounds, on: 20 * time.Second, off: 5 * time.Second,
			}
			l := c.run()
			c.judge(l)
			soak.Check(!t.Failed(), "never below a ceiling, never a row before an older one, by the database's own record")
			soak.Check(c.othersDone > 0 && c.othersDone <= 3, "the 500 were at their ceilings after %d sweeps", c.othersDone)
			soak.Check(c.convergedIn > 0, "at the ceiling after %s (the sweeps rested a fifth of it) and %d sweeps", c.convergedIn.Round(time.Second), c.sweeps)
			soak.Figure("rows by the minute", "%s", fmt.Sprint(c.left))
			soak.Check(slices.IsSortedFunc(c.left, func(a, b int64) int { return int(b - a) }), "rows fall every minute")
			soak.Durations("sweeps", c.took)
			if kind == "sqlite" {
				soak.Figure("rows of one delete", "1 a statement, at most %d a transaction", c.bounds.rows)
			} else {
				soak.Check(l.most <= 500, "%d rows of one delete at most, by the database's own record", l.most)
			}
			soak.Durations("claims while it rests", c.claims[false])
			soak.Durations("claims while it sweeps", c.claims[true])
			p99 := func(d []time.Duration) time.Duration { return d[(len(d)-1)*99/100] }
			rest, sweep := p99(c.claims[false]), p99(c.claims[true])
			soak.Check(float64(sweep) < 1.25*float64(rest), "the 99th percentile of a claim is %.2f times that without sweeps, 1.25 is allowed", float64(sweep)/float64(rest))
		})
	}
}
