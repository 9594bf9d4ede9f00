package dispatchgate

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"google.golang.org/protobuf/types/known/durationpb"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/configcache"
	"flexiq/pkg/job"
	"flexiq/pkg/store"
)

// asked is a store with nothing in it, to see when it is asked for what. It
// stands in for a real one where time is simulated.
type asked struct {
	mu      sync.Mutex
	turns   []time.Time
	looks   []int // interests of each look round
	expires []time.Time
	grant   func(w store.Want) store.Grant // nil: nothing
	ready   func(i store.Interest) store.Readiness
	ended   []store.Ended // still to be told by Expire
}

// with looks at the store or changes it.
func (s *asked) with(do func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	do()
}

func (s *asked) Turn(_ context.Context, settlements []store.Settlement, wants []store.Want) ([]store.Settled, []store.Grant, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.turns = append(s.turns, time.Now())
	grants := make([]store.Grant, len(wants))
	for i, w := range wants {
		if s.grant != nil {
			grants[i] = s.grant(w)
		}
	}
	return make([]store.Settled, len(settlements)), grants, nil
}

func (s *asked) Ready(_ context.Context, interests []store.Interest) ([]store.Readiness, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.looks = append(s.looks, len(interests))
	out := make([]store.Readiness, len(interests))
	for i, in := range interests {
		if s.ready != nil {
			out[i] = s.ready(in)
		}
	}
	return out, nil
}

func (s *asked) Expire(_ context.Context, limit int) ([]store.Ended, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expires = append(s.expires, time.Now())
	n := min(limit, len(s.ended))
	out := s.ended[:n]
	s.ended = s.ended[n:]
	return out, nil
}

func (s *asked) Heartbeat(_ context.Context, beats []store.Beat) ([]store.Pulse, error) {
	return make([]store.Pulse, len(beats)), nil
}

// noQuotas is a cache in which nobody has a limit.
type noQuotas struct{}

func (noQuotas) Get(context.Context, string) (configcache.Quota, error) {
	return configcache.Quota{}, nil
}
func (noQuotas) Peek(string) (configcache.Quota, bool) { return configcache.Quota{}, true }
func (noQuotas) Invalidate(string, int64)              {}

// simulated runs a gate over such a store in simulated time.
func simulated(t *testing.T, run bool, test func(t *testing.T, gate *Service, s *asked, hints *ears)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s, hints := &asked{}, &ears{}
		gate, err := New(DefaultConfig(), Deps{Store: s, Quotas: noQuotas{}, Hints: hints, Log: zerolog.Nop()})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		ran := make(chan error, 1)
		if run {
			go func() { ran <- gate.Run(ctx) }()
		} else {
			ran <- nil
		}
		test(t, gate, s, hints)
		stop()
		if err := <-ran; err != nil {
			t.Error(err)
		}
		if err := gate.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
}

// ends begins a claim and tells how long it took and what it got.
func ends(t *testing.T, gate *Service, ns string, wait time.Duration) <-chan string {
	t.Helper()
	begun, done := time.Now(), make(chan string, 1)
	req := &flexiqv1.ClaimRequest{Wait: durationpb.New(wait)}
	gate.claim(worker(t.Context(), ns), req, func(res *flexiqv1.ClaimResponse, err error) {
		done <- fmt.Sprintf("%d jobs after %s, %v", len(res.GetJobs()), time.Since(begun), err)
	})
	return done
}

