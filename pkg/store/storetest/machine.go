package storetest

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"flexiq/pkg/fault"
	"flexiq/pkg/job"
	"flexiq/pkg/quota"
	"flexiq/pkg/store"
	"flexiq/pkg/store/internal/model"
)

var machineCases = []testcase{
	{"random operations answer as the reference does", machineRun},
}

// machineNamespaces are the tenants of the model test.
var machineNamespaces = []string{"a", "a:b", "é"}

// machineRun does random operations on the store and on the reference and
// compares every answer, the usage and the listings. The number of runs and of
// steps in each are rapid's flags; what failed is shrunk.
//
// The runs share a store as long as they succeed: each ends by clearing away
// all jobs. A failed one leaves the next a fresh store, so that it can be
// repeated from its beginning.
func machineRun(f *fixture) {
	m := newMachine(f)
	rapid.Check(f.T, func(t *rapid.T) {
		if m == nil {
			m = newMachine(start(f.T, f.backend))
		}
		run := m
		m = nil
		run.t = t
		run.begin()
		t.Repeat(map[string]func(*rapid.T){
			"":          run.with((*machine).compare),
			"admit":     run.with((*machine).admit),
			"admit2":    run.with((*machine).admit),
			"turn":      run.with((*machine).turn),
			"turn2":     run.with((*machine).turn),
			"heartbeat": run.with((*machine).heartbeat),
			"expire":    run.with((*machine).expire),
			"cancel":    run.with((*machine).cancel),
			"trim":      run.with((*machine).trim),
			"ready":     run.with((*machine).ready),
			"quota":     run.with((*machine).quota),
			"default":   run.with((*machine).standard),
			"pass":      run.with((*machine).pass),
		})
		run.t = t
		run.end()
		m = run
	})
}

// machine is a store and the reference, in step.
type machine struct {
	*fixture
	t     *rapid.T
	model *model.Store

	specs  []job.Spec // of this run, to be repeated
	claims []pair     // of this run, settled ones too
	terms  [2]int64   // the newest, of the store and of the reference
	looked int        // at one namespace's jobs after the other's
}

// pair is one claim as both gave it.
type pair struct{ real, model store.Leased }

func newMachine(f *fixture) *machine {
	return &machine{fixture: f, model: model.New().Open(f.clock.Now)}
}

// with is an action as rapid calls it.
func (m *machine) with(action func(*machine)) func(*rapid.T) {
	return func(t *rapid.T) {
		m.t = t
		action(m)
	}
}

// same ends the run when an answer differs from the reference's.
func same[T any](m *machine, what string, got, want T) {
	m.t.Helper()
	if reflect.DeepEqual(got, want) { // much cheaper, and nearly always so
		return
	}
	if diff := gocmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		m.t.Fatalf("%s (-reference +store):\n%s", what, diff)
	}
}

func (m *machine) must(err error) {
	m.t.Helper()
	if err != nil {
		m.t.Fatalf("unexpected error: %v", err)
	}
}

func (m *machine) begin() {
	m.specs, m.claims = nil, nil
}

// end clears everything away.
func (m *machine) end() {
	m.clock.Advance(2 * time.Hour) // beyond every lease
	m.expire()
	for i, s := range []store.Store{m.s, m.model} {
		term, err := s.NewTerm(m.ctx, "leader")
		m.must(err)
		m.terms[i] = term
		for _, ns := range machineNamespaces {
			_, err := s.Cancel(m.ctx, ns, store.Selection{}, 1000)
			m.must(err)
			for _, table := range []store.Table{store.Archive, store.DeadLetters} {
				_, err := s.Trim(m.ctx, store.Trim{Term: term, Namespace: ns, Table: table, Keep: new(int64(0)), Limit: 500})
				m.must(err)
			}
		}
	}
	m.compare()
}

// both decides what the two think of a quota: the same document under stamps of their own.
func (m *machine) both(ns string) (q quota.Quota, real, reference store.Stamp) {
	a, err := m.s.Quotas(m.ctx, []string{ns})
	m.must(err)
	b, err := m.model.Quotas(m.ctx, []string{ns})
	m.must(err)
	same(m, "quota", string(a[0].Raw), string(b[0].Raw))
	same(m, "inherited", a[0].Inherited, b[0].Inherited)
	if a[0].Raw != nil {
		q, err = quota.Read(a[0].Raw)
		m.must(err)
	}
	real, reference = a[0].Stamp, b[0].Stamp
	if rapid.IntRange(0, 11).Draw(m.t, "stale") == 0 {
		real.Revision--
		reference.Revision--
	}
	return q, real, reference
}

