package storetest

import (
	"sync/atomic"

	"flexiq/pkg/fault"
	"flexiq/pkg/store"
)

var admitCases = []testcase{
	{"a batch is one unit", admitWhole},
	{"depth is exact with many handles", admitRace},
}

// admitWhole is C09 with reject.
func admitWhole(f *fixture) {
	const ns = "hasp"
	f.put(ns, `{"max_pending":5}`)
	f.enqueue(ns, f.specs(3)...)
	f.refused(f.try(ns, f.specs(6)...), fault.QueueFull,
		"namespace", ns, "limit", "max_pending", "cap", "5", "current", "3", "asked", "6", "fits", "2", "retry", "never", "retry_after_ms", "-")
	f.holds(ns, counts{Pending: 3})
	f.enqueue(ns, f.specs(2)...)
	e := f.refused(f.try(ns, f.spec()), fault.QueueFull,
		"current", "5", "asked", "1", "fits", "0", "retry", "-", "retry_after_ms", "1000", "estimate", "true")
	equal(f, "message", e.Message, "queue 'default' is full: 5 pending >= max_pending 5")
	f.holds(ns, counts{Pending: 5})
}

// admitRace is C09's crowd: batches of two from many clients onto one free
// place, then onto nine.
func admitRace(f *fixture) {
	const ns, clients = "hasp", 16
	f.put(ns, `{"max_pending":11}`)
	f.enqueue(ns, f.specs(2)...)
	handles := []store.Store{f.s, f.open(), f.open(), f.open()}
	var admitted atomic.Int64
	calls := make([]store.Call, clients)
	for i := range calls {
		calls[i] = f.call(ns, f.specs(2)...)
	}
	together(clients, func(i int) {
		out, err := handles[i%len(handles)].Admit(f.ctx, calls[i:i+1])
		if err == nil && out[0].Err == nil {
			admitted.Add(1)
		}
	})
	equal(f, "calls admitted", admitted.Load(), 4)
	f.holds(ns, counts{Pending: 10})
}
