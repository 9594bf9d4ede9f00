package storetest

import (
	"errors"
	"fmt"
	"time"

	"flexiq/pkg/job"
	"flexiq/pkg/quota"
	"flexiq/pkg/store"
)

var trimCases = []testcase{
	{"to exactly the ceiling", trimCeilings},
	{"ties are broken by id", trimTies},
	{"at most the limit", trimLimit},
	{"age windows", trimAge},
	{"kinds are counted", trimKinds},
	{"one table, one namespace", trimScope},
	{"an older term deletes nothing", trimTerm},
	{"a stale stamp deletes nothing", trimStale},
	{"nothing is left of a trimmed job", trimGone},
	{"cycles of filling and trimming", trimCycles},
	{"the audit trail", trimAudit},
}

// term becomes leader.
func (f *fixture) term() int64 {
	f.Helper()
	t, err := f.s.NewTerm(f.ctx, "leader")
	f.ok(err)
	return t
}

func (f *fixture) trim(t store.Trim) store.Trimmed {
	f.Helper()
	if t.Limit == 0 {
		t.Limit = 500
	}
	got, err := f.s.Trim(f.ctx, t)
	f.ok(err)
	return got
}

// keep trims a table to its newest n, in one batch.
func (f *fixture) keep(term int64, ns string, table store.Table, n int64) store.Trimmed {
	f.Helper()
	_, stamp := f.inForce(ns)
	return f.trim(store.Trim{Term: term, Namespace: ns, Table: table, Keep: &n, Stamp: &stamp})
}

func (f *fixture) inForce(ns string) (quota.Quota, store.Stamp) {
	f.Helper()
	c := f.call(ns)
	return c.Quota, c.Stamp
}

// trimCeilings: exactly the ceiling remains, for small ones and large ones.
func trimCeilings(f *fixture) {
	term := f.term()
	for _, n := range []int{0, 1, 2, 3, 20} {
		ns := fmt.Sprint("ns-", n)
		ids := f.finish(ns, n+5, job.GivenUp)
		equal(f, "deleted", f.keep(term, ns, store.DeadLetters, int64(n)), store.Trimmed{Dead: 5})
		equal(f, "left", idsOfJobs(f.list(ns, store.Filter{State: job.Dead}, 50)), ids[5:])
		equal(f, "deleted again", f.keep(term, ns, store.DeadLetters, int64(n)), store.Trimmed{})
		equal(f, "deleted with a higher ceiling", f.keep(term, ns, store.DeadLetters, int64(n+1)), store.Trimmed{})
		f.holds(ns, counts{Dead: int64(n)})
	}
	const ns = "thousand"
	f.put(ns, `{"max_pending":0,"on_excess":"drop"}`)
	var ids []string
	for range 2 {
		for _, r := range f.try(ns, f.specs(502)...).Results {
			ids = append(ids, r.Job.ID)
		}
		f.clock.Advance(time.Second)
	}
	equal(f, "deleted of 1004", f.keep(term, ns, store.DeadLetters, 1000), store.Trimmed{Shed: 4})
	f.holds(ns, counts{Dead: 1000, Shed: 1000})
	equal(f, "left of 1004", idsOfJobs(f.list(ns, store.Filter{}, 500)), ids[4:])
	equal(f, "a ceiling that nothing reaches", f.keep(term, "never used", store.Archive, 0), store.Trimmed{})
}

// trimTies: among equal finishing times the higher id is the newer row.
func trimTies(f *fixture) {
	const ns = "ns"
	term := f.term()
	specs := f.specs(9)
	f.enqueue(ns, specs...)
	f.clock.Advance(time.Second)
	claims := f.claim(ns, 9)
	f.settle(job.Completed, claims[6], claims[1], claims[8])
	f.settle(job.Completed, claims[0], claims[7], claims[2], claims[5], claims[3], claims[4])
	for keep := int64(8); keep >= 0; keep-- {
		equal(f, "deleted", f.keep(term, ns, store.Archive, keep), store.Trimmed{Completed: 1})
		var want []string
		for _, s := range specs[9-keep:] {
			want = append(want, s.ID)
		}
		equal(f, fmt.Sprintf("the newest %d", keep), idsOfJobs(f.list(ns, store.Filter{}, 100)), want)
	}
}

