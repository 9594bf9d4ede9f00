package sqlite

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/uuid"

	"flexiq/pkg/job"
	"flexiq/pkg/store"
)

func open(t testing.TB, o Options) *Store {
	t.Helper()
	return openAt(t, filepath.Join(t.TempDir(), "store.db"), o)
}

func openAt(t testing.TB, path string, o Options) *Store {
	t.Helper()
	if o.Timeout == 0 {
		o.Timeout = time.Minute // the race detector makes SQLite slow
	}
	s, err := Open(context.Background(), path, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return s
}

// spec makes a checked job.
func spec(t testing.TB, options ...func(*job.Spec)) job.Spec {
	t.Helper()
	s := job.Spec{ID: uuid.Must(uuid.NewV7()).String(), Task: "t", Payload: []byte(`{"invoice":4711,"to":"someone@example.com"}`), Form: job.Args}
	for _, o := range options {
		o(&s)
	}
	if err := s.Normalize("job", job.LargestMaxPayload); err != nil {
		t.Fatal(err)
	}
	return s
}

// calls makes n calls of k jobs each.
func calls(t testing.TB, ns string, n, k int) []store.Call {
	t.Helper()
	out := make([]store.Call, n)
	for i := range out {
		out[i] = store.Call{Namespace: ns, Origin: job.OriginEnqueue, By: "tok1"}
		for range k {
			out[i].Jobs = append(out[i].Jobs, spec(t))
		}
	}
	return out
}

// BenchmarkAdmit measures enqueued rows: single calls in groups as the batcher
// makes them, and large batches.
func BenchmarkAdmit(b *testing.B) {
	for _, size := range []struct{ calls, jobs int }{{1, 1}, {100, 1}, {1000, 1}, {1, 1000}} {
		b.Run(fmt.Sprintf("calls=%d/jobs=%d", size.calls, size.jobs), func(b *testing.B) {
			s := open(b, Options{})
			var used time.Duration
			for b.Loop() {
				b.StopTimer()
				group := calls(b, "bench", size.calls, size.jobs)
				used -= cpu()
				b.StartTimer()
				out, err := s.Admit(b.Context(), group)
				if err != nil || out[0].Err != nil {
					b.Fatal(err, out)
				}
				used += cpu()
			}
			b.ReportMetric(float64(used.Microseconds())/float64(b.N*size.calls*size.jobs), "cpu-µs/row")
			b.ReportMetric(float64(b.N*size.calls*size.jobs)/b.Elapsed().Seconds(), "rows/s")
		})
	}
}

// BenchmarkTurn measures the closed loop of workers: settle what was claimed,
// claim as many anew.
func BenchmarkTurn(b *testing.B) {
	for _, n := range []int{1, 100, 1000} {
		b.Run(fmt.Sprintf("jobs=%d", n), func(b *testing.B) {
			s := open(b, Options{})
			var settle []store.Settlement
			want := []store.Want{{Namespace: "bench", Max: n, LeaseFor: time.Minute, Worker: "w"}}
			stock := 0
			var used time.Duration
			for b.Loop() {
				if stock < n {
					b.StopTimer()
					for range 10 {
						if _, err := s.Admit(b.Context(), calls(b, "bench", 1, 1000)); err != nil {
							b.Fatal(err)
						}
					}
					stock += 10_000
					b.StartTimer()
				}
				used -= cpu()
				_, grants, err := s.Turn(b.Context(), settle, want)
				if err != nil || len(grants[0].Jobs) != n {
					b.Fatal(err, len(grants[0].Jobs))
				}
				used += cpu()
				stock -= n
				settle = settle[:0]
				for _, l := range grants[0].Jobs {
					settle = append(settle, store.Settlement{Namespace: "bench", JobID: l.Job.ID, Lease: l.Lease, Outcome: job.Completed})
				}
			}
			b.ReportMetric(float64(used.Microseconds())/float64(b.N*n), "cpu-µs/job")
			b.ReportMetric(float64(b.N*n)/b.Elapsed().Seconds(), "jobs/s")
		})
	}
}
