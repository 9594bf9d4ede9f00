package dispatchgate

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"flexiq/pkg/configcache"
	"flexiq/pkg/quota"
	"flexiq/pkg/store"
)

// world is the simplest store that a room can meet: numbers of due jobs by
// namespace and queue, a cap, and a quota whose revision moves.
type world struct {
	due      map[string]map[string]int
	running  map[string]int
	limit    map[string]int64
	revision map[string]int64
}

var (
	someNamespaces = []string{"a", "b", "c"}
	someQueues     = []string{"x", "y"}
)

func newWorld() *world {
	w := &world{due: map[string]map[string]int{}, running: map[string]int{}, limit: map[string]int64{}, revision: map[string]int64{}}
	for _, ns := range someNamespaces {
		w.due[ns], w.limit[ns] = map[string]int{}, 4
	}
	return w
}

func (w *world) quota(ns string) configcache.Quota {
	n := w.limit[ns]
	return configcache.Quota{Quota: quota.Quota{MaxRunning: &n}, Stamp: store.Stamp{Revision: w.revision[ns]}}
}

// waiting is how many jobs wait in the queues, whatever the cap.
func (w *world) waiting(ns string, queues []string) (n int) {
	if len(queues) == 0 {
		queues = someQueues
	}
	for _, q := range queues {
		n += w.due[ns][q]
	}
	return n
}

// available is how many jobs a want of the queues could get now.
func (w *world) available(ns string, queues []string) int {
	return max(0, min(w.waiting(ns, queues), int(w.limit[ns])-w.running[ns]))
}

func (w *world) grant(want store.Want) store.Grant {
	if want.Stamp.Revision != w.revision[want.Namespace] {
		return store.Grant{Err: store.ErrStale}
	}
	queues := want.Queues
	if len(queues) == 0 {
		queues = someQueues
	}
	var g store.Grant
	for _, q := range queues {
		for len(g.Jobs) < want.Max && w.due[want.Namespace][q] > 0 {
			if w.running[want.Namespace] >= int(w.limit[want.Namespace]) {
				g.Held = []store.Hold{{What: store.HoldMaxRunning}}
				return g
			}
			w.due[want.Namespace][q]--
			w.running[want.Namespace]++
			g.Jobs = append(g.Jobs, store.Leased{})
		}
	}
	return g
}

// simulation drives a room through whatever order of events rapid thinks of:
// the store's look and its answer are two events, and anything happens between.
type simulation struct {
	*hall
	world   *world
	waiters []*waiter
	asking  []*waiter
	grants  []store.Grant // nil until the store has looked
	hidden  bool          // a wake-up was lost and no look round came since
}

func newSimulation(t *rapid.T) *simulation {
	return &simulation{hall: newHall(t), world: newWorld()}
}

func (s *simulation) join(t *rapid.T) {
	w := &waiter{want: store.Want{
		Namespace: rapid.SampledFrom(someNamespaces).Draw(t, "namespace"),
		Queues:    rapid.SampledFrom([][]string{nil, {"x"}, {"y"}, {"x", "y"}}).Draw(t, "queues"),
		Max:       rapid.IntRange(1, 3).Draw(t, "max"),
	}}
	wait := time.Duration(rapid.IntRange(0, 5).Draw(t, "wait")) * time.Second
	s.waiters = append(s.waiters, w)
	s.hall.join(w, s.now.Add(wait), s.now)
	s.collect()
}

func (s *simulation) enqueue(t *rapid.T) {
	ns := rapid.SampledFrom(someNamespaces).Draw(t, "namespace")
	s.world.due[ns][rapid.SampledFrom(someQueues).Draw(t, "queue")] += rapid.IntRange(1, 3).Draw(t, "jobs")
	s.tell(t, ns, s.wake)
}

// tell tells the room of a namespace, or loses the hint.
func (s *simulation) tell(t *rapid.T, ns string, how func(ns string)) {
	if rapid.IntRange(0, 9).Draw(t, "lost") == 0 {
		s.hidden = true
		return
	}
	how(ns)
}

func (s *simulation) finishJob(t *rapid.T) {
	ns := rapid.SampledFrom(someNamespaces).Draw(t, "namespace")
	if s.world.running[ns] > 0 {
		s.world.running[ns]--
		s.tell(t, ns, s.freed)
	}
}

func (s *simulation) changeQuota(t *rapid.T) {
	ns := rapid.SampledFrom(someNamespaces).Draw(t, "namespace")
	s.world.limit[ns] = int64(rapid.IntRange(0, 5).Draw(t, "limit"))
	s.world.revision[ns]++
	s.tell(t, ns, s.reopen)
}

// cacheQuota lets the cache learn the present quota, or forget it.
func (s *simulation) cacheQuota(t *rapid.T) {
	ns := rapid.SampledFrom(someNamespaces).Draw(t, "namespace")
	if rapid.Bool().Draw(t, "forget") {
		delete(s.quotas, ns)
	} else {
		s.quotas[ns] = s.world.quota(ns)
	}
}