func trimLimit(f *fixture) {
	const ns = "ns"
	term := f.term()
	ids := f.complete(ns, 25)
	_, stamp := f.inForce(ns)
	batch := store.Trim{Term: term, Namespace: ns, Table: store.Archive, Keep: new(int64(4)), Limit: 10, Stamp: &stamp}
	equal(f, "first batch", f.trim(batch), store.Trimmed{Completed: 10, More: true})
	equal(f, "the oldest went first", idsOfJobs(f.list(ns, store.Filter{}, 100)), ids[10:])
	f.finish(ns, 3, job.Completed) // work goes on meanwhile
	equal(f, "second batch", f.trim(batch), store.Trimmed{Completed: 10, More: true})
	equal(f, "third batch", f.trim(batch), store.Trimmed{Completed: 4})
	f.holds(ns, counts{Archived: 4})
	f.complete(ns, 10)
	age := store.Trim{Term: term, Namespace: ns, Table: store.Archive, Before: f.clock.Now().Add(time.Hour), Limit: 9}
	equal(f, "first batch by age", f.trim(age), store.Trimmed{Completed: 9, More: true})
	equal(f, "second batch by age", f.trim(age), store.Trimmed{Completed: 5})
}

func trimAge(f *fixture) {
	const ns = "ns"
	term := f.term()
	f.put(ns, `{"max_archived_rows":100}`)
	ids := f.complete(ns, 4) // finished one millisecond after another
	at := f.job(ns, ids[2]).FinishedAt
	cut := func(before time.Time) store.Trimmed {
		return f.trim(store.Trim{Term: term, Namespace: ns, Table: store.Archive, Before: before})
	}
	equal(f, "before everything", cut(epoch), store.Trimmed{})
	equal(f, "before the third", cut(at), store.Trimmed{Completed: 2})
	equal(f, "left", idsOfJobs(f.list(ns, store.Filter{}, 10)), ids[2:])
	equal(f, "again", cut(at), store.Trimmed{})
	equal(f, "a microsecond later", cut(at.Add(time.Microsecond)), store.Trimmed{Completed: 1})
	f.enqueue(ns, f.spec())
	equal(f, "far ahead", cut(at.Add(time.Hour)), store.Trimmed{Completed: 1})
	f.holds(ns, counts{Pending: 1})
}

func trimKinds(f *fixture) {
	const ns = "ns"
	term := f.term()
	f.finish(ns, 3, job.Completed)
	f.finish(ns, 4, job.GivenUp)
	for _, j := range f.enqueue(ns, f.specs(2)...) {
		f.cancel(ns, j.ID)
	}
	f.put(ns, `{"max_pending":0,"on_excess":"drop"}`)
	f.try(ns, f.specs(5)...)
	f.holds(ns, counts{Archived: 5, Dead: 9, Shed: 5})
	equal(f, "archive", f.keep(term, ns, store.Archive, 1), store.Trimmed{Completed: 3, Cancelled: 1})
	equal(f, "dead letters", f.keep(term, ns, store.DeadLetters, 2), store.Trimmed{Dead: 4, Shed: 3})
	f.holds(ns, counts{Archived: 1, Dead: 2, Shed: 2})
}

func trimScope(f *fixture) {
	term := f.term()
	for _, ns := range []string{"a", "b"} {
		f.finish(ns, 3, job.Completed)
		f.finish(ns, 3, job.GivenUp)
		f.enqueue(ns, f.specs(2)...)
		f.clock.Advance(time.Second)
		f.take(ns)
	}
	all := counts{Pending: 1, Running: 1, Archived: 3, Dead: 3}
	f.keep(term, "a", store.Archive, 0)
	f.holds("b", all)
	all.Archived = 0
	f.holds("a", all)
	f.keep(term, "a", store.DeadLetters, 0)
	all.Dead = 0
	f.holds("a", all)
}