func (m *machine) namespace() string {
	return rapid.SampledFrom(machineNamespaces).Draw(m.t, "namespace")
}

var machineQueues = []string{"q", "Q"}

// spec draws a new job, or one of before, or one of before with other content.
func (m *machine) spec(ns string, alone bool) job.Spec {
	kind := rapid.IntRange(0, 9).Draw(m.t, "kind")
	if kind <= 1 && len(m.specs) > 0 {
		s := rapid.SampledFrom(m.specs).Draw(m.t, "spec of before")
		if kind == 1 || s.Debounce.Key != "" && !alone {
			s = job.Spec{ID: s.ID, Task: "changed"}
			m.must(s.Normalize("job", 100))
		}
		if s.Debounce.Key == "" || m.settled(ns, s.Debounce.Key) {
			return s
		}
	}
	s := job.Spec{
		ID: m.id(), Task: "t", Queue: rapid.SampledFrom(machineQueues).Draw(m.t, "queue"),
		Priority:    int32(rapid.IntRange(-1, 1).Draw(m.t, "priority")),
		MaxAttempts: int32(rapid.IntRange(1, 3).Draw(m.t, "max attempts")),
		Payload:     make([]byte, rapid.IntRange(0, 8).Draw(m.t, "bytes")), Form: job.Bytes,
	}
	if rapid.Bool().Draw(m.t, "short timeout") {
		s.Timeout = time.Second
	}
	switch rapid.IntRange(0, 5).Draw(m.t, "option") {
	case 0:
		s.Delay = time.Duration(rapid.IntRange(1, 5000).Draw(m.t, "delay")) * time.Millisecond
	case 1:
		s.RunAt = m.clock.Now().Add(time.Duration(rapid.IntRange(-3, 3).Draw(m.t, "run_at")) * time.Second)
	case 2, 3:
		s.UniqueKey = rapid.SampledFrom([]string{"k", "K"}).Draw(m.t, "unique key")
	case 4:
		if alone && m.settled(ns, "d") {
			s.Debounce = job.Debounce{Key: "d", Window: time.Duration(rapid.IntRange(1, 3).Draw(m.t, "window")) * time.Second}
			s.Debounce.MaxWait = s.Debounce.Window * time.Duration(rapid.IntRange(1, 3).Draw(m.t, "windows"))
		}
	}
	m.must(s.Normalize("job", 100))
	m.specs = append(m.specs, s)
	return s
}

// settled reports whether no job with a debounce key runs: one that comes back
// beside a newer one leaves open which of the two an enqueue updates.
func (m *machine) settled(ns, key string) bool {
	page, err := m.model.ListJobs(m.ctx, ns, store.Filter{State: job.Running}, "", 1000)
	m.must(err)
	return !slices.ContainsFunc(page.Items, func(j job.Job) bool { return j.Debounce.Key == key })
}

func (m *machine) admit() {
	var real, reference []store.Call
	var stamps []store.Stamp
	for range rapid.IntRange(1, 3).Draw(m.t, "calls") {
		ns := m.namespace()
		q, a, b := m.both(ns)
		n := rapid.IntRange(1, 3).Draw(m.t, "jobs")
		c := store.Call{Namespace: ns, Quota: q, Origin: job.OriginEnqueue, By: "tok1"}
		for range n {
			s := m.spec(ns, n == 1)
			if !slices.ContainsFunc(c.Jobs, func(o job.Spec) bool { return o.ID == s.ID }) {
				c.Jobs = append(c.Jobs, s)
			}
		}
		c.Stamp = a
		real = append(real, c)
		c.Stamp = b
		reference = append(reference, c)
		stamps = append(stamps, a)
	}
	got, err := m.s.Admit(m.ctx, real)
	m.must(err)
	want, err := m.model.Admit(m.ctx, reference)
	m.must(err)
	for i := range want {
		what := fmt.Sprintf("outcome of call %d", i)
		same(m, what, outcome(got[i]), outcome(want[i]))
		if e := fault.Of(got[i].Err); e != nil && (e.Reason == fault.QueueFull || e.Reason == fault.RateLimited) {
			w := fault.Of(want[i].Err)
			same(m, what, e.Message, w.Message)
			w.Details[quota.KeyRevision] = fmt.Sprint(stamps[i].InForce())
			same(m, what, e.Details, w.Details)
		}
		same(m, what, [2]bool{got[i].Shed, got[i].Repeat}, [2]bool{want[i].Shed, want[i].Repeat})
		same(m, what, got[i].Results, want[i].Results)
	}
}

