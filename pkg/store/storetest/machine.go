package storetest

import (
	"reflect"
	"slices"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

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
			"replay":    run.with((*machine).replay),
			"bury":      run.with((*machine).bury),
			"retryable": run.with((*machine).retryable),
			"ready":     run.with((*machine).ready),
			"quota":     run.with((*machine).quota),
			"override":  run.with((*machine).override),
			"override2": run.with((*machine).override),
			"insight":   run.with((*machine).insight),
			"default":   run.with((*machine).standard),
			"setting":   run.with((*machine).setting),
			"erase":     run.with((*machine).erase),
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
	for _, ns := range machineNamespaces {
		m.clearOverrides(ns)
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

var (
	machineQueues = []string{"q", "Q"}
	machineTasks  = []string{"t", "u"}
)

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
		ID: m.id(), Task: rapid.SampledFrom(machineTasks).Draw(m.t, "task"), Queue: rapid.SampledFrom(machineQueues).Draw(m.t, "queue"),
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
