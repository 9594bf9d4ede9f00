package storetest

import (
	"fmt"
	"strings"
	"time"

	"flexiq/pkg/job"
	"flexiq/pkg/store"
)

var settleCases = []testcase{
	{"complete", settleComplete},
	{"fail and retry by policy", settleBackoff},
	{"fail with a delay of its own", settleRetryAfter},
	{"the last attempt", settleLastAttempt},
	{"dead", settleDead},
	{"release keeps attempt and place", settleRelease},
	{"release for later", settleReleaseLater},
	{"what a settlement answers", settleAnswers},
	{"a stale lease has no effect", settleStale},
	{"twice is once", settleTwice},
	{"twice in one turn", settleTwiceAtOnce},
	{"another outcome is not the same settlement", settleOther},
	{"an error text of any bytes", settleErrors},
	{"of many namespaces at once", settleMany},
}

func settleComplete(f *fixture) {
	const ns = "ns"
	spec := f.spec(withKey("k"), func(s *job.Spec) { s.Payload, s.Form = []byte("p"), job.Bytes })
	f.enqueue(ns, spec)
	f.clock.Advance(time.Second)
	started := f.clock.Now()
	l := f.take(ns)
	f.clock.Advance(time.Second)
	result := []byte("\x00done\xff")
	s := f.settleOne(ending(l, job.Completed, func(s *store.Settlement) { s.Result, s.Error = result, "ignored" }))
	equal(f, "answer", s, store.Settled{Accepted: true, State: job.Complete, Queue: "default", Task: "t", Attempt: 1})
	want := l.Job
	want.State, want.FinishedAt, want.Result, want.StartedAt, want.Worker = job.Complete, f.clock.Now(), result, started, ""
	got := *f.job(ns, spec.ID)
	got.Worker = ""
	equal(f, "the archived job", got, want)
	want.Payload, want.Result = nil, nil
	listed := f.list(ns, store.Filter{State: job.Complete}, 10)
	listed[0].Worker = ""
	equal(f, "the listing", listed, []job.Job{want})
	f.holds(ns, counts{Archived: 1})

	f.enqueue(ns, f.spec())
	f.clock.Advance(time.Second)
	big := []byte(strings.Repeat("r", job.MaxResult))
	l = f.take(ns)
	f.settleOne(ending(l, job.Completed, func(s *store.Settlement) { s.Result = big }))
	equal(f, "the largest result", len(f.job(ns, l.Job.ID).Result), job.MaxResult)
}

// settleBackoff: half of the delay is random, the rest is not.
func settleBackoff(f *fixture) {
	const ns = "ns"
	f.enqueue(ns, f.spec(func(s *job.Spec) {
		s.BackoffBase, s.BackoffMax, s.MaxAttempts = 10*time.Second, 35*time.Second, 5
	}))
	f.clock.Advance(time.Second)
	for attempt, d := range []time.Duration{10 * time.Second, 20 * time.Second, 35 * time.Second, 35 * time.Second} {
		l := f.take(ns)
		equal(f, "attempt", l.Job.Attempt, int32(attempt+1))
		f.settle(job.Failed, l)
		j := f.state(ns, l.Job.ID, job.Pending)
		if wait := j.RunAt.Sub(f.clock.Now()); wait < d/2 || wait > d {
			f.Errorf("after attempt %d the job waits %s, want %s to %s", attempt+1, wait, d/2, d)
		}
		equal(f, "attempts so far", j.Attempt, int32(attempt+1))
		equal(f, "error", j.Error, "boom")
		equal(f, "worker and finish", [2]any{j.Worker, j.FinishedAt}, [2]any{"", time.Time{}})
		f.clock.Set(j.RunAt.Add(-time.Microsecond))
		equal(f, "before its time", f.grant(ns, 1), store.Grant{NextAt: j.RunAt})
		f.clock.Set(j.RunAt)
	}
	f.settle(job.Completed, f.take(ns))
}

