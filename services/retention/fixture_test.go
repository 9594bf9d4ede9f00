package retention

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/rs/zerolog"

	"flexiq/pkg/job"
	"flexiq/pkg/quota"
	"flexiq/pkg/store"
)

// fixture is a store with a clock of its own, or the host's while now is zero.
type fixture struct {
	*testing.T
	store.Store
	in database

	mu  sync.Mutex
	now time.Time
}

// calm is the deadline of store calls where a test is not about deadlines,
// however busy the machine is.
const calm = 5 * time.Minute

// newFixture is one on SQLite, for what does not depend on the backend.
func newFixture(t *testing.T) *fixture {
	t.Helper()
	return newFixtureIn(t, databases["sqlite"](t))
}

func newFixtureIn(t *testing.T, in database) *fixture {
	t.Helper()
	f := &fixture{T: t, in: in, now: time.Date(2026, 3, 8, 0, 0, 0, 0, time.UTC)}
	f.open()
	t.Cleanup(f.close)
	return f
}

func (f *fixture) open() {
	f.Helper()
	var err error
	if f.Store, err = f.in.open(context.Background(), f.clock, calm); err != nil {
		f.Fatal(err)
	}
}

func (f *fixture) close() {
	f.Helper()
	if err := f.Store.Close(); err != nil {
		f.Error(err)
	}
}

func (f *fixture) clock() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.now.IsZero() {
		return time.Now()
	}
	return f.now
}

func (f *fixture) advance(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.now = f.now.Add(d)
}

func (f *fixture) must(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
}

// sweeper is the sweeper of a new term, whose lease never ends.
func (f *fixture) sweeper(cfg Config, st Store) *sweeper {
	f.Helper()
	cfg.Tick = time.Minute
	svc, err := New(cfg, Deps{Store: st, Log: zerolog.Nop()})
	f.must(err)
	term, err := f.NewTerm(f.Context(), "test")
	f.must(err)
	svc.bounds.call, svc.bounds.patience = calm, calm
	sw := svc.sweeper(term)
	sw.guard = func(context.Context) error { return nil }
	return sw
}

// sweepOnce does one sweep of a new term by ceilings alone.
func (f *fixture) sweepOnce() report {
	f.Helper()
	r, err := f.sweeper(Config{}, f.Store).sweep(f.Context())
	f.must(err)
	return r
}

// limit writes a namespace's quota.
func (f *fixture) limit(ns string, q quota.Quota) {
	f.Helper()
	f.document(ns, q.JSON())
}

// document stores a quota document as it is, readable or not.
func (f *fixture) document(ns string, raw []byte) {
	f.Helper()
	_, err := f.PutQuota(f.Context(), store.QuotaChange{Namespace: ns, Raw: raw})
	f.must(err)
}

// enqueue makes n jobs by the quota in force.
func (f *fixture) enqueue(ns string, n int, payload string) {
	f.Helper()
	docs, err := f.Quotas(f.Context(), []string{ns})
	f.must(err)
	q, _ := quota.Read(docs[0].Raw) // none and an unreadable one: no limits, for the test's own jobs
	for n > 0 {
		call := store.Call{Namespace: ns, Quota: q, Stamp: docs[0].Stamp, Origin: job.OriginEnqueue, By: "tester"}
		for range min(n, job.MaxBatch) {
			sp := job.Spec{ID: uuid.Must(uuid.NewV7()).String(), Task: "t", Payload: []byte(payload), Form: job.Bytes}
			f.must(sp.Normalize("job", job.DefaultMaxPayload))
			call.Jobs = append(call.Jobs, sp)
		}
		out, err := f.Admit(f.Context(), []store.Call{call})
		f.must(err)
		f.must(out[0].Err)
		n -= len(call.Jobs)
	}
}

// finish makes n jobs and ends them, at most thousand at one instant.
func (f *fixture) finish(ns string, n int, as job.Outcome, payload string) {
	f.Helper()
	f.enqueue(ns, n, payload)
	docs, err := f.Quotas(f.Context(), []string{ns})
	f.must(err)
	for n > 0 {
		f.advance(time.Second)
		want := store.Want{Namespace: ns, Max: min(n, 1000), LeaseFor: time.Minute, Worker: "w", Stamp: docs[0].Stamp}
		_, grants, err := f.Turn(f.Context(), nil, []store.Want{want})
		f.must(err)
		f.must(grants[0].Err)
		var ends []store.Settlement
		for _, l := range grants[0].Jobs {
			ends = append(ends, store.Settlement{Namespace: ns, JobID: l.Job.ID, Lease: l.Lease, Outcome: as})
		}
		if len(ends) == 0 {
			f.Fatalf("%s: %d jobs were not given out", ns, n)
		}
		_, _, err = f.Turn(f.Context(), ends, nil)
		f.must(err)
		n -= len(ends)
	}
}

// shed makes n shed dead letters and leaves the quota as it was.
func (f *fixture) shed(ns string, n int) {
	f.Helper()
	docs, err := f.Quotas(f.Context(), []string{ns})
	f.must(err)
	none := int64(0)
	f.limit(ns, quota.Quota{MaxPending: &none, OnExcess: quota.Drop})
	f.enqueue(ns, n, "x")
	f.document(ns, docs[0].Raw)
}

// history lists the finished jobs of a state, oldest first by (finished time, id).
func (f *fixture) history(ns string, state job.State) []job.Job {
	f.Helper()
	var out []job.Job
	for after := ""; ; {
		page, err := f.ListJobs(f.Context(), ns, store.Filter{State: state}, after, 500)
		f.must(err)
		out = append(out, page.Items...)
		if after = page.Next; after == "" {
			break
		}
	}
	slices.SortFunc(out, func(a, b job.Job) int {
		if c := a.FinishedAt.Compare(b.FinishedAt); c != 0 {
			return c
		}
		return strings.Compare(a.ID, b.ID)
	})
	return out
}

func ids(jobs []job.Job) []string {
	out := make([]string, len(jobs))
	for i := range jobs {
		out[i] = jobs[i].ID
	}
	return out
}

// usage is what a namespace holds, compared with a recount and with all that is
// kept beside its rows: payloads, indexes.
func (f *fixture) usage(ns string) store.Usage {
	f.Helper()
	u, err := f.Usage(f.Context(), []string{ns})
	f.must(err)
	r, err := f.Recount(f.Context(), ns)
	f.must(err)
	if u[0].Pending != r.Pending || u[0].Running != r.Running || u[0].Archived != r.Archived || u[0].Dead != r.Dead || u[0].Shed != r.Shed {
		f.Errorf("%s: kept counts %+v, recount %+v", ns, u[0], r)
	}
	found, err := f.Examine(f.Context(), ns, false)
	f.must(err)
	if len(found) > 0 {
		f.Errorf("%s: left of deleted rows, or missing: %+v", ns, found)
	}
	return u[0]
}