func wantEnd(t *testing.T, done <-chan string, want string) {
	t.Helper()
	if got := <-done; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestWaitIsExact(t *testing.T) {
	t.Parallel()
	simulated(t, false, func(t *testing.T, gate *Service, s *asked, _ *ears) {
		long, short, none := ends(t, gate, "a", maxWait), ends(t, gate, "a", 3*time.Second), ends(t, gate, "b", 0)
		wantEnd(t, none, "0 jobs after 0s, <nil>")
		wantEnd(t, short, "0 jobs after 3s, <nil>")
		wantEnd(t, long, "0 jobs after 1m0s, <nil>")
		s.with(func() {
			if len(s.turns) > 3 {
				t.Errorf("three claims without work cost %d turns", len(s.turns))
			}
		})
	})
}

func TestDueJobIsExact(t *testing.T) {
	t.Parallel()
	simulated(t, false, func(t *testing.T, gate *Service, s *asked, _ *ears) {
		due := time.Now().Add(7 * time.Second)
		s.with(func() {
			s.grant = func(store.Want) store.Grant {
				if time.Now().Before(due) {
					return store.Grant{NextAt: due}
				}
				return store.Grant{Jobs: make([]store.Leased, 1)}
			}
		})
		wantEnd(t, ends(t, gate, "a", maxWait), "1 jobs after 7s, <nil>")
		s.with(func() {
			if len(s.turns) != 2 {
				t.Errorf("%d turns, want one at the start and one when the job is due", len(s.turns))
			}
		})
	})
}

// One call a second looks for everybody who waits, and none when nobody does.
func TestLookRoundIsOneCall(t *testing.T) {
	t.Parallel()
	simulated(t, true, func(t *testing.T, gate *Service, s *asked, _ *ears) {
		time.Sleep(5500 * time.Millisecond)
		s.with(func() {
			if len(s.looks) != 0 {
				t.Errorf("%d look rounds while nobody waits", len(s.looks))
			}
		})
		var waiting []<-chan string
		for i := range 300 {
			waiting = append(waiting, ends(t, gate, fmt.Sprintf("ns-%d", i%100), 10*time.Second))
		}
		time.Sleep(5 * time.Second)
		before := 0
		s.with(func() {
			if !slices.Equal(s.looks, []int{100, 100, 100, 100, 100}) {
				t.Errorf("interests by look round: %v", s.looks)
			}
			before = len(s.turns)
			s.ready = func(in store.Interest) store.Readiness { return store.Readiness{Ready: in.Namespace == "ns-7"} }
			s.grant = func(w store.Want) store.Grant {
				if w.Namespace != "ns-7" {
					t.Errorf("the store is asked for %s", w.Namespace)
				}
				return store.Grant{Held: []store.Hold{{What: store.HoldMaxRunning}}}
			}
		})
		time.Sleep(3 * time.Second)
		s.with(func() {
			if n := len(s.turns) - before; n != 3 {
				t.Errorf("a namespace at its cap cost %d turns in 3 s", n)
			}
		})
		for _, w := range waiting {
			wantEnd(t, w, "0 jobs after 10s, <nil>")
		}
	})
}

// Ended leases are recovered every second until none is left.
func TestRecoveryDrains(t *testing.T) {
	t.Parallel()
	simulated(t, true, func(t *testing.T, _ *Service, s *asked, hints *ears) {
		s.with(func() {
			for i := range 2*expireBatch + 1 {
				s.ended = append(s.ended, store.Ended{Namespace: fmt.Sprintf("ns-%d", i%3), State: job.Pending})
			}
		})
		begun := time.Now()
		time.Sleep(3500 * time.Millisecond)
		var at []time.Duration
		s.with(func() {
			for _, e := range s.expires {
				at = append(at, e.Sub(begun))
			}
		})
		if want := []time.Duration{1e9, 1e9, 1e9, 2e9, 3e9}; !slices.Equal(at, want) {
			t.Errorf("the store was asked at %v, want %v", at, want)
		}
		if heard := hints.heard(); len(heard) != 3 || len(heard[0]) != 3 {
			t.Errorf("other gates were told %v", heard)
		}
	})
}

// A recovered job wakes who waits for it at once.
func TestRecoveryWakes(t *testing.T) {
	t.Parallel()
	simulated(t, true, func(t *testing.T, gate *Service, s *asked, _ *ears) {
		done := ends(t, gate, "a", maxWait)
		synctest.Wait()
		s.with(func() {
			s.ended = []store.Ended{{Namespace: "a", State: job.Pending}}
			s.grant = func(store.Want) store.Grant { return store.Grant{Jobs: make([]store.Leased, 1)} }
		})
		wantEnd(t, done, "1 jobs after 1s, <nil>")
	})
}

func durationOf(d time.Duration) *durationpb.Duration {
	if d == 0 {
		return nil
	}
	return durationpb.New(d)
}
