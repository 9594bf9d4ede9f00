package retention

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"flexiq/pkg/lease"
	"flexiq/pkg/store"
	"flexiq/pkg/testkit"
)

// leaseStream is the stream of the lease bucket.
const leaseStream = "KV_" + lease.DefaultBucket

// clustered is three candidates over a cluster of three NATS servers.
type clustered struct {
	*trial
	cluster    *testkit.NATSCluster
	candidates []*process
}

// newClustered starts the candidates. What they delete is counted as what
// processes of a crew say.
func newClustered(f *fixture, length time.Duration) *clustered {
	f.Helper()
	c := &clustered{
		trial:   &trial{crew: &crew{f: f, rows: map[int64]int64{}, untold: map[int64]int64{}}, patience: time.Minute},
		cluster: testkit.StartNATSCluster(f.T, 3),
	}
	c.ledger = f.in.record(f.T, store.DeadLetters)
	f.limit(trialNamespace, dead(trialCeiling))
	for i := range 3 {
		p := f.startAt(c.cluster.URLs(), Config{Maintenance: true, Tick: 200 * time.Millisecond, Lease: length}, fmt.Sprint("candidate ", i), pass)
		c.candidates = append(c.candidates, p)
	}
	return c
}

// leader is the candidate that leads now, nil when none does.
func (c *clustered) leader() *process {
	for _, p := range c.candidates {
		if p.svc.State().Role == Leader {
			return p
		}
	}
	return nil
}

// lose stops the server that leads the lease's stream in the middle of a trim,
// wants the trim to be finished and somebody to lead, and starts the server again.
// It tells whether the term changed, and after how long somebody led for sure.
func (c *clustered) lose() (changed bool, led time.Duration) {
	c.f.Helper()
	c.await("somebody leads", func() bool { return c.leader() != nil })
	c.cluster.Whole(leaseStream)
	node := c.cluster.StreamLeader(leaseStream)
	before := c.f.dead(trialNamespace)
	c.f.shed(trialNamespace, trialFlood)
	c.await("the leader is at it", func() bool { return c.f.dead(trialNamespace) < before+trialFlood })
	term := c.term()
	c.cluster.Stop(node)
	began := time.Now()
	c.cluster.StreamLeader(leaseStream)
	c.await("somebody leads who can renew", func() bool { return c.sound() && c.leader() != nil })
	led = time.Since(began)
	c.await("the ceiling is reached", c.trimmed)
	changed = c.term() != term
	c.cluster.Start(node)
	return changed, led
}

// sound tells whether every candidate has JetStream.
func (c *clustered) sound() bool {
	for _, p := range c.candidates {
		if p.svc.Check(c.f.Context()) != nil {
			return false
		}
	}
	return true
}

// term is the one that somebody leads under, 0 when nobody does.
func (c *clustered) term() int64 {
	if p := c.leader(); p != nil {
		return p.svc.State().Term
	}
	return 0
}

// finish ends the candidates and judges the database's own record.
func (c *clustered) finish() ledger {
	c.f.Helper()
	c.f.shed(trialNamespace, 50)
	c.await("sweeps go on", c.trimmed)
	var wg sync.WaitGroup
	for _, p := range c.candidates {
		wg.Go(func() { c.f.end(p) })
	}
	wg.Wait()
	l := c.ledger()
	if y := l.of[trialNamespace]; y.fewest != trialCeiling || y.disorder > 0 {
		c.f.Errorf("%d rows were left at one time, the ceiling is %d; %d were deleted before an older one", y.fewest, trialCeiling, y.disorder)
	}
	return l
}

// TestClusterLosesItsStreamLeader stops the NATS server that leads the lease's
// stream: the sweeps go on, and the bucket has a copy on each server. Without two
// of the three there is no JetStream, which health tells of, and no leader; with
// them there is one again.
func TestClusterLosesItsStreamLeader(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := newClustered(f, 1500*time.Millisecond)
	c.lose()
	c.await("all are well again", c.sound)

	c.cluster.Whole(leaseStream)
	c.cluster.Stop(0)
	c.cluster.Stop(1)
	c.await("every candidate tells that JetStream is lost, and none leads", func() bool {
		for _, p := range c.candidates {
			if s := p.svc.State(); s.Role != Nobody || s.Reason == "" || p.svc.Check(t.Context()) == nil {
				return false
			}
		}
		return true
	})
	before := f.dead(trialNamespace)
	f.shed(trialNamespace, trialFlood)
	c.cluster.Start(0)
	c.cluster.Start(1)
	c.await("somebody leads again", func() bool { return c.sound() && c.leader() != nil })
	c.await("the ceiling is reached again", c.trimmed)
	if before != trialCeiling {
		t.Errorf("%d rows before the loss, want %d", before, trialCeiling)
	}
	c.finish()
}
