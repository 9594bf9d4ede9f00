package storetest

import (
	"time"

	"flexiq/pkg/job"
	"flexiq/pkg/store"
)

// lease is how long claims of the suite hold, unless a case says otherwise.
const lease = 30 * time.Second

// want asks for up to n jobs under the quota in force.
func (f *fixture) want(ns string, n int, options ...func(*store.Want)) store.Want {
	f.Helper()
	c := f.call(ns)
	w := store.Want{Namespace: ns, Max: n, LeaseFor: lease, Worker: "w1", MaxRunning: c.Quota.MaxRunning, Stamp: c.Stamp}
	for _, o := range options {
		o(&w)
	}
	return w
}

func queues(names ...string) func(*store.Want) {
	return func(w *store.Want) { w.Queues = names }
}

// turn does settlements and wants in one step.
func (f *fixture) turn(settlements []store.Settlement, wants ...store.Want) ([]store.Settled, []store.Grant) {
	f.Helper()
	settled, grants, err := f.s.Turn(f.ctx, settlements, wants)
	f.ok(err)
	if len(settled) != len(settlements) || len(grants) != len(wants) {
		f.Fatalf("%d and %d answers for %d settlements and %d wants", len(settled), len(grants), len(settlements), len(wants))
	}
	return settled, grants
}

// grant serves one want that must not be refused.
func (f *fixture) grant(ns string, n int, options ...func(*store.Want)) store.Grant {
	f.Helper()
	_, grants := f.turn(nil, f.want(ns, n, options...))
	f.ok(grants[0].Err)
	return grants[0]
}

// claim takes exactly n jobs.
func (f *fixture) claim(ns string, n int, options ...func(*store.Want)) []store.Leased {
	f.Helper()
	g := f.grant(ns, n, options...)
	if len(g.Jobs) != n {
		f.Fatalf("claimed %d jobs of %q, want %d", len(g.Jobs), ns, n)
	}
	return g.Jobs
}

// take claims exactly one job.
func (f *fixture) take(ns string, options ...func(*store.Want)) store.Leased {
	f.Helper()
	return f.claim(ns, 1, options...)[0]
}

// ending is a settlement of a claim.
func ending(l store.Leased, o job.Outcome, options ...func(*store.Settlement)) store.Settlement {
	s := store.Settlement{Namespace: l.Job.Namespace, JobID: l.Job.ID, Lease: l.Lease, Outcome: o}
	if o == job.Failed || o == job.GivenUp {
		s.Error = "boom"
	}
	for _, option := range options {
		option(&s)
	}
	return s
}

func retryAfter(d time.Duration) func(*store.Settlement) {
	return func(s *store.Settlement) { s.RetryAfter = &d }
}

// settle ends claims one way; each must be accepted for the first time.
func (f *fixture) settle(o job.Outcome, claims ...store.Leased) {
	f.Helper()
	all := make([]store.Settlement, len(claims))
	for i, l := range claims {
		all[i] = ending(l, o)
	}
	settled, _ := f.turn(all)
	for i, s := range settled {
		if !s.Accepted || s.Repeat {
			f.Fatalf("settling %s as %s: %+v", claims[i].Job.ID, o, s)
		}
	}
}

// settleOne answers one settlement.
func (f *fixture) settleOne(s store.Settlement) store.Settled {
	f.Helper()
	settled, _ := f.turn([]store.Settlement{s})
	return settled[0]
}

// job reads a job that must exist.
func (f *fixture) job(ns, id string) *job.Job {
	f.Helper()
	j, err := f.s.Job(f.ctx, ns, id)
	f.ok(err)
	return j
}

// state checks where a job stands.
func (f *fixture) state(ns, id string, want job.State) *job.Job {
	f.Helper()
	j := f.job(ns, id)
	if j.State != want {
		f.Fatalf("job %s is %s, want %s", id, j.State, want)
	}
	return j
}

// list reads all pages of a listing.
func (f *fixture) list(ns string, filter store.Filter, pageSize int) []job.Job {
	f.Helper()
	var out []job.Job
	after := ""
	for range 10_000 {
		page, err := f.s.ListJobs(f.ctx, ns, filter, after, pageSize)
		f.ok(err)
		if len(page.Items) > pageSize {
			f.Fatalf("a page of %d has %d jobs", pageSize, len(page.Items))
		}
		out = append(out, page.Items...)
		if after = page.Next; after == "" {
			return out
		}
	}
	f.Fatal("the listing does not end")
	return nil
}

// complete makes n archived jobs, finished a microsecond or more apart.
func (f *fixture) complete(ns string, n int) []string {
	f.Helper()
	return f.finish(ns, n, job.Completed)
}

// finish makes n jobs and ends each one way, one millisecond after another.
func (f *fixture) finish(ns string, n int, o job.Outcome) []string {
	f.Helper()
	ids := make([]string, n)
	for i, j := range f.enqueue(ns, f.specs(n)...) {
		ids[i] = j.ID
	}
	f.clock.Advance(time.Second)
	claims := f.claim(ns, n)
	for _, l := range claims {
		f.clock.Advance(time.Millisecond)
		f.settle(o, l)
	}
	return ids
}

// ids are the ids of claims, in order.
func idsOf(claims []store.Leased) []string {
	out := make([]string, len(claims))
	for i, l := range claims {
		out[i] = l.Job.ID
	}
	return out
}

func idsOfJobs(jobs []job.Job) []string {
	out := make([]string, len(jobs))
	for i, j := range jobs {
		out[i] = j.ID
	}
	return out
}

// expire ends every attempt that is over.
func (f *fixture) expire() []store.Ended {
	f.Helper()
	ended, err := f.s.Expire(f.ctx, 1000)
	f.ok(err)
	return ended
}
