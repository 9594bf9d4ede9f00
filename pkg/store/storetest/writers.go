package storetest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"flexiq/pkg/fault"
	"flexiq/pkg/job"
	"flexiq/pkg/store"
)

// Written is what one kind of writer did.
type Written struct {
	Took        []time.Duration // of each operation
	Unavailable int             // operations, or units of one, that ended as STORAGE_UNAVAILABLE
	Units       int             // jobs, settlements, documents, rows that it changed
}

// Writers lets every kind of writer loose, each with a handle of its own, on a few
// shared namespaces and unique keys, while more(round) says so. It fails the test
// when an operation does, or when afterwards what is kept is not what the jobs say.
func Writers(t *testing.T, b Backend, address string, more func(round int) bool) map[string]*Written {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	t.Cleanup(cancel)
	f := &fixture{T: t, ctx: ctx, backend: b, address: address}
	f.s = f.openWith(nil)
	w := &writers{crowd: &crowd{fixture: f, term: f.term()}, did: map[string]*Written{}}
	for i := range 5 {
		w.namespaces = append(w.namespaces, fmt.Sprint("ns-", i))
	}
	var group sync.WaitGroup
	for i, kind := range slices.Sorted(maps.Keys(writes)) {
		did := &Written{}
		w.did[kind] = did
		one := &writer{writers: w, Store: f.openWith(nil), rng: rand.New(rand.NewPCG(uint64(i), 1))}
		group.Go(func() {
			for round := 0; more(round) && !t.Failed(); round++ {
				began := time.Now()
				units, err := writes[kind](one)
				did.Took = append(did.Took, time.Since(began))
				did.Units += units
				switch {
				case fault.Is(err, fault.StorageUnavailable):
					did.Unavailable++
				case err != nil && !allowed(err):
					t.Errorf("%s, round %d: %v", kind, round, err)
				}
			}
		})
	}
	group.Wait()
	f.recount(f.s)
	return w.did
}

// writers are what the writers of one run share.
type writers struct {
	*crowd
	did map[string]*Written
}

// writer is one of them.
type writer struct {
	*writers
	store.Store
	rng *rand.Rand
}

// writes are the kinds of writers. Each tells how much it wrote.
var writes = map[string]func(*writer) (int, error){
	"admit": (*writer).admitKeys, "admit more": (*writer).admitKeys,
	"claim and settle": (*writer).turnOver, "settle and claim": (*writer).turnOver,
	"cancel": (*writer).cancelSome, "expire": (*writer).expireSome, "trim": (*writer).trimSome, "replay": (*writer).replaySome,
	"set quota": (*writer).setQuota, "repair": (*writer).repair,
}

// allowed are the refusals that a unit may meet.
func allowed(err error) bool {
	return errors.Is(err, store.ErrStale) || slices.ContainsFunc([]fault.Reason{
		fault.QueueFull, fault.RateLimited, fault.UniqueKeyHeld, fault.DebounceKeyHeld,
	}, func(r fault.Reason) bool { return fault.Is(err, r) })
}

// unit sorts the outcome of one unit: it counts as written, or its error is passed on.
func unit(err error, done *int) error {
	if err == nil {
		*done++
	} else if allowed(err) {
		return nil
	}
	return err
}

func (w *writer) admitKeys() (done int, err error) {
	var group []store.Call
	for _, ns := range w.some(w.rng) {
		c, err := under(w.ctx, w.Store, ns)
		if err != nil {
			return 0, err
		}
		for range 1 + w.rng.IntN(4) {
			spec := job.Spec{ID: w.id(), Task: "t", Queue: fmt.Sprint("q", w.rng.IntN(2)), MaxAttempts: int32(1 + w.rng.IntN(3))}
			if w.rng.IntN(2) == 0 {
				spec.UniqueKey = fmt.Sprint("key-", w.rng.IntN(20))
			}
			if err := spec.Normalize("job", 1); err != nil {
				return 0, err
			}
			c.Jobs = append(c.Jobs, spec)
		}
		group = append(group, c)
	}
	outs, err := w.Admit(w.ctx, group)
	for _, o := range outs {
		err = errors.Join(err, unit(o.Err, &done))
	}
	return done, err
}