func (m *machine) turn() {
	var real, reference []store.Settlement
	random := false
	for range rapid.IntRange(0, 3).Draw(m.t, "settlements") {
		if len(m.claims) == 0 {
			break
		}
		c := rapid.SampledFrom(m.claims).Draw(m.t, "claim")
		s := ending(c.real, rapid.SampledFrom(job.Outcomes).Draw(m.t, "outcome"))
		if (s.Outcome == job.Failed || s.Outcome == job.Released) && rapid.Bool().Draw(m.t, "retry after") {
			s.RetryAfter = new(time.Duration(rapid.IntRange(0, 3).Draw(m.t, "seconds")) * time.Second)
		}
		random = random || s.Outcome == job.Failed && s.RetryAfter == nil
		real = append(real, s)
		s.Lease = c.model.Lease
		reference = append(reference, s)
	}
	if random { // the delays are to be known before jobs are claimed
		m.turnOnce(real, reference, nil, nil)
		real, reference = nil, nil
	}
	var wants, modelWants []store.Want
	for range rapid.IntRange(0, 3).Draw(m.t, "wants") {
		ns := m.namespace()
		q, a, b := m.both(ns)
		w := store.Want{
			Namespace: ns, Max: rapid.IntRange(1, 4).Draw(m.t, "max"), LeaseFor: time.Duration(rapid.IntRange(1, 20).Draw(m.t, "lease")) * time.Second,
			Worker: "w", MaxRunning: q.MaxRunning, Stamp: a,
			Queues: rapid.SampledFrom([][]string{nil, {"q"}, {"Q", "q"}, {"none"}}).Draw(m.t, "queues"),
		}
		if rapid.IntRange(0, 3).Draw(m.t, "bounded") == 0 {
			w.MaxBytes = int64(rapid.IntRange(1, 12).Draw(m.t, "max bytes"))
		}
		wants = append(wants, w)
		w.Stamp = b
		modelWants = append(modelWants, w)
	}
	m.turnOnce(real, reference, wants, modelWants)
}

func (m *machine) turnOnce(real, reference []store.Settlement, wants, modelWants []store.Want) {
	settled, grants, err := m.s.Turn(m.ctx, real, wants)
	m.must(err)
	modelSettled, modelGrants, err := m.model.Turn(m.ctx, reference, modelWants)
	m.must(err)
	same(m, "settled", settled, modelSettled)
	for _, s := range real {
		m.follow(s.Namespace, s.JobID)
	}
	for i, want := range modelGrants {
		got := grants[i]
		same(m, "stale", errors.Is(got.Err, store.ErrStale), errors.Is(want.Err, store.ErrStale))
		if got.Err != nil {
			continue
		}
		if len(got.Jobs) != len(want.Jobs) {
			m.t.Fatalf("want %d got %v, the reference gives %v", i, idsOf(got.Jobs), idsOf(want.Jobs))
		}
		for k := range want.Jobs {
			same(m, "granted job", got.Jobs[k].Job, want.Jobs[k].Job)
			same(m, "end of the lease", got.Jobs[k].ExpiresAt, want.Jobs[k].ExpiresAt)
			m.claims = append(m.claims, pair{got.Jobs[k], want.Jobs[k]})
		}
		if len(want.Jobs) < wants[i].Max && wants[i].MaxBytes == 0 {
			same(m, "at the cap", got.AtCap, want.AtCap)
		}
		same(m, "next at", got.NextAt, want.NextAt)
	}
}

