package postgres

import (
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	"flexiq/pkg/job"
	"flexiq/pkg/store"
)

// cpu is what this process has used, the server not included.
func cpu() time.Duration {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		panic(err)
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// BenchmarkAdmit measures enqueued rows: single calls in groups as the batcher
// makes them, of one namespace and of many, and large batches.
func BenchmarkAdmit(b *testing.B) {
	for _, size := range []struct{ calls, jobs, namespaces, bytes int }{
		{1, 1, 1, 40}, {24, 1, 1, 100}, {100, 1, 1, 40}, {1000, 1, 1, 40}, {100, 1, 100, 40}, {1, 1000, 1, 40}, {10, 1, 1, 16 << 10},
	} {
		b.Run(fmt.Sprintf("calls=%d/jobs=%d/namespaces=%d/bytes=%d", size.calls, size.jobs, size.namespaces, size.bytes), func(b *testing.B) {
			s := start(b, Options{})
			payload := make([]byte, size.bytes)
			var used time.Duration
			for b.Loop() {
				b.StopTimer()
				group := calls(b, "", size.calls, size.jobs, func(sp *job.Spec) { sp.Payload = payload })
				for i := range group {
					group[i].Namespace = fmt.Sprintf("bench-%d", i%size.namespaces)
				}
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

// BenchmarkHotNamespace measures commits of four flushers on one namespace, as
// of four processes, with and without the late flush.
func BenchmarkHotNamespace(b *testing.B) {
	for _, sync := range []bool{false, true} {
		b.Run(fmt.Sprintf("late=%t", !sync), func(b *testing.B) {
			s := start(b, Options{NoLateFlush: sync})
			const flushers = 4
			for b.Loop() {
				b.StopTimer()
				var groups [flushers][]store.Call
				for i := range groups {
					for range 20 {
						groups[i] = append(groups[i], calls(b, "hot", 10, 1)...)
					}
				}
				b.StartTimer()
				hot(b, s, groups[:])
			}
			b.ReportMetric(float64(b.N*flushers*20*10)/b.Elapsed().Seconds(), "rows/s")
		})
	}
}

func hot(b *testing.B, s *Store, groups [][]store.Call) {
	var group sync.WaitGroup
	for _, g := range groups {
		group.Go(func() {
			for ; len(g) > 0; g = g[10:] {
				if _, err := s.Admit(b.Context(), g[:10]); err != nil {
					b.Error(err)
				}
			}
		})
	}
	group.Wait()
}

// BenchmarkTurn measures the closed loop of workers: settle what was claimed,
// claim as many anew.
func BenchmarkTurn(b *testing.B) {
	for _, size := range []struct{ namespaces, jobs int }{{1, 1}, {1, 100}, {1, 1000}, {20, 5}} {
		b.Run(fmt.Sprintf("namespaces=%d/jobs=%d", size.namespaces, size.jobs), func(b *testing.B) {
			s := start(b, Options{})
			var wants []store.Want
			for i := range size.namespaces {
				wants = append(wants, store.Want{Namespace: fmt.Sprintf("bench-%d", i), Max: size.jobs, LeaseFor: time.Minute, Worker: "w"})
			}
			var settle []store.Settlement
			stock := 0
			var used time.Duration
			for b.Loop() {
				if stock < size.jobs {
					b.StopTimer()
					for _, w := range wants {
						must(b, s, calls(b, w.Namespace, 1, 1000))
					}
					stock += 1000
					b.StartTimer()
				}
				used -= cpu()
				_, grants, err := s.Turn(b.Context(), settle, wants)
				if err != nil {
					b.Fatal(err)
				}
				used += cpu()
				stock -= size.jobs
				settle = settle[:0]
				for _, g := range grants {
					if len(g.Jobs) != size.jobs {
						b.Fatalf("%d jobs", len(g.Jobs))
					}
					for _, l := range g.Jobs {
						settle = append(settle, store.Settlement{Namespace: l.Job.Namespace, JobID: l.Job.ID, Lease: l.Lease, Outcome: job.Completed})
					}
				}
			}
			rows := float64(b.N * size.jobs * size.namespaces)
			b.ReportMetric(float64(used.Microseconds())/rows, "cpu-µs/row")
			b.ReportMetric(rows/b.Elapsed().Seconds(), "rows/s")
		})
	}
}

// BenchmarkClaimBehind measures a claim past what used to be slow: delayed jobs
// of a higher priority, and the dead versions of claimed jobs that an open
// transaction keeps.
func BenchmarkClaimBehind(b *testing.B) {
	for _, name := range []string{"nothing", "delayed", "dead versions"} {
		b.Run(name, func(b *testing.B) {
			s := start(b, Options{})
			must(b, s, calls(b, "a", 1, 1000))
			switch name {
			case "delayed":
				for range 50 {
					must(b, s, calls(b, "a", 1, 1000, func(sp *job.Spec) { sp.Priority, sp.Delay = 5, time.Hour }))
				}
			case "dead versions":
				// A snapshot keeps every version that is replaced from now on.
				tx, err := s.pool.Begin(b.Context())
				if err != nil {
					b.Fatal(err)
				}
				defer tx.Rollback(b.Context())
				if _, err := tx.Exec(b.Context(), "set local idle_in_transaction_session_timeout = 0"); err != nil {
					b.Fatal(err)
				}
				if _, err := tx.Exec(b.Context(), "declare c cursor for select 1"); err != nil {
					b.Fatal(err)
				}
				for range 20 {
					must(b, s, calls(b, "a", 1, 1000))
					turn(b, s, nil, store.Want{Namespace: "a", Max: 1000, LeaseFor: time.Hour, Worker: "w"})
				}
			}
			claims := 0
			for b.Loop() {
				if claims += 5; claims > 1000 {
					b.StopTimer()
					must(b, s, calls(b, "a", 1, 1000))
					claims = 5
					b.StartTimer()
				}
				_, grants, err := s.Turn(b.Context(), nil, []store.Want{{Namespace: "a", Max: 5, LeaseFor: time.Hour, Worker: "w"}})
				if err != nil || len(grants[0].Jobs) != 5 {
					b.Fatal(err, len(grants[0].Jobs))
				}
			}
		})
	}
}
