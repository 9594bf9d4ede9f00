package storetest

import (
	"fmt"
	"time"

	"flexiq/pkg/job"
	"flexiq/pkg/store"
)

var leaseCases = []testcase{
	{"a heartbeat extends", leaseBeat},
	{"never beyond the timeout", leaseTimeout},
	{"a lease that is not current is lost", leaseLost},
	{"an ended lease goes back to its place", leaseExpired},
	{"an ended lease of the last attempt", leaseLastAttempt},
	{"a timeout is a failure", leaseTimedOut},
	{"a settlement before the lease is taken away", leaseLate},
	{"oldest first, at most the limit", leaseOldest},
	{"a lost worker's slot is free", leaseSlot},
	{"rounds of lost workers", leaseRounds},
}

func beat(l store.Leased, extend time.Duration) store.Beat {
	return store.Beat{Namespace: l.Job.Namespace, JobID: l.Job.ID, Lease: l.Lease, Extend: extend}
}

func (f *fixture) beat(beats ...store.Beat) []store.Pulse {
	f.Helper()
	pulses, err := f.s.Heartbeat(f.ctx, beats)
	f.ok(err)
	if len(pulses) != len(beats) {
		f.Fatalf("%d pulses for %d beats", len(pulses), len(beats))
	}
	return pulses
}

func leaseBeat(f *fixture) {
	const ns = "ns"
	f.enqueue(ns, f.specs(2)...)
	f.clock.Advance(time.Second)
	claims := f.claim(ns, 2)
	for range 5 {
		f.clock.Advance(lease - time.Second)
		equal(f, "pulse", f.beat(beat(claims[0], lease), beat(claims[1], time.Minute)), []store.Pulse{
			{Alive: true, ExpiresAt: f.clock.Now().Add(lease)}, {Alive: true, ExpiresAt: f.clock.Now().Add(time.Minute)},
		})
		equal(f, "expired", len(f.expire()), 0)
	}
	ends := f.clock.Now().Add(time.Minute)
	f.clock.Advance(time.Second)
	equal(f, "never earlier than it was", f.beat(beat(claims[1], time.Second))[0], store.Pulse{Alive: true, ExpiresAt: ends})
	f.clock.Set(ends.Add(-time.Microsecond))
	equal(f, "ended", f.expire(), []store.Ended{endedOf(claims[0], job.Pending)})
	f.settle(job.Completed, claims[1])
	equal(f, "no beats", len(f.beat()), 0)
}

// leaseTimeout: neither the claim nor a heartbeat gives more than the attempt's timeout.
func leaseTimeout(f *fixture) {
	const ns = "ns"
	timeout := func(d time.Duration) func(*job.Spec) { return func(s *job.Spec) { s.Timeout = d } }
	f.enqueue(ns, f.spec(timeout(time.Minute)), f.spec(timeout(2*time.Second)))
	f.clock.Advance(time.Second)
	claims, started := f.claim(ns, 2), f.clock.Now()
	equal(f, "a timeout beyond the lease", claims[0].ExpiresAt, started.Add(lease))
	equal(f, "a timeout within the lease", claims[1].ExpiresAt, started.Add(2*time.Second))
	f.clock.Advance(time.Second)
	pulses := f.beat(beat(claims[0], time.Hour), beat(claims[1], time.Hour))
	equal(f, "pulses", pulses, []store.Pulse{
		{Alive: true, ExpiresAt: started.Add(time.Minute)}, {Alive: true, ExpiresAt: started.Add(2 * time.Second)},
	})
}

func leaseLost(f *fixture) {
	const ns = "ns"
	f.enqueue(ns, f.specs(3)...)
	f.enqueue("other", f.spec())
	f.clock.Advance(time.Second)
	claims := f.claim(ns, 3)
	f.settle(job.Completed, claims[0])
	f.settle(job.Released, claims[1])
	again := f.take(ns)
	equal(f, "claimed again", again.Job.ID, claims[1].Job.ID)
	foreign := beat(claims[2], lease)
	foreign.Namespace = "other"
	none := beat(claims[2], lease)
	none.Lease = ""
	missing := beat(claims[2], lease)
	missing.JobID = f.id()
	pulses := f.beat(beat(claims[0], lease), beat(claims[1], lease), foreign, none, missing, beat(claims[2], lease), beat(again, lease))
	for i, alive := range []bool{false, false, false, false, false, true, true} {
		if pulses[i].Alive != alive || pulses[i].Cancelled || !alive && pulses[i] != (store.Pulse{}) {
			f.Errorf("beat %d: %+v, want alive: %t", i, pulses[i], alive)
		}
	}
}

func leaseExpired(f *fixture) {
	const ns = "ns"
	specs := f.specs(3)
	jobs := f.enqueue(ns, specs...)
	f.clock.Advance(time.Second)
	l := f.take(ns)
	f.clock.Set(l.ExpiresAt.Add(-time.Microsecond))
	equal(f, "before the end", len(f.expire()), 0)
	f.clock.Set(l.ExpiresAt)
	equal(f, "at the end", f.expire(), []store.Ended{endedOf(l, job.Pending)})
	equal(f, "again", len(f.expire()), 0)
	j := f.state(ns, l.Job.ID, job.Pending)
	equal(f, "attempt, run_at, worker", [3]any{j.Attempt, j.RunAt, j.Worker}, [3]any{int32(1), jobs[0].RunAt, ""})
	equal(f, "error", j.Error, "worker lost: the lease of attempt 1 ended without a heartbeat or a settlement")
	f.holds(ns, counts{Pending: 3})
	equal(f, "settlement afterwards", f.settleOne(ending(l, job.Completed)), store.Settled{State: job.Pending, Queue: "default", Task: "t", Attempt: 1})
	equal(f, "heartbeat afterwards", f.beat(beat(l, lease))[0], store.Pulse{})
	again := f.take(ns)
	equal(f, "its place and attempt", [2]any{again.Job.ID, again.Job.Attempt}, [2]any{l.Job.ID, int32(2)})
	f.settle(job.Completed, again)
	equal(f, "the error of an attempt before stays out of a success", f.state(ns, l.Job.ID, job.Complete).Attempt, int32(2))
}

