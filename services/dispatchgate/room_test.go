package dispatchgate

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"flexiq/pkg/configcache"
	"flexiq/pkg/store"
)

// start is when the tests of the room begin.
var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// hall is a room under test, with what it wanted done.
type hall struct {
	*room
	t       rapid.TB
	now     time.Time
	quotas  map[string]configcache.Quota // absent: to be loaded
	answers map[*waiter]reply
	order   []*waiter // as answered
}

func newHall(t rapid.TB) *hall {
	return &hall{room: newRoom(), t: t, now: start, quotas: map[string]configcache.Quota{}, answers: map[*waiter]reply{}}
}

func (h *hall) quotaOf(ns string) (configcache.Quota, bool) {
	q, ok := h.quotas[ns]
	return q, ok
}

// enter joins a claim of a namespace whose quota is known.
func (h *hall) enter(ns string, wait time.Duration, queues ...string) *waiter {
	h.t.Helper()
	if _, ok := h.quotas[ns]; !ok {
		h.quotas[ns] = configcache.Quota{}
	}
	w := &waiter{want: store.Want{Namespace: ns, Queues: queues, Max: 1}}
	h.join(w, h.now.Add(wait), h.now)
	h.collect()
	return w
}

// collect takes the replies and checks that nobody is answered twice.
func (h *hall) collect() {
	h.t.Helper()
	for _, a := range h.out {
		if _, twice := h.answers[a.w]; twice && !a.gone {
			h.t.Fatalf("claim %d of %s was answered twice", a.w.seq, a.w.want.Namespace)
		}
		h.answers[a.w] = a
		h.order = append(h.order, a.w)
	}
	h.out = nil
}

// pickAll picks once and names who was picked.
func (h *hall) pickAll() []*waiter {
	h.t.Helper()
	picked := h.pick(h.quotaOf)
	h.collect()
	return picked
}

// serve answers picked claims: got says whether each gets a job.
func (h *hall) serve(picked []*waiter, rest store.Grant, got ...bool) {
	h.t.Helper()
	grants := make([]store.Grant, len(picked))
	for i := range picked {
		if i < len(got) && got[i] {
			grants[i] = store.Grant{Jobs: make([]store.Leased, 1)}
		} else {
			grants[i] = rest
		}
	}
	h.result(picked, grants, nil, h.now)
	h.collect()
}

// settleDown serves rounds with nothing until nobody is hungry.
func (h *hall) settleDown() {
	h.t.Helper()
	for range 100 {
		picked := h.pickAll()
		if len(picked) == 0 && len(h.ring) == 0 {
			return
		}
		h.serve(picked, store.Grant{})
	}
	h.t.Fatal("the room does not settle down")
}

func (h *hall) wantAnswered(w *waiter, jobs int, err error) {
	h.t.Helper()
	a, ok := h.answers[w]
	if !ok || len(a.jobs) != jobs || !errors.Is(a.err, err) {
		h.t.Fatalf("answered: %t, %d jobs, %v; want %d jobs, %v", ok, len(a.jobs), a.err, jobs, err)
	}
}

func (h *hall) wantWaiting(ws ...*waiter) {
	h.t.Helper()
	for _, w := range ws {
		if a, ok := h.answers[w]; ok {
			h.t.Fatalf("claim %d was answered: %d jobs, %v", w.seq, len(a.jobs), a.err)
		}
	}
}

func TestNamespacesTakeTurns(t *testing.T) {
	t.Parallel()
	h := newHall(t)
	for range 3 {
		h.enter("a", time.Minute)
	}
	for range 2 {
		h.enter("b", time.Minute)
	}
	h.enter("c", time.Minute)
	got := func() (names []string) {
		picked := h.pickAll()
		for _, w := range picked {
			names = append(names, fmt.Sprint(w.want.Namespace, w.seq))
		}
		h.serve(picked, store.Grant{}, true, true, true, true, true)
		return names
	}
	if first, want := got(), []string{"a1", "b4", "c6"}; !slices.Equal(first, want) {
		t.Errorf("first round %v, want %v", first, want)
	}
	// All got work, so their lines may ask for more at once.
	if second, want := got(), []string{"a2", "b5", "a3"}; !slices.Equal(second, want) {
		t.Errorf("second round %v, want %v", second, want)
	}
}

