//go:build soak

package main

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/client"
	"flexiq/pkg/fault"
	"flexiq/pkg/testkit"
)

// steady makes calls at a steady pace until it is stopped, and knows when each of
// the admitted ones was answered.
type steady struct {
	mu       sync.Mutex
	admitted []time.Time
	bad      []error
}

func (s *steady) run(ctx context.Context, c *client.Client, perSecond int) {
	var group sync.WaitGroup
	tick := time.NewTicker(time.Second / time.Duration(perSecond))
	defer tick.Stop()
	defer group.Wait()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		group.Go(func() {
			_, err := c.Enqueue(ctx, client.Job{Task: "t"})
			s.mu.Lock()
			defer s.mu.Unlock()
			switch {
			case err == nil:
				s.admitted = append(s.admitted, time.Now())
			case !fault.Is(err, fault.RateLimited) && ctx.Err() == nil:
				s.bad = append(s.bad, err)
			}
		})
	}
}

// within counts what was admitted in a span of time.
func (s *steady) within(from, to time.Time) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, at := range s.admitted {
		if !at.Before(from) && at.Before(to) {
			n++
		}
	}
	return n
}

// spread is the least and the most of any five seconds of a span, by steps of half
// a second.
func (s *steady) spread(from, to time.Time) (least, most int) {
	const window = 5 * time.Second
	var counts []int
	for at := from; !at.Add(window).After(to); at = at.Add(window / 10) {
		counts = append(counts, s.within(at, at.Add(window)))
	}
	return slices.Min(counts), slices.Max(counts)
}

// TestSoakRateChanges: a rate that is changed under a steady load through two
// admissions is in force at once, and the change itself gives nothing away.
func TestSoakRateChanges(t *testing.T) {
	eachStore(t, func(t *testing.T, s kept) {
		soak := testkit.StartSoak(t, "rate-changes-"+s.kind, "300 calls/s through two admissions while enqueue_rate goes 10/s, 200/s, 10/s, none")
		url := testkit.NATS(t).ClientURL()
		d := inProcess(t, append([]string{"--nats-url=" + url}, s.args...)...)
		inProcess(t, append([]string{admissionService, "--nats-url=" + url}, s.args...)...)
		c := tenant(t, d.opts.DataDir, url, "sorrel")
		limit(t, c, &flexiqv1.NamespaceQuota{EnqueueRate: proto.String("10/s")})
		load := &steady{}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); load.run(ctx, c, 300) }()
		// phase lets a rate be in force for a while, and tells from when to when.
		phase := func(rate string, lasts time.Duration) (from, to time.Time) {
			if rate == "" {
				if _, err := c.Admin().ClearQuota(t.Context(), &flexiqv1.ClearQuotaRequest{}); err != nil {
					t.Fatal(err)
				}
			} else {
				limit(t, c, &flexiqv1.NamespaceQuota{EnqueueRate: proto.String(rate)})
			}
			from = time.Now()
			time.Sleep(lasts) // the load goes on under the rate
			return from, time.Now()
		}
		report := func(what string, from, to time.Time, least, most int) {
			gotLeast, gotMost := load.spread(from, to)
			soak.Figure(what, "%d to %d admitted in any 5s", gotLeast, gotMost)
			soak.Check(gotLeast >= least && gotMost <= most, "%s: %d to %d in 5s are lawful", what, least, most)
		}
		phase("10/s", 20*time.Second)
		from, to := phase("200/s", 20*time.Second)
		report("raised to 200/s", from.Add(5*time.Second), to, 950, 1050)
		from, to = phase("10/s", 20*time.Second)
		extra := load.within(from, from.Add(2500*time.Millisecond))
		soak.Figure("first 2.5s of the cut", "%d admitted", extra)
		soak.Check(extra <= 25+10+1, "at most 25 by the rate, and 10 that the bucket held")
		report("cut to 10/s", from.Add(2500*time.Millisecond), to, 45, 55)
		from, to = phase("", 10*time.Second)
		least, _ := load.spread(from.Add(time.Second), to)
		cancel()
		<-done
		soak.Figure("cleared", "%d of 1500 calls admitted in 5s", least)
		soak.Check(least >= 1300, "without a rate all calls pass")
		soak.Check(len(load.bad) == 0, "no call failed otherwise: %v", load.bad)
	})
}
