package storetest

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"flexiq/pkg/job"
	"flexiq/pkg/store"
)

var examineCases = []testcase{
	{"a sound store has no findings", examineSound},
	{"drift is found and mended", examineDrift},
	{"drift of one namespace is not another's", examineNeighbour},
	{"a busy store has no findings", examineBusy},
	{"repairs beside writers", examineRepairBusy},
}

// examine looks at a namespace.
func (f *fixture) examine(ns string, repair bool) []store.Finding {
	f.Helper()
	found, err := f.s.Examine(f.ctx, ns, repair)
	f.ok(err)
	return found
}

func (f *fixture) sound(ns string) {
	f.Helper()
	equal(f, fmt.Sprintf("findings in %q", ns), f.examine(ns, false), nil)
}

// everyKind makes a namespace with every kind of job.
func (f *fixture) everyKind(ns string) {
	f.Helper()
	long := func(s *job.Spec) { s.Form, s.Payload = job.Args, []byte(`"`+strings.Repeat("x", 3<<10)+`"`) }
	first := f.specs(4, long)
	f.enqueue(ns, first...)
	f.clock.Advance(time.Millisecond) // the jobs of a call are due one after the other
	claims := f.claim(ns, 4)
	f.settle(job.Completed, claims[0])
	f.settle(job.GivenUp, claims[1])
	f.settle(job.Released, claims[2]) // the fourth keeps running
	f.enqueue(ns, f.spec(func(s *job.Spec) { s.UniqueKey = "u" }),
		f.spec(long, func(s *job.Spec) { s.Queue, s.Priority = "other", 5 }),
		f.spec(func(s *job.Spec) { s.Debounce = job.Debounce{Key: "d", Window: time.Second, MaxWait: time.Second} }))
	f.put(ns, `{"max_pending":0,"on_excess":"drop"}`)
	if out := f.try(ns, f.spec(long)); out.Err != nil || !out.Shed {
		f.Fatalf("got %+v, want it shed", out)
	}
	f.put(ns, "")
	f.holds(ns, counts{Pending: 4, Running: 1, Archived: 1, Dead: 2, Shed: 1})
}

// drifts lists the backend's in a fixed order.
func (f *fixture) drifts() []string { return slices.Sorted(maps.Keys(f.backend.Drifts)) }

func examineSound(f *fixture) {
	f.everyKind("acme")
	f.sound("acme")
	equal(f, "what a repair found", f.examine("acme", true), nil)
	f.sound("never used")
	equal(f, "what a repair of nothing found", f.examine("never used", true), nil)
	page, err := f.s.Namespaces(f.ctx, "", 10)
	f.ok(err)
	equal(f, "namespaces", page.Items, []string{"acme"})
}

func examineDrift(f *fixture) {
	for i, name := range f.drifts() {
		ns := fmt.Sprint("ns-", i)
		f.everyKind(ns)
		before, jobs := countsOf(f.usage(ns)), f.list(ns, store.Filter{}, 100)
		f.backend.Drifts[name](f, f.address, ns)
		found := f.examine(ns, false)
		if len(found) == 0 {
			f.Errorf("%s: nothing was found", name)
		}
		equal(f, name+": found by a second look", f.examine(ns, false), found)
		mended := f.examine(ns, true) // one step may mend what the next would find
		if len(mended) == 0 || slices.ContainsFunc(mended, func(m store.Finding) bool { return !slices.Contains(found, m) }) {
			f.Errorf("%s: mended %+v, found before %+v", name, mended, found)
		}
		f.sound(ns)
		equal(f, name+": counts", countsOf(f.usage(ns)), before)
		equal(f, name+": jobs", f.list(ns, store.Filter{}, 100), jobs)
		f.clock.Advance(2 * time.Second) // for the debounced job
		for _, l := range f.claim(ns, 4) {
			f.settle(job.Completed, l)
		}
	}
}

func examineNeighbour(f *fixture) {
	f.everyKind("acme")
	f.everyKind("acme2")
	for _, name := range f.drifts() {
		f.backend.Drifts[name](f, f.address, "acme")
		f.sound("acme2")
		equal(f, name+": mended in the neighbour", f.examine("acme2", true), nil)
		if len(f.examine("acme", true)) == 0 {
			f.Errorf("%s: it is gone without a repair", name)
		}
	}
}

func examineBusy(f *fixture) {
	f.besideWriters(func(ns string, s store.Store) error {
		found, err := s.Examine(f.ctx, ns, false)
		if len(found) > 0 {
			f.Errorf("%s: found %+v", ns, found)
		}
		return err
	})
}

// examineRepairBusy: a repair takes the store away from nobody, nor jobs from it.
func examineRepairBusy(f *fixture) {
	names := f.drifts()
	f.everyKind("ns-0")
	f.backend.Drifts[names[0]](f, f.address, "ns-0")
	f.besideWriters(func(ns string, s store.Store) error {
		_, err := s.Examine(f.ctx, ns, true)
		return err
	})
}

// besideWriters runs look over and over while clients write. The last look is
// one at a store at rest.
func (f *fixture) besideWriters(look func(ns string, s store.Store) error) {
	f.Helper()
	c := &crowd{fixture: f, namespaces: []string{"ns-0", "ns-1"}, handles: []store.Store{f.s, f.open()}, term: f.term()}
	watcher := f.open()
	over := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		for last := false; !last; {
			select {
			case <-over:
				last = true
			default:
			}
			for _, ns := range c.namespaces {
				if err := look(ns, watcher); err != nil {
					f.Errorf("Examine: %v", err)
					return
				}
			}
		}
	})
	together(3, func(i int) {
		rng := rand.New(rand.NewPCG(uint64(i), 2))
		for round := range 10 {
			step := []func(*rand.Rand, store.Store) error{c.enqueue, c.work, c.upkeep}[(round+i)%3]
			if err := step(rng, c.handles[i%2]); err != nil {
				f.Errorf("client %d, round %d: %v", i, round, err)
				return
			}
		}
	})
	close(over)
	watching.Wait()
	for _, ns := range c.namespaces {
		f.sound(ns)
	}
}