// trimTerm: a leader that comes late deletes nothing.
func trimTerm(f *fixture) {
	const ns = "gantry"
	other := f.open()
	first := f.term()
	f.complete(ns, 5)
	equal(f, "under the first term", f.keep(first, ns, store.Archive, 4), store.Trimmed{Completed: 1})
	second, err := other.NewTerm(f.ctx, "other")
	f.ok(err)
	if second <= first {
		f.Fatalf("term %d after %d", second, first)
	}
	old := f.keep(first, ns, store.Archive, 1)
	equal(f, "under the older term", old, store.Trimmed{Superseded: true})
	equal(f, "by age under the older term", f.trim(store.Trim{Term: first, Namespace: ns, Table: store.Archive, Before: f.clock.Now().Add(time.Hour)}), store.Trimmed{Superseded: true})
	equal(f, "in a namespace that was never used", f.keep(first, "fresh", store.Archive, 1), store.Trimmed{Superseded: true})
	audit, err := f.s.TrimAudit(f.ctx, first, f.clock.Now().Add(time.Hour), 10)
	f.ok(err)
	equal(f, "the trail under the older term", audit, store.Trimmed{Superseded: true})
	equal(f, "no term", f.keep(0, ns, store.Archive, 1), store.Trimmed{Superseded: true})
	f.holds(ns, counts{Archived: 4})
	equal(f, "under the newest term", f.keep(second, ns, store.Archive, 1), store.Trimmed{Completed: 3})
	third := f.term()
	if third <= second {
		f.Fatalf("term %d after %d", third, second)
	}
}

func trimStale(f *fixture) {
	const ns = "ns"
	term := f.term()
	f.complete(ns, 5)
	f.put(ns, `{"max_archived_rows":1}`)
	_, old := f.inForce(ns)
	f.put(ns, `{"max_archived_rows":4}`)
	_, err := f.s.Trim(f.ctx, store.Trim{Term: term, Namespace: ns, Table: store.Archive, Keep: new(int64(1)), Limit: 500, Stamp: &old})
	if !errors.Is(err, store.ErrStale) {
		f.Fatalf("got %v, want ErrStale", err)
	}
	f.holds(ns, counts{Archived: 5})
	equal(f, "with the stamp in force", f.keep(term, ns, store.Archive, 4), store.Trimmed{Completed: 1})
}

func trimGone(f *fixture) {
	const ns = "ns"
	term := f.term()
	big := f.spec(func(s *job.Spec) { s.Payload, s.Form = make([]byte, 100_000), job.Bytes })
	f.enqueue(ns, big)
	f.clock.Advance(time.Second)
	l := f.take(ns)
	f.settle(job.GivenUp, l)
	equal(f, "deleted", f.keep(term, ns, store.DeadLetters, 0), store.Trimmed{Dead: 1})
	_, err := f.s.Job(f.ctx, ns, big.ID)
	f.reason(err, "NOT_FOUND")
	equal(f, "listed", len(f.list(ns, store.Filter{}, 10)), 0)
	equal(f, "settlement", f.settleOne(ending(l, job.GivenUp)), store.Settled{})
	equal(f, "heartbeat", f.beat(beat(l, lease))[0], store.Pulse{})
	equal(f, "cancelled", f.cancel(ns, big.ID), store.Cancelled{NotFound: 1})
	equal(f, "the same id again", f.enqueue(ns, big)[0].Attempt, int32(0))
	f.clock.Advance(time.Second)
	equal(f, "its payload", len(f.take(ns).Job.Payload), 100_000)
}

func trimCycles(f *fixture) {
	const ns = "ns"
	term := f.term()
	for range 5 {
		newest := append(f.complete(ns, 8), f.complete(ns, 3)...)
		f.keep(term, ns, store.Archive, 7)
		equal(f, "left", idsOfJobs(f.list(ns, store.Filter{}, 100)), newest[len(newest)-7:])
		f.holds(ns, counts{Archived: 7})
	}
}

func trimAudit(f *fixture) {
	term := f.term()
	for i := range 6 {
		f.ok(f.s.Audit(f.ctx, store.Record{Namespace: fmt.Sprint("ns", i%2), Operation: fmt.Sprint(i), Outcome: "ok"}))
		f.clock.Advance(time.Minute)
	}
	trim := func(before time.Time, limit int) store.Trimmed {
		f.Helper()
		got, err := f.s.TrimAudit(f.ctx, term, before, limit)
		f.ok(err)
		return got
	}
	equal(f, "nothing is older", trim(epoch, 10), store.Trimmed{})
	equal(f, "the first batch", trim(epoch.Add(4*time.Minute), 3), store.Trimmed{Audit: 3, More: true})
	equal(f, "the second batch", trim(epoch.Add(4*time.Minute), 3), store.Trimmed{Audit: 1})
	equal(f, "left of one", operations(f.trail("ns0", store.AuditFilter{}, 10)), []string{"4"})
	equal(f, "left of the other", operations(f.trail("ns1", store.AuditFilter{}, 10)), []string{"5"})
}
