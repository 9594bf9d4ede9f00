package storetest

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"flexiq/pkg/job"
	"flexiq/pkg/store"
)

// claimRace: many workers take from one namespace, and each job goes to one.
func claimRace(f *fixture) {
	const ns, n, workers = "ns", 80, 6
	f.enqueue(ns, f.specs(n)...)
	f.clock.Advance(time.Second)
	handles := []store.Store{f.s, f.open(), f.open()}
	want := f.want(ns, 7)
	var mu sync.Mutex
	given := map[string]int{}
	together(workers, func(i int) {
		for {
			_, grants, err := handles[i%len(handles)].Turn(f.ctx, nil, []store.Want{want})
			if err != nil || grants[0].Err != nil {
				f.Errorf("worker %d: %v, %+v", i, err, grants)
				return
			}
			if len(grants[0].Jobs) == 0 {
				return
			}
			mu.Lock()
			for _, l := range grants[0].Jobs {
				given[l.Job.ID]++
			}
			mu.Unlock()
		}
	})
	equal(f, "jobs given", len(given), n)
	for id, times := range given {
		equal(f, "times that "+id+" was given", times, 1)
	}
	f.holds(ns, counts{Running: n})
}

// claimCapRace: workers that claim and finish as fast as they can never hold
// more than the cap, and none of the slots leaks.
func claimCapRace(f *fixture) {
	const ns, n, workers, most = "plover", 60, 6, 4
	f.put(ns, fmt.Sprintf(`{"max_running":%d}`, most))
	f.enqueue(ns, f.specs(n)...)
	f.clock.Advance(time.Second)
	handles := []store.Store{f.s, f.open(), f.open()}
	want := f.want(ns, 3)
	var held, peak, finished atomic.Int64
	together(workers, func(i int) {
		var claims []store.Leased
		for finished.Load() < n && f.ctx.Err() == nil {
			var ends []store.Settlement
			for _, l := range claims {
				ends = append(ends, ending(l, job.Completed))
			}
			held.Add(-int64(len(claims))) // before the store knows, so that held is never too high
			settled, grants, err := handles[i%len(handles)].Turn(f.ctx, ends, []store.Want{want})
			if err != nil || grants[0].Err != nil {
				f.Errorf("worker %d: %v, %+v", i, err, grants)
				return
			}
			for _, s := range settled {
				if !s.Accepted {
					f.Errorf("worker %d: a settlement was refused: %+v", i, s)
				}
			}
			finished.Add(int64(len(settled)))
			claims = grants[0].Jobs
			now := held.Add(int64(len(claims)))
			for p := peak.Load(); now > p && !peak.CompareAndSwap(p, now); p = peak.Load() {
			}
		}
	})
	if p := peak.Load(); p > most {
		f.Errorf("%d jobs ran at once, at most %d may", p, most)
	}
	f.holds(ns, counts{Archived: n})
}
