package retention

import (
	"bytes"
	"context"
	crand "crypto/rand"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"flexiq/pkg/fault"
	"flexiq/pkg/job"
	"flexiq/pkg/quota"
	"flexiq/pkg/store"
)

func dead(n int64) quota.Quota     { return quota.Quota{MaxDeadRows: &n} }
func archived(n int64) quota.Quota { return quota.Quota{MaxArchivedRows: &n} }

// A ceiling leaves exactly that many rows, the newest by the time of their end,
// ties by id, and nothing of the others.
func TestCeilingIsExact(t *testing.T) {
	tables := map[string]struct {
		state job.State
		fill  func(f *fixture, ns string)
		limit func(int64) quota.Quota
	}{
		"dead letters": {job.Dead, func(f *fixture, ns string) {
			f.shed(ns, 990)
			for range 3 {
				f.finish(ns, 7, job.GivenUp, "x") // each lot dies at one instant
			}
		}, dead},
		"archive": {job.Complete, func(f *fixture, ns string) {
			f.finish(ns, 1000, job.Completed, "x")
			f.finish(ns, 11, job.Completed, strings.Repeat("x", 5000))
		}, archived},
	}
	everywhere(t, func(f *fixture) {
		for name, table := range tables {
			ns := "tansy " + name
			table.fill(f, ns)
			for _, keep := range []int64{1000, 17, 3, 2, 1, 0} {
				before := f.history(ns, table.state)
				cut := int64(len(before)) - keep
				f.limit(ns, table.limit(keep))
				if r := f.sweepOnce(); r.rows() != cut || r.Left {
					f.Errorf("%s, %d: reported %+v, want %d deleted", name, keep, r, cut)
				}
				if diff := cmp.Diff(ids(before[cut:]), ids(f.history(ns, table.state))); diff != "" {
					f.Errorf("%s, %d:\n%s", name, keep, diff)
				}
				if u := f.usage(ns); u.Dead+u.Archived != keep {
					f.Errorf("%s, %d: %+v", name, keep, u)
				}
				if r := f.sweepOnce(); r.rows() != 0 {
					f.Errorf("%s, %d: a second sweep deleted %+v", name, keep, r)
				}
				for _, j := range before[:min(cut, 100)] {
					if _, err := f.Job(f.Context(), ns, j.ID); !fault.Is(err, fault.NotFound) {
						f.Fatalf("%s, %d: a trimmed job is still found: %v", name, keep, err)
					}
				}
			}
		}
	})
}

// A lowered ceiling is reached by sweeps, never undershot, and holds up no
// other namespace on the way.
func TestLoweredCeilingConverges(t *testing.T) {
	everywhere(t, func(f *fixture) {
		t := f.T
		f.finish("wicket", 500, job.Completed, "x")
		f.finish("tansy", 30, job.Completed, "x")
		f.limit("wicket", archived(100))
		f.limit("tansy", archived(10))
		sw := f.sweeper(Config{}, f.Store)
		sw.bounds.rows, sw.bounds.batches = 20, 5
		for i, want := range []int64{400, 300, 200, 100, 100, 100} {
			r, err := sw.sweep(t.Context())
			f.must(err)
			if u := f.usage("wicket"); u.Archived != want || r.Left != (want > 100) {
				t.Fatalf("sweep %d: %d rows, want %d; reported %+v", i+1, u.Archived, want, r)
			}
			if u := f.usage("tansy"); u.Archived != 10 {
				t.Errorf("sweep %d: the small namespace has %d rows", i+1, u.Archived)
			}
		}
	})
}

// A flood of shed jobs pushes real dead letters out, and the report, the log
// and the metrics tell of each kind.
func TestShedFloodIsReported(t *testing.T) {
	everywhere(t, func(f *fixture) {
		t := f.T
		f.finish("hasp", 50, job.GivenUp, "x")
		f.advance(time.Second)
		f.shed("hasp", 600)
		f.finish("hasp", 7, job.Completed, "x")
		f.limit("hasp", quota.Quota{MaxDeadRows: num(500), MaxArchivedRows: num(3)})

		var log bytes.Buffer
		reg := prometheus.NewRegistry()
		svc, err := New(Config{Maintenance: true, Tick: time.Minute}, Deps{Store: f.Store, Log: zerolog.New(&log), Registerer: reg})
		f.must(err)
		r, err := f.sweeper(Config{}, f.Store).sweep(t.Context())
		f.must(err)
		if r.Dead != 50 || r.Shed != 100 || r.Completed != 4 {
			t.Errorf("reported %+v", r)
		}
		svc.record(r, nil, time.Second)
		want := map[string]float64{kindDead: 50, kindShed: 100, kindCompleted: 4, kindCancelled: 0, kindAudit: 0}
		if diff := cmp.Diff(want, deletedRows(t, reg)); diff != "" {
			t.Errorf("metrics:\n%s", diff)
		}
		if lines := strings.Count(log.String(), "\n"); lines != 1 || !strings.Contains(log.String(), `"dead":50,"shed":100`) {
			t.Errorf("the log says\n%s", log.String())
		}
		if u := f.usage("hasp"); u.Dead != 500 || u.Shed != 500 || u.Archived != 3 {
			t.Errorf("%+v is left", u)
		}
	})
}

