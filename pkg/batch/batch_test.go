package batch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"flexiq/pkg/fault"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// echo answers every call with itself.
func echo(_ context.Context, in []int) ([]int, error) { return in, nil }

// gate is a flush that says what it got and waits until it is let through.
type gate struct {
	entered chan []int
	leave   chan error
}

func newGate() *gate { return &gate{entered: make(chan []int), leave: make(chan error)} }

func (g *gate) flush(ctx context.Context, in []int) ([]int, error) {
	g.entered <- in
	select {
	case err := <-g.leave:
		return in, err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// answers collects what callbacks were told, by call.
type answers struct {
	mu  sync.Mutex
	got map[int][]error
}

func (a *answers) of(n int) func(int, error) {
	return func(_ int, err error) {
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.got == nil {
			a.got = make(map[int][]error)
		}
		a.got[n] = append(a.got[n], err)
	}
}

func (a *answers) all() map[int][]error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.got
}

func submit(t *testing.T, g *Group[int, int], key string, n int, done func(int, error)) {
	t.Helper()
	if err := g.Submit(key, 1, n, done); err != nil {
		t.Fatalf("submit %d: %v", n, err)
	}
}

func closed(t *testing.T, g interface{ Close(context.Context) error }) {
	t.Helper()
	if err := g.Close(t.Context()); err != nil {
		t.Fatalf("close: %v", err)
	}
}

func TestAloneACallIsFlushedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := New("g", 1, Options[int]{}, echo)
		defer closed(t, g)
		start := time.Now()
		for i := range 3 {
			out, err := g.Do(t.Context(), "ns", 1, i)
			if err != nil || out != i {
				t.Fatalf("Do(%d) = %d, %v", i, out, err)
			}
		}
		if waited := time.Since(start); waited != 0 {
			t.Errorf("three lonely calls took %v of timers, want none", waited)
		}
	})
}

func TestCallsGatherWhileAFlushIsUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := newGate()
		g := New("g", 1, Options[int]{MaxItems: 4}, gate.flush)
		var a answers
		submit(t, g, "ns", 0, a.of(0))
		flushes := [][]int{<-gate.entered}
		for i := 1; i <= 6; i++ {
			submit(t, g, "ns", i, a.of(i))
		}
		for range 2 {
			gate.leave <- nil
			flushes = append(flushes, <-gate.entered)
		}
		gate.leave <- nil
		closed(t, g)
		if diff := cmp.Diff([][]int{{0}, {1, 2, 3, 4}, {5, 6}}, flushes); diff != "" {
			t.Errorf("flushes (-want +got):\n%s", diff)
		}
		for n, errs := range a.all() {
			if len(errs) != 1 || errs[0] != nil {
				t.Errorf("call %d was answered %v, want once without an error", n, errs)
			}
		}
		if len(a.all()) != 7 {
			t.Errorf("%d calls were answered, want 7", len(a.all()))
		}
	})
}

func TestWeightBoundsAFlush(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := newGate()
		g := New("g", 1, Options[int]{MaxItems: 10, Weight: func(n int) int { return n }}, gate.flush)
		ignore := func(int, error) {}
		submit(t, g, "ns", 0, ignore) // counts as 1
		flushes := [][]int{<-gate.entered}
		for _, n := range []int{4, 6, 1, 25, 10} {
			submit(t, g, "ns", n, ignore)
		}
		for range 4 {
			gate.leave <- nil
			flushes = append(flushes, <-gate.entered)
		}
		gate.leave <- nil
		closed(t, g)
		if diff := cmp.Diff([][]int{{0}, {4, 6}, {1}, {25}, {10}}, flushes); diff != "" {
			t.Errorf("flushes (-want +got):\n%s", diff)
		}
	})
}

func TestKeysTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := newGate()
		g := New("g", 1, Options[int]{MaxItems: 10}, gate.flush)
		ignore := func(int, error) {}
		submit(t, g, "loud", -1, ignore)
		<-gate.entered
		for i := range 100 {
			submit(t, g, "loud", i, ignore)
		}
		submit(t, g, "quiet", 1000, ignore)
		submit(t, g, "shy", 2000, ignore)
		gate.leave <- nil
		if diff := cmp.Diff([]int{1000, 2000, 0, 1, 2, 3, 4, 5, 6, 7}, <-gate.entered); diff != "" {
			t.Errorf("the flush after the flood (-want +got):\n%s", diff)
		}
		go func() {
			gate.leave <- nil
			for range gate.entered {
				gate.leave <- nil
			}
		}()
		closed(t, g)
		close(gate.entered)
	})
}

