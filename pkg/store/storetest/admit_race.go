package storetest

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"flexiq/pkg/fault"
	"flexiq/pkg/job"
	"flexiq/pkg/store"
)

// admitRace: batches of two from many clients onto nine free places.
func admitRace(f *fixture) {
	const ns, clients = "hasp", 16
	f.put(ns, `{"max_pending":11}`)
	f.enqueue(ns, f.specs(2)...)
	handles := []store.Store{f.s, f.open(), f.open(), f.open()}
	calls := make([]store.Call, clients)
	for i := range calls {
		calls[i] = f.call(ns, f.specs(2)...)
	}
	var admitted atomic.Int64
	together(clients, func(i int) {
		out, err := handles[i%len(handles)].Admit(f.ctx, calls[i:i+1])
		switch {
		case err != nil:
			f.Errorf("client %d: %v", i, err)
		case out[0].Err == nil:
			admitted.Add(1)
		case !fault.Is(out[0].Err, fault.QueueFull):
			f.Errorf("client %d: %v", i, out[0].Err)
		}
	})
	equal(f, "calls admitted", admitted.Load(), 4)
	f.holds(ns, counts{Pending: 10})
}

// admitFirstUse: nothing of the namespaces exists that could be locked.
func admitFirstUse(f *fixture) {
	const rounds, clients = 8, 8
	f.setDefault(`{"max_pending":1,"enqueue_rate":"5/s"}`)
	handles := []store.Store{f.s, f.open(), f.open(), f.open()}
	for round := range rounds {
		ns := fmt.Sprintf("fresh-%d", round)
		calls := make([]store.Call, clients)
		for i := range calls {
			calls[i] = f.call(ns, f.spec())
		}
		var admitted atomic.Int64
		together(clients, func(i int) {
			out, err := handles[i%len(handles)].Admit(f.ctx, calls[i:i+1])
			if err != nil {
				f.Errorf("client %d: %v", i, err)
			} else if out[0].Err == nil {
				admitted.Add(1)
			}
		})
		equal(f, "calls admitted", admitted.Load(), 1)
		f.holds(ns, counts{Pending: 1})
		equal(f, "tokens", f.usage(ns).Bucket.Tokens(), int64(4))
	}
}

// admitMovingLimit: from the moment that a change is answered nobody goes
// beyond it, though the callers decide by what they read earlier.
func admitMovingLimit(f *fixture) {
	const ns = "ns"
	limits := []int64{10, 30, 5, 45, 20, 60}
	f.put(ns, `{"max_pending":1}`)
	handles := []store.Store{f.open(), f.open(), f.open()}
	var done atomic.Bool
	var group sync.WaitGroup
	for i, s := range handles {
		group.Go(func() {
			for n := 0; !done.Load() && n < 100_000; n++ {
				if err := f.hammer(s, ns); err != nil {
					f.Errorf("client %d: %v", i, err)
					return
				}
			}
		})
	}
	for _, limit := range limits {
		f.put(ns, fmt.Sprintf(`{"max_pending":%d}`, limit))
		first := f.usage(ns).Pending
		most := max(first, limit)
		for f.ctx.Err() == nil && f.usage(ns).Pending < limit {
			if p := f.usage(ns).Pending; p > most {
				f.Errorf("%d pending, but the limit was %d when %d were", p, limit, first)
			}
		}
		if p := f.usage(ns).Pending; p != most {
			f.Errorf("under the limit %d, after %d: %d pending, want %d", limit, first, p, most)
		}
	}
	done.Store(true)
	group.Wait()
	f.holds(ns, counts{Pending: 60})
}

// hammer makes one call of one job, after reading the quota again when it is stale.
func (f *fixture) hammer(s store.Store, ns string) error {
	spec := job.Spec{ID: f.id(), Task: "t"}
	if err := spec.Normalize("job", 1); err != nil {
		return err
	}
	c, err := under(f.ctx, s, ns)
	if err != nil {
		return err
	}
	c.Jobs = []job.Spec{spec}
	out, err := s.Admit(f.ctx, []store.Call{c})
	if err != nil {
		return err
	}
	if err = out[0].Err; err == nil || errors.Is(err, store.ErrStale) || fault.Is(err, fault.QueueFull) || fault.Is(err, fault.RateLimited) {
		return nil
	}
	return err
}
