package configcache

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"flexiq/pkg/store"
)

// TestNeverAnOlderValueAfterANewer hammers a cache and its poller with
// commits, slow and failing loads, and hints that are lost, doubled, late, out
// of order and forged, and holds every answer against what the store held when.
func TestNeverAnOlderValueAfterANewer(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := &world{
			rand:    rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 0)),
			keys:    rapid.IntRange(1, 3).Draw(rt, "keys"),
			entries: rapid.SampledFrom([]int{1, 2, 100}).Draw(rt, "entries"),
			fails:   rapid.SampledFrom([]float64{0, 0.1, 0.5}).Draw(rt, "fails"),
			hinted:  rapid.SampledFrom([]float64{0, 0.5}).Draw(rt, "hinted"),
			slow:    rapid.SampledFrom([]time.Duration{time.Millisecond, 300 * time.Millisecond, 3 * time.Second}).Draw(rt, "slow"),
		}
		synctest.Test(t, func(t *testing.T) { w.run(t.Context(), 10*time.Second) })
		if broken := w.judge(); broken != "" {
			rt.Fatal(broken)
		}
	})
}

// world is a store with a history, its readers, and what they saw.
type world struct {
	keys, entries int
	fails, hinted float64
	slow          time.Duration
	start         time.Time

	mu      sync.Mutex
	rand    *rand.Rand
	commits []commit // the value of a key is the index + 1 of its last commit
	hints   []hint
	seen    []sight
}

type commit struct {
	key string
	at  time.Duration // since the start
}

// hint is a newer revision that the cache was told of.
type hint struct {
	key      string
	revision int64
	at       time.Duration
}

// sight is one answer of the cache.
type sight struct {
	key        string
	begin, end time.Duration
	value      int64
}

func (w *world) run(ctx context.Context, length time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, length)
	defer cancel()
	w.start = time.Now()
	poller := NewPoller(w, nil)
	c := New(Options[int64]{
		Load:       w.load,
		Revision:   func(v int64) int64 { return v },
		Fresh:      poller.Fresh,
		MaxEntries: w.entries,
	})
	defer c.Close()
	poller.handle = func(changes []store.Change) {
		for _, change := range changes {
			c.Invalidate(change.Key, 0)
		}
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { _ = poller.Run(ctx) })
	for range 3 {
		wg.Go(func() { w.write(ctx, c, &wg) })
		wg.Go(func() { w.read(ctx, c) })
		wg.Go(func() { w.read(ctx, c) })
	}
}

// upTo returns a random duration.
func (w *world) upTo(d time.Duration) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Duration(w.rand.Int64N(int64(d)))
}

func (w *world) chance(p float64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.rand.Float64() < p
}

func (w *world) key() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return fmt.Sprint(w.rand.IntN(w.keys))
}

// write commits and sends hints, unreliably.
func (w *world) write(ctx context.Context, c *Cache[int64], wg *sync.WaitGroup) {
	for sleep(ctx, w.upTo(700*time.Millisecond)) == nil {
		key := w.key()
		w.mu.Lock()
		w.commits = append(w.commits, commit{key, time.Since(w.start)})
		revision := int64(len(w.commits))
		w.mu.Unlock()
		for w.chance(w.hinted) {
			wg.Go(func() {
				if sleep(ctx, w.upTo(400*time.Millisecond)) == nil {
					c.Invalidate(key, revision)
					w.mu.Lock()
					w.hints = append(w.hints, hint{key, revision, time.Since(w.start)})
					w.mu.Unlock()
				}
			})
		}
		switch {
		case w.chance(0.05):
			c.Invalidate(key, 1<<62) // forged
		case w.chance(0.05):
			c.DropAll()
		}
	}
}

func (w *world) read(ctx context.Context, c *Cache[int64]) {
	for sleep(ctx, w.upTo(30*time.Millisecond)) == nil {
		s := sight{key: w.key(), begin: time.Since(w.start)}
		var ok bool
		if w.chance(0.5) {
			s.value, ok = c.Peek(s.key)
		} else {
			var err error
			s.value, err = c.Get(ctx, s.key)
			ok = err == nil
		}
		s.end = time.Since(w.start)
		w.mu.Lock()
		if ok {
			w.seen = append(w.seen, s)
		}
		w.mu.Unlock()
	}
}

// value is what the store holds now. The caller has the lock.
func (w *world) value(key string) int64 {
	for i := len(w.commits) - 1; i >= 0; i-- {
		if w.commits[i].key == key {
			return int64(i + 1)
		}
	}
	return 0
}

func (w *world) load(ctx context.Context, keys []string) ([]int64, error) {
	if err := sleep(ctx, w.upTo(w.slow)); err != nil {
		return nil, err
	}
	w.mu.Lock()
	values := make([]int64, len(keys))
	for i, k := range keys {
		values[i] = w.value(k)
	}
	w.mu.Unlock()
	if err := sleep(ctx, w.upTo(w.slow)); err != nil {
		return nil, err
	}
	if w.chance(w.fails) {
		return nil, errors.New("load failed")
	}
	return values, nil
}

// Changes implements [Source].
func (w *world) Changes(ctx context.Context, since int64, limit int) (store.Changes, error) {
	if err := sleep(ctx, w.upTo(w.slow)); err != nil {
		return store.Changes{}, err
	}
	w.mu.Lock()
	out := store.Changes{Latest: int64(len(w.commits))}
	for _, c := range w.commits[since:] {
		if change := (store.Change{Kind: store.KindQuota, Key: c.key}); !slices.Contains(out.Items, change) {
			out.Items = append(out.Items, change)
		}
	}
	w.mu.Unlock()
	if err := sleep(ctx, w.upTo(w.slow)); err != nil {
		return store.Changes{}, err
	}
	if w.chance(w.fails) {
		return store.Changes{}, errors.New("poll failed")
	}
	return out, nil
}

// judge returns what is wrong with the answers, or nothing.
func (w *world) judge() string {
	if len(w.seen) == 0 && w.fails == 0 && w.slow < Validity {
		return "the cache never answered"
	}
	for _, s := range w.seen {
		// Old: the next commit of the key came more than two seconds before.
		for i, c := range w.commits[s.value:] {
			if c.key != s.key {
				continue
			}
			if s.begin-c.at > Validity {
				return fmt.Sprintf("%+v was answered although %d was committed at %v", s, s.value+int64(i+1), c.at)
			}
			break
		}
		// After a hint was heard nothing older is answered.
		for _, h := range w.hints {
			if h.key == s.key && h.at < s.begin && s.value < h.revision {
				return fmt.Sprintf("%+v was answered after the hint %+v", s, h)
			}
		}
	}
	return w.judgeOrder()
}

// judgeOrder checks that who asks after an answer gets nothing older than it.
func (w *world) judgeOrder() string {
	ended := slices.Clone(w.seen)
	slices.SortFunc(ended, func(a, b sight) int { return cmp.Compare(a.end, b.end) })
	slices.SortFunc(w.seen, func(a, b sight) int { return cmp.Compare(a.begin, b.begin) })
	newest := map[string]sight{} // of the answers that ended before
	for _, later := range w.seen {
		for len(ended) > 0 && ended[0].end < later.begin {
			if earlier := ended[0]; earlier.value >= newest[earlier.key].value {
				newest[earlier.key] = earlier
			}
			ended = ended[1:]
		}
		if earlier := newest[later.key]; later.value < earlier.value {
			return fmt.Sprintf("%+v was answered after %+v", later, earlier)
		}
	}
	return ""
}
