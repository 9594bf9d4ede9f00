//go:build soak

package retention

import (
	"testing"
	"time"

	"flexiq/pkg/lease"
	"flexiq/pkg/testkit"
)

// TestSoakClusterLosesItsStreamLeader stops the NATS server that leads the lease's
// stream twenty times, with the lease of production.
func TestSoakClusterLosesItsStreamLeader(t *testing.T) {
	const rounds = 20
	f := newFixture(t)
	soak := testkit.StartSoak(t, "retention-nats-cluster", "a cluster of three NATS servers loses the leader of the lease's stream in the middle of a trim, 20 times, and gets it back")
	c := newClustered(f, lease.DefaultTTL)
	var took []time.Duration
	changes := 0
	for range rounds {
		changed, led := c.lose()
		took = append(took, led)
		if changed {
			changes++
		}
	}
	c.cluster.Whole(leaseStream)
	l := c.finish()
	soak.Durations("led and renewed again", took)
	soak.Check(took[rounds-1] <= 20*time.Second, "a leader with JetStream within 20 s in each of %d rounds", rounds)
	soak.Figure("changes of the leader", "%d in %d rounds; %d terms deleted %d rows", changes, rounds, len(l.rows), l.deleted())
	soak.Check(!t.Failed(), "the ceiling was reached in every round, never undershot, oldest rows first")
}
