package storetest

import (
	"sync"
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

// claimCapRace: max_running holds against workers that claim and finish as fast
// as they can.
func claimCapRace(f *fixture) {
	f.put("plover", `{"max_running":4}`)
	f.holdRace(func(int) []func(*job.Spec) { return nil })
}
