//go:build soak

package main

import (
	"testing"
	"time"

	"flexiq/pkg/testkit"
)

func TestSoakOneWorkerServesAllItsNamespacesByTurns(t *testing.T) {
	eachStore(t, func(t *testing.T, k kept) {
		s := testkit.StartSoak(t, "turns-"+k.kind, "one worker with four slots serves 40 namespaces, three of them with 10 000 jobs each, and the 37 with a single job start soon")
		c := crowd{big: 3, small: 37, backlog: 10_000, slots: 4, hold: 200 * time.Millisecond}
		jobs, took := c.run(t, inProcess(t, k.args...))
		s.Figure("jobs started before the last namespace had one", "%d", jobs)
		s.Check(took <= 20*time.Second, "all namespaces started within %s, at most 20s", took.Round(time.Millisecond))
		// 4 slots of 200 ms: an idle one shows in the time.
		ideal := time.Duration(jobs) * c.hold / time.Duration(c.slots)
		s.Check(took <= ideal*12/10+time.Second, "%s for %d jobs, where %s would keep every slot busy", took.Round(time.Millisecond), jobs, ideal)
	})
}

func TestSoakDelayedJobs(t *testing.T) {
	eachStore(t, func(t *testing.T, k kept) {
		s := testkit.StartSoak(t, "delays-"+k.kind, "100 jobs with delays from 5 s to 10 min run once each, within 2 s after they are due, over two restarts")
		d := delays{jobs: 100, first: 5 * time.Second, last: 10 * time.Minute, restarts: []time.Duration{2 * time.Minute, 5 * time.Minute}}
		late := d.run(t, k)
		s.Durations("start after due", late)
		most := time.Duration(0)
		for _, l := range late {
			most = max(most, l)
		}
		s.Check(most <= 2*time.Second, "the latest start was %s after due, at most 2s", most.Round(time.Millisecond))
	})
}

func TestSoakDeployOfWorkers(t *testing.T) {
	eachStore(t, func(t *testing.T, k kept) {
		s := testkit.StartSoak(t, "deploy-"+k.kind, "500 jobs of 3 s on 5 workers that are stopped, and killed 2 s later, in turn, 10 rounds")
		p := deploy{jobs: 500, workers: 5, rounds: 10, hold: 3 * time.Second, patience: 2 * time.Second, drain: 20 * time.Minute}
		p.run(t, inProcess(t, k.args...))
		s.Check(!t.Failed(), "every job is archived, none dead, nothing started after SIGTERM, only killed jobs ran twice")
	})
}
