package postgres

import (
	"context"
	"errors"
	"time"

	"flexiq/pkg/store"
)

// Turn implements [store.Dispatch]. Its units are the settlements and then the wants.
func (s *Store) Turn(ctx context.Context, settlements []store.Settlement, wants []store.Want) ([]store.Settled, []store.Grant, error) {
	if len(settlements)+len(wants) == 0 {
		return nil, nil, nil
	}
	d := newDispatch(s, settlements, wants)
	err := d.group.run(ctx)
	if errors.Is(err, errFlushLost) {
		// The settlements that lasted are found, the others are done anew. The
		// claims are given out as they are, like all that were not flushed.
		again := newDispatch(s, settlements, nil)
		err = again.group.run(ctx)
		for i := range again.settled {
			if !again.settled[i].Repeat || !d.settled[i].Accepted {
				d.settled[i] = again.settled[i]
			}
		}
	}
	if err != nil {
		return nil, nil, s.fail(ctx, "turn", err)
	}
	return d.settled, d.grants, nil
}

func newDispatch(s *Store, settlements []store.Settlement, wants []store.Want) *dispatch {
	d := &dispatch{
		s: s, settlements: settlements, wants: wants,
		settled: make([]store.Settled, len(settlements)), grants: make([]store.Grant, len(wants)),
	}
	d.group = &group{s: s, op: "turn", try: d.try, failed: d.failed}
	for i := range settlements {
		d.group.names = append(d.group.names, settlements[i].Namespace)
	}
	for i := range wants {
		d.group.names = append(d.group.names, wants[i].Namespace)
	}
	return d
}

// dispatch is one Turn.
type dispatch struct {
	s           *Store
	group       *group
	settlements []store.Settlement
	wants       []store.Want
	settled     []store.Settled
	grants      []store.Grant
}

func (d *dispatch) failed(unit int, err error) {
	if i := unit - len(d.settlements); i >= 0 {
		d.grants[i] = store.Grant{Err: err}
	} else {
		d.settled[unit] = store.Settled{Err: err}
	}
}

// try does units in one transaction.
func (d *dispatch) try(ctx context.Context, t *tx, units []int, l locking) (missed []int, err error) {
	names := d.group.namesOf(units)
	held, spaces, found := make(map[string]bool), make(map[string]*space), make(jobs)
	var now time.Time
	t.late = true
	err = t.read(ctx, func(b *batch) {
		b.lock(names, l, held)
		d.s.spaces(b, names, spaces, &now)
		d.find(b, units, found)
	})
	if err != nil {
		return nil, err
	}
	var ends endings
	var cs claims
	hs := heldClaims{turn: d}
	tells := false // of a settlement that must not be lost
	for _, u := range units {
		sp := spaces[d.group.names[u]]
		switch i := u - len(d.settlements); {
		case !held[sp.name] && l.skip:
			missed = append(missed, u)
		case i < 0:
			st := &d.settlements[u]
			d.settled[u] = settle(found.get(st.Namespace, st.JobID), st, now, &ends)
			tells = tells || d.settled[u].Accepted
		case sp.stamp != d.wants[i].Stamp:
			d.grants[i] = store.Grant{Err: store.ErrStale}
		case !held[sp.name]: // it has no row, and so no jobs
			d.grants[i] = store.Grant{}
		case sp.holds || sp.relabelling:
			d.grants[i] = store.Grant{}
			hs.add(sp, &d.wants[i], &d.grants[i])
		default:
			d.grants[i] = store.Grant{}
			cs.add(&d.wants[i], &d.grants[i])
		}
	}
	t.repeatable = len(cs.wants)+len(hs.wants) == 0
	if !tells {
		// A claim lost with the server is a job that is still pending.
		defer func() { t.mark = 0 }()
	}
	if ends.empty() && len(cs.wants)+len(hs.wants) == 0 && !(tells && t.mark == 0) {
		return missed, nil
	}
	write := func(b *batch) {
		if ends.empty() && tells && t.mark == 0 {
			b.Queue(flush)
		}
		ends.write(b, now)
		cs.write(b, now)
	}
	return missed, hs.serve(ctx, t, write, now)
}

// find queues the reading of the jobs that are settled.
func (d *dispatch) find(b *batch, units []int, into jobs) {
	var ns []string
	var ids [][16]byte
	for _, u := range units {
		if u >= len(d.settlements) {
			continue
		}
		if id, ok := key(d.settlements[u].JobID); ok {
			ns, ids = append(ns, d.settlements[u].Namespace), append(ids, id)
		}
	}
	into.find(b, selectSettling, ns, ids)
}
