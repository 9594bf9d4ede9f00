package configcache

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"flexiq/pkg/fault"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// source is a store of integers, of which the value is the revision. A load
// reads after delay and answers after delay once more.
type source struct {
	mu    sync.Mutex
	value map[string]int64
	loads [][]string
	fail  error
	delay time.Duration
}

func (s *source) load(ctx context.Context, keys []string) ([]int64, error) {
	s.mu.Lock()
	delay, fail := s.delay, s.fail
	s.loads = append(s.loads, slices.Sorted(slices.Values(keys)))
	s.mu.Unlock()
	if err := sleep(ctx, delay); err != nil {
		return nil, err
	}
	values := make([]int64, len(keys))
	s.mu.Lock()
	for i, k := range keys {
		values[i] = s.value[k]
	}
	s.mu.Unlock()
	if err := sleep(ctx, delay); err != nil {
		return nil, err
	}
	return values, fail
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *source) set(key string, value int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.value == nil {
		s.value = make(map[string]int64)
	}
	s.value[key] = value
}

func (s *source) failing(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail = err
}

func (s *source) loaded() [][]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.loads)
}

// inBubble runs a test on fake time with a cache of src.
func inBubble(t *testing.T, opts Options[int64], src *source, test func(t *testing.T, c *Cache[int64])) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		opts.Load = src.load
		opts.Revision = func(v int64) int64 { return v }
		c := New(opts)
		defer c.Close()
		test(t, c)
	})
}

func mustGet(t *testing.T, c *Cache[int64], key string, want int64) {
	t.Helper()
	if got, err := c.Get(t.Context(), key); err != nil || got != want {
		t.Fatalf("Get(%s) = %d, %v, want %d", key, got, err, want)
	}
}

func mustPeek(t *testing.T, c *Cache[int64], key string, want int64, wantOK bool) {
	t.Helper()
	if got, ok := c.Peek(key); got != want || ok != wantOK {
		t.Fatalf("Peek(%s) = %d, %v, want %d, %v", key, got, ok, want, wantOK)
	}
}

func TestAnEntryIsValidForTwoSecondsFromTheStartOfItsLoad(t *testing.T) {
	src := &source{value: map[string]int64{"k": 1}, delay: 200 * time.Millisecond}
	inBubble(t, Options[int64]{}, src, func(t *testing.T, c *Cache[int64]) {
		mustPeek(t, c, "k", 0, false)
		mustGet(t, c, "k", 1) // took 400 ms
		time.Sleep(Validity - 400*time.Millisecond - time.Nanosecond)
		mustPeek(t, c, "k", 1, true)
		time.Sleep(time.Nanosecond)
		mustPeek(t, c, "k", 0, false)
		src.set("k", 2)
		mustGet(t, c, "k", 2)
		if n := len(src.loaded()); n != 2 {
			t.Errorf("%d loads, want 2", n)
		}
	})
}

func TestFreshKeepsEntriesValidInBulk(t *testing.T) {
	fresh := true
	src := &source{value: map[string]int64{"k": 1}}
	inBubble(t, Options[int64]{Fresh: func() bool { return fresh }}, src, func(t *testing.T, c *Cache[int64]) {
		mustGet(t, c, "k", 1)
		time.Sleep(time.Hour)
		mustPeek(t, c, "k", 1, true)
		fresh = false
		mustPeek(t, c, "k", 0, false)
		fresh = true // a poll went well and told of no change
		mustPeek(t, c, "k", 1, true)
		if n := len(src.loaded()); n != 1 {
			t.Errorf("%d loads, want 1", n)
		}
	})
}

func TestAnUnreachableStoreIsNeverAnsweredWithAnOldValue(t *testing.T) {
	src := &source{value: map[string]int64{"k": 1}}
	inBubble(t, Options[int64]{}, src, func(t *testing.T, c *Cache[int64]) {
		mustGet(t, c, "k", 1)
		src.failing(fault.New(fault.StorageUnavailable, "down"))
		mustGet(t, c, "k", 1)
		time.Sleep(Validity)
		if _, err := c.Get(t.Context(), "k"); !fault.Is(err, fault.StorageUnavailable) {
			t.Fatalf("Get with an old entry and no store: %v", err)
		}
	})
}

