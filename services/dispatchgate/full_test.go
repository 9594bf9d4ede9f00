package dispatchgate

import (
	"testing"
	"testing/synctest"
	"time"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/store"
)

// A namespace whose slots are full costs the store next to nothing, however
// much is enqueued into it and however many workers ask, and is served at once
// when a slot is free.
func TestFullNamespaceIsCheap(t *testing.T) {
	t.Parallel()
	simulated(t, true, func(t *testing.T, gate *Service, s *asked, _ *ears) {
		slots := 0
		s.with(func() {
			s.grant = func(w store.Want) store.Grant {
				n := min(slots, w.Max)
				slots -= n
				g := store.Grant{Jobs: make([]store.Leased, n)}
				if slots == 0 {
					g.Held = []store.Hold{{What: store.HoldMaxRunning}}
				}
				return g
			}
			s.ready = func(store.Interest) store.Readiness { return store.Readiness{Ready: true} }
		})
		got := 0
		claim := func(queue string, wait time.Duration) {
			for range int(10*time.Second/max(wait, time.Second)) + 1 {
				done := make(chan int, 1)
				gate.claim(worker(t.Context(), "full"), &flexiqv1.ClaimRequest{Queues: []string{queue}, Wait: durationOf(wait)}, func(res *flexiqv1.ClaimResponse, _ error) { done <- len(res.GetJobs()) })
				n := <-done
				s.with(func() { got += n })
				if wait == 0 {
					time.Sleep(time.Second)
				}
			}
		}
		for i := range 200 { // workers with long polls, and others that ask once a second
			go claim([]string{"a", "b", "c"}[i%3], time.Duration(i%2)*5*time.Second)
		}
		for range 10_000 {
			time.Sleep(time.Millisecond)
			gate.Woken([]string{"full"})
		}
		s.with(func() {
			if n := len(s.turns) + len(s.looks); n > 70 {
				t.Errorf("10 s cost %d store calls", n)
			}
			if got != 0 {
				t.Errorf("%d jobs were handed out", got)
			}
			slots = 7
		})
		gate.Freed([]string{"full"})
		synctest.Wait()
		s.with(func() {
			if got != 7 {
				t.Errorf("%d of 7 free slots were given away at once", got)
			}
		})
		time.Sleep(20 * time.Second)
	})
}

// A pause or a cap of one queue or task does not hold up other work of the
// namespace, and a saturated one is not asked for at each enqueue.
func TestNarrowHold(t *testing.T) {
	t.Parallel()
	h := newHall(t)
	narrow := store.Grant{Held: []store.Hold{{What: store.HoldTask, Name: "t"}}}
	first, second := h.enter("a", time.Minute), h.enter("a", time.Minute)
	h.serve(h.pickAll(), narrow)
	h.wantWaiting(first, second)
	if len(h.pickAll()) != 0 {
		t.Fatal("held work is asked for in a loop")
	}
	h.wake("a") // other work, perhaps
	h.serve(h.pickAll(), narrow, true)
	h.wantAnswered(first, 1, nil)
	h.serve(h.pickAll(), narrow)
	if len(h.pickAll()) != 0 {
		t.Fatal("held work is asked for in a loop")
	}
	h.freed("a") // a slot of the task, perhaps
	asked := len(h.pickAll())
	if asked != 1 {
		t.Fatal("a free slot did not wake it")
	}
}

func TestVainHintsAreSpread(t *testing.T) {
	t.Parallel()
	simulated(t, true, func(t *testing.T, gate *Service, s *asked, _ *ears) {
		s.with(func() {
			s.grant = func(store.Want) store.Grant {
				return store.Grant{Held: []store.Hold{{What: store.HoldPausedQueue, Name: "q"}}}
			}
		})
		done := ends(t, gate, "a", 20*time.Second)
		for range 10_000 {
			time.Sleep(time.Millisecond)
			gate.Woken([]string{"a"})
		}
		s.with(func() {
			if n := len(s.turns); n > 150 {
				t.Errorf("10 s of hints about held work cost %d turns", n)
			}
			s.grant = func(store.Want) store.Grant { return store.Grant{Jobs: make([]store.Leased, 1)} }
		})
		gate.QuotaChanged("a")
		synctest.Wait()
		select {
		case <-done:
		default:
			t.Error("the change did not wake it at once")
		}
	})
}