func TestRoundIsBounded(t *testing.T) {
	t.Parallel()
	h := newHall(t)
	for i := range 5 {
		w := h.enter(fmt.Sprintf("ns-%d", i), time.Minute)
		w.want.Max = 400
	}
	picked := h.pickAll()
	if len(picked) != 2 {
		t.Fatalf("%d claims of 400 jobs in one round, want 2", len(picked))
	}
	h.serve(picked, store.Grant{})
	if next := h.pickAll(); len(next) != 2 || next[0].want.Namespace != "ns-2" {
		t.Errorf("the next round does not go on where the first one stopped")
	}
}

// A line whose claims all get work asks for more of them at once; one that ran
// dry starts over with one. The others are not asked for: the store said that
// there is nothing.
func TestLineGrowsWhileItIsServed(t *testing.T) {
	t.Parallel()
	h := newHall(t)
	var all []*waiter
	for range 20 {
		all = append(all, h.enter("a", time.Minute))
	}
	for _, want := range []int{1, 2, 4} {
		picked := h.pickAll()
		if len(picked) != want {
			t.Fatalf("%d claims in a round, want %d", len(picked), want)
		}
		h.serve(picked, store.Grant{}, true, true, true, true)
	}
	picked := h.pickAll()
	h.serve(picked, store.Grant{}, true, true, true)
	if len(picked) != 8 || len(h.pickAll()) != 0 {
		t.Fatalf("%d claims in the round that ran dry, want 8 and then none", len(picked))
	}
	h.wantWaiting(all[10:]...)
	if len(h.order) != 10 || !slices.Equal(h.order, all[:10]) {
		t.Error("claims were not served in their order")
	}
	h.wake("a")
	if n := len(h.pickAll()); n != 3 {
		t.Errorf("%d claims in the round after a wake-up, want the 3 that were served last", n)
	}
}

// A wake-up between the store's look and its answer is not lost.
func TestWakeWhileAsking(t *testing.T) {
	t.Parallel()
	h := newHall(t)
	w := h.enter("a", time.Minute)
	picked := h.pickAll()
	h.wake("a")
	h.serve(picked, store.Grant{})
	h.wantWaiting(w)
	again := h.pickAll()
	if len(again) != 1 || again[0] != w {
		t.Fatal("the line was parked although it was woken")
	}
	h.serve(again, store.Grant{})
	if len(h.pickAll()) != 0 {
		t.Fatal("the line is asked for without a reason")
	}
}

func TestClaimWithoutWait(t *testing.T) {
	t.Parallel()
	h := newHall(t)
	patient := h.enter("a", time.Minute)
	h.settleDown()
	hasty := h.enter("a", 0)
	h.wantWaiting(patient, hasty)
	h.settleDown()
	h.wantAnswered(hasty, 0, nil)
	h.wantWaiting(patient)

	// It came while the store was being asked, so that answer is not its own.
	h.wake("a")
	picked := h.pickAll()
	late := h.enter("a", 0)
	h.serve(picked, store.Grant{})
	h.wantWaiting(late)
	h.settleDown()
	h.wantAnswered(late, 0, nil)
}

func TestWaitEnds(t *testing.T) {
	t.Parallel()
	h := newHall(t)
	first, second := h.enter("a", time.Second), h.enter("a", time.Minute)
	h.settleDown()
	if next := h.next(); !next.Equal(start.Add(time.Second)) {
		t.Fatalf("the next appointment is at %s", next)
	}
	h.now = h.now.Add(time.Second)
	h.tick(h.now)
	h.collect()
	h.wantAnswered(first, 0, nil)
	h.wantWaiting(second)

	// A wait that ends while the store is asked ends with the store's answer.
	h.wake("a")
	picked := h.pickAll()
	h.now = start.Add(time.Minute)
	h.tick(h.now)
	h.collect()
	h.wantWaiting(second)
	h.serve(picked, store.Grant{}, true)
	h.wantAnswered(second, 1, nil)
	if len(h.tenants) != 0 || h.size != 0 || !h.next().IsZero() {
		t.Errorf("the empty room keeps %d namespaces, %d claims, an appointment at %s", len(h.tenants), h.size, h.next())
	}
}