func TestInvalidateComparesRevisions(t *testing.T) {
	tests := map[string]struct {
		revision int64
		kept     bool
	}{
		"a newer one drops":        {8, false},
		"the same changes nothing": {7, true},
		"an older changes nothing": {3, true},
		"none drops":               {0, false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			src := &source{value: map[string]int64{"k": 7}}
			inBubble(t, Options[int64]{}, src, func(t *testing.T, c *Cache[int64]) {
				mustGet(t, c, "k", 7)
				c.Invalidate("k", tc.revision)
				c.Invalidate("stranger", tc.revision)
				if _, ok := c.Peek("k"); ok != tc.kept {
					t.Errorf("kept = %v, want %v", ok, tc.kept)
				}
				mustGet(t, c, "k", 7)
			})
		})
	}
}

func TestALoadFromBeforeAChangeIsNotKept(t *testing.T) {
	drops := map[string]func(c *Cache[int64]){
		"hint": func(c *Cache[int64]) { c.Invalidate("k", 2) },
		"poll": func(c *Cache[int64]) { c.Invalidate("k", 0) },
		"all":  func(c *Cache[int64]) { c.DropAll() },
	}
	for name, drop := range drops {
		t.Run(name, func(t *testing.T) {
			src := &source{value: map[string]int64{"k": 1}, delay: 100 * time.Millisecond}
			inBubble(t, Options[int64]{}, src, func(t *testing.T, c *Cache[int64]) {
				before := make(chan int64)
				go func() {
					v, _ := c.Get(t.Context(), "k")
					before <- v
				}()
				time.Sleep(150 * time.Millisecond) // the load has read 1
				src.set("k", 2)
				drop(c)
				after := make(chan int64, 10)
				for range cap(after) {
					go func() {
						v, _ := c.Get(t.Context(), "k")
						after <- v
					}()
				}
				if v := <-before; v != 1 {
					t.Errorf("who asked before the change got %d, want 1", v)
				}
				synctest.Wait()
				mustPeek(t, c, "k", 0, false)
				for range cap(after) {
					if v := <-after; v != 2 {
						t.Errorf("who asked after the change got %d, want 2", v)
					}
				}
				mustPeek(t, c, "k", 2, true)
				if n := len(src.loaded()); n != 2 {
					t.Errorf("%d loads, want 2", n)
				}
			})
		})
	}
}

func TestManyColdKeysAreOneLoad(t *testing.T) {
	src := &source{delay: 10 * time.Millisecond}
	inBubble(t, Options[int64]{}, src, func(t *testing.T, c *Cache[int64]) {
		var wg sync.WaitGroup
		for round := range 3 {
			for i := range 600 {
				wg.Go(func() { mustGet(t, c, fmt.Sprintf("%04d", i), 0) })
				if round == 0 && i < loadsAtOnce {
					synctest.Wait() // a load for it is under way
				}
			}
		}
		wg.Wait()
		var sizes []int
		for _, keys := range src.loaded() {
			sizes = append(sizes, len(keys))
		}
		slices.Sort(sizes)
		if diff := cmp.Diff([]int{1, 1, 98, loadKeys}, sizes); diff != "" {
			t.Errorf("keys of the loads (-want +got):\n%s", diff)
		}
	})
}

func TestAbsenceIsKept(t *testing.T) {
	src := &source{}
	inBubble(t, Options[int64]{}, src, func(t *testing.T, c *Cache[int64]) {
		mustGet(t, c, "nobody", 0)
		mustPeek(t, c, "nobody", 0, true)
	})
}

func TestErrorsAreNotKeptAndAKeyPauses(t *testing.T) {
	down := errors.New("down")
	src := &source{value: map[string]int64{"k": 1, "other": 2}, fail: down}
	inBubble(t, Options[int64]{}, src, func(t *testing.T, c *Cache[int64]) {
		start := time.Now()
		if _, err := c.Get(t.Context(), "k"); !errors.Is(err, down) {
			t.Fatalf("Get = %v, want the loader's error", err)
		}
		src.failing(nil)
		mustGet(t, c, "other", 2)
		if since := time.Since(start); since != 0 {
			t.Errorf("another key waited %v, want no pause", since)
		}
		mustGet(t, c, "k", 1)
		if since := time.Since(start); since != failurePause {
			t.Errorf("the failed key was loaded after %v, want %v", since, failurePause)
		}
	})
}

