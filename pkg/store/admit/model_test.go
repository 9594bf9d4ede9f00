package admit_test

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"flexiq/pkg/fault"
	"flexiq/pkg/job"
	"flexiq/pkg/quota"
	"flexiq/pkg/store"
	"flexiq/pkg/store/admit"
	"flexiq/pkg/store/internal/model"
)

// lab is a namespace kept by applying plans, beside the reference store that
// decides the same calls in its own way.
type lab struct {
	t         *rapid.T
	now       time.Time
	reference *model.Store
	rows      map[string]admit.Row
	bucket    quota.Bucket
	specs     []job.Spec
	ids       int
}

// TestAgainstReference decides random groups of calls both ways, while jobs
// are claimed and finished between them.
func TestAgainstReference(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		l := &lab{t: t, now: now, rows: map[string]admit.Row{}}
		l.reference = model.New().Open(func() time.Time { return l.now })
		for range rapid.IntRange(1, 12).Draw(t, "groups") {
			l.change()
			l.group()
			l.work()
			l.now = l.now.Add(time.Duration(rapid.IntRange(-500, 3000).Draw(t, "milliseconds")) * time.Millisecond)
		}
	})
}

// change sets the quota in force now and then.
func (l *lab) change() {
	if rapid.IntRange(0, 2).Draw(l.t, "change") > 0 {
		return
	}
	var q quota.Quota
	if rapid.Bool().Draw(l.t, "depth") {
		q.MaxPending = new(int64(rapid.IntRange(0, 6).Draw(l.t, "max_pending")))
	}
	if rapid.Bool().Draw(l.t, "rate") {
		q.EnqueueRate = &quota.Rate{Count: int64(rapid.IntRange(1, 8).Draw(l.t, "count")), Unit: quota.PerSecond}
	}
	q.OnExcess = rapid.SampledFrom([]quota.Excess{quota.Reject, quota.Drop}).Draw(l.t, "on_excess")
	if _, err := l.reference.PutQuota(context.Background(), store.QuotaChange{Namespace: ns, Raw: q.JSON(), Rate: q.EnqueueRate}); err != nil {
		l.t.Fatal(err)
	}
	if q.EnqueueRate != nil {
		l.bucket = l.bucket.Refill(*q.EnqueueRate, l.now)
	}
}

func (l *lab) spec(alone bool) job.Spec {
	if len(l.specs) > 0 && rapid.IntRange(0, 5).Draw(l.t, "again") == 0 {
		s := rapid.SampledFrom(l.specs).Draw(l.t, "spec of before")
		if s.Debounce.Key == "" {
			return s
		}
	}
	l.ids++
	s := job.Spec{ID: id(rapid.IntRange(0, 1).Draw(l.t, "sorts before")*1000 + l.ids), Task: rapid.SampledFrom([]string{"t", "u"}).Draw(l.t, "task")}
	switch rapid.IntRange(0, 5).Draw(l.t, "option") {
	case 0:
		s.Delay = time.Duration(rapid.IntRange(1, 2000).Draw(l.t, "delay")) * time.Millisecond
	case 1:
		s.RunAt = now.Add(time.Duration(rapid.IntRange(-1, 5).Draw(l.t, "run_at")) * time.Second)
	case 2:
		s.UniqueKey = rapid.SampledFrom([]string{"k", "l"}).Draw(l.t, "unique key")
	case 3:
		if alone {
			window := time.Duration(rapid.IntRange(1, 3).Draw(l.t, "window")) * time.Second
			s.Debounce = job.Debounce{Key: "d", Window: window, MaxWait: 2 * window}
			s.Payload, s.Form = fmt.Append(nil, l.ids), job.Bytes
		}
	}
	if err := s.Normalize("job", 100); err != nil {
		l.t.Fatal(err)
	}
	l.specs = append(l.specs, s)
	return s
}

func (l *lab) group() {
	docs, err := l.reference.Quotas(context.Background(), []string{ns})
	if err != nil {
		l.t.Fatal(err)
	}
	var q quota.Quota
	if docs[0].Raw != nil {
		if q, err = quota.Read(docs[0].Raw); err != nil {
			l.t.Fatal(err)
		}
	}
	var calls []store.Call
	for range rapid.IntRange(1, 4).Draw(l.t, "calls") {
		c := store.Call{Namespace: ns, Quota: q, Stamp: docs[0].Stamp, Origin: job.OriginEnqueue, By: "tok1"}
		if rapid.IntRange(0, 9).Draw(l.t, "stale") == 0 {
			c.Stamp.Revision--
		}
		n := rapid.IntRange(1, 3).Draw(l.t, "jobs")
		for range n {
			if s := l.spec(n == 1); !slices.ContainsFunc(c.Jobs, func(o job.Spec) bool { return o.ID == s.ID }) {
				c.Jobs = append(c.Jobs, s)
			}
		}
		calls = append(calls, c)
	}
	want, err := l.reference.Admit(context.Background(), calls)
	if err != nil {
		l.t.Fatal(err)
	}
	plan := admit.Decide(l.snapshot(docs[0].Stamp, calls), calls)
	l.apply(plan)
	equal(l.t, "outcomes", words(plan), words(&admit.Plan{Outcomes: want}))
	for i := range want {
		got := plan.Outcomes[i]
		if e := fault.Of(got.Err); e != nil && e.Reason != fault.IDConflict {
			equal(l.t, "message", e.Message, fault.Of(want[i].Err).Message)
			equal(l.t, "details", e.Details, fault.Of(want[i].Err).Details)
		}
		equal(l.t, fmt.Sprintf("results of call %d", i), got.Results, want[i].Results)
		equal(l.t, "shed", got.Shed, want[i].Shed)
	}
	l.compare()
}