func TestAFailedFlushAnswersItsCallsAlone(t *testing.T) {
	boom := errors.New("boom")
	tests := map[string]struct {
		flush func(context.Context, []int) ([]int, error)
		check func(error) bool
	}{
		"an error":        {func(context.Context, []int) ([]int, error) { return nil, boom }, func(err error) bool { return errors.Is(err, boom) }},
		"a panic":         {func(context.Context, []int) ([]int, error) { panic("broken") }, func(err error) bool { return fault.Is(err, fault.Internal) }},
		"missing answers": {func(context.Context, []int) ([]int, error) { return nil, nil }, func(err error) bool { return fault.Is(err, fault.Internal) }},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var fails atomic.Bool
			fails.Store(true)
			g := New("g", 1, Options[int]{}, func(ctx context.Context, in []int) ([]int, error) {
				if fails.Load() {
					return tc.flush(ctx, in)
				}
				return in, nil
			})
			defer closed(t, g)
			if _, err := g.Do(t.Context(), "ns", 1, 1); !tc.check(err) {
				t.Errorf("the call's error is %v", err)
			}
			fails.Store(false)
			if out, err := g.Do(t.Context(), "ns", 1, 2); err != nil || out != 2 {
				t.Errorf("the next call got %d, %v", out, err)
			}
		})
	}
}

func TestAPanickingCallbackHarmsNobodyElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		gate := newGate()
		g := New("g", 1, Options[int]{Log: zerolog.New(&log)}, gate.flush)
		var a answers
		submit(t, g, "ns", 0, a.of(0))
		<-gate.entered
		submit(t, g, "ns", 1, func(int, error) { panic("careless") })
		submit(t, g, "ns", 2, a.of(2))
		gate.leave <- nil
		<-gate.entered
		gate.leave <- nil
		closed(t, g)
		if got := a.all(); len(got[0]) != 1 || len(got[2]) != 1 {
			t.Errorf("answers %v, want one each for 0 and 2", got)
		}
		if !bytes.Contains(log.Bytes(), []byte("careless")) {
			t.Errorf("the log does not tell of the panic: %s", log.Bytes())
		}
	})
}

func TestBounds(t *testing.T) {
	type sub struct {
		key   string
		bytes int
		ok    bool
	}
	tests := map[string]struct {
		opts Options[int]
		subs []sub
	}{
		"calls": {Options[int]{MaxCalls: 4}, []sub{
			{"a", 1, true}, {"a", 1, true}, {"b", 1, true}, {"c", 1, true}, {"d", 1, false}}},
		"calls of one key": {Options[int]{MaxCalls: 4}, []sub{
			{"a", 1, true}, {"a", 1, true}, {"a", 1, false}, {"b", 1, true}}},
		"bytes": {Options[int]{MaxBytes: 10}, []sub{
			{"a", 5, true}, {"b", 5, true}, {"c", 1, false}}},
		"bytes of one key": {Options[int]{MaxBytes: 10}, []sub{
			{"a", 4, true}, {"a", 2, false}, {"a", 1, true}, {"b", 2, true}}},
		"more bytes than the bound, alone": {Options[int]{MaxBytes: 10}, []sub{
			{"a", 50, true}, {"b", 1, false}}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				gate := newGate()
				g := New("g", 1, tc.opts, gate.flush)
				ignore := func(int, error) {}
				for i, s := range tc.subs {
					err := g.Submit(s.key, s.bytes, i, ignore)
					if (err == nil) != s.ok || err != nil && !fault.Is(err, fault.Overloaded) {
						t.Errorf("submission %d: %v, want it admitted: %v", i, err, s.ok)
					}
				}
				<-gate.entered
				gate.leave <- nil
				go func() {
					for range gate.entered {
						gate.leave <- nil
					}
				}()
				synctest.Wait()
				if err := g.Submit(tc.subs[0].key, tc.subs[0].bytes, 99, ignore); err != nil {
					t.Errorf("everything was flushed, and still: %v", err)
				}
				closed(t, g)
				close(gate.entered)
			})
		})
	}
}

