//go:build soak

package main

import (
	"io"
	"testing"
	"time"

	"flexiq/pkg/testkit"
)

// TestSoakLostWorkers kills a worker process with fifty claims, forty times.
func TestSoakLostWorkers(t *testing.T) {
	const rounds, size, lease = 40, 50, 2 * time.Second
	eachStore(t, func(t *testing.T, s kept) {
		soak := testkit.StartSoak(t, "lost-workers-"+s.kind, "2000 jobs whose first worker is killed, 50 at a time")
		d, stop := inProcessLogging(t, io.Discard, s.args...)
		lostWorkers(t, d, rounds, size, lease)
		stop()
		checkCounts(t, s.opts)
		soak.Check(!t.Failed(), "nothing pending or running of %d jobs; 500 more fit and no other", rounds*size)
	})
}

// TestSoakCrashingClaims crashes the service between fifty claims and their replies.
func TestSoakCrashingClaims(t *testing.T) {
	const crashes, jobs = 50, 1000
	eachStore(t, func(t *testing.T, s kept) {
		soak := testkit.StartSoak(t, "crashing-claims-"+s.kind, "the service dies between a claim's write and its reply, 50 times")
		soak.Durations("back after a crash", crashingClaims(t, s, crashes, jobs))
		soak.Check(!t.Failed(), "%d archived, nothing pending, running or dead, never more than 20 running", jobs)
	})
}
