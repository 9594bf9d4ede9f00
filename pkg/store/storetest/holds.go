package storetest

import (
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"flexiq/pkg/job"
	"flexiq/pkg/store"
)

var holdCases = []testcase{
	{"a capped queue", holdQueue},
	{"a capped task", holdTask},
	{"what one cap holds keeps nobody else", holdOthers},
	{"paused, and on again", holdPaused},
	{"zero lets nothing start", holdZero},
	{"order under every cap", holdOrder},
	{"caps over several lanes", holdShared},
	{"a cap counts what runs already", holdRunning},
	{"a cap comes and goes over many jobs", holdRelabel},
	{"another handle obeys at once", holdAtOnce},
	{"retries, releases and lost workers keep their lane", holdReturns},
	{"when the next job is due under holds", holdNextAt},
	{"never over a task's cap with many handles", holdRaceTask},
	{"never over a queue's cap with many handles", holdRaceQueue},
}

// hold is what a grant says of one cap or pause.
func hold(what store.HoldKind, name string) []store.Hold {
	return []store.Hold{{What: what, Name: name}}
}

func holdQueue(f *fixture) {
	const ns = "ns"
	f.override(ns, store.OverrideQueue, "mail", most(2))
	f.enqueue(ns, f.specs(4, queueOf("mail"))...)
	f.clock.Advance(time.Second)
	g := f.grant(ns, 10)
	equal(f, "claimed", len(g.Jobs), 2)
	equal(f, "held", g.Held, hold(store.HoldQueue, "mail"))
	equal(f, "at the cap", f.grant(ns, 10, queues("mail")), store.Grant{Held: hold(store.HoldQueue, "mail")})
	_, grants := f.turn([]store.Settlement{ending(g.Jobs[0], job.Completed)}, f.want(ns, 10))
	equal(f, "a settlement makes room in its turn", len(grants[0].Jobs), 1)
	f.override(ns, store.OverrideQueue, "mail", most(3))
	equal(f, "after a raise", len(f.claim(ns, 1)), 1)
	equal(f, "nothing is left", f.grant(ns, 10), store.Grant{})
	f.enqueue(ns, f.specs(2, queueOf("mail"))...)
	f.clearOverride(ns, store.OverrideQueue, "mail")
	f.clock.Advance(time.Second)
	equal(f, "without a cap", len(f.grant(ns, 10).Jobs), 2)
}

func holdTask(f *fixture) {
	const ns = "ns"
	f.override(ns, store.OverrideTask, "render", most(2))
	f.enqueue(ns, f.specs(2, taskOf("render"), queueOf("a"))...)
	f.enqueue(ns, f.specs(2, taskOf("render"), queueOf("b"))...)
	f.clock.Advance(time.Second)
	g := f.grant(ns, 1)
	equal(f, "not held while it got what it asked for", g.Held, nil)
	equal(f, "the cap is over all queues", len(f.grant(ns, 10).Jobs), 1)
	equal(f, "at the cap", f.grant(ns, 10, queues("b")), store.Grant{Held: hold(store.HoldTask, "render")})
	f.settle(job.Completed, g.Jobs...)
	equal(f, "a slot that came free", len(f.claim(ns, 1)), 1)
	f.holds(ns, counts{Pending: 1, Running: 2, Archived: 1})
}

func holdOthers(f *fixture) {
	const ns = "ns"
	f.override(ns, store.OverrideTask, "slow", most(1))
	f.override(ns, store.OverrideQueue, "shut", paused(true))
	f.put(ns, `{"max_running":3}`)
	f.enqueue(ns, f.specs(300, taskOf("slow"), func(s *job.Spec) { s.Priority = 9 })...)
	f.enqueue(ns, f.specs(300, queueOf("shut"), func(s *job.Spec) { s.Priority = 9 })...)
	fast := f.specs(3, taskOf("fast"))
	f.enqueue(ns, fast...)
	f.clock.Advance(time.Second)
	g := f.grant(ns, 10)
	equal(f, "tasks claimed", []string{g.Jobs[0].Job.Task, g.Jobs[1].Job.ID, g.Jobs[2].Job.ID}, []string{"slow", fast[0].ID, fast[1].ID})
	equal(f, "held", g.Held, []store.Hold{{What: store.HoldMaxRunning}, {What: store.HoldPausedQueue, Name: "shut"}, {What: store.HoldTask, Name: "slow"}})
	f.settle(job.Completed, g.Jobs[1])
	g = f.grant(ns, 10)
	equal(f, "the next that may", idsOf(g.Jobs), []string{fast[2].ID})
	equal(f, "held by what is their own", g.Held, []store.Hold{{What: store.HoldPausedQueue, Name: "shut"}, {What: store.HoldTask, Name: "slow"}})
}