func settleRetryAfter(f *fixture) {
	const ns = "ns"
	f.enqueue(ns, f.spec())
	f.clock.Advance(time.Second)
	l := f.take(ns)
	f.settleOne(ending(l, job.Failed, retryAfter(17*time.Minute)))
	equal(f, "run_at", f.job(ns, l.Job.ID).RunAt, f.clock.Now().Add(17*time.Minute))
	f.clock.Advance(17 * time.Minute)
	l = f.take(ns)
	f.settleOne(ending(l, job.Failed, retryAfter(0)))
	equal(f, "at once", f.take(ns).Job.Attempt, int32(3))
}

func settleLastAttempt(f *fixture) {
	const ns = "ns"
	spec := f.spec(withKey("k"), func(s *job.Spec) {
		s.MaxAttempts, s.Payload, s.Form, s.Metadata = 2, []byte("p"), job.Bytes, map[string]string{"a": "b"}
	})
	c := f.call(ns, spec)
	c.Origin = "trigger:x"
	f.admit(c)
	f.clock.Advance(time.Second)
	f.settleOne(ending(f.take(ns), job.Failed, retryAfter(0), func(s *store.Settlement) { s.Error = "first" }))
	l := f.take(ns)
	f.clock.Advance(time.Second)
	s := f.settleOne(ending(l, job.Failed, retryAfter(0), func(s *store.Settlement) { s.Error = "" }))
	equal(f, "answer", s, store.Settled{Accepted: true, State: job.Dead, Queue: "default", Task: "t", Attempt: 2})
	got := *f.job(ns, spec.ID)
	if got.Shed() || len(got.DeadMetadata) != 0 {
		f.Errorf("a real dead letter has the metadata %v", got.DeadMetadata)
	}
	want := l.Job
	want.State, want.FinishedAt, want.Error, want.Worker, got.Worker = job.Dead, f.clock.Now(), "first", "", ""
	equal(f, "the dead letter", got, want)
	equal(f, "origin, key and payload", []string{got.Origin, got.UniqueKey, string(got.Payload)}, []string{"trigger:x", "k", "p"})
	f.holds(ns, counts{Dead: 1})
}

func settleDead(f *fixture) {
	const ns = "ns"
	f.enqueue(ns, f.spec())
	f.clock.Advance(time.Second)
	l := f.take(ns)
	f.settleOne(ending(l, job.GivenUp, func(s *store.Settlement) { s.Error = "no use" }))
	j := f.state(ns, l.Job.ID, job.Dead)
	equal(f, "error and attempt", [2]any{j.Error, j.Attempt}, [2]any{"no use", int32(1)})
	f.clock.Advance(365 * 24 * time.Hour)
	equal(f, "claimed", f.grant(ns, 1), store.Grant{})
	f.holds(ns, counts{Dead: 1})
}

func settleRelease(f *fixture) {
	const ns = "ns"
	specs := f.specs(3, func(s *job.Spec) { s.MaxAttempts = 1 })
	jobs := f.enqueue(ns, specs...)
	f.clock.Advance(time.Second)
	claims := f.claim(ns, 2)
	f.clock.Advance(time.Minute)
	later := f.enqueue(ns, f.spec())[0]
	f.clock.Advance(time.Minute)
	f.settle(job.Released, claims...)
	for i, l := range claims {
		j := f.state(ns, l.Job.ID, job.Pending)
		equal(f, "attempt, run_at and error", [3]any{j.Attempt, j.RunAt, j.Error}, [3]any{int32(0), jobs[i].RunAt, ""})
	}
	f.holds(ns, counts{Pending: 4})
	again := f.claim(ns, 4)
	equal(f, "order", idsOf(again), []string{specs[0].ID, specs[1].ID, specs[2].ID, later.ID})
	equal(f, "attempt", again[0].Job.Attempt, int32(1))
	f.settle(job.Completed, again...)
}

// settleReleaseLater: a delay of its own gives up the place, and no attempt.
func settleReleaseLater(f *fixture) {
	const ns = "ns"
	f.enqueue(ns, f.specs(2, func(s *job.Spec) { s.MaxAttempts = 1 })...)
	f.clock.Advance(time.Second)
	l := f.take(ns)
	f.settleOne(ending(l, job.Released, retryAfter(time.Minute)))
	j := f.state(ns, l.Job.ID, job.Pending)
	equal(f, "attempt and run_at", [2]any{j.Attempt, j.RunAt}, [2]any{int32(0), f.clock.Now().Add(time.Minute)})
	g := f.grant(ns, 5)
	equal(f, "due now", len(g.Jobs), 1)
	f.clock.Advance(time.Minute)
	equal(f, "due later", idsOf(f.claim(ns, 1)), []string{l.Job.ID})
}

