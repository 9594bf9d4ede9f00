package batch

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"
)

// TestQueueModel drives a queue against the promises of its comment: calls of
// a key stay in order, a flush keeps to its weight, none is lost or doubled,
// and keys that both wait all the time get equal shares by weight.
func TestQueueModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const heaviest = 8
		var q queue[int, int]
		room := rapid.IntRange(1, 20).Draw(t, "room")
		keys := make([]*turn[int, int], rapid.IntRange(1, 5).Draw(t, "keys"))
		for i := range keys {
			keys[i] = &turn[int, int]{key: fmt.Sprint(i)}
		}
		pushed, taken := make([]int, len(keys)), make([]int, len(keys))
		index := func(tn *turn[int, int]) int {
			for i := range keys {
				if keys[i] == tn {
					return i
				}
			}
			t.Fatalf("a call of an unknown key")
			return 0
		}
		push := func(i, weight int) {
			q.push(call[int, int]{in: pushed[i], of: keys[i], weight: weight})
			pushed[i]++
		}
		take := func() (weights []int) {
			weights = make([]int, len(keys))
			total := 0
			calls := q.take(room, 1<<30)
			for _, c := range calls {
				i := index(c.of)
				if c.in != taken[i] {
					t.Fatalf("key %d: got call %d, want %d", i, c.in, taken[i])
				}
				taken[i]++
				total += c.weight
				weights[i] += c.weight
			}
			if total > room && len(calls) > 1 {
				t.Fatalf("a flush of %d calls weighs %d, more than %d", len(calls), total, room)
			}
			return weights
		}
		t.Repeat(map[string]func(*rapid.T){
			"push": func(t *rapid.T) {
				push(rapid.IntRange(0, len(keys)-1).Draw(t, "key"), rapid.IntRange(1, heaviest).Draw(t, "weight"))
			},
			"take": func(t *rapid.T) {
				waited := fmt.Sprint(pushed) != fmt.Sprint(taken)
				before := fmt.Sprint(taken)
				if take(); waited && before == fmt.Sprint(taken) {
					t.Fatal("calls wait and none was taken")
				}
			},
		})
		for fmt.Sprint(pushed) != fmt.Sprint(taken) {
			take()
		}

		shares := make([]int, len(keys))
		for range 50 {
			for i := range keys {
				for pushed[i]-taken[i] <= room { // never lets a key run dry
					push(i, rapid.IntRange(1, heaviest).Draw(t, "weight"))
				}
			}
			for i, w := range take() {
				shares[i] += w
			}
			for i := range keys {
				for j := range keys {
					if d := shares[i] - shares[j]; d > 2*heaviest {
						t.Fatalf("shares %v drifted apart by %d", shares, d)
					}
				}
			}
		}
	})
}

// TestEveryCallIsAnsweredOnce hammers a group from many goroutines while its
// flush fails and panics now and then, and closes it in the middle.
func TestEveryCallIsAnsweredOnce(t *testing.T) {
	const clients, each = 8, 500
	var flushes atomic.Int64
	var busy [3]atomic.Int32 // flushes under way, by key
	g := New("g", 2, Options[int]{MaxCalls: 64, MaxItems: 10}, func(_ context.Context, in []int) ([]int, error) {
		seen := map[int]bool{}
		for _, n := range in {
			seen[n%3] = true
		}
		for key := range seen {
			if busy[key].Add(1) != 1 {
				t.Errorf("key %d is in two flushes at once", key)
			}
			defer busy[key].Add(-1)
		}
		switch flushes.Add(1) % 10 {
		case 3:
			return nil, fmt.Errorf("flush failed")
		case 7:
			panic("flush panicked")
		}
		runtime.Gosched()
		return in, nil
	})
	var answered [clients * each]atomic.Int32
	var admitted [clients * each]bool
	var wg sync.WaitGroup
	for c := range clients {
		wg.Go(func() {
			for i := range each {
				n := c*each + i
				admitted[n] = g.Submit(fmt.Sprint(n%3), 1, n, func(out int, err error) {
					if err == nil && out != n {
						t.Errorf("call %d was answered with %d", n, out)
					}
					answered[n].Add(1)
				}) == nil
				if n == clients*each/2 {
					wg.Go(func() { closed(t, g) })
				}
				runtime.Gosched()
			}
		})
	}
	wg.Wait()
	closed(t, g)
	for n := range answered {
		want := int32(0)
		if admitted[n] {
			want = 1
		}
		if got := answered[n].Load(); got != want {
			t.Errorf("call %d was answered %d times, want %d", n, got, want)
		}
	}
}

func BenchmarkSubmit(b *testing.B) {
	for _, keys := range []int{1, 100, 10_000} {
		b.Run(fmt.Sprintf("keys=%d", keys), func(b *testing.B) {
			names := make([]string, keys)
			for i := range names {
				names[i] = fmt.Sprintf("namespace-%d", i)
			}
			g := New("g", 4, Options[int]{MaxCalls: 1 << 30, MaxBytes: 1 << 40}, echo)
			var wg sync.WaitGroup
			done := func(int, error) { wg.Done() }
			b.ReportAllocs()
			for i := range b.N {
				wg.Add(1)
				if err := g.Submit(names[i%keys], 100, i, done); err != nil {
					b.Fatal(err)
				}
			}
			wg.Wait()
			if err := g.Close(b.Context()); err != nil {
				b.Fatal(err)
			}
		})
	}
}

func BenchmarkDo(b *testing.B) {
	g := New("g", 4, Options[int]{}, echo)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := g.Do(b.Context(), "ns", 100, 1); err != nil {
				b.Fatal(err)
			}
		}
	})
	if err := g.Close(context.Background()); err != nil {
		b.Fatal(err)
	}
}
