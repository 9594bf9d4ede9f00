package retention

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"flexiq/pkg/fault"
	"flexiq/pkg/store"
)

// script is a leader's work of which only the timing counts.
type script struct {
	began  time.Time
	took   time.Duration
	swept  []time.Duration // when sweeps started, from the beginning
	probed int
	result func(sweep int) (report, error)
	probes func() error
}

func (s *script) sweep(context.Context) (report, error) {
	s.swept = append(s.swept, time.Since(s.began))
	time.Sleep(s.took)
	return s.result(len(s.swept))
}

func (s *script) probe(context.Context) error {
	s.probed++
	if s.probes == nil {
		return nil
	}
	return s.probes()
}

func seconds(n ...time.Duration) []time.Duration {
	for i := range n {
		n[i] *= time.Second
	}
	return n
}

func TestSweepsKeepTheTick(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Second)
		defer cancel()
		s := &script{began: time.Now(), took: 3 * time.Second, result: func(int) (report, error) { return report{}, nil }}
		err := keepSweeping(ctx, time.Minute, s, func(report, error, time.Duration) {})
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("ended with %v", err)
		}
		if diff := cmp.Diff(seconds(0, 60, 120, 180), s.swept); diff != "" {
			t.Error(diff)
		}
		if s.probed < 60 {
			t.Errorf("a resting leader asked the store %d times in 190 s", s.probed)
		}
	})
}

// While excess is left, or the store could not be read, the next sweep follows
// after a second.
func TestFollowUps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 70*time.Second)
		defer cancel()
		s := &script{began: time.Now(), took: time.Second, result: func(n int) (report, error) {
			switch n {
			case 1, 2:
				return report{Left: true}, nil
			case 3:
				return report{}, fault.New(fault.StorageUnavailable, "away")
			}
			return report{}, nil
		}}
		var outcomes int
		_ = keepSweeping(ctx, time.Minute, s, func(report, error, time.Duration) { outcomes++ })
		if diff := cmp.Diff(seconds(0, 2, 4, 6, 66), s.swept); diff != "" {
			t.Error(diff)
		}
		if outcomes != len(s.swept) {
			t.Errorf("%d of %d sweeps were recorded", outcomes, len(s.swept))
		}
	})
}

func TestSupersededLeaderStopsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{began: time.Now(), result: func(int) (report, error) { return report{Left: true}, errSuperseded }}
		if err := keepSweeping(t.Context(), time.Minute, s, func(report, error, time.Duration) {}); err != errSuperseded {
			t.Errorf("ended with %v", err)
		}
		if len(s.swept) != 1 || time.Since(s.began) != 0 {
			t.Errorf("%d sweeps, stopped after %s", len(s.swept), time.Since(s.began))
		}
	})
}

// deadStore answers until it dies, and then lets every call run into its
// deadline.
type deadStore struct {
	Store
	died time.Time
}

func (d deadStore) ask(ctx context.Context) error {
	if time.Now().Before(d.died) {
		return nil
	}
	<-ctx.Done()
	return ctx.Err()
}

func (d deadStore) Namespaces(ctx context.Context, _ string, _ int) (store.Page[string], error) {
	return store.Page[string]{}, d.ask(ctx)
}

func (d deadStore) Usage(ctx context.Context, names []string) ([]store.Usage, error) {
	return make([]store.Usage, len(names)), d.ask(ctx)
}

// Wherever the store falls silent, between sweeps or in one, the leader resigns
// about ten seconds later.
func TestLeaderResignsWithoutTheStore(t *testing.T) {
	for _, tick := range []time.Duration{200 * time.Millisecond, time.Minute} {
		t.Run(tick.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				died := time.Now().Add(95 * time.Second)
				svc, err := New(Config{Maintenance: true, Tick: tick}, Deps{Store: deadStore{died: died}})
				if err != nil {
					t.Fatal(err)
				}
				if err := svc.lead(t.Context(), 1); err != errSilent {
					t.Errorf("ended with %v", err)
				}
				silent := time.Since(died)
				if low, high := 10*time.Second-probeEvery, 10*time.Second+probeEvery; silent < low || silent > high {
					t.Errorf("resigned %s after the store died, want %s to %s", silent, low, high)
				}
			})
		})
	}
}
