package storetest

import (
	"errors"
	"sync/atomic"
	"time"

	"flexiq/pkg/store"
)

// quotaObeyed: what counts is the quota in the store. Deciders in several
// processes keep the quota that they read until they are told that it is stale,
// as if no hint ever reached them. None decides an enqueue or a claim by a
// revision older than one that was answered before it asked.
func quotaObeyed(f *fixture) {
	const ns, rounds = "ns", 25
	documents := []string{`{"max_pending":0}`, `{"max_running":0}`, `{"max_pending":100000}`, ""}
	handles := []store.Store{f.open(), f.open()}
	var changes []store.QuotaChange
	for i := range rounds {
		changes = append(changes, f.change(ns, documents[i%len(documents)]))
	}
	var calls [4]store.Call
	for i := range calls {
		calls[i] = store.Call{Namespace: ns, Origin: "enqueue", By: "tok1", Jobs: f.specs(1)}
	}
	first, err := f.s.PutQuota(f.ctx, f.change(ns, `{"max_pending":7}`))
	f.ok(err)
	var answered atomic.Int64
	answered.Store(first.Stamp.Revision)
	var stop atomic.Bool
	var stale atomic.Int64
	together(1+len(calls), func(i int) {
		if i == 0 {
			defer stop.Store(true)
			for _, c := range changes {
				doc, err := f.s.PutQuota(f.ctx, c)
				if err != nil {
					f.Errorf("set: %v", err)
					return
				}
				answered.Store(doc.Stamp.Revision)
			}
			return
		}
		s, own, mine := handles[i%len(handles)], calls[i-1], 0
		for known := own; !stop.Load() || known.Stamp.Revision < answered.Load() || mine == 0; {
			asked := answered.Load()
			var err error
			if i%2 == 0 {
				c := known
				c.Jobs = own.Jobs
				var out []store.Outcome
				if out, err = s.Admit(f.ctx, []store.Call{c}); err == nil {
					err = out[0].Err
				}
				if err == nil { // a repeat would be recognised before any quota
					own.Jobs[0].ID = f.id()
				}
			} else {
				w := store.Want{Namespace: ns, Max: 1, LeaseFor: time.Second, Worker: "w", MaxRunning: known.Quota.MaxRunning, Stamp: known.Stamp}
				var grants []store.Grant
				if _, grants, err = s.Turn(f.ctx, nil, []store.Want{w}); err == nil {
					err = grants[0].Err
				}
			}
			if !errors.Is(err, store.ErrStale) {
				mine++
				if known.Stamp.Revision < asked {
					f.Errorf("decided by revision %d (%v) after revision %d was answered", known.Stamp.Revision, err, asked)
					return
				}
				continue // only a stale answer makes it read again
			}
			stale.Add(1)
			if known, err = under(f.ctx, s, ns); err != nil {
				f.Errorf("load: %v", err)
				return
			}
		}
	})
	if stale.Load() < int64(len(calls)) {
		f.Errorf("%d stale answers: nobody was behind", stale.Load())
	}
}
