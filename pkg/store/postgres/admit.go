package postgres

import (
	"context"
	"errors"
	"iter"
	"slices"
	"time"

	"flexiq/pkg/job"
	"flexiq/pkg/store"
	"flexiq/pkg/store/admit"
)

// Admit implements [store.Admission].
func (s *Store) Admit(ctx context.Context, calls []store.Call) ([]store.Outcome, error) {
	out := make([]store.Outcome, len(calls))
	rest := s.refuse(ctx, calls, out)
	if len(rest) == 0 {
		return out, nil
	}
	g := &group{s: s, op: "admit", names: make([]string, len(rest)), creates: true}
	for i, c := range rest {
		g.names[i] = calls[c].Namespace
	}
	g.try = func(ctx context.Context, t *tx, units []int, l locking) ([]int, error) {
		mine := make([]int, len(units))
		for i, u := range units {
			mine[i] = rest[u]
		}
		missed, err := (&admission{tx: t, calls: calls, units: mine, names: g.namesOf(units), out: out}).run(ctx, l)
		for i, c := range missed {
			missed[i], _ = slices.BinarySearch(rest, c)
		}
		return missed, err
	}
	g.failed = func(unit int, err error) { out[rest[unit]] = store.Outcome{Err: err} }
	err := g.run(ctx)
	if errors.Is(err, errFlushLost) {
		first := slices.Clone(out)
		err = g.run(ctx) // finds what lasts, and writes the rest anew
		for _, i := range rest {
			if first[i].Err == nil && (out[i].Repeat || errors.Is(out[i].Err, store.ErrSignature)) {
				out[i] = first[i]
			}
		}
	}
	if err != nil {
		return nil, s.fail(ctx, "admit", err)
	}
	return out, nil
}

// admission is one transaction of Admit.
type admission struct {
	*tx
	calls []store.Call
	units []int // of calls, in the order of their namespaces
	names []string
	out   []store.Outcome
}

// sight is what an admission sees of its namespaces.
type sight struct {
	spaces   map[string]*space
	found    *findings
	standing map[string]map[string]admit.Standing
	until    map[string]map[string]int64 // by signature
	now      time.Time
}

func newSight() *sight {
	return &sight{make(map[string]*space), newFindings(), make(map[string]map[string]admit.Standing), make(map[string]map[string]int64), time.Time{}}
}

// see queues the reading of it.
func (a *admission) see(b *batch, into *sight) {
	a.s.spaces(b, a.names, into.spaces, &into.now)
	a.look(b, into.found)
	a.standing(b, into.standing)
	a.used(b, into.until)
}

// run decides the calls whose namespaces it could lock.
func (a *admission) run(ctx context.Context, l locking) (missed []int, err error) {
	a.late, a.repeatable = true, true
	held, seen := make(map[string]bool), newSight()
	err = a.read(ctx, func(b *batch) {
		b.lock(a.names, l, held)
		a.see(b, seen)
	})
	if err != nil {
		return nil, err
	}
	var plans []decided
	tells := false // of jobs that another transaction wrote
	for units := range a.byNamespace() {
		name := a.calls[units[0]].Namespace
		if !held[name] {
			missed = append(missed, units...)
			continue
		}
		d, about := a.decide(units, seen)
		tells = tells || about
		for i, unit := range units {
			a.out[unit] = d.Outcomes[i]
		}
		a.s.pressed.set(name, d.refusesAll())
		if d.Writes() {
			plans = append(plans, d)
		}
	}
	return missed, a.carryOut(ctx, plans, tells, seen.now)
}

// byNamespace yields the units of one namespace after the other.
func (a *admission) byNamespace() iter.Seq[[]int] {
	return func(yield func([]int) bool) {
		for from, to := 0, 0; from < len(a.units); from = to {
			name := a.calls[a.units[from]].Namespace
			for to = from; to < len(a.units) && a.calls[a.units[to]].Namespace == name; to++ {
			}
			if !yield(a.units[from:to]) {
				return
			}
		}
	}
}

// decide decides the calls of one namespace. It reports whether jobs that exist
// are among what it saw.
func (a *admission) decide(units []int, seen *sight) (d decided, tells bool) {
	calls := make([]store.Call, len(units))
	for i, u := range units {
		calls[i] = a.calls[u]
	}
	name := calls[0].Namespace
	sp := seen.spaces[name]
	s := admit.Snapshot{
		Now: seen.now, Stamp: sp.stamp, Pending: sp.pending, Bucket: sp.bucket, Standing: seen.standing[name],
		Known: seen.found.known[name], Unique: seen.found.unique[name], Waiting: seen.found.waiting[name],
		Used: outstanding(seen.until[name], seen.now),
	}
	tells = len(s.Known)+len(s.Unique)+len(s.Waiting) > 0
	return decided{name, sp.laned, admit.Decide(&s, calls)}, tells
}

