package postgres

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"flexiq/pkg/store"
)

// group is a group operation: units of several namespaces that share
// transactions but not their troubles.
type group struct {
	s     *Store
	op    string
	names []string // the namespace of each unit

	// try does units, given in the order of their namespaces, in one transaction
	// that holds the locks of their namespaces. It returns the units whose
	// namespaces it could not lock at once, or that have no row though needed.
	try func(ctx context.Context, t *tx, units []int, l locking) (missed []int, err error)
	// failed tells a unit that it failed alone.
	failed func(unit int, err error)
	// creates says that a namespace must have a row.
	creates bool

	marks []uint64 // of the flusher: what must be flushed before the answer
}

// locking is how a transaction takes the locks of its namespaces.
type locking struct {
	skip bool          // leave those out that are held
	wait time.Duration // for each, instead of the session's
}

// run does a group operation. The error is about the database as a whole.
//
// With several namespaces it first does those whose lock is free. The others
// follow in a transaction of their own, because the first ones are answered only
// when all are. When something fails it goes on namespace by namespace, and then
// unit by unit, so that the failure stays where it belongs. A namespace whose
// lock was waited for in vain is waited for no more for a while: so a
// transaction that hangs costs its tenant's neighbours one short wait.
func (g *group) run(ctx context.Context) error {
	units := make([]int, len(g.names))
	for i := range units {
		units[i] = i
	}
	slices.SortStableFunc(units, func(a, b int) int { return strings.Compare(g.names[a], g.names[b]) })
	several := g.names[units[0]] != g.names[units[len(units)-1]]
	l := locking{skip: several}
	if !several && g.s.stuck.has(g.names[units[0]]) {
		l.wait = leastWait
	}
	g.marks = nil
	missed, err := g.once(ctx, units, l)
	if unavailable(err) && !held(err) {
		return err // and nothing was done
	}
	if err == nil {
		units = missed
	}
	if len(units) > 0 {
		g.rest(ctx, units, several, err)
	}
	if len(g.marks) > 0 {
		store.Decided(ctx)
	}
	for _, mark := range slices.Compact(slices.Sorted(slices.Values(g.marks))) {
		if err := g.s.flusher.flush(ctx, mark); err != nil {
			return err
		}
	}
	return nil
}

// rest does what the first transaction left, or failed at with err.
func (g *group) rest(ctx context.Context, units []int, several bool, err error) {
	if failure := g.create(ctx, units); failure != nil {
		g.apart(ctx, units, false, time.Time{}, failure)
		return
	}
	wait := lockTimeout
	var stuck []int
	if several {
		wait = neighbourWait
		stuck = g.take(&units, g.s.stuck.has)
	}
	deadline := time.Now().Add(wait)
	if len(units) > 0 {
		if err == nil {
			err = g.all(ctx, units, locking{wait: wait})
		}
		if err != nil {
			g.apart(ctx, units, several, deadline, err)
		}
	}
	g.apart(ctx, stuck, true, time.Time{}, nil)
}

// take moves the units of some namespaces out of a list.
func (g *group) take(units *[]int, which func(namespace string) bool) (taken []int) {
	var rest []int
	for _, u := range *units {
		if which(g.names[u]) {
			taken = append(taken, u)
		} else {
			rest = append(rest, u)
		}
	}
	*units = rest
	return taken
}

// all is once for units none of which may be missed.
func (g *group) all(ctx context.Context, units []int, l locking) error {
	missed, err := g.once(ctx, units, l)
	if err == nil && len(missed) > 0 {
		err = errHeld
	}
	return err
}

// once tries units in one transaction, or a few when the server undoes it.
func (g *group) once(ctx context.Context, units []int, l locking) (missed []int, err error) {
	var mark uint64
	err = g.s.tryWrite(ctx, func(ctx context.Context, t *tx) (err error) {
		missed, err = g.try(ctx, t, units, l)
		mark = t.mark
		return err
	})
	if err == nil && mark != 0 {
		g.marks = append(g.marks, mark)
	}
	return missed, err
}

// apart does units by themselves: those that failed together with err, if
// trying again may help, and those of namespaces that are stuck. Waiting for
// locks has one deadline, or a few namespaces that are held would hold up the rest.
func (g *group) apart(ctx context.Context, units []int, again bool, deadline time.Time, err error) {
	patience := func() locking { return locking{wait: max(leastWait, time.Until(deadline))} }
	for len(units) > 0 {
		n := 1
		for n < len(units) && g.names[units[n]] == g.names[units[0]] {
			n++
		}
		own := units[:n]
		units = units[n:]
		if gone := unavailable(err) && !held(err); !gone && (again || n > 1) {
			err = g.all(ctx, own, patience())
		}
		g.s.stuck.set(g.names[own[0]], held(err))
		if err == nil {
			continue
		}
		for _, u := range own {
			alone := err
			if n > 1 && !unavailable(err) {
				alone = g.all(ctx, []int{u}, patience())
			}
			if alone != nil {
				g.s.log.Error().Err(alone).Str("namespace", g.names[u]).Msg(g.op + " failed alone")
				g.failed(u, g.s.fail(ctx, g.op, alone))
			}
		}
	}
}

// stuck remembers namespaces whose lock was waited for in vain. The zero value
// remembers none.
type stuck struct {
	mu    sync.Mutex
	until map[string]time.Time
}

func (s *stuck) has(namespace string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	until, ok := s.until[namespace]
	return ok && time.Now().Before(until)
}

func (s *stuck) set(namespace string, is bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !is:
		delete(s.until, namespace)
	case s.until == nil:
		s.until = make(map[string]time.Time)
		fallthrough
	default:
		s.until[namespace] = time.Now().Add(stuckFor)
	}
}

var createNamespaces = statement(`insert into flexiq.namespaces (name) select unnest($1::text[]) on conflict do nothing`)

// create gives namespaces their rows. It commits them before anybody locks
// them: locking a row that does not exist locks nothing.
func (g *group) create(ctx context.Context, units []int) error {
	if !g.creates {
		return nil
	}
	return g.s.tryWrite(ctx, func(ctx context.Context, t *tx) error {
		t.repeatable = true
		return t.commit(ctx, func(b *batch) { b.exec(createNamespaces, g.namesOf(units)) })
	})
}

// namesOf lists the namespaces of units, which are in their order, once each.
func (g *group) namesOf(units []int) []string {
	var out []string
	for _, u := range units {
		if name := g.names[u]; len(out) == 0 || out[len(out)-1] != name {
			out = append(out, name)
		}
	}
	return out
}