func TestTheCallersContextEndsTheWaitAlone(t *testing.T) {
	src := &source{value: map[string]int64{"k": 1}, delay: 500 * time.Millisecond}
	inBubble(t, Options[int64]{}, src, func(t *testing.T, c *Cache[int64]) {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if _, err := c.Get(ctx, "k"); !fault.Is(err, fault.DeadlineExceeded) {
			t.Errorf("Get = %v, want DEADLINE_EXCEEDED", err)
		}
		time.Sleep(time.Second)
		mustPeek(t, c, "k", 1, true)

		src.failing(errors.New("down"))
		c.DropAll()
		_, _ = c.Get(t.Context(), "k")
		paused, cancel := context.WithTimeout(t.Context(), failurePause/2)
		defer cancel()
		if _, err := c.Get(paused, "k"); !fault.Is(err, fault.DeadlineExceeded) {
			t.Errorf("Get in the pause = %v, want DEADLINE_EXCEEDED", err)
		}
	})
}

func TestALoadThatHangsEndsAtItsDeadline(t *testing.T) {
	src := &source{delay: time.Hour}
	inBubble(t, Options[int64]{}, src, func(t *testing.T, c *Cache[int64]) {
		start := time.Now()
		_, err := c.Get(t.Context(), "k")
		if !fault.Is(err, fault.StorageUnavailable) || time.Since(start) != loadTimeout {
			t.Errorf("Get = %v after %v, want STORAGE_UNAVAILABLE after %v", err, time.Since(start), loadTimeout)
		}
	})
}

func TestABrokenLoaderIsAnInternalError(t *testing.T) {
	loaders := map[string]func(context.Context, []string) ([]int, error){
		"panics":          func(context.Context, []string) ([]int, error) { panic("broken") },
		"answers too few": func(context.Context, []string) ([]int, error) { return nil, nil },
	}
	for name, load := range loaders {
		t.Run(name, func(t *testing.T) {
			c := New(Options[int]{Load: load})
			defer c.Close()
			if _, err := c.Get(t.Context(), "k"); !fault.Is(err, fault.Internal) {
				t.Errorf("Get = %v, want INTERNAL", err)
			}
		})
	}
}

func TestTheCacheIsBounded(t *testing.T) {
	const size = 10
	src := &source{}
	inBubble(t, Options[int64]{MaxEntries: size}, src, func(t *testing.T, c *Cache[int64]) {
		mustGet(t, c, "busy", 0)
		for i := range 50 * size {
			mustGet(t, c, fmt.Sprint(i), 0)
			mustPeek(t, c, "busy", 0, true)
		}
		if n := len(c.slots); n != size || len(c.ring.slots) != size {
			t.Errorf("%d slots and %d in the ring, want %d", n, len(c.ring.slots), size)
		}
		for _, s := range c.ring.slots {
			if c.slots[s.key] != s {
				t.Errorf("the slot of %s is in the ring alone", s.key)
			}
		}
	})
}

func TestSlotsThatAreWaitedForAreNotEvicted(t *testing.T) {
	src := &source{delay: time.Second}
	inBubble(t, Options[int64]{MaxEntries: 2}, src, func(t *testing.T, c *Cache[int64]) {
		var wg sync.WaitGroup
		for i := range 6 {
			wg.Go(func() { mustGet(t, c, fmt.Sprint(i), 0) })
		}
		wg.Wait()
		for i, keys := range src.loaded() {
			if i < loadsAtOnce && len(keys) != 1 || len(keys) > 4 {
				t.Errorf("loads %v", src.loaded())
			}
		}
	})
}

func TestCloseEndsEveryWait(t *testing.T) {
	src := &source{delay: time.Hour}
	inBubble(t, Options[int64]{}, src, func(t *testing.T, c *Cache[int64]) {
		failed := make(chan error, 10)
		get := func(key string) {
			go func() {
				_, err := c.Get(t.Context(), key)
				failed <- err
			}()
			synctest.Wait()
		}
		for i := range loadsAtOnce {
			get(fmt.Sprint("loading", i))
		}
		get("queued")
		c.Invalidate("loading0", 0)
		get("loading0")
		c.Close()
		c.Close()
		get("late")
		for range loadsAtOnce + 3 {
			if err := <-failed; !fault.Is(err, fault.StorageUnavailable) {
				t.Errorf("Get of a closed cache = %v, want STORAGE_UNAVAILABLE", err)
			}
		}
	})
}

func BenchmarkPeek(b *testing.B) {
	c := New(Options[int64]{Load: (&source{}).load, Fresh: func() bool { return true }})
	defer c.Close()
	if _, err := c.Get(b.Context(), "k"); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, ok := c.Peek("k"); !ok {
				b.Fatal("the entry is gone")
			}
		}
	})
}