func (s *simulation) ask() {
	if s.asking == nil {
		s.asking = s.pickAll()
		s.checkOrder()
	}
}

// checkOrder checks that each line is asked for from its front.
func (s *simulation) checkOrder() {
	for _, w := range s.asking {
		for p := w.prev; p != nil; p = p.prev {
			if !p.asked {
				s.t.Fatalf("claim %d was picked before claim %d of its line", w.seq, p.seq)
			}
		}
	}
}

func (s *simulation) look() {
	if s.asking != nil && s.grants == nil {
		s.grants = make([]store.Grant, len(s.asking))
		for i, w := range s.asking {
			s.grants[i] = s.world.grant(w.want)
		}
	}
}

func (s *simulation) answer() {
	if s.grants == nil {
		return
	}
	asking, grants := s.asking, s.grants
	s.asking, s.grants = nil, nil
	s.result(asking, grants, nil, s.now)
	s.collect()
	for i, w := range asking {
		if n := len(grants[i].Jobs); n > 0 && s.answers[w].gone { // released
			s.world.running[w.want.Namespace] -= n
			s.world.due[w.want.Namespace]["x"] += n
			s.freed(w.want.Namespace)
			s.wake(w.want.Namespace)
		}
	}
}

func (s *simulation) load(*rapid.T) {
	for _, ns := range slices.Concat(s.cold, s.stale) {
		s.loaded(ns, s.world.quota(ns), nil)
	}
	s.cold, s.stale = nil, nil
	s.collect()
}

func (s *simulation) goAway(t *rapid.T) {
	if len(s.waiters) > 0 {
		w := rapid.SampledFrom(s.waiters).Draw(t, "claim")
		if !w.done && !w.gone {
			s.leave(w)
			s.answers[w] = reply{w: w}
		}
	}
}

func (s *simulation) pass(t *rapid.T) {
	s.now = s.now.Add(time.Duration(rapid.IntRange(0, 2000).Draw(t, "ms")) * time.Millisecond)
	s.tick(s.now)
	s.collect()
}

func (s *simulation) lookRound(*rapid.T) {
	for _, l := range s.parked() {
		ready := s.world.waiting(l.tenant.name, l.queues) > 0
		s.looked(l, store.Readiness{Ready: ready}, s.now)
	}
	s.collect()
	// A line that the store is being asked for is not looked for; should the
	// answer be older than a lost hint, the next look round finds it.
	s.hidden = s.hidden && s.asking != nil
}

// rest lets everything that is under way end, without further events.
func (s *simulation) rest(t *rapid.T) {
	for range 1000 {
		s.look()
		s.answer()
		s.load(t)
		s.ask()
		if s.asking == nil && len(s.ring) == 0 && len(s.cold)+len(s.stale) == 0 {
			return
		}
	}
	t.Fatal("the room does not come to rest")
}

// check holds after rest: whoever waits could get nothing.
func (s *simulation) check(t *rapid.T) {
	waiting := 0
	for _, w := range s.waiters {
		if _, ok := s.answers[w]; ok {
			continue
		}
		waiting++
		if n := s.world.available(w.want.Namespace, w.want.Queues); n > 0 && !s.hidden {
			t.Fatalf("claim %d of %s%v waits beside %d jobs", w.seq, w.want.Namespace, w.want.Queues, n)
		}
		if !w.until.at.IsZero() && !w.until.at.After(s.now) || w.until.at.IsZero() {
			t.Fatalf("claim %d waits beyond its time", w.seq)
		}
	}
	if waiting != s.size || s.asked != 0 {
		t.Fatalf("%d claims wait, the room counts %d and %d asked", waiting, s.size, s.asked)
	}
	if waiting == 0 && len(s.tenants) != 0 {
		t.Fatalf("the empty room keeps %d namespaces", len(s.tenants))
	}
}

func TestRoomModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := newSimulation(t)
		t.Repeat(map[string]func(*rapid.T){
			"join":         s.join,
			"join again":   s.join,
			"enqueue":      s.enqueue,
			"finish a job": s.finishJob,
			"change quota": s.changeQuota,
			"cache quota":  s.cacheQuota,
			"ask":          func(*rapid.T) { s.ask() },
			"look":         func(*rapid.T) { s.look() },
			"answer":       func(*rapid.T) { s.answer() },
			"load":         s.load,
			"go away":      s.goAway,
			"pass":         s.pass,
			"look round":   s.lookRound,
			"rest":         func(t *rapid.T) { s.rest(t); s.check(t) },
		})
		// However it went: one look round and everybody has what there is.
		s.rest(t)
		s.lookRound(t)
		s.rest(t)
		s.check(t)
		s.now = s.now.Add(time.Hour)
		s.tick(s.now)
		s.collect()
		s.rest(t)
		if s.size != 0 || len(s.tenants) != 0 || len(s.agenda.items) != 0 {
			t.Fatal(fmt.Sprintf("at the end the room keeps %d claims, %d namespaces, %d appointments", s.size, len(s.tenants), len(s.agenda.items)))
		}
	})
}