// deletedRows reads the counter of deleted rows by kind.
func deletedRows(t *testing.T, reg *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, family := range families {
		if family.GetName() != "flexiq_retention_rows_deleted_total" {
			continue
		}
		for _, m := range family.GetMetric() {
			out[m.GetLabel()[0].GetValue()] = m.GetCounter().GetValue()
		}
	}
	return out
}

func num(n int64) *int64 { return &n }

// Cycles of fill and trim reuse the space that they free, payloads included.
func TestTrimFreesSpace(t *testing.T) {
	everywhereIn(t, alone, func(f *fixture) {
		f.limit("ember", quota.Quota{MaxArchivedRows: num(10), MaxDeadRows: num(10)})
		noise := make([]byte, 4000) // what can be compressed would hide what is left
		_, _ = crand.Read(noise)
		cycle := func() {
			f.finish("ember", 25, job.Completed, hex.EncodeToString(noise))
			f.finish("ember", 25, job.GivenUp, hex.EncodeToString(noise))
			f.sweepOnce()
		}
		cycle()
		cycle()
		first, last := f.size(), int64(0)
		for range 10 {
			cycle()
			last = f.size()
		}
		if last > first+first/10 {
			f.Errorf("the database grew from %d to %d bytes in ten cycles", first, last)
		}
		if u := f.usage("ember"); u.Archived != 10 || u.Dead != 10 {
			f.Errorf("usage %+v", u)
		}
	})
}

func TestAgeWindows(t *testing.T) {
	everywhere(t, func(f *fixture) {
		t := f.T
		finish := func() {
			f.finish("sorrel", 3, job.Completed, "x")
			f.finish("sorrel", 2, job.GivenUp, "x")
			f.must(f.Audit(t.Context(), store.Record{Namespace: "sorrel", Operation: "set-quota", Outcome: "ok"}))
		}
		finish()
		f.advance(24 * time.Hour)
		finish()

		cfg := Config{ArchiveAge: 12 * time.Hour, DeadAge: 0, AuditAge: 12 * time.Hour}
		r, err := f.sweeper(cfg, f.Store).sweep(t.Context())
		f.must(err)
		if r.Completed != 3 || r.Dead != 0 || r.Audit != 1 || r.Left {
			t.Errorf("reported %+v", r)
		}
		if u := f.usage("sorrel"); u.Archived != 3 || u.Dead != 4 {
			t.Errorf("%+v is left", u)
		}
		cfg = Config{DeadAge: 12 * time.Hour}
		r, err = f.sweeper(cfg, f.Store).sweep(t.Context())
		f.must(err)
		if r.Dead != 2 || r.rows() != 2 {
			t.Errorf("reported %+v", r)
		}
	})
}

// Windows are applied once a tick, also while follow-ups come every second.
func TestFollowUpsSkipAgeWindows(t *testing.T) {
	f := newFixture(t)
	sw := f.sweeper(Config{ArchiveAge: time.Hour}, f.Store)
	_, err := sw.sweep(t.Context())
	f.must(err)
	f.finish("sorrel", 1, job.Completed, "x")
	f.advance(2 * time.Hour)
	r, err := sw.sweep(t.Context())
	f.must(err)
	if r.rows() != 0 {
		t.Errorf("a follow-up applied the windows: %+v", r)
	}
	sw.agedAt = sw.agedAt.Add(-time.Minute)
	r, err = sw.sweep(t.Context())
	f.must(err)
	if r.Completed != 1 {
		t.Errorf("the next tick did not: %+v", r)
	}
}

// An unreadable quota keeps every row of its namespace under ceilings, age
// windows go on, and others are not affected.
func TestUnreadableQuotaSkipsCeilings(t *testing.T) {
	everywhere(t, func(f *fixture) {
		t := f.T
		f.finish("heron", 5, job.Completed, "x")
		f.finish("lark", 5, job.Completed, "x")
		f.document("heron", []byte(`{"max_archived_rows":-1}`))
		f.limit("lark", archived(2))
		if r := f.sweepOnce(); r.Completed != 3 || r.Unreadable != 1 {
			t.Errorf("reported %+v", r)
		}
		if u := f.usage("heron"); u.Archived != 5 {
			t.Errorf("%d rows are left under an unreadable quota", u.Archived)
		}
		f.advance(2 * time.Hour)
		r, err := f.sweeper(Config{ArchiveAge: time.Hour}, f.Store).sweep(t.Context())
		f.must(err)
		if r.Completed != 7 {
			t.Errorf("the window deleted %+v", r)
		}
		f.finish("heron", 5, job.Completed, "x")
		f.limit("heron", archived(1)) // the repair
		if r := f.sweepOnce(); r.Completed != 4 || r.Unreadable != 0 {
			t.Errorf("after the repair: %+v", r)
		}
	})
}

