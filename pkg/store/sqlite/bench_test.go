//go:build unix

package sqlite

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"flexiq/pkg/job"
	"flexiq/pkg/store"
)

// cpu is what the process has used. On a shared machine it says more than the
// wall clock.
func cpu() time.Duration {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		panic(err)
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
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

// BenchmarkClaimBehind claims and releases a job behind 100 000 delayed ones of
// a higher priority. It should cost what it costs without them.
func BenchmarkClaimBehind(b *testing.B) {
	for _, delayed := range []int{0, 100_000} {
		b.Run(fmt.Sprintf("delayed=%d", delayed), func(b *testing.B) {
			s := open(b, Options{})
			for range delayed / 1000 {
				group := calls(b, "bench", 1, 1000)
				for i := range group[0].Jobs {
					group[0].Jobs[i].Priority, group[0].Jobs[i].Delay = 10, time.Hour
				}
				if _, err := s.Admit(b.Context(), group); err != nil {
					b.Fatal(err)
				}
			}
			if _, err := s.Admit(b.Context(), calls(b, "bench", 1, 1)); err != nil {
				b.Fatal(err)
			}
			want := []store.Want{{Namespace: "bench", Max: 1, LeaseFor: time.Minute}}
			for b.Loop() {
				_, grants, err := s.Turn(b.Context(), nil, want)
				if err != nil || len(grants[0].Jobs) != 1 {
					b.Fatal(err, grants)
				}
				l := grants[0].Jobs[0]
				release := []store.Settlement{{Namespace: "bench", JobID: l.Job.ID, Lease: l.Lease, Outcome: job.Released}}
				if _, _, err := s.Turn(b.Context(), release, nil); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
