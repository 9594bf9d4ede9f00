package redis

import (
	"cmp"
	"context"
	"crypto/rand"
	"slices"
	"strings"
	"time"

	"flexiq/pkg/job"
	"flexiq/pkg/store"
)

// shift is some settlements and wants of one namespace, with their places among
// all: the work of one script.
type shift struct {
	name        string
	settlements []*store.Settlement
	settledAt   []int
	wants       []*store.Want
	wantAt      []int
	size        int // jobs that it may move
}

// shifts sorts settlements and wants by namespace. Settlements of a namespace
// come before its wants, and no shift moves more jobs than a script may.
func shifts(settlements []store.Settlement, wants []store.Want) []*shift {
	var out []*shift
	last := make(map[string]*shift)
	next := func(ns string, size int) *shift {
		w := last[ns]
		if w == nil || w.size+size > most {
			w = &shift{name: ns}
			last[ns] = w
			out = append(out, w)
		}
		w.size += size
		return w
	}
	for i := range settlements {
		w := next(settlements[i].Namespace, 1)
		w.settlements, w.settledAt = append(w.settlements, &settlements[i]), append(w.settledAt, i)
	}
	for i := range wants {
		w := next(wants[i].Namespace, max(wants[i].Max, 1))
		w.wants, w.wantAt = append(w.wants, &wants[i]), append(w.wantAt, i)
	}
	return out
}

// Turn implements [store.Dispatch].
func (s *Store) Turn(ctx context.Context, settlements []store.Settlement, wants []store.Want) ([]store.Settled, []store.Grant, error) {
	if len(settlements)+len(wants) == 0 {
		return nil, nil, nil
	}
	parts := shifts(settlements, wants)
	cmds := make([]*command, len(parts))
	for i, w := range parts {
		cmds[i] = s.turnCommand(w, "")
	}
	_ = s.run(ctx, once, cmds...) // each command has its own error
	s.turnBusy(ctx, parts, cmds)
	if err := common(cmds); err != nil {
		return nil, nil, s.fail(ctx, "turn", err)
	}
	settled, grants := make([]store.Settled, len(settlements)), make([]store.Grant, len(wants))
	for i, w := range parts {
		err := cmds[i].err
		if err == nil {
			err = s.turned(ctx, w, cmds[i], settled, grants)
		}
		if err != nil {
			s.log.Error().Err(err).Str("namespace", w.name).Msg("settlements and claims failed alone")
			err = s.fail(ctx, "turn", err)
			for _, at := range w.settledAt {
				settled[at] = store.Settled{Err: err}
			}
			for _, at := range w.wantAt {
				grants[at] = store.Grant{Err: err}
			}
		}
	}
	return settled, grants, nil
}

// The first numbers of a turn's reply.
const (
	turnDone = iota
	turnUnknown
	turnUnlisted
)

// busyTries bounds how often a namespace is put among the busy ones for one
// turn. Another process takes it off only after minutes without a grant.
const busyTries = 3

// turnBusy puts namespaces among the busy ones whose jobs are about to be
// claimed for the first time, and runs their shifts then.
func (s *Store) turnBusy(ctx context.Context, parts []*shift, cmds []*command) {
	for range busyTries {
		var names []string
		var at []int
		for i, w := range parts {
			if cmds[i].err == nil && cmds[i].list().int() == turnUnlisted {
				names, at = append(names, w.name), append(at, i)
			}
		}
		if len(at) == 0 {
			return
		}
		_, numbers, err := s.register(ctx, names, true, false)
		if err != nil {
			for _, i := range at {
				cmds[i].err = err
			}
			return
		}
		second := make([]*command, len(at))
		for k, i := range at {
			second[k] = s.turnCommand(parts[i], numbers[k])
			cmds[i] = second[k]
		}
		_ = s.run(ctx, once, second...) // each command has its own error
	}
}

// turnCommand writes a shift for the script.
func (s *Store) turnCommand(w *shift, registration any) *command {
	args := make([]any, 0, 8+7*len(w.settlements)+10*len(w.wants))
	args = append(args, quotaField(w.name), registration, len(w.settlements))
	for _, st := range w.settlements {
		retry := any("")
		if st.RetryAfter != nil {
			retry = st.RetryAfter.Microseconds()
		}
		args = append(args, st.JobID, lease(st.Lease), outcomes[st.Outcome], job.CleanError(st.Error), retry, st.Result, job.Jitter())
	}
	args = append(args, len(w.wants))
	for _, want := range w.wants {
		args = append(args, want.Stamp.Revision, want.Stamp.Default, want.Max, want.MaxBytes, want.LeaseFor.Microseconds(), want.Worker,
			maybe(want.MaxRunning), rand.Text(), len(want.Queues))
		for _, q := range want.Queues {
			args = append(args, q)
		}
	}
	return s.on(tag(w.name), turnScript, args...)
}

// lease is a lease as scripts compare it: one that this store never gives is none.
func lease(l string) string {
	if len(l) != leaseSize {
		return ""
	}
	return l
}

// turned reads the reply to a shift.
func (s *Store) turned(ctx context.Context, w *shift, c *command, settled []store.Settled, grants []store.Grant) error {
	r := c.list()
	switch r.int() {
	case turnDone:
	case turnUnknown:
		return s.turnedNowhere(ctx, w, grants)
	default:
		return c.strange()
	}
	s.survey.met(w.name)
	now := r.time()
	for _, at := range w.settledAt {
		settled[at] = readSettled(r.list())
	}
	for i, want := range w.wants {
		g := r.list()
		if g.int() == 1 {
			s.stale(ctx, w.name, want.Stamp, g)
			grants[w.wantAt[i]].Err = store.ErrStale
			continue
		}
		grant, err := readGrant(want, g, now)
		if err != nil {
			return err
		}
		grants[w.wantAt[i]] = grant
	}
	return nil
}

// turnedNowhere answers a shift in a namespace that was never used: there is
// nothing to settle and nothing to give.
func (s *Store) turnedNowhere(ctx context.Context, w *shift, grants []store.Grant) error {
	if len(w.wants) == 0 {
		return nil
	}
	st, err := s.standing(ctx)
	if err != nil {
		return err
	}
	for i, want := range w.wants {
		if want.Stamp != (store.Stamp{Default: st.revision}) {
			grants[w.wantAt[i]].Err = store.ErrStale
		}
	}
	return nil
}

func readSettled(r *list) store.Settled {
	kind := r.int()
	if kind == 0 {
		return store.Settled{}
	}
	return store.Settled{Accepted: kind >= 2, Repeat: kind == 3, State: stateOf(r.int()), Queue: r.text(), Task: r.text(), Attempt: int32(r.int())}
}

func readGrant(w *store.Want, r *list, now time.Time) (store.Grant, error) {
	out := store.Grant{}
	for holds := r.list(); holds.more(); {
		what, name, _ := strings.Cut(holds.text(), ":")
		out.Held = append(out.Held, store.Hold{What: store.HoldKind(what), Name: name})
	}
	slices.SortFunc(out.Held, func(a, b store.Hold) int { return cmp.Or(cmp.Compare(a.What, b.What), cmp.Compare(a.Name, b.Name)) })
	out.NextAt = r.time()
	for r.more() {
		id, value, aside := r.text(), r.text(), r.text()
		d, err := decode(w.Namespace, id, value)
		if err != nil {
			return out, err
		}
		d.job.Payload, d.job.Worker, d.job.StartedAt = d.payload(aside), w.Worker, now
		out.Jobs = append(out.Jobs, store.Leased{Job: d.job, Lease: r.text(), ExpiresAt: r.time()})
	}
	return out, nil
}