func settleAnswers(f *fixture) {
	const ns = "ns"
	f.enqueue(ns, f.specs(4, func(s *job.Spec) { s.Queue, s.Task = "mail", "send" })...)
	f.clock.Advance(time.Second)
	claims := f.claim(ns, 4)
	settled, _ := f.turn([]store.Settlement{
		ending(claims[0], job.Completed), ending(claims[1], job.Failed), ending(claims[2], job.GivenUp), ending(claims[3], job.Released),
	})
	answer := func(s job.State, attempt int32) store.Settled {
		return store.Settled{Accepted: true, State: s, Queue: "mail", Task: "send", Attempt: attempt}
	}
	equal(f, "answers", settled, []store.Settled{answer(job.Complete, 1), answer(job.Pending, 1), answer(job.Dead, 1), answer(job.Pending, 0)})
}

// settleStale: nothing but the current lease settles a job.
func settleStale(f *fixture) {
	const ns = "ns"
	f.enqueue(ns, f.spec(func(s *job.Spec) { s.Timeout = time.Hour }))
	f.enqueue("other", f.spec())
	f.clock.Advance(time.Second)
	lost, other := f.take(ns), f.take("other")
	f.clock.Advance(lease)
	_, err := f.s.Heartbeat(f.ctx, []store.Beat{{Namespace: "other", JobID: other.Job.ID, Lease: other.Lease, Extend: lease}})
	f.ok(err)
	f.expire()
	l := f.take(ns)
	before := *f.job(ns, l.Job.ID)
	stale := map[string]store.Settlement{
		"a lost lease":          ending(lost, job.Completed),
		"another job's lease":   {Namespace: ns, JobID: l.Job.ID, Lease: other.Lease, Outcome: job.Completed},
		"no lease":              {Namespace: ns, JobID: l.Job.ID, Outcome: job.Completed},
		"a part of the lease":   {Namespace: ns, JobID: l.Job.ID, Lease: l.Lease[:len(l.Lease)-1], Outcome: job.Completed},
		"a longer lease":        {Namespace: ns, JobID: l.Job.ID, Lease: l.Lease + "0", Outcome: job.Completed},
		"the lease in capitals": {Namespace: ns, JobID: l.Job.ID, Lease: swapCase(l.Lease), Outcome: job.Completed},
	}
	for name, s := range stale {
		got := f.settleOne(s)
		if got.Accepted || got.Repeat || got.State != job.Running {
			f.Errorf("%s: %+v", name, got)
		}
	}
	for name, s := range map[string]store.Settlement{
		"the right lease in another namespace": {Namespace: "other", JobID: l.Job.ID, Lease: l.Lease, Outcome: job.Completed},
		"a namespace that was never used":      {Namespace: "never", JobID: l.Job.ID, Lease: l.Lease, Outcome: job.Completed},
		"no such job":                          {Namespace: ns, JobID: f.id(), Lease: l.Lease, Outcome: job.Completed},
	} {
		equal(f, name, f.settleOne(s), store.Settled{})
	}
	equal(f, "the job after stale settlements", *f.job(ns, l.Job.ID), before)
	f.holds(ns, counts{Running: 1})
	f.holds("other", counts{Running: 1})
	f.settle(job.Completed, l, other)
}

// swapCase changes the case of every letter, so that the result always differs
// from a text with a letter in it; a text without letters is cut.
func swapCase(s string) string {
	out := strings.Map(func(r rune) rune {
		switch {
		case 'a' <= r && r <= 'z':
			return r - 'a' + 'A'
		case 'A' <= r && r <= 'Z':
			return r - 'A' + 'a'
		}
		return r
	}, s)
	if out == s {
		return s[1:]
	}
	return out
}