func TestARoomIsFreeBeforeTheCallback(t *testing.T) {
	g := New("g", 1, Options[int]{MaxCalls: 1}, echo)
	again := make(chan error, 1)
	submit(t, g, "ns", 1, func(int, error) { again <- g.Submit("ns", 1, 2, func(int, error) {}) })
	if err := <-again; err != nil {
		t.Errorf("submitting from the callback: %v", err)
	}
	closed(t, g)
}

func TestDoStopsWaitingWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := newGate()
		g := New("g", 1, Options[int]{}, gate.flush)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		failed := make(chan error)
		go func() {
			_, err := g.Do(ctx, "ns", 1, 1)
			failed <- err
		}()
		<-gate.entered
		if err := <-failed; !fault.Is(err, fault.DeadlineExceeded) {
			t.Errorf("Do = %v, want DEADLINE_EXCEEDED", err)
		}
		gate.leave <- nil
		closed(t, g)
	})
}

func TestAFlushHasADeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := New("g", 1, Options[int]{FlushTimeout: 3 * time.Second}, func(ctx context.Context, _ []int) ([]int, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		})
		start := time.Now()
		_, err := g.Do(t.Context(), "ns", 1, 1)
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != 3*time.Second {
			t.Errorf("a hanging flush: %v after %v, want its deadline after 3s", err, time.Since(start))
		}
		closed(t, g)
	})
}

func TestCloseFlushesWhatIsIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := newGate()
		g := New("g", 2, Options[int]{}, gate.flush)
		var a answers
		submit(t, g, "ns", 0, a.of(0))
		<-gate.entered
		for i := 1; i < 5; i++ {
			submit(t, g, "ns", i, a.of(i))
		}
		closing := make(chan error, 2)
		for range 2 {
			go func() { closing <- g.Close(t.Context()) }()
		}
		synctest.Wait()
		if err := g.Submit("ns", 1, 9, a.of(9)); !fault.Is(err, fault.Overloaded) {
			t.Errorf("submit after close: %v, want OVERLOADED", err)
		}
		select {
		case err := <-closing:
			t.Fatalf("close returned (%v) with calls in the group", err)
		default:
		}
		gate.leave <- nil
		if got := <-gate.entered; len(got) != 4 {
			t.Errorf("the last flush has %v, want the four calls that waited", got)
		}
		gate.leave <- nil
		for range 2 {
			if err := <-closing; err != nil {
				t.Errorf("close: %v", err)
			}
		}
		if len(a.all()) != 5 {
			t.Errorf("answers %v, want one for each of 0…4", a.all())
		}
		closed(t, g)
	})
}

func TestCloseOutOfPatienceAnswersEverybody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := newGate()
		g := New("g", 1, Options[int]{}, gate.flush)
		var a answers
		submit(t, g, "ns", 0, a.of(0))
		<-gate.entered
		submit(t, g, "ns", 1, a.of(1))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := g.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("close: %v, want its deadline", err)
		}
		closed(t, g)
		got := a.all()
		if len(got[0]) != 1 || !errors.Is(got[0][0], context.Canceled) {
			t.Errorf("the call in flight was answered %v, want the cancelled flush", got[0])
		}
		if len(got[1]) != 1 || !fault.Is(got[1][0], fault.Overloaded) {
			t.Errorf("the waiting call was answered %v, want OVERLOADED", got[1])
		}
	})
}

func TestAnUnusedGroupCloses(t *testing.T) {
	g := New("g", 3, Options[int]{}, echo)
	closed(t, g)
	closed(t, g)
}

func TestMetrics(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	g := New("enqueue", 1, Options[int]{MaxCalls: 1, Metrics: NewMetrics(reg)}, echo)
	if _, err := g.Do(t.Context(), "ns", 1, 1); err != nil {
		t.Fatal(err)
	}
	closed(t, g)
	if err := g.Submit("ns", 1, 1, nil); err == nil {
		t.Fatal("a closed group took a call")
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			got[f.GetName()] = fmt.Sprint(m.GetLabel(), m.GetCounter().GetValue(), m.GetHistogram().GetSampleCount())
		}
	}
	for _, name := range []string{"flexiq_batch_flush_calls", "flexiq_batch_flush_seconds", "flexiq_batch_refused_total", "flexiq_batch_calls"} {
		if got[name] == "" {
			t.Errorf("metric %s is missing in %v", name, got)
		}
	}
}
