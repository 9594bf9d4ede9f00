package retention

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"flexiq/pkg/job"
	"flexiq/pkg/quota"
	"flexiq/pkg/store"
	"flexiq/pkg/wire"
)

// hourly retries what died an hour ago, twice at most.
var hourly = Config{DeadRetryAge: time.Hour, DeadRetryMost: 2}

func (f *fixture) sweepWith(cfg Config) (report, account) {
	f.Helper()
	sw := f.sweeper(cfg, f.Store)
	r, err := sw.sweep(f.Context())
	f.must(err)
	return r, sw.account
}

// fail claims everything of a namespace and lets it die.
func (f *fixture) fail(ns string) {
	f.Helper()
	docs, err := f.Quotas(f.Context(), []string{ns})
	f.must(err)
	_, grants, err := f.Turn(f.Context(), nil, []store.Want{{Namespace: ns, Max: 1000, LeaseFor: time.Minute, Worker: "w", Stamp: docs[0].Stamp}})
	f.must(err)
	var ends []store.Settlement
	for _, l := range grants[0].Jobs {
		ends = append(ends, store.Settlement{Namespace: ns, JobID: l.Job.ID, Lease: l.Lease, Outcome: job.GivenUp})
	}
	_, _, err = f.Turn(f.Context(), ends, nil)
	f.must(err)
}

func TestDeadLettersRetry(t *testing.T) {
	everywhere(t, func(f *fixture) {
		t := f.T
		f.finish("ns", 5, job.GivenUp, "p")
		f.shed("ns", 40)
		f.advance(59 * time.Minute)
		if r, _ := f.sweepWith(hourly); r.Retried != 0 {
			t.Errorf("retried %d before their time", r.Retried)
		}
		f.advance(time.Hour)
		if r, _ := f.sweepWith(Config{}); r.Retried != 0 {
			t.Fatalf("retried %d though it is off", r.Retried)
		}
		for round := range 2 {
			r, a := f.sweepWith(hourly)
			if u := f.usage("ns"); r.Retried != 5 || u.Pending != 5 || u.Dead != 40 || u.Shed != 40 {
				t.Fatalf("round %d: retried %d, usage %+v", round, r.Retried, u)
			}
			if a["ns"] != (wire.SweepCounts{Retried: 5}) {
				t.Errorf("round %d: account %+v", round, a["ns"])
			}
			f.advance(time.Second)
			f.fail("ns")
			if r, _ := f.sweepWith(hourly); r.Retried != 0 {
				t.Errorf("round %d: retried %d that died a moment ago", round, r.Retried)
			}
			f.advance(2 * time.Hour)
		}
		if r, _ := f.sweepWith(hourly); r.Retried != 0 {
			t.Errorf("%d were retried a third time", r.Retried)
		}
	})
}

// The quota holds for retries as for everybody, oldest first, and what it keeps
// out stays for a later sweep, whatever on_excess says.
func TestRetriesObeyTheQuota(t *testing.T) {
	everywhere(t, func(f *fixture) {
		t := f.T
		f.finish("ns", 3, job.GivenUp, "p")
		f.finish("other", 1, job.GivenUp, "p")
		first := f.history("ns", job.Dead)[0].ID
		one := int64(1)
		for _, excess := range []quota.Excess{quota.Drop, quota.Reject} {
			f.limit("ns", quota.Quota{MaxPending: &one, OnExcess: excess})
			f.advance(2 * time.Hour)
			r, a := f.sweepWith(hourly)
			if excess == quota.Drop && (r.Retried != 2 || a["ns"].Retried != 1 || a["ns"].Blocked != 2) {
				t.Errorf("retried %d, account %+v", r.Retried, a)
			}
			if u := f.usage("ns"); u.Pending != 1 || u.Dead != 2 || u.Shed != 0 {
				t.Fatalf("%s: usage %+v", excess, u)
			}
		}
		if got := f.history("ns", job.Pending)[0]; got.Origin != "replay:"+first || got.EnqueuedBy != "" {
			t.Errorf("retried %s by %q, want the oldest, %s", got.Origin, got.EnqueuedBy, first)
		}
		f.document("ns", []byte(`{"max_pending":"many"}`))
		if r, a := f.sweepWith(hourly); r.Retried != 0 || a["ns"].Skipped != "quota_unreadable" {
			t.Errorf("retried %d under an unreadable quota: %+v", r.Retried, a)
		}
	})
}

// Dead letters whose keys are held, more of them than a sweep looks at, do not
// keep the later ones back for good.
func TestBlockedRetriesStarveNobody(t *testing.T) {
	everywhere(t, func(f *fixture) {
		t := f.T
		const blocked = 250
		keyed := func(key string) {
			docs, err := f.Quotas(f.Context(), []string{"ns"})
			f.must(err)
			sp := job.Spec{ID: uuid.Must(uuid.NewV7()).String(), Task: "t", UniqueKey: key}
			f.must(sp.Normalize("job", 100))
			out, err := f.Admit(f.Context(), []store.Call{{Namespace: "ns", Stamp: docs[0].Stamp, Jobs: []job.Spec{sp}}})
			f.must(err)
			f.must(out[0].Err)
		}
		for i := range blocked {
			keyed(fmt.Sprint("k", i))
		}
		f.advance(time.Second)
		f.fail("ns")
		for i := range blocked {
			keyed(fmt.Sprint("k", i)) // a live job has each key
		}
		f.finish("free", 1, job.GivenUp, "p")
		sp := f.history("free", job.Dead)
		if len(sp) != 1 {
			t.Fatal("no dead letter")
		}
		f.advance(time.Minute)
		docs, err := f.Quotas(f.Context(), []string{"ns"})
		f.must(err)
		late := job.Spec{ID: uuid.Must(uuid.NewV7()).String(), Task: "late", Queue: "late"}
		f.must(late.Normalize("job", 100))
		_, err = f.Admit(f.Context(), []store.Call{{Namespace: "ns", Stamp: docs[0].Stamp, Jobs: []job.Spec{late}}})
		f.must(err)
		_, grants, err := f.Turn(f.Context(), nil, []store.Want{{Namespace: "ns", Queues: []string{"late"}, Max: 1, LeaseFor: time.Minute, Stamp: docs[0].Stamp}})
		f.must(err)
		l := grants[0].Jobs[0]
		_, _, err = f.Turn(f.Context(), []store.Settlement{{Namespace: "ns", JobID: l.Job.ID, Lease: l.Lease, Outcome: job.GivenUp}}, nil)
		f.must(err)
		f.advance(2 * time.Hour)

		sw := f.sweeper(hourly, f.Store)
		sw.bounds.batches = 1 // of 100, in each sweep
		var retried []int64
		for range 3 {
			r, err := sw.sweep(t.Context())
			f.must(err)
			retried = append(retried, r.Retried)
		}
		if want := []int64{1, 0, 1}; !slices.Equal(retried, want) { // the other namespace's at once
			t.Errorf("retried by sweep %v, want %v", retried, want)
		}
	})
}
