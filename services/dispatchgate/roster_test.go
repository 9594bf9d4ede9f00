package dispatchgate

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/job"
	"flexiq/pkg/store"
	"flexiq/pkg/wire"
)

// desk takes reports.
type desk struct {
	mu      sync.Mutex
	reports []wire.DispatchReport
	bytes   int // of the longest
}

func (d *desk) PublishDispatch(data []byte) {
	r, err := wire.ParseDispatchReport(data)
	if err != nil {
		panic(err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.reports = append(d.reports, r)
	d.bytes = max(d.bytes, len(data))
}

func (d *desk) take() []wire.DispatchReport {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := d.reports
	d.reports = nil
	return out
}

// Operators are told which workers wait, which only beat, and what finished.
func TestReports(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, d, hints := &asked{}, &desk{}, &ears{}
		gate, err := New(DefaultConfig(), Deps{Store: s, Quotas: noQuotas{}, Hints: hints, Reports: d, Log: zerolog.Nop()})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		ran := make(chan error, 1)
		go func() { ran <- gate.Run(ctx) }()
		second := func(want ...wire.DispatchReport) {
			t.Helper()
			time.Sleep(time.Second)
			synctest.Wait()
			if diff := cmp.Diff(want, d.take()); diff != "" {
				t.Errorf("reports (-want +got):\n%s", diff)
			}
		}
		one := func(ns string, c wire.DispatchCounts) wire.DispatchReport {
			return wire.DispatchReport{Namespaces: map[string]wire.DispatchCounts{ns: c}}
		}
		seen := func(name string, w wire.WorkerSighting) wire.DispatchCounts {
			return wire.DispatchCounts{Workers: map[string]wire.WorkerSighting{name: w}}
		}
		time.Sleep(500 * time.Millisecond)
		req := &flexiqv1.ClaimRequest{Queues: []string{"b", "a"}, Worker: "w", Slots: 3, Wait: durationOf(1800 * time.Millisecond)}
		gate.claim(worker(t.Context(), "x"), req, func(*flexiqv1.ClaimResponse, error) {})
		w := wire.WorkerSighting{Queues: []string{"a", "b"}, Slots: 3, Waiting: 1}
		second(one("x", seen("w", w)))
		second(one("x", seen("w", w)))
		w.Waiting = 0
		second(one("x", seen("w", w)))
		second()
		beat := &flexiqv1.HeartbeatRequest{Worker: "busy", Leases: []*flexiqv1.Lease{{JobId: "0190b6a0-0000-7000-8000-000000000000", Lease: "l"}}}
		gate.heartbeat(worker(t.Context(), "x"), beat, func(*flexiqv1.HeartbeatResponse, error) {})
		second(one("x", seen("busy", wire.WorkerSighting{Beat: true})))
		// One signs off: its claim ends, the others wait on.
		endings := make(chan string, 2)
		for _, name := range []string{"w", "v"} {
			req := &flexiqv1.ClaimRequest{Worker: name, Wait: durationOf(500 * time.Millisecond)}
			gate.claim(worker(t.Context(), "x"), req, func(_ *flexiqv1.ClaimResponse, err error) { endings <- fmt.Sprint(name, " ", err) })
		}
		synctest.Wait()
		bye := &flexiqv1.HeartbeatRequest{Worker: "w", Leaving: true}
		gate.heartbeat(worker(t.Context(), "x"), bye, func(_ *flexiqv1.HeartbeatResponse, err error) {
			if err != nil {
				t.Error(err)
			}
		})
		if got := <-endings; got != "w CANCELED: the worker has signed off" {
			t.Errorf("ended: %s", got)
		}
		if got := <-endings; got != "v <nil>" {
			t.Errorf("ended: %s", got)
		}
		if diff := cmp.Diff([]string{"x w"}, hints.left); diff != "" {
			t.Errorf("the other gates are told (-want +got):\n%s", diff)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		told := map[string]bool{}
		for _, r := range d.take() {
			for name, w := range r.Namespaces["x"].Workers {
				told[name] = true
				if w.Gone != (name == "w") || w.Gone && w.Waiting != 0 {
					t.Errorf("%s is told as %+v", name, w)
				}
			}
		}
		if !told["w"] || !told["v"] {
			t.Errorf("told of %v", told)
		}
		time.Sleep(500 * time.Millisecond)
		gate.Left("x", "stranger") // at another gate
		second()
		gate.roster.expired([]store.Ended{{Namespace: "y", Queue: "q", State: job.Pending}})
		gate.roster.settled([]store.Settlement{{Namespace: "y"}, {Namespace: "y"}}, []store.Settled{{Accepted: true, Queue: "q"}, {Accepted: true, Repeat: true, Queue: "q"}})
		second(one("y", wire.DispatchCounts{Finished: map[string]int64{"q": 2}}))
		stop()
		if err := <-ran; err != nil {
			t.Error(err)
		}
		if err := gate.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
}

// However many workers there are, a report stays small and each is told of.
func TestManyWorkersAreTold(t *testing.T) {
	t.Parallel()
	d := &desk{}
	r := newRoster(d)
	const workers = 5000
	for i := range workers {
		r.waits(&store.Want{Namespace: fmt.Sprint("ns-", i%7), Worker: fmt.Sprint(strings.Repeat("w", 200), i)}, 1)
	}
	told := map[string]bool{}
	for range 3 {
		r.report(t.Context())
		for _, report := range d.take() {
			for ns, c := range report.Namespaces {
				for name := range c.Workers {
					told[ns+name] = true
				}
			}
		}
	}
	if len(told) != workers {
		t.Errorf("%d of %d workers were told of", len(told), workers)
	}
	if d.bytes > 4*maxReport {
		t.Errorf("a report has %d bytes", d.bytes)
	}
	if again := r.take(time.Now()); len(again) != 0 {
		t.Errorf("%d namespaces are told of again at once", len(again))
	}
}