// turnOver settles what it or another writer claimed, in every way, and claims.
// Some claims are left to their ends, for "expire".
func (w *writer) turnOver() (done int, err error) {
	w.mu.Lock()
	mine := w.claims
	w.claims = nil
	w.mu.Unlock()
	var ends []store.Settlement
	var beats []store.Beat
	for _, l := range mine {
		beats = append(beats, beat(l, 50*time.Millisecond))
		if w.rng.IntN(5) > 0 {
			ends = append(ends, ending(l, job.Outcomes[w.rng.IntN(len(job.Outcomes))]))
		}
	}
	if _, err := w.Heartbeat(w.ctx, beats); err != nil {
		return 0, err
	}
	var wants []store.Want
	for _, ns := range w.some(w.rng) {
		c, err := under(w.ctx, w.Store, ns)
		if err != nil {
			return 0, err
		}
		wants = append(wants, store.Want{
			Namespace: ns, Max: 1 + w.rng.IntN(6), LeaseFor: 20 * time.Millisecond, Worker: "w", MaxRunning: c.Quota.MaxRunning, Stamp: c.Stamp,
		})
	}
	settled, grants, err := w.Turn(w.ctx, ends, wants)
	for _, s := range settled {
		err = errors.Join(err, unit(s.Err, &done))
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, g := range grants {
		err = errors.Join(err, unit(g.Err, &done))
		w.claims = append(w.claims, g.Jobs...)
	}
	return done, err
}

func (w *writer) cancelSome() (int, error) {
	got, err := w.Cancel(w.ctx, w.some(w.rng)[0], store.Selection{}, 1+w.rng.IntN(3))
	return int(got.Cancelled + got.Cancelling), err
}

func (w *writer) expireSome() (int, error) {
	ended, err := w.Expire(w.ctx, 1+w.rng.IntN(20))
	return len(ended), err
}

func (w *writer) trimSome() (int, error) {
	table := []store.Table{store.Archive, store.DeadLetters}[w.rng.IntN(2)]
	got, err := w.Trim(w.ctx, store.Trim{Term: w.term, Namespace: w.some(w.rng)[0], Table: table, Keep: new(int64(w.rng.IntN(5))), Limit: 50})
	return int(got.Completed + got.Cancelled + got.Dead + got.Shed), err
}

func (w *writer) replaySome() (done int, err error) {
	ns := w.some(w.rng)[0]
	page, err := w.ListJobs(w.ctx, ns, store.Filter{State: job.Dead}, "", 3)
	if err != nil || len(page.Items) == 0 {
		return 0, err
	}
	c, err := under(w.ctx, w.Store, ns)
	if err != nil {
		return 0, err
	}
	r := store.Replay{Namespace: ns, Quota: c.Quota, Stamp: c.Stamp, By: "adm1"}
	for _, j := range page.Items {
		r.Letters = append(r.Letters, store.Letter{ID: j.ID, As: w.id()})
	}
	outs, err := w.Replay(w.ctx, r)
	for _, o := range outs {
		err = errors.Join(err, unit(o.Err, &done))
	}
	return done, err
}

// setQuota changes limits of a namespace, or of all that have none.
func (w *writer) setQuota() (int, error) {
	documents := []string{
		`{"max_pending":400,"max_running":40}`, `{"max_running":25}`, `{"max_pending":300,"enqueue_rate":"2000/s"}`,
		`{"max_pending":200,"on_excess":"drop"}`, "",
	}
	c := w.change(w.some(w.rng)[0], documents[w.rng.IntN(len(documents))])
	if w.rng.IntN(10) == 0 {
		c.Default, c.Audit.Target, c.Audit.TargetKind = true, "", "installation"
	}
	_, err := w.PutQuota(w.ctx, c)
	return 1, err
}

func (w *writer) repair() (int, error) {
	_, err := w.Examine(w.ctx, w.some(w.rng)[0], true)
	return 1, err
}
