package redis

import (
	"context"
	"slices"
	"time"

	"flexiq/pkg/job"
	"flexiq/pkg/store"
)

// idleAfter is how long a namespace stays among the busy ones without a grant.
const idleAfter = time.Minute

// Heartbeat implements [store.Dispatch].
func (s *Store) Heartbeat(ctx context.Context, beats []store.Beat) ([]store.Pulse, error) {
	if len(beats) == 0 {
		return nil, nil
	}
	at := make(map[string][]int)
	var parts [][]int
	for i := range beats {
		ns := beats[i].Namespace
		if at[ns] = append(at[ns], i); len(at[ns]) == most {
			parts, at[ns] = append(parts, at[ns]), nil
		}
	}
	for _, part := range at {
		if len(part) > 0 {
			parts = append(parts, part)
		}
	}
	cmds := make([]*command, len(parts))
	for k, part := range parts {
		args := []any{len(part)}
		for _, i := range part {
			args = append(args, beats[i].JobID, lease(beats[i].Lease), beats[i].Extend.Microseconds())
		}
		cmds[k] = s.on(tag(beats[part[0]].Namespace), heartbeatScript, args...)
	}
	_ = s.run(ctx, again, cmds...) // each command has its own error
	if err := common(cmds); err != nil {
		return nil, s.fail(ctx, "heartbeat", err)
	}
	out := make([]store.Pulse, len(beats))
	for k, part := range parts {
		r := cmds[k].list()
		for _, i := range part {
			if err := cmds[k].err; err != nil {
				out[i].Err = s.fail(ctx, "heartbeat", err)
				continue
			}
			if p := r.list(); p.bool() {
				out[i] = store.Pulse{Alive: true, Cancelled: p.bool(), ExpiresAt: p.time()}
			}
		}
	}
	return out, nil
}

// overdue is an attempt whose lease has ended.
type overdue struct {
	ns      string
	expires int64
	now     time.Time // of the look that found it
	is      *decoded
}

// Expire implements [store.Dispatch].
func (s *Store) Expire(ctx context.Context, limit int) ([]store.Ended, error) {
	if err := s.surveyDue(ctx); err != nil {
		return nil, s.fail(ctx, "expire", err)
	}
	found, err := s.overdue(ctx, max(limit, 1))
	if err != nil {
		return nil, s.fail(ctx, "expire", err)
	}
	ended, err := s.end(ctx, found)
	return ended, s.fail(ctx, "expire", err)
}

// overdue finds the first attempts that are over in the busy namespaces. It
// also lets go of those that have been idle for long.
func (s *Store) overdue(ctx context.Context, limit int) ([]overdue, error) {
	names, numbers, err := s.busy(ctx)
	if err != nil || len(names) == 0 {
		return nil, err
	}
	cmds := make([]*command, len(names))
	for i, ns := range names {
		cmds[i] = s.on(tag(ns), expiredScript, limit)
	}
	if err := s.run(ctx, again, cmds...); err != nil && common(cmds) != nil {
		return nil, err
	}
	var found []overdue
	var idle []int
	lastGrant := make([]int64, len(names))
	for i, c := range cmds {
		if c.err != nil { // a namespace that cannot be read must not hold up the others
			s.log.Error().Err(c.err).Str("namespace", names[i]).Msg("ended leases could not be looked for")
			continue
		}
		r := c.list()
		now, running := r.time(), r.int()
		lastGrant[i] = r.int()
		if running == 0 && now.Sub(instant(lastGrant[i])).Abs() > idleAfter {
			idle = append(idle, i)
		}
		for r.more() {
			id, expires, head := r.text(), r.int(), r.text()
			d, err := decode(names[i], id, head)
			if err != nil {
				d = &decoded{job: job.Job{ID: id}} // an index entry without its job: end.lua removes it
			}
			found = append(found, overdue{ns: names[i], expires: expires, now: now, is: d})
		}
	}
	s.letGo(ctx, names, numbers, lastGrant, idle)
	slices.SortStableFunc(found, func(a, b overdue) int { return int(a.expires - b.expires) })
	return found[:min(limit, len(found))], nil
}

// busy lists the busy namespaces and the numbers under which they are.
func (s *Store) busy(ctx context.Context) (names []string, numbers []int64, err error) {
	c := plain("zrange", s.key(installation, "busy"), 0, -1, "withscores")
	if err := s.run(ctx, again, c); err != nil {
		return nil, nil, err
	}
	for r := c.list(); r.more(); {
		names, numbers = append(names, r.text()), append(numbers, r.int())
	}
	return names, numbers, nil
}

// letGo takes idle namespaces off the list of busy ones. What goes wrong is put
// right by a later look.
func (s *Store) letGo(ctx context.Context, names []string, numbers, lastGrant []int64, idle []int) {
	if len(idle) == 0 {
		return
	}
	cmds := make([]*command, len(idle))
	for k, i := range idle {
		cmds[k] = s.on(tag(names[i]), idleScript, numbers[i], lastGrant[i])
	}
	err := s.run(ctx, again, cmds...)
	args := []any{0}
	for k, i := range idle {
		if cmds[k].err == nil && cmds[k].int() == 1 {
			args = append(args, names[i], numbers[i])
		}
	}
	args[0] = len(args) / 2
	if len(args) > 1 && err == nil {
		err = s.run(ctx, again, s.on(installation, unbusyScript, args...))
	}
	if err != nil {
		s.log.Debug().Err(err).Msg("idle namespaces were not let go")
	}
}

// end ends attempts where nothing happened since they were found.
func (s *Store) end(ctx context.Context, found []overdue) ([]store.Ended, error) {
	var order []string
	args, places := make(map[string][]any), make(map[string][]int)
	out := make([]store.Ended, len(found))
	for i, o := range found {
		j := &o.is.job
		timedOut := !j.StartedAt.Add(j.Timeout).After(o.now)
		m := j.After(job.Ending{Lost: !timedOut, TimedOut: timedOut}, o.is.cancelling, job.Jitter())
		out[i] = store.Ended{Namespace: o.ns, Queue: j.Queue, Task: j.Task, JobID: j.ID, State: m.State, Attempt: m.Attempt}
		if args[o.ns] == nil {
			order = append(order, o.ns)
		}
		args[o.ns] = append(args[o.ns], j.ID, o.is.lease, flag(o.is.cancelling), numberOf(m.State), m.Attempt, flag(m.KeepsTurn),
			m.Delay.Microseconds(), m.Error)
		places[o.ns] = append(places[o.ns], i)
	}
	var cmds []*command
	var at [][]int
	for _, ns := range order {
		for part, i := range chunks(places[ns]) {
			cmds = append(cmds, s.on(tag(ns), endScript, append([]any{len(part)}, args[ns][8*i:8*(i+len(part))]...)...))
			at = append(at, part)
		}
	}
	err := s.run(ctx, once, cmds...)
	var ended []store.Ended
	done := make([]bool, len(found))
	for k, c := range cmds {
		r := c.list()
		for _, i := range at[k] {
			done[i] = r.bool()
		}
	}
	for i := range out {
		if done[i] {
			ended = append(ended, out[i])
		}
	}
	if len(ended) > 0 {
		return ended, nil // what failed is found again
	}
	return nil, err
}

// chunks cuts a list into parts that a script may take, and tells where each begins.
func chunks[T any](all []T) func(yield func([]T, int) bool) {
	return func(yield func([]T, int) bool) {
		for from := 0; from < len(all); from += most {
			if !yield(all[from:min(from+most, len(all))], from) {
				return
			}
		}
	}
}