func holdPaused(f *fixture) {
	const ns = "ns"
	specs := f.specs(6, taskOf("t"), queueOf("q"))
	f.enqueue(ns, specs...)
	f.clock.Advance(time.Second)
	running := f.claim(ns, 1)
	f.override(ns, store.OverrideTask, "t", paused(true), most(4))
	equal(f, "a paused task", f.grant(ns, 10), store.Grant{Held: hold(store.HoldPausedTask, "t")})
	f.settle(job.Completed, running...) // what runs goes on
	f.override(ns, store.OverrideQueue, "q", paused(true))
	equal(f, "both", f.grant(ns, 10).Held, []store.Hold{{What: store.HoldPausedQueue, Name: "q"}, {What: store.HoldPausedTask, Name: "t"}})
	f.override(ns, store.OverrideTask, "t", paused(false))
	equal(f, "a paused queue", f.grant(ns, 10), store.Grant{Held: hold(store.HoldPausedQueue, "q")})
	f.enqueue(ns, f.spec(queueOf("other")))
	equal(f, "another queue", len(f.grant(ns, 10).Jobs), 1)
	f.clearOverride(ns, store.OverrideQueue, "q")
	equal(f, "on again, in order", idsOf(f.claim(ns, 5)), idsOfSpecs(specs[1:]))
}

func idsOfSpecs(specs []job.Spec) []string {
	out := make([]string, len(specs))
	for i, s := range specs {
		out[i] = s.ID
	}
	return out
}

func holdZero(f *fixture) {
	const ns = "ns"
	f.override(ns, store.OverrideQueue, "q", most(0))
	f.override(ns, store.OverrideTask, "t0", most(0))
	f.enqueue(ns, f.specs(3, queueOf("q"))...)
	f.enqueue(ns, f.specs(3, taskOf("t0"))...)
	f.clock.Advance(time.Second)
	for range 3 {
		equal(f, "held", f.grant(ns, 10), store.Grant{Held: []store.Hold{{What: store.HoldQueue, Name: "q"}, {What: store.HoldTask, Name: "t0"}}})
	}
	f.holds(ns, counts{Pending: 6})
}

// holdOrder claims one job at a time, and many at once, and wants the order that
// the jobs have among those that may run.
func holdOrder(f *fixture) {
	const ns = "ns"
	f.override(ns, store.OverrideTask, "a", most(1))
	f.override(ns, store.OverrideTask, "b", most(1000))
	var all []job.Spec
	for i := range 24 {
		all = append(all, f.spec(taskOf([]string{"a", "b", "c"}[i%3]), func(s *job.Spec) { s.Priority = int32(i % 2) }))
	}
	f.enqueue(ns, all...)
	f.clock.Advance(time.Second)
	ordered := slices.Clone(all)
	slices.SortStableFunc(ordered, func(x, y job.Spec) int { return int(y.Priority - x.Priority) })
	var want []string
	a := 0
	for _, s := range ordered {
		if s.Task == "a" {
			if a++; a > 1 {
				continue
			}
		}
		want = append(want, s.ID)
	}
	var got []string
	for _, n := range []int{1, 1, 2, 5, 20} {
		got = append(got, idsOf(f.grant(ns, n).Jobs)...)
	}
	equal(f, "order", got, want)
}