// follow gives the reference the random delay of a retry, once it is seen to
// be within the bounds.
func (m *machine) follow(ns, id string) {
	got, err := m.s.Job(m.ctx, ns, id)
	if fault.Is(err, fault.NotFound) {
		return
	}
	m.must(err)
	want, err := m.model.Job(m.ctx, ns, id)
	m.must(err)
	if want.State != job.Pending || got.RunAt.Equal(want.RunAt) || want.Attempt == 0 {
		return
	}
	now := m.clock.Now()
	least, most := job.Backoff(want.BackoffBase, want.BackoffMax, want.Attempt, 0), job.Backoff(want.BackoffBase, want.BackoffMax, want.Attempt, 1)
	for _, j := range []*job.Job{got, want} {
		if d := j.RunAt.Sub(now); d < least-time.Microsecond || d > most {
			m.t.Fatalf("job %s waits %s after attempt %d, want %s to %s", id, d, want.Attempt, least, most)
		}
	}
	m.model.SetRunAt(ns, id, got.RunAt)
}

func (m *machine) heartbeat() {
	var real, reference []store.Beat
	for range rapid.IntRange(1, 4).Draw(m.t, "beats") {
		if len(m.claims) == 0 {
			return
		}
		c := rapid.SampledFrom(m.claims).Draw(m.t, "claim")
		extend := time.Duration(rapid.IntRange(1, 20).Draw(m.t, "extend")) * time.Second
		real, reference = append(real, beat(c.real, extend)), append(reference, beat(c.model, extend))
	}
	got, err := m.s.Heartbeat(m.ctx, real)
	m.must(err)
	want, err := m.model.Heartbeat(m.ctx, reference)
	m.must(err)
	same(m, "pulses", got, want)
}

func (m *machine) expire() {
	got, err := m.s.Expire(m.ctx, 1000)
	m.must(err)
	want, err := m.model.Expire(m.ctx, 1000)
	m.must(err)
	for _, list := range [][]store.Ended{got, want} {
		slices.SortFunc(list, func(a, b store.Ended) int {
			return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.JobID, b.JobID))
		})
	}
	same(m, "ended", got, want)
	for _, e := range want {
		m.follow(e.Namespace, e.JobID)
	}
}

func (m *machine) cancel() {
	ns := m.namespace()
	var sel store.Selection
	if rapid.Bool().Draw(m.t, "by id") && len(m.specs) > 0 {
		sel.IDs = []string{rapid.SampledFrom(m.specs).Draw(m.t, "spec").ID}
	} else {
		sel.Filter = store.Filter{
			Queue: rapid.SampledFrom([]string{"q", "Q"}).Draw(m.t, "queue"),
			State: rapid.SampledFrom([]job.State{"", job.Pending, job.Running, job.Dead}).Draw(m.t, "state"),
		}
	}
	limit := rapid.IntRange(1, 3).Draw(m.t, "limit")
	var totals [2]store.Cancelled
	for i, s := range []store.Store{m.s, m.model} {
		for more, round := true, 0; more; round++ {
			c, err := s.Cancel(m.ctx, ns, sel, limit)
			m.must(err)
			totals[i].Cancelled += c.Cancelled
			totals[i].Cancelling += c.Cancelling
			totals[i].NotFound += c.NotFound
			if more = c.More; round == 1000 {
				m.t.Fatal("cancelling does not end")
			}
		}
	}
	same(m, "cancelled", totals[0], totals[1])
}

func (m *machine) trim() {
	if m.terms[0] == 0 || rapid.IntRange(0, 4).Draw(m.t, "new term") == 0 {
		for i, s := range []store.Store{m.s, m.model} {
			term, err := s.NewTerm(m.ctx, "leader")
			m.must(err)
			m.terms[i] = term
		}
	}
	trim := store.Trim{
		Namespace: m.namespace(), Table: rapid.SampledFrom([]store.Table{store.Archive, store.DeadLetters}).Draw(m.t, "table"),
		Limit: rapid.IntRange(1, 4).Draw(m.t, "limit"),
	}
	reference := trim
	if rapid.Bool().Draw(m.t, "keep") {
		_, a, b := m.both(trim.Namespace)
		trim.Keep = new(int64(rapid.IntRange(0, 5).Draw(m.t, "rows")))
		reference.Keep, trim.Stamp, reference.Stamp = trim.Keep, &a, &b
	} else {
		trim.Before = m.clock.Now().Add(-time.Duration(rapid.IntRange(0, 20).Draw(m.t, "age")) * time.Second)
		reference.Before = trim.Before
	}
	late := int64(0)
	if rapid.IntRange(0, 9).Draw(m.t, "late leader") == 0 {
		late = 1
	}
	trim.Term, reference.Term = m.terms[0]-late, m.terms[1]-late
	got, err := m.s.Trim(m.ctx, trim)
	want, modelErr := m.model.Trim(m.ctx, reference)
	same(m, "stale trim", errors.Is(err, store.ErrStale), errors.Is(modelErr, store.ErrStale))
	if modelErr == nil {
		m.must(err)
		same(m, "trimmed", got, want)
	}
}