// settleTwice: the same settlement is accepted again wherever the job has gone
// meanwhile, and acts once.
func settleTwice(f *fixture) {
	const ns = "ns"
	for _, o := range job.Outcomes {
		f.enqueue(ns, f.spec(func(s *job.Spec) { s.MaxAttempts = 3 }))
		f.clock.Advance(time.Second)
		l := f.take(ns)
		s := ending(l, o, retryAfter(0))
		first := f.settleOne(s)
		if !first.Accepted || first.Repeat {
			f.Fatalf("%s: %+v", o, first)
		}
		before := *f.job(ns, l.Job.ID)
		f.clock.Advance(time.Second)
		again := first
		again.Repeat = true
		for range 3 {
			equal(f, fmt.Sprintf("%s again", o), f.settleOne(s), again)
		}
		equal(f, "the job", *f.job(ns, l.Job.ID), before)
		if first.State != job.Pending {
			continue
		}
		next := f.take(ns)
		again.State, again.Attempt = job.Running, next.Job.Attempt
		equal(f, fmt.Sprintf("%s again while the job runs again", o), f.settleOne(s), again)
		f.settle(job.Completed, next)
		f.state(ns, l.Job.ID, job.Complete)
	}
	f.holds(ns, counts{Archived: 3, Dead: 1})
}

func settleTwiceAtOnce(f *fixture) {
	const ns = "ns"
	f.enqueue(ns, f.spec())
	f.clock.Advance(time.Second)
	l := f.take(ns)
	settled, _ := f.turn([]store.Settlement{ending(l, job.Completed), ending(l, job.Completed), ending(l, job.GivenUp)})
	one := store.Settled{Accepted: true, State: job.Complete, Queue: "default", Task: "t", Attempt: 1}
	two, three := one, one
	two.Repeat, three.Accepted = true, false
	equal(f, "answers", settled, []store.Settled{one, two, three})
	f.holds(ns, counts{Archived: 1})
}

func settleOther(f *fixture) {
	const ns = "ns"
	f.enqueue(ns, f.specs(2)...)
	f.clock.Advance(time.Second)
	claims := f.claim(ns, 2)
	f.settle(job.Completed, claims[0])
	f.settleOne(ending(claims[1], job.Failed, retryAfter(0)))
	for i, o := range []job.Outcome{job.GivenUp, job.Completed} {
		s := f.settleOne(ending(claims[i], o))
		if s.Accepted || s.Repeat {
			f.Errorf("settled as %s afterwards: %+v", o, s)
		}
	}
	f.holds(ns, counts{Pending: 1, Archived: 1})
}

// settleErrors: an error text with control bytes is cleaned and kept.
func settleErrors(f *fixture) {
	const ns = "ns"
	texts := map[string]string{
		"a\x00b\x1b[31m": "a\ufffdb\ufffd[31m", "\xff\xfe": "\ufffd", "line\n\ttab": "line\n\ttab", "'; drop table jobs; --": "'; drop table jobs; --",
		strings.Repeat("é", job.MaxError): strings.Repeat("é", job.MaxError/2),
	}
	for in, want := range texts {
		f.enqueue(ns, f.spec())
		f.clock.Advance(time.Second)
		l := f.take(ns)
		f.settleOne(ending(l, job.GivenUp, func(s *store.Settlement) { s.Error = in }))
		equal(f, "error", f.state(ns, l.Job.ID, job.Dead).Error, want)
	}
	f.holds(ns, counts{Dead: int64(len(texts))})
	equal(f, "listed", len(f.list(ns, store.Filter{}, 2)), len(texts))
}

func settleMany(f *fixture) {
	var all []store.Settlement
	for i := range 20 {
		ns := fmt.Sprint("ns-", 19-i)
		f.enqueue(ns, f.specs(2)...)
		f.clock.Advance(time.Second)
		claims := f.claim(ns, 2)
		all = append(all, ending(claims[0], job.Completed), ending(claims[1], job.GivenUp))
	}
	settled, _ := f.turn(all)
	for i, s := range settled {
		if !s.Accepted || s.State != []job.State{job.Complete, job.Dead}[i%2] {
			f.Errorf("settlement %d: %+v", i, s)
		}
	}
	for i := range 20 {
		f.holds(fmt.Sprint("ns-", i), counts{Archived: 1, Dead: 1})
	}
}
