package postgres

import (
	"context"
	"errors"
	"slices"
	"time"

	"flexiq/pkg/job"
	"flexiq/pkg/store"
	"flexiq/pkg/store/admit"
)

// Admit implements [store.Admission].
func (s *Store) Admit(ctx context.Context, calls []store.Call) ([]store.Outcome, error) {
	if len(calls) == 0 {
		return nil, nil
	}
	out := make([]store.Outcome, len(calls))
	g := &group{s: s, op: "admit", names: make([]string, len(calls)), creates: true}
	for i := range calls {
		g.names[i] = calls[i].Namespace
	}
	g.try = func(ctx context.Context, t *tx, units []int, l locking) ([]int, error) {
		return (&admission{tx: t, calls: calls, units: units, names: g.namesOf(units), out: out}).run(ctx, l)
	}
	g.failed = func(unit int, err error) { out[unit] = store.Outcome{Err: err} }
	err := g.run(ctx)
	if errors.Is(err, errFlushLost) {
		first := slices.Clone(out)
		err = g.run(ctx) // finds what lasts, and writes the rest anew
		for i := range first {
			if out[i].Repeat && first[i].Err == nil {
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

// run decides the calls whose namespaces it could lock.
func (a *admission) run(ctx context.Context, l locking) (missed []int, err error) {
	a.late, a.repeatable = true, true
	held, spaces := make(map[string]bool), make(map[string]*space)
	snapshot := admit.Snapshot{}
	found, standing := newFindings(), make(map[string]map[string]admit.Standing)
	err = a.read(ctx, func(b *batch) {
		b.lock(a.names, l, held)
		a.s.spaces(b, a.names, spaces, &snapshot.Now)
		a.look(b, found)
		a.standing(b, standing)
	})
	if err != nil {
		return nil, err
	}
	var plans []decided
	tells := false // of jobs that another transaction wrote
	for from, to := 0, 0; from < len(a.units); from = to {
		name := a.calls[a.units[from]].Namespace
		var calls []store.Call
		for to = from; to < len(a.units) && a.calls[a.units[to]].Namespace == name; to++ {
			calls = append(calls, a.calls[a.units[to]])
		}
		if !held[name] {
			missed = append(missed, a.units[from:to]...)
			continue
		}
		sp := spaces[name]
		snapshot.Stamp, snapshot.Pending, snapshot.Bucket = sp.stamp, sp.pending, sp.bucket
		snapshot.Known, snapshot.Unique, snapshot.Waiting = found.known[name], found.unique[name], found.waiting[name]
		snapshot.Standing = standing[name]
		tells = tells || len(snapshot.Known)+len(snapshot.Unique)+len(snapshot.Waiting) > 0
		one := snapshot
		plan := admit.Decide(&one, calls)
		for i, unit := range a.units[from:to] {
			a.out[unit] = plan.Outcomes[i]
		}
		if plan.Writes() {
			plans = append(plans, decided{name, sp.laned, plan})
		}
	}
	return missed, a.carryOut(ctx, plans, tells, snapshot.Now)
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
	}
	return a.commit(ctx, func(b *batch) {
		live.insert(b)
		shed.bury(b)
		moved.update(b)
		tokens.save(b)
		moving.write(b, now)
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