// holdShared has caps that each hold jobs in several lanes, which one grant must
// count together.
func holdShared(f *fixture) {
	const ns = "ns"
	f.override(ns, store.OverrideQueue, "q", most(3))
	f.override(ns, store.OverrideTask, "t", most(4))
	mk := func(queue, task string, priority int32) job.Spec {
		return f.spec(queueOf(queue), taskOf(task), func(s *job.Spec) { s.Priority = priority })
	}
	var want []string
	add := func(runs bool, s job.Spec) {
		f.enqueue(ns, s)
		f.clock.Advance(time.Millisecond)
		if runs {
			want = append(want, s.ID)
		}
	}
	add(true, mk("q", "t", 2))  // q 1, t 1
	add(true, mk("r", "t", 2))  // t 2
	add(true, mk("q", "u", 1))  // q 2
	add(true, mk("r", "t", 1))  // t 3
	add(true, mk("q", "t", 1))  // q 3, t 4
	add(false, mk("q", "u", 1)) // q is full
	add(false, mk("r", "t", 1)) // t is full
	add(true, mk("r", "u", 0))
	add(false, mk("r", "t", 0))
	add(true, mk("r", "u", 0))
	g := f.grant(ns, 100)
	equal(f, "claimed", idsOf(g.Jobs), want)
	equal(f, "held", g.Held, []store.Hold{{What: store.HoldQueue, Name: "q"}, {What: store.HoldTask, Name: "t"}})
	f.settle(job.Completed, g.Jobs...)
	// Two wants of one turn share what is left.
	_, grants := f.turn(nil, f.want(ns, 1), f.want(ns, 100))
	equal(f, "the rest", len(grants[0].Jobs)+len(grants[1].Jobs), 3)
}

func holdRunning(f *fixture) {
	const ns = "ns"
	f.enqueue(ns, f.specs(9, taskOf("t"), queueOf("q"))...)
	f.clock.Advance(time.Second)
	running := f.claim(ns, 3)
	f.override(ns, store.OverrideTask, "t", most(2))
	equal(f, "a cap below what runs", f.grant(ns, 9), store.Grant{Held: hold(store.HoldTask, "t")})
	f.settle(job.Completed, running[0])
	equal(f, "as many as it allows", f.grant(ns, 9), store.Grant{Held: hold(store.HoldTask, "t")})
	f.settle(job.Completed, running[1])
	equal(f, "one below", len(f.grant(ns, 9).Jobs), 1)
	f.clearOverride(ns, store.OverrideTask, "t")
	f.override(ns, store.OverrideQueue, "q", most(3))
	equal(f, "what ran under the task's cap counts for the queue", len(f.grant(ns, 9).Jobs), 1)
	f.override(ns, store.OverrideTask, "t", most(5))
	f.clearOverride(ns, store.OverrideQueue, "q")
	equal(f, "and for the task again", len(f.grant(ns, 9).Jobs), 2)
}

// holdRelabel has more jobs than one step moves. Nobody needs to wait for the rest.
func holdRelabel(f *fixture) {
	const ns, n = "ns", 2500
	for range n / 500 {
		f.enqueue(ns, append(f.specs(250, taskOf("t")), f.specs(250, taskOf("u"))...)...)
		f.clock.Advance(time.Second)
	}
	var order []string
	for _, j := range f.list(ns, store.Filter{}, 500) {
		if j.Task == "u" {
			order = append(order, j.ID)
		}
	}
	f.override(ns, store.OverrideTask, "t", most(1))
	first := f.take(ns)
	equal(f, "only others", idsOf(f.claim(ns, 7)), order[:7])
	f.override(ns, store.OverrideTask, "t", most(2))
	equal(f, "one more, and others", len(f.claim(ns, 3)), 3)
	f.clearOverride(ns, store.OverrideTask, "t")
	equal(f, "all of them", len(f.grant(ns, 1000).Jobs), 1000)
	f.settle(job.Completed, first)
	// Whatever was left to do is done by those who go on anyway.
	for range 10 {
		_, err := f.s.Expire(f.ctx, 1)
		f.ok(err)
	}
	found, err := f.s.Examine(f.ctx, ns, false)
	f.ok(err)
	equal(f, "found", len(found), 0)
}

func holdAtOnce(f *fixture) {
	const ns = "ns"
	other := f.open()
	f.enqueue(ns, f.specs(20, taskOf("t"))...)
	f.clock.Advance(time.Second)
	claim := func() int {
		_, grants, err := other.Turn(f.ctx, nil, []store.Want{f.want(ns, 1)})
		f.ok(err)
		f.ok(grants[0].Err)
		return len(grants[0].Jobs)
	}
	for i := range int64(4) {
		f.override(ns, store.OverrideTask, "t", most(i))
		equal(f, fmt.Sprintf("under a cap of %d", i), claim(), min(1, int(i)))
		equal(f, fmt.Sprintf("beyond a cap of %d", i), claim(), 0)
	}
	f.clearOverride(ns, store.OverrideTask, "t")
	equal(f, "without a cap", claim(), 1)
}

