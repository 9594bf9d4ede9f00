//go:build soak

package retention

import (
	"testing"
	"time"

	"flexiq/pkg/testkit"
)

// TestSoakThreeProcesses disturbs the leader of three, with the lease and the
// patience of production, twenty times in each way.
func TestSoakThreeProcesses(t *testing.T) {
	const rounds = 20
	everywhere(t, func(f *fixture) {
		soak := testkit.StartSoak(f.T, "retention-processes-"+f.in.Kind,
			"the leader of three retention processes is killed, frozen and cut off in the middle of a trim, 20 times in each way")
		soak.Figure("lease", "15 s, a sweep a second, deletes of %d rows", childRows)
		trial := newTrial(f, child{
			Tick: time.Second, Lease: 15 * time.Second, Call: normalBounds.call, Patience: normalBounds.patience,
		}, 2*time.Minute)
		led, trimmed := map[string][]time.Duration{}, map[string][]time.Duration{}
		for range rounds {
			for _, w := range ways {
				l, d := trial.round(w)
				led[w.name], trimmed[w.name] = append(led[w.name], l), append(trimmed[w.name], d)
			}
		}
		l := trial.finish()
		for _, w := range ways {
			soak.Durations(w.name+": led again", led[w.name])
			soak.Durations("  at the ceiling again", trimmed[w.name])
			soak.Check(led[w.name][rounds-1] <= 20*time.Second, "a new leader within 20 s in each of %d rounds", rounds)
		}
		soak.Figure("terms", "%d; %d rows deleted, at most %d at once", len(l.rows), l.deleted(), l.most)
		soak.Figure("late deletes", "%d were tried and refused", trial.refused)
		if f.in.Kind == "sqlite" {
			soak.Check(!f.Failed(), "no row was deleted under an older term: the database's record of each term is what its leader says")
		} else {
			soak.Check(l.stray == 0 && !f.Failed(), "no row was deleted under an older term, by the database's own record")
		}
		fewest := l.of[trialNamespace].fewest
		soak.Check(fewest == trialCeiling, "%d rows left at the least, the ceiling being %d", fewest, trialCeiling)
		soak.Check(!f.Failed(), "sweeps went on after every round, and nothing stayed in the lease bucket")
	})
}
