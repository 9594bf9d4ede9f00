package batch

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
)

// disk is a flush that decides at once and then waits until it is synced.
type disk struct {
	mu      sync.Mutex
	decided [][]int
	synced  chan error
}

func (d *disk) flush(ctx context.Context, in []int) ([]int, error) {
	d.mu.Lock()
	d.decided = append(d.decided, in)
	d.mu.Unlock()
	Decided(ctx)
	Decided(ctx)
	err := <-d.synced
	return in, err
}

func (d *disk) all() [][]int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.decided
}

func TestTheNextFlushBeginsWhenOneIsDecided(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &disk{synced: make(chan error)}
		g := New("g", 1, Options[int]{}, d.flush)
		var a answers
		for i := range 6 {
			submit(t, g, "ns", i, a.of(i))
			synctest.Wait()
		}
		// Two wait for the disk beside the one that holds the lane; the rest gathers.
		if diff := cmp.Diff([][]int{{0}, {1}, {2}}, d.all()); diff != "" {
			t.Errorf("decided before anything is synced (-want +got):\n%s", diff)
		}
		if n := len(a.all()); n != 0 {
			t.Errorf("%d calls were answered before the disk was synced", n)
		}
		broken := errors.New("disk")
		d.synced <- broken
		synctest.Wait()
		for range 3 {
			d.synced <- nil
			synctest.Wait()
		}
		closed(t, g)
		failed := 0
		for n, errs := range a.all() {
			if len(errs) != 1 {
				t.Errorf("call %d was answered %d times", n, len(errs))
			}
			if errors.Is(errs[0], broken) {
				failed++
			}
		}
		if len(a.all()) != 6 || failed != 1 {
			t.Errorf("%d calls were answered, %d of them with the error of the disk, want 6 and 1", len(a.all()), failed)
		}
		if diff := cmp.Diff([][]int{{0}, {1}, {2}, {3, 4, 5}}, d.all()); diff != "" {
			t.Errorf("flushes (-want +got):\n%s", diff)
		}
	})
}

func TestCloseWaitsForWhatIsDecided(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &disk{synced: make(chan error)}
		g := New("g", 1, Options[int]{}, d.flush)
		var a answers
		submit(t, g, "ns", 1, a.of(1))
		synctest.Wait()
		ended := make(chan error, 1)
		go func() { ended <- g.Close(context.Background()) }()
		synctest.Wait()
		select {
		case <-ended:
			t.Fatal("the group closed with a call that nobody had answered")
		default:
		}
		d.synced <- nil
		if err := <-ended; err != nil || len(a.all()[1]) != 1 {
			t.Errorf("Close = %v, answers %v", err, a.all())
		}
	})
}

func TestDecidedOutsideOfAFlushDoesNothing(*testing.T) { Decided(context.Background()) }

// Callers in a closed loop come again when they are answered. They make up as
// many flushes as may be under way, each with its share of them, so that the
// flushes overlap and none is smaller than it must be.
func TestCallersInAClosedLoopShareTheFlushes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &disk{synced: make(chan error)}
		g := New("g", 1, Options[int]{MaxTails: 1, MinShare: 2}, d.flush)
		ctx, stop := context.WithCancel(context.Background())
		var callers sync.WaitGroup
		for i := range 16 {
			callers.Go(func() {
				for ctx.Err() == nil {
					if _, err := g.Do(ctx, "ns", 0, i); err != nil && ctx.Err() == nil {
						t.Error(err)
					}
				}
			})
		}
		synctest.Wait()
		for range 20 {
			d.synced <- nil
			synctest.Wait()
		}
		calls, flushes := 0, d.all()[6:] // when it has settled
		for i, f := range flushes {
			if calls += len(f); len(f) > 8 {
				t.Errorf("flush %d has %d of 16 callers, more than its share", i, len(f))
			}
		}
		if calls < 6*len(flushes) {
			t.Errorf("%d flushes have %d calls, want nearly 8 each: %v", len(flushes), calls, flushes)
		}
		stop()
		close(d.synced)
		callers.Wait()
		closed(t, g)
	})
}

func TestAShareIsNoSmallerThanAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &disk{synced: make(chan error)}
		g := New("g", 1, Options[int]{MaxTails: 1, MinShare: 5}, d.flush)
		var a answers
		for i := range 8 {
			submit(t, g, "ns", i, a.of(i))
			if i < 2 {
				synctest.Wait() // until it is under way, alone
			}
		}
		d.synced <- nil
		synctest.Wait()
		if diff := cmp.Diff([][]int{{0}, {1}, {2, 3, 4, 5, 6}}, d.all()); diff != "" {
			t.Errorf("flushes (-want +got):\n%s", diff)
		}
		close(d.synced)
		closed(t, g)
	})
}