// decided is what to write in a namespace.
type decided struct {
	ns    string
	laned []string // tasks
	*admit.Plan
}

// carryOut writes plans. With nothing to write nothing is committed; but an answer
// that tells of another's job must wait until that one is on the disk.
func (a *admission) carryOut(ctx context.Context, plans []decided, tells bool, now time.Time) error {
	if len(plans) == 0 {
		switch {
		case !tells:
			a.mark = 0
		case a.mark == 0:
			return a.commit(ctx, func(b *batch) { b.Queue(flush) })
		}
		return nil
	}
	var live, shed, moved inserts
	var tokens buckets
	var moving fired
	var signing signed
	for _, p := range plans {
		for i := range p.Live {
			live.addLive(&p.Live[i], p.laned)
		}
		for i := range p.Shed {
			shed.add(&p.Shed[i])
		}
		for _, j := range p.Update {
			moved.add(&admit.Row{Job: j})
		}
		if p.Bucket != nil {
			tokens.add(p.ns, *p.Bucket)
		}
		moving.add(p.ns, p.Fired)
		signing.add(p.ns, p.Signatures)
	}
	return a.commit(ctx, func(b *batch) {
		live.insert(b)
		shed.bury(b)
		moved.update(b)
		tokens.save(b)
		moving.write(b, now)
		signing.write(b, now)
	})
}

// findings are what exists of the calls' ids and keys, by namespace.
type findings struct {
	known   map[string]map[string]admit.Known
	unique  map[string]map[string]*job.Job
	waiting map[string]map[string]*job.Job
}

func newFindings() *findings {
	return &findings{map[string]map[string]admit.Known{}, map[string]map[string]*job.Job{}, map[string]map[string]*job.Job{}}
}

func put[V any](m map[string]map[string]V, ns, key string, v V) {
	if m[ns] == nil {
		m[ns] = make(map[string]V)
	}
	m[ns][key] = v
}

var (
	selectKnown = statement(`select k.* from unnest($1::text[], $2::uuid[]) u(ns, id) cross join lateral (
		select ` + liveColumns + ` from flexiq.jobs where ns = u.ns and id = u.id
		union all select ` + archiveColumns + ` from flexiq.archive where ns = u.ns and id = u.id
		union all select ` + deadColumns + ` from flexiq.dead_letters where ns = u.ns and id = u.id limit 1) k`)
	selectUnique = statement(`select k.* from unnest($1::text[], $2::text[]) u(ns, key) cross join lateral (
		select ` + liveColumns + ` from flexiq.jobs where ns = u.ns and unique_key = u.key and unique_key <> '' limit 1) k`)
	// A retry may have come back beside a newer job of the same key: the newer
	// one is the one that still gathers.
	selectWaiting = statement(`select k.* from unnest($1::text[], $2::text[]) u(ns, key) cross join lateral (
		select ` + liveColumns + ` from flexiq.jobs where ns = u.ns and debounce_key = u.key and debounce_key <> '' and state = 0
		order by id desc limit 1) k`)
)

// look queues the reading of what exists of the calls' ids and keys.
func (a *admission) look(b *batch, into *findings) {
	var ids, unique, waiting pairs
	for _, u := range a.units {
		c := &a.calls[u]
		for i := range c.Jobs {
			sp := &c.Jobs[i]
			if id, ok := key(sp.ID); ok {
				ids.ns, ids.id = append(ids.ns, c.Namespace), append(ids.id, id)
			}
			unique.addKey(c.Namespace, sp.UniqueKey)
			waiting.addKey(c.Namespace, sp.Debounce.Key)
		}
	}
	b.each(selectKnown, func(scan func(...any) error) error {
		var r jobRow
		err := scan(r.dests()...)
		j := r.take()
		put(into.known, j.Namespace, j.ID, admit.Known{Job: j, Fingerprint: r.fingerprint})
		return err
	}, ids.ns, ids.id)
	holder := func(st stmt, p *pairs, m map[string]map[string]*job.Job, key func(*job.Job) string) {
		if len(p.ns) == 0 {
			return
		}
		b.each(st, func(scan func(...any) error) error {
			var r jobRow
			err := scan(r.dests()...)
			j := r.take()
			put(m, j.Namespace, key(j), j)
			return err
		}, p.ns, p.key)
	}
	holder(selectUnique, &unique, into.unique, func(j *job.Job) string { return j.UniqueKey })
	holder(selectWaiting, &waiting, into.waiting, func(j *job.Job) string { return j.Debounce.Key })
}

// pairs are namespaces with ids or keys in them.
type pairs struct {
	ns  []string
	id  [][16]byte
	key []string
}

// addKey adds a key, unless there is none.
func (p *pairs) addKey(ns, key string) {
	if key != "" {
		p.ns, p.key = append(p.ns, ns), append(p.key, key)
	}
}