// faulty is a store of which one call can be disturbed.
type faulty struct {
	Store
	trim func(t store.Trim) error // before each trim; an error is its answer
}

func (f faulty) Trim(ctx context.Context, t store.Trim) (store.Trimmed, error) {
	if err := f.trim(t); err != nil {
		return store.Trimmed{}, err
	}
	return f.Store.Trim(ctx, t)
}

func TestFailingNamespaceIsSkipped(t *testing.T) {
	everywhere(t, func(f *fixture) {
		t := f.T
		names := []string{"a", "b", "c"}
		for _, ns := range names {
			f.finish(ns, 2, job.Completed, "x")
			f.finish(ns, 2, job.GivenUp, "x")
			f.limit(ns, quota.Quota{MaxArchivedRows: num(0), MaxDeadRows: num(0)})
		}
		for _, err := range []error{fault.New(fault.Internal, "broken"), fault.New(fault.StorageUnavailable, "locked")} {
			asked := 0
			sw := f.sweeper(Config{}, faulty{f.Store, func(t store.Trim) error {
				if t.Namespace == "b" {
					asked++
					return err
				}
				return nil
			}})
			r, failed := sw.sweep(t.Context())
			f.must(failed)
			if r.Failed != 1 || asked != 1 || r.Left {
				t.Errorf("%v: asked %d times, reported %+v", err, asked, r)
			}
		}
		for _, ns := range names {
			want := int64(0)
			if ns == "b" {
				want = 2
			}
			if u := f.usage(ns); u.Archived != want || u.Dead != want {
				t.Errorf("%s: %d archived, %d dead; want %d", ns, u.Archived, u.Dead, want)
			}
		}
	})
}

// A limit that changes while a sweep is at it holds from the next batch on.
func TestLimitIsReadForEachBatch(t *testing.T) {
	everywhere(t, func(f *fixture) {
		for _, c := range []struct {
			name  string
			then  func(ns string)
			keeps int64
		}{
			{"raised", func(ns string) { f.limit(ns, dead(60)) }, 60},
			{"lowered", func(ns string) { f.limit(ns, dead(2)) }, 2},
			{"lifted", func(ns string) { f.document(ns, nil) }, 150 - 50},
			{"unreadable", func(ns string) { f.document(ns, []byte("{")) }, 150 - 50},
		} {
			f.shed(c.name, 150)
			f.limit(c.name, dead(10))
			trims := 0
			sw := f.sweeper(Config{}, faulty{f.Store, func(t store.Trim) error {
				if t.Namespace != c.name {
					return nil
				}
				if trims++; trims == 2 {
					c.then(c.name)
				}
				return nil
			}})
			sw.bounds.rows = 50
			_, err := sw.sweep(f.Context())
			f.must(err)
			if u := f.usage(c.name); u.Dead != c.keeps {
				f.Errorf("%s: %d rows are left, want %d", c.name, u.Dead, c.keeps)
			}
		}
	})
}

func TestSupersededTermDeletesNothing(t *testing.T) {
	everywhere(t, func(f *fixture) {
		t := f.T
		f.finish("gantry", 5, job.Completed, "x")
		f.limit("gantry", archived(0))
		old := f.sweeper(Config{}, f.Store)
		_, err := f.NewTerm(t.Context(), "newer")
		f.must(err)
		if r, err := old.sweep(t.Context()); err != errSuperseded || r.rows() != 0 {
			t.Errorf("%v, %+v", err, r)
		}
		if u := f.usage("gantry"); u.Archived != 5 {
			t.Errorf("%d rows are left", u.Archived)
		}
	})
}

// Every page of namespaces has its turn.
func TestManyNamespaces(t *testing.T) {
	everywhere(t, func(f *fixture) {
		t := f.T
		sw := f.sweeper(Config{}, f.Store)
		sw.bounds.page = 40
		names := make([]string, 2*sw.bounds.page+3)
		for i := range names {
			names[i] = fmt.Sprintf("tenant %04d", i)
			f.limit(names[i], dead(1))
		}
		slices.Reverse(names)
		none := int64(0)
		for part := range slices.Chunk(names, 250) {
			docs, err := f.Quotas(t.Context(), part)
			f.must(err)
			var calls []store.Call
			for i, ns := range part {
				specs := make([]job.Spec, 3)
				for k := range specs {
					specs[k] = job.Spec{Task: "t"}
					f.must(specs[k].Normalize("job", 0))
				}
				calls = append(calls, store.Call{
					Namespace: ns, Quota: quota.Quota{MaxPending: &none, OnExcess: quota.Drop}, Stamp: docs[i].Stamp, Jobs: specs,
				})
			}
			out, err := f.Admit(t.Context(), calls)
			f.must(err)
			for _, o := range out {
				f.must(o.Err)
			}
		}
		r, err := sw.sweep(t.Context())
		f.must(err)
		if r.Shed != int64(2*len(names)) || r.Namespaces != len(names) || r.Left {
			t.Errorf("reported %+v", r)
		}
	})
}