func TestCallerGoesAway(t *testing.T) {
	t.Parallel()
	h := newHall(t)
	parked, asked := h.enter("a", time.Minute, "x"), h.enter("a", time.Minute, "y")
	picked := h.pickAll()
	h.serve(picked[:1], store.Grant{})
	h.leave(parked)
	h.leave(asked)
	grants := []store.Grant{{Jobs: make([]store.Leased, 1)}}
	h.result(picked[1:], grants, nil, h.now)
	if len(h.out) != 1 || !h.out[0].gone || h.out[0].w != asked {
		t.Fatalf("the jobs of a caller that went away are not released: %+v", h.out)
	}
	if len(h.tenants) != 0 || h.size != 0 {
		t.Error("the room keeps claims whose callers went away")
	}
}

func TestNextDueJob(t *testing.T) {
	t.Parallel()
	h := newHall(t)
	h.enter("a", time.Hour)
	due := start.Add(5 * time.Second)
	h.serve(h.pickAll(), store.Grant{NextAt: due})
	if !h.next().Equal(due) {
		t.Fatalf("the next appointment is at %s", h.next())
	}
	// Our clock runs ahead of the store's: the job is not due there yet. The
	// pauses grow, so that the difference is not spent in a loop.
	h.now = due
	asked := 0
	for h.now.Before(due.Add(10 * time.Second)) {
		h.tick(h.now)
		if picked := h.pickAll(); len(picked) > 0 {
			asked++
			h.serve(picked, store.Grant{NextAt: due})
		}
		h.now = h.next()
	}
	if asked < 5 || asked > 20 {
		t.Errorf("the store was asked %d times in 10 s of difference", asked)
	}
}

func TestLookRound(t *testing.T) {
	t.Parallel()
	h := newHall(t)
	w := h.enter("a", time.Minute, "x")
	h.settleDown()
	lines := h.parked()
	h.looked(lines[0], store.Readiness{NextAt: start.Add(3 * time.Second)}, h.now)
	if len(h.pickAll()) != 0 || !h.next().Equal(start.Add(3*time.Second)) {
		t.Fatalf("the next appointment is at %s", h.next())
	}
	h.looked(lines[0], store.Readiness{Ready: true}, h.now)
	if picked := h.pickAll(); len(picked) != 1 {
		t.Fatal("found work did not wake the line")
	}
	if len(h.parked()) != 0 {
		t.Error("a line is looked for while the store is asked for it")
	}
	h.leave(w)
}

func TestClose(t *testing.T) {
	t.Parallel()
	h := newHall(t)
	asked, parked := h.enter("a", time.Minute, "x"), h.enter("a", time.Minute, "y")
	hungry := h.enter("b", time.Minute)
	picked := []*waiter{}
	for _, w := range h.pickAll() {
		if w == asked {
			picked = append(picked, w)
		} else {
			h.serve([]*waiter{w}, store.Grant{})
		}
	}
	h.wake("b")
	h.close()
	h.collect()
	h.wantAnswered(parked, 0, nil)
	h.wantAnswered(hungry, 0, nil)
	h.wantWaiting(asked)
	h.wantAnswered(h.enter("c", time.Minute), 0, nil)
	h.wake("a")
	if len(h.pickAll()) != 0 {
		t.Fatal("a closed room asks the store")
	}
	h.serve(picked, store.Grant{}, true)
	h.wantAnswered(asked, 1, nil)
	if h.asked != 0 || h.size != 0 || len(h.tenants) != 0 {
		t.Error("the closed room is not empty")
	}
}
