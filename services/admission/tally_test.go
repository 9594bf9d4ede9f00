package admission

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"flexiq/pkg/wire"
)

// Run reports once a second, and the rest at its end.
func TestReports(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.quota("a", `{"max_pending":2}`)
	f.quota("b", `{"max_pending":0,"on_excess":"drop"}`)
	f.ok("a", "EnqueueBatch", batchOf(2))
	f.refused("a", "EnqueueBatch", batchOf(3), "QUEUE_FULL")
	f.refused("a", "EnqueueBatch", `{"jobs":[{}]}`, "INVALID_REQUEST")
	f.ok("b", "EnqueueBatch", batchOf(4))
	ctx, stop := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- f.svc.Run(ctx) }()
	stop()
	if err := <-ran; err != nil {
		t.Error(err)
	}
	want := []map[string]wire.AdmissionCounts{{
		"a": {Admitted: 2, Rejected: 3, Queues: map[string]int64{"default": 2}}, "b": {Shed: 4},
	}}
	var got []map[string]wire.AdmissionCounts
	for _, r := range f.ears.reports {
		if r.Process == "" {
			t.Error("a report names no process")
		}
		got = append(got, r.Namespaces)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if f.count(metricRefused, "reason", "QUEUE_FULL") != 1 || f.count(metricRefused, "reason", "INVALID_REQUEST") != 1 ||
		f.count(metricJobs, "outcome", "shed") != 4 || f.count(metricJobs, "outcome", "admitted") != 2 {
		t.Error("the counters are wrong")
	}
}

// A report of very many namespaces goes in several messages.
func TestReportIsSplit(t *testing.T) {
	t.Parallel()
	e := &ears{}
	y := newTally("p", e)
	for i := range 2000 {
		y.add(fmt.Sprintf("%s-%d", strings.Repeat("x", 200), i), wire.AdmissionCounts{Admitted: 1})
	}
	y.report()
	y.report() // nothing is left
	total := 0
	for _, r := range e.reports {
		total += len(r.Namespaces)
	}
	if total != 2000 || len(e.reports) < 3 {
		t.Errorf("%d namespaces in %d reports", total, len(e.reports))
	}
}