// snapshot reads what a backend would read under the lock.
func (l *lab) snapshot(stamp store.Stamp, calls []store.Call) *admit.Snapshot {
	s := &admit.Snapshot{
		Now: l.now, Stamp: stamp, Bucket: l.bucket, Known: map[string]admit.Known{}, Unique: map[string]*job.Job{}, Waiting: map[string]*job.Job{},
	}
	copies := map[string]*job.Job{}
	for id, r := range l.rows {
		j := *r.Job
		copies[id] = &j
		if j.State == job.Pending {
			s.Pending++
		}
	}
	for _, c := range calls {
		for _, spec := range c.Jobs {
			if r, ok := l.rows[spec.ID]; ok {
				s.Known[spec.ID] = admit.Known{Job: copies[spec.ID], Fingerprint: r.Fingerprint}
			}
			for _, j := range copies {
				live := j.State == job.Pending || j.State == job.Running
				if spec.UniqueKey != "" && live && j.UniqueKey == spec.UniqueKey {
					s.Unique[spec.UniqueKey] = j
				}
				if spec.Debounce.Key != "" && j.State == job.Pending && j.Debounce.Key == spec.Debounce.Key {
					s.Waiting[spec.Debounce.Key] = j
				}
			}
		}
	}
	return s
}

// apply writes a plan as a backend would.
func (l *lab) apply(p *admit.Plan) {
	for _, r := range append(slices.Clone(p.Live), p.Shed...) {
		if _, ok := l.rows[r.Job.ID]; ok {
			l.t.Fatalf("the plan inserts job %s, which exists", r.Job.ID)
		}
		l.rows[r.Job.ID] = r
	}
	for _, j := range p.Update {
		r, ok := l.rows[j.ID]
		if !ok {
			l.t.Fatalf("the plan updates job %s, which does not exist", j.ID)
		}
		r.Job = j
		l.rows[j.ID] = r
	}
	if p.Bucket != nil {
		l.bucket = *p.Bucket
	}
}

// compare compares rows and bucket with the reference's.
func (l *lab) compare() {
	var got []job.Job
	for _, r := range l.rows {
		got = append(got, *r.Job)
	}
	slices.SortFunc(got, func(a, b job.Job) int { return cmp.Compare(a.ID, b.ID) })
	page, err := l.reference.ListJobs(context.Background(), ns, store.Filter{}, "", 10_000)
	if err != nil {
		l.t.Fatal(err)
	}
	want := page.Items
	for i := range want {
		full, err := l.reference.Job(context.Background(), ns, want[i].ID)
		if err != nil {
			l.t.Fatal(err)
		}
		want[i] = *full
	}
	equal(l.t, "rows", got, want)
	u, err := l.reference.Usage(context.Background(), []string{ns})
	if err != nil {
		l.t.Fatal(err)
	}
	equal(l.t, "bucket", l.bucket, u[0].Bucket)
}

// work claims some jobs in the reference, ends some of them, and takes over
// what has become of the rows.
func (l *lab) work() {
	u, err := l.reference.Usage(context.Background(), []string{ns})
	if err != nil {
		l.t.Fatal(err)
	}
	w := store.Want{Namespace: ns, Max: rapid.IntRange(1, 3).Draw(l.t, "claims"), LeaseFor: time.Hour, Stamp: u[0].Stamp}
	_, grants, err := l.reference.Turn(context.Background(), nil, []store.Want{w})
	if err != nil {
		l.t.Fatal(err)
	}
	var ends []store.Settlement
	for _, c := range grants[0].Jobs {
		// A debounced job does not come back: beside a newer one with its key it
		// would be open which of the two an enqueue updates.
		o := rapid.SampledFrom([]job.Outcome{job.Completed, job.GivenUp, "", job.Released}).Draw(l.t, "outcome")
		if o != "" && (o != job.Released || c.Job.Debounce.Key == "") {
			ends = append(ends, store.Settlement{Namespace: ns, JobID: c.Job.ID, Lease: c.Lease, Outcome: o})
		}
	}
	if _, _, err := l.reference.Turn(context.Background(), ends, nil); err != nil {
		l.t.Fatal(err)
	}
	for id, r := range l.rows {
		if r.Job, err = l.reference.Job(context.Background(), ns, id); err != nil {
			l.t.Fatal(err)
		}
		l.rows[id] = r
	}
}