func leaseLastAttempt(f *fixture) {
	const ns = "ns"
	f.enqueue(ns, f.spec(withKey("k"), func(s *job.Spec) { s.MaxAttempts = 1 }))
	f.clock.Advance(time.Second)
	l := f.take(ns)
	f.clock.Advance(lease)
	equal(f, "ended", f.expire(), []store.Ended{endedOf(l, job.Dead)})
	j := f.state(ns, l.Job.ID, job.Dead)
	equal(f, "error", j.Error, "worker lost: the lease of attempt 1 ended without a heartbeat or a settlement")
	equal(f, "finished", j.FinishedAt, f.clock.Now())
	equal(f, "settlement afterwards", f.settleOne(ending(l, job.Completed)).Accepted, false)
	f.holds(ns, counts{Dead: 1})
}

func leaseTimedOut(f *fixture) {
	const ns = "ns"
	f.enqueue(ns, f.spec(func(s *job.Spec) {
		s.Timeout, s.MaxAttempts, s.BackoffBase, s.BackoffMax = 2*time.Second, 2, time.Minute, time.Minute
	}))
	f.clock.Advance(time.Second)
	l := f.take(ns)
	f.clock.Advance(2 * time.Second)
	equal(f, "ended", f.expire(), []store.Ended{endedOf(l, job.Pending)})
	j := f.state(ns, l.Job.ID, job.Pending)
	equal(f, "error", j.Error, "timeout: attempt 1 ran longer than 2s")
	if wait := j.RunAt.Sub(f.clock.Now()); wait < 30*time.Second || wait > time.Minute {
		f.Errorf("a job that timed out waits %s, want its backoff", wait)
	}
	f.clock.Advance(time.Minute)
	f.take(ns)
	f.clock.Advance(2 * time.Second)
	equal(f, "the last attempt", f.expire()[0].State, job.Dead)
	equal(f, "its error", f.job(ns, l.Job.ID).Error, "timeout: attempt 2 ran longer than 2s")
}

// leaseLate: until the lease is taken away its holder may settle.
func leaseLate(f *fixture) {
	const ns = "ns"
	f.enqueue(ns, f.specs(2)...)
	f.clock.Advance(time.Second)
	claims := f.claim(ns, 2)
	f.clock.Advance(2 * lease)
	f.settle(job.Completed, claims[0])
	equal(f, "a late heartbeat", f.beat(beat(claims[1], lease))[0], store.Pulse{Alive: true, ExpiresAt: f.clock.Now().Add(lease)})
	equal(f, "expired", len(f.expire()), 0)
	f.holds(ns, counts{Running: 1, Archived: 1})
}

func leaseOldest(f *fixture) {
	var want []store.Ended
	for i := range 7 {
		ns := fmt.Sprint("ns", i%3)
		f.enqueue(ns, f.spec(queueOf("q")))
		f.clock.Advance(time.Second)
		l := f.take(ns)
		want = append(want, endedOf(l, job.Pending))
	}
	f.clock.Advance(lease - 2*time.Second) // five are over, two are not
	for _, part := range [][]store.Ended{want[:2], want[2:4], want[4:5], nil} {
		got, err := f.s.Expire(f.ctx, 2)
		f.ok(err)
		equal(f, "ended", got, part)
	}
	f.holds("ns0", counts{Pending: 2, Running: 1})
}

// leaseSlot: a lost worker's slot is free when its lease has ended.
func leaseSlot(f *fixture) {
	const ns = "ostler"
	f.put(ns, `{"max_running":1}`)
	f.enqueue(ns, f.specs(3)...)
	f.clock.Advance(time.Second)
	l := f.take(ns)
	f.clock.Advance(lease)
	equal(f, "before it is taken away", len(f.grant(ns, 1).Held) > 0, true)
	f.expire()
	again := f.take(ns)
	equal(f, "the next job is the lost one", again.Job.ID, l.Job.ID)
	equal(f, "one at a time", len(f.grant(ns, 1).Held) > 0, true)
}

// leaseRounds: many lost workers leave the counts right.
func leaseRounds(f *fixture) {
	const ns, rounds, each = "kelp-4", 8, 10
	f.put(ns, `{"max_pending":50,"max_running":10}`)
	for range rounds {
		f.enqueue(ns, f.specs(each)...)
		f.clock.Advance(time.Second)
		f.claim(ns, each)
		f.clock.Advance(lease)
		equal(f, "lost", len(f.expire()), each)
		f.settle(job.Completed, f.claim(ns, each)...)
	}
	f.holds(ns, counts{Archived: rounds * each})
	f.enqueue(ns, f.specs(50)...)
	equal(f, "one more", outcome(f.try(ns, f.spec())), "QUEUE_FULL")
}

// endedOf is what a lease that ran out leaves, when its attempt counted.
func endedOf(l store.Leased, s job.State) store.Ended {
	return store.Ended{Namespace: l.Job.Namespace, Queue: l.Job.Queue, Task: l.Job.Task, JobID: l.Job.ID, State: s, Attempt: l.Job.Attempt}
}
