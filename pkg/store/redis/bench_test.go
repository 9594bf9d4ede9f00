//go:build unix

package redis

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"flexiq/pkg/job"
	"flexiq/pkg/store"
	"flexiq/pkg/testkit"
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

// meter measures the processor time of both sides between its calls.
type meter struct {
	s            *Store
	client       time.Duration
	server, from float64
}

func (m *meter) used(b *testing.B) float64 {
	info, err := m.s.db.InfoMap(b.Context(), "cpu").Result()
	if err != nil {
		b.Fatal(err)
	}
	var user, sys float64
	_, _ = fmt.Sscan(info["CPU"]["used_cpu_user"], &user) // a number that is missing is none
	_, _ = fmt.Sscan(info["CPU"]["used_cpu_sys"], &sys)
	return user + sys
}

func (m *meter) start(b *testing.B) { m.client -= cpu(); m.from = m.used(b) }
func (m *meter) stop(b *testing.B)  { m.server += m.used(b) - m.from; m.client += cpu() }

func (m *meter) report(b *testing.B, jobs int) {
	b.ReportMetric(float64(m.client.Microseconds())/float64(b.N*jobs), "cpu-µs/job")
	b.ReportMetric(m.server*1e6/float64(b.N*jobs), "server-µs/job")
	b.ReportMetric(float64(b.N*jobs)/b.Elapsed().Seconds(), "jobs/s")
}

// benchServer is a durable server, as it should be run.
func benchServer(b *testing.B) *Store {
	return openAt(b, testkit.StartRedis(b, "appendonly", "yes", "appendfsync", "always").URL(), Options{Timeout: time.Minute})
}

// BenchmarkAdmit measures enqueued jobs: single calls in groups as the batcher
// makes them, over one namespace and over many, and large batches.
func BenchmarkAdmit(b *testing.B) {
	for _, size := range []struct{ calls, jobs, namespaces int }{{1, 1, 1}, {100, 1, 1}, {1000, 1, 1}, {1000, 1, 100}, {1, 1000, 1}} {
		b.Run(fmt.Sprintf("calls=%d/jobs=%d/namespaces=%d", size.calls, size.jobs, size.namespaces), func(b *testing.B) {
			m := &meter{s: benchServer(b)}
			for b.Loop() {
				b.StopTimer()
				group := calls(b, "bench", size.calls, size.jobs)
				for i := range group {
					group[i].Namespace = fmt.Sprint("bench", i%size.namespaces)
				}
				m.start(b)
				b.StartTimer()
				out, err := m.s.Admit(b.Context(), group)
				b.StopTimer()
				if err != nil || out[0].Err != nil {
					b.Fatal(err, out[0].Err)
				}
				m.stop(b)
				b.StartTimer()
			}
			m.report(b, size.calls*size.jobs)
		})
	}
}

// BenchmarkTurn measures the closed loop of workers: settle what was claimed,
// claim as many anew.
func BenchmarkTurn(b *testing.B) {
	for _, n := range []int{1, 100, 1000} {
		b.Run(fmt.Sprintf("jobs=%d", n), func(b *testing.B) {
			m := &meter{s: benchServer(b)}
			var settle []store.Settlement
			wants := []store.Want{want("bench", n)}
			for stock := 0; b.Loop(); stock -= n {
				b.StopTimer()
				for ; stock < n; stock += 1000 {
					enqueue(b, m.s, calls(b, "bench", 1, 1000)...)
				}
				m.start(b)
				b.StartTimer()
				_, grants, err := m.s.Turn(b.Context(), settle, wants)
				b.StopTimer()
				if err != nil || len(grants[0].Jobs) != n {
					b.Fatal(err, len(grants[0].Jobs))
				}
				m.stop(b)
				settle = settle[:0]
				for _, l := range grants[0].Jobs {
					settle = append(settle, store.Settlement{Namespace: "bench", JobID: l.Job.ID, Lease: l.Lease, Outcome: job.Completed})
				}
				b.StartTimer()
			}
			m.report(b, n)
		})
	}
}

// BenchmarkClaimBehind claims and releases a job behind 50 000 delayed ones of a
// higher priority and 1 000 queues. It should cost what it costs without them.
func BenchmarkClaimBehind(b *testing.B) {
	for _, behind := range []int{0, 50_000} {
		b.Run(fmt.Sprintf("delayed=%d", behind), func(b *testing.B) {
			m := &meter{s: benchServer(b)}
			for range behind / 1000 {
				c := calls(b, "bench", 1, 1000)
				for k := range c[0].Jobs {
					j := &c[0].Jobs[k]
					j.Delay, j.Priority, j.Queue = time.Hour, 1, fmt.Sprint("q", k)
				}
				enqueue(b, m.s, c...)
			}
			enqueue(b, m.s, calls(b, "bench", 1, 1)...)
			m.start(b)
			for b.Loop() {
				l := claim(b, m.s, "bench", 1)[0]
				back := []store.Settlement{{Namespace: "bench", JobID: l.Job.ID, Lease: l.Lease, Outcome: job.Released}}
				if _, _, err := m.s.Turn(b.Context(), back, nil); err != nil {
					b.Fatal(err)
				}
			}
			m.stop(b)
			m.report(b, 1)
		})
	}
}