func (m *machine) ready() {
	var interests []store.Interest
	for _, ns := range machineNamespaces {
		interests = append(interests, store.Interest{Namespace: ns}, store.Interest{Namespace: ns, Queues: []string{"Q"}})
	}
	got, err := m.s.Ready(m.ctx, interests)
	m.must(err)
	want, err := m.model.Ready(m.ctx, interests)
	m.must(err)
	same(m, "ready", got, want)
}

// raw draws a quota document, empty for a clear.
func (m *machine) raw() string {
	q := quota.Quota{}
	limit := func(name string, most int) *int64 {
		if rapid.Bool().Draw(m.t, name) {
			return new(int64(rapid.IntRange(0, most).Draw(m.t, name)))
		}
		return nil
	}
	q.MaxPending, q.MaxRunning = limit("max_pending", 8), limit("max_running", 3)
	if rapid.Bool().Draw(m.t, "enqueue_rate") {
		q.EnqueueRate = &quota.Rate{
			Count: int64(rapid.IntRange(1, 9).Draw(m.t, "count")), Unit: rapid.SampledFrom([]quota.Unit{'s', 'm', 'h'}).Draw(m.t, "unit"),
		}
	}
	q.OnExcess = rapid.SampledFrom([]quota.Excess{quota.Reject, quota.Drop}).Draw(m.t, "on_excess")
	if !q.Limits() {
		return ""
	}
	return string(q.JSON())
}

func (m *machine) quota() { m.set(m.change(m.namespace(), m.raw())) }

func (m *machine) standard() {
	c := m.change("", m.raw())
	c.Default = true
	m.set(c)
}

func (m *machine) set(c store.QuotaChange) {
	if rapid.IntRange(0, 4).Draw(m.t, "if no document") == 0 {
		c.IfRevision = new(int64(0))
	}
	got, err := m.s.PutQuota(m.ctx, c)
	want, modelErr := m.model.PutQuota(m.ctx, c)
	same(m, "refused", fault.Is(err, fault.RevisionMismatch), fault.Is(modelErr, fault.RevisionMismatch))
	if modelErr == nil {
		m.must(err)
	}
	same(m, "document", string(got.Raw), string(want.Raw))
	same(m, "inherited", got.Inherited, want.Inherited)
}

// pass lets time go on, and now and then a step back.
func (m *machine) pass() {
	millis := rapid.OneOf(rapid.IntRange(0, 10), rapid.IntRange(0, 3000), rapid.IntRange(0, 30_000), rapid.IntRange(-2000, 0))
	m.clock.Advance(time.Duration(millis.Draw(m.t, "milliseconds")) * time.Millisecond)
}

// probe is a rate above all that are drawn: under it two buckets hold the same
// exactly when they will answer alike, though one of them was not written yet.
var probe = quota.Rate{Count: 1000, Unit: quota.PerHour}

// compare compares the usage of all namespaces and the jobs of one.
func (m *machine) compare() {
	got, err := m.s.Usage(m.ctx, machineNamespaces)
	m.must(err)
	want, err := m.model.Usage(m.ctx, machineNamespaces)
	m.must(err)
	now := m.clock.Now()
	for i := range want {
		same(m, "counts of "+want[i].Namespace, countsOf(got[i]), countsOf(want[i]))
		same(m, "bucket of "+want[i].Namespace, got[i].Bucket.Refill(probe, now), want[i].Bucket.Refill(probe, now))
	}
	m.looked++
	ns := machineNamespaces[m.looked%len(machineNamespaces)]
	var lists [2][]job.Job
	for i, s := range []store.Store{m.s, m.model} {
		for after, more := "", true; more; more = after != "" {
			page, err := s.ListJobs(m.ctx, ns, store.Filter{}, after, 100)
			m.must(err)
			lists[i] = append(lists[i], page.Items...)
			after = page.Next
		}
	}
	same(m, "jobs of "+ns, lists[0], lists[1])
}