func holdReturns(f *fixture) {
	const ns = "ns"
	f.override(ns, store.OverrideTask, "t", most(3))
	f.enqueue(ns, f.specs(9, taskOf("t"))...)
	f.clock.Advance(time.Second)
	claims := f.claim(ns, 3)
	f.turn([]store.Settlement{ending(claims[0], job.Failed, retryAfter(0)), ending(claims[1], job.Released)})
	equal(f, "two slots", len(f.grant(ns, 9).Jobs), 2)
	f.clock.Advance(2 * lease)
	_, err := f.s.Expire(f.ctx, 10)
	f.ok(err)
	equal(f, "three slots of lost workers", len(f.grant(ns, 9).Jobs), 3)
	c, err := f.s.Cancel(f.ctx, ns, store.Selection{}, 100)
	f.ok(err)
	equal(f, "cancelled", c.Cancelled+c.Cancelling, 9)
}

func holdNextAt(f *fixture) {
	const ns = "ns"
	f.override(ns, store.OverrideQueue, "shut", paused(true))
	f.override(ns, store.OverrideTask, "t", most(1))
	later := func(d time.Duration) func(*job.Spec) { return func(s *job.Spec) { s.Delay = d } }
	f.enqueue(ns, f.spec(queueOf("shut"), later(time.Minute)), f.spec(taskOf("u"), later(time.Hour)), f.spec(taskOf("t")), f.spec(taskOf("t"), later(time.Second)))
	f.clock.Advance(time.Millisecond)
	f.claim(ns, 1)
	equal(f, "not of what is held", f.grant(ns, 5), store.Grant{NextAt: epoch.Add(time.Hour + time.Microsecond)})
}

func holdRaceTask(f *fixture) {
	f.override("plover", store.OverrideTask, "t", most(4))
	f.holdRace(func(i int) []func(*job.Spec) {
		return []func(*job.Spec){taskOf("t"), queueOf(fmt.Sprint("q", i%3))}
	})
}

func holdRaceQueue(f *fixture) {
	f.override("plover", store.OverrideQueue, "q", most(4))
	f.holdRace(func(i int) []func(*job.Spec) {
		return []func(*job.Spec){queueOf("q"), taskOf(fmt.Sprint("t", i%3))}
	})
}

// holdRace: workers that claim and finish as fast as they can never hold more
// than four, and none of the slots leaks.
func (f *fixture) holdRace(kind func(i int) []func(*job.Spec)) {
	const ns, n, workers, most = "plover", 60, 6, 4
	for i := range n {
		f.enqueue(ns, f.spec(kind(i)...))
	}
	f.clock.Advance(time.Second)
	handles := []store.Store{f.s, f.open(), f.open()}
	want := f.want(ns, 3)
	var held, peak, finished atomic.Int64
	together(workers, func(i int) {
		var claims []store.Leased
		for finished.Load() < n && f.ctx.Err() == nil {
			var ends []store.Settlement
			for _, l := range claims {
				ends = append(ends, ending(l, job.Completed))
			}
			held.Add(-int64(len(claims))) // before the store knows, so that held is never too high
			settled, grants, err := handles[i%len(handles)].Turn(f.ctx, ends, []store.Want{want})
			if err != nil || grants[0].Err != nil {
				f.Errorf("worker %d: %v, %+v", i, err, grants)
				return
			}
			for _, s := range settled {
				if !s.Accepted {
					f.Errorf("worker %d: a settlement was refused: %+v", i, s)
				}
			}
			finished.Add(int64(len(settled)))
			claims = grants[0].Jobs
			now := held.Add(int64(len(claims)))
			for p := peak.Load(); now > p && !peak.CompareAndSwap(p, now); p = peak.Load() {
			}
			time.Sleep(2 * time.Millisecond) // as long as a job takes, or nobody would see how many run
		}
	})
	if p := peak.Load(); p > most {
		f.Errorf("%d jobs ran at once, at most %d may", p, most)
	}
	f.holds(ns, counts{Archived: n})
}
