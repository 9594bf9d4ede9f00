package dispatchgate

import (
	"errors"
	"slices"
	"testing"
	"time"

	"flexiq/pkg/configcache"
	"flexiq/pkg/fault"
	"flexiq/pkg/quota"
	"flexiq/pkg/store"
)

// A namespace at its cap leaves the rounds until a slot may be free.
func TestAtCap(t *testing.T) {
	t.Parallel()
	h := newHall(t)
	first, second := h.enter("a", time.Minute), h.enter("a", time.Minute)
	picked := h.pickAll()
	h.result(picked, []store.Grant{{Jobs: make([]store.Leased, 1), Held: []store.Hold{{What: store.HoldMaxRunning}}}}, nil, h.now)
	h.collect()
	h.wantAnswered(first, 1, nil)
	if len(h.pickAll()) != 0 {
		t.Fatal("a namespace at its cap is asked for")
	}
	h.freed("b")
	if len(h.pickAll()) != 0 {
		t.Fatal("another namespace's slot woke it")
	}
	h.freed("a")
	if again := h.pickAll(); len(again) != 1 || again[0] != second {
		t.Fatal("a free slot did not wake it")
	}
	h2 := newHall(t)
	h2.enter("a", time.Minute)
	h2.settleDown()
	h2.freed("a")
	if len(h2.pickAll()) != 0 {
		t.Fatal("a free slot woke a namespace that only lacks work")
	}
}

func TestColdQuota(t *testing.T) {
	t.Parallel()
	h := newHall(t)
	h.enter("a", time.Minute)
	delete(h.quotas, "a")
	if len(h.pickAll()) != 0 || !slices.Equal(h.cold, []string{"a"}) {
		t.Fatalf("to be loaded: %v", h.cold)
	}
	h.wake("a")
	if len(h.pickAll()) != 0 || len(h.cold) != 1 {
		t.Fatal("the quota is loaded twice at a time")
	}
	// What was loaded is used although the cache does not hold it.
	n := int64(3)
	h.loaded("a", configcache.Quota{Quota: quota.Quota{MaxRunning: &n}, Stamp: store.Stamp{Revision: 7}}, nil)
	picked := h.pickAll()
	if len(picked) != 1 || *picked[0].want.MaxRunning != 3 || picked[0].want.Stamp.Revision != 7 {
		t.Fatalf("picked %d claims", len(picked))
	}
}

func TestQuotaCannotBeLoaded(t *testing.T) {
	t.Parallel()
	h := newHall(t)
	hasty, patient := h.enter("a", 0), h.enter("a", time.Minute)
	delete(h.quotas, "a")
	h.pickAll()
	down := fault.New(fault.StorageUnavailable, "down")
	h.loaded("a", configcache.Quota{}, down)
	h.collect()
	h.wantAnswered(hasty, 0, down)
	h.wantWaiting(patient)
	if len(h.pickAll()) != 0 {
		t.Fatal("the load is repeated in a loop")
	}
	h.now = h.now.Add(time.Minute)
	h.tick(h.now)
	h.collect()
	h.wantAnswered(patient, 0, down)
}

// Under an unreadable quota claims wait and end empty; a wake-up looks again.
func TestUnreadableQuota(t *testing.T) {
	t.Parallel()
	h := newHall(t)
	patient, hasty := h.enter("a", time.Minute), h.enter("a", 0)
	h.quotas["a"] = configcache.Quota{Err: errors.New("unreadable")}
	if len(h.pickAll()) != 0 {
		t.Fatal("the store is asked under an unreadable quota")
	}
	h.wantAnswered(hasty, 0, nil)
	h.wantWaiting(patient)
	other := h.enter("b", time.Minute)
	if picked := h.pickAll(); len(picked) != 1 || picked[0] != other {
		t.Fatal("another namespace is held up")
	} else {
		h.serve(picked, store.Grant{})
	}
	if lines := h.parked(); len(lines) != 1 {
		t.Fatalf("%d lines are looked for, want the other namespace's", len(lines))
	}
	h.quotas["a"] = configcache.Quota{}
	if picked := h.pickAll(); len(picked) != 1 || picked[0] != patient {
		t.Fatal("the repaired quota does not let it go on")
	}
}

func TestStaleQuota(t *testing.T) {
	t.Parallel()
	h := newHall(t)
	w := h.enter("a", 0)
	stale := store.Grant{Err: store.ErrStale}
	for range maxStale {
		h.serve(h.pickAll(), stale)
		h.wantWaiting(w)
		if len(h.stale) != 1 || len(h.pickAll()) != 0 {
			t.Fatal("a stale quota is not loaded before it is used again")
		}
		h.stale = nil
		h.loaded("a", configcache.Quota{}, nil)
	}
	h.serve(h.pickAll(), stale)
	if a := h.answers[w]; !fault.Is(a.err, fault.Overloaded) {
		t.Fatalf("a quota that keeps changing: %v", a.err)
	}
}

func TestStoreFails(t *testing.T) {
	t.Parallel()
	h := newHall(t)
	hasty, patient := h.enter("a", 0), h.enter("a", time.Minute)
	down := fault.New(fault.StorageUnavailable, "down")
	h.result(h.pickAll(), nil, down, h.now)
	h.collect()
	h.wantAnswered(hasty, 0, down)
	h.wantWaiting(patient)
	if len(h.pickAll()) != 0 {
		t.Fatal("a failing store is asked in a loop")
	}
	lines := h.parked()
	if len(lines) != 1 {
		t.Fatalf("%d lines are looked for", len(lines))
	}
	// The store answers again: the wait ends empty and not with an old error.
	h.looked(lines[0], store.Readiness{}, h.now)
	h.now = h.now.Add(time.Minute)
	h.tick(h.now)
	h.collect()
	h.wantAnswered(patient, 0, nil)
}
