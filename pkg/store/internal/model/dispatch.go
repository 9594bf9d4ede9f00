package model

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"flexiq/pkg/job"
	"flexiq/pkg/store"
)

// Turn implements [store.Dispatch].
func (s *Store) Turn(ctx context.Context, settlements []store.Settlement, wants []store.Want) ([]store.Settled, []store.Grant, error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	settled := make([]store.Settled, len(settlements))
	for i, st := range settlements {
		settled[i] = s.settle(st)
	}
	grants := make([]store.Grant, len(wants))
	for i, w := range wants {
		grants[i] = s.grant(w)
	}
	return settled, grants, nil
}

func (s *Store) settle(st store.Settlement) store.Settled {
	var r *row
	if sp := s.spaces[st.Namespace]; sp != nil {
		r = sp.rows[st.JobID]
	}
	if r == nil {
		return store.Settled{}
	}
	var out store.Settled
	switch {
	case st.Lease == "":
	case r.lease == st.Lease:
		r.settled, r.settledAs = st.Lease, st.Outcome
		r.end(job.Ending{Outcome: st.Outcome, Error: st.Error, RetryAfter: st.RetryAfter}, st.Result, s.clock())
		out.Accepted = true
	case r.settled == st.Lease && r.settledAs == st.Outcome:
		out.Accepted, out.Repeat = true, true
	}
	out.State, out.Queue, out.Task, out.Attempt = r.job.State, r.job.Queue, r.job.Task, r.job.Attempt
	return out
}

// end applies the end of an attempt.
func (r *row) end(e job.Ending, result []byte, now time.Time) {
	m := r.job.After(e, r.cancel, job.Jitter())
	r.job.Attempt = m.Attempt
	if m.Error != "" {
		r.job.Error = m.Error
	}
	if m.State != job.Pending {
		if m.State == job.Complete {
			r.job.Result = result
		}
		r.finish(m.State, now)
		return
	}
	r.job.State, r.job.Worker = job.Pending, ""
	r.lease, r.leaseEnds = "", time.Time{}
	if !m.KeepsTurn {
		r.job.RunAt = now.Add(m.Delay).Truncate(time.Microsecond)
	}
}

// SetRunAt moves a pending job, where a comparison has to follow another
// store's random delay.
func (s *Store) SetRunAt(ns, id string, at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.spaces[ns].rows[id].job.RunAt = at
}

// order is that of dispatch: priority, run_at, id.
func order(a, b *row) int {
	return cmp.Or(cmp.Compare(b.job.Priority, a.job.Priority), a.job.RunAt.Compare(b.job.RunAt), cmp.Compare(a.job.ID, b.job.ID))
}

func (s *Store) grant(w store.Want) store.Grant {
	if w.Stamp != s.stamp(w.Namespace) {
		return store.Grant{Err: store.ErrStale}
	}
	now, sp := s.clock(), s.spaces[w.Namespace]
	wanted := func(r *row) bool {
		return r.job.State == job.Pending && (len(w.Queues) == 0 || slices.Contains(w.Queues, r.job.Queue))
	}
	due := sp.sorted(func(r *row) bool { return wanted(r) && !r.job.RunAt.After(now) })
	slices.SortFunc(due, order)
	var g store.Grant
	var left []*row
	bytes, room, stopped := int64(0), sp.room(w.MaxRunning), false
	for _, r := range due {
		if len(g.Jobs) == w.Max || stopped {
			stopped = true
			break
		}
		if int64(len(g.Jobs)) == room || len(sp.holds(&r.job)) > 0 {
			left = append(left, r)
			continue
		}
		if bytes += int64(len(r.job.Payload)); w.MaxBytes > 0 && bytes > w.MaxBytes && len(g.Jobs) > 0 {
			stopped = true
			continue
		}
		s.lease++
		r.job.State, r.job.Worker, r.job.StartedAt = job.Running, w.Worker, now
		r.job.Attempt++
		r.lease, r.leaseEnds = fmt.Sprintf("model-lease-%d", s.lease), now.Add(min(w.LeaseFor, r.job.Timeout))
		g.Jobs = append(g.Jobs, store.Leased{Job: r.job, Lease: r.lease, ExpiresAt: r.leaseEnds})
	}
	if !stopped && len(g.Jobs) < w.Max {
		g.Held = sp.held(left)
	}
	if len(g.Jobs) == 0 {
		g.NextAt = sp.next(func(r *row) bool { return wanted(r) && len(sp.holds(&r.job)) == 0 }, now)
	}
	return g
}

// next is the earliest run_at after now.
func (sp *space) next(wanted func(*row) bool, now time.Time) time.Time {
	var at time.Time
	for _, r := range sp.sorted(wanted) {
		if r.job.RunAt.After(now) && (at.IsZero() || r.job.RunAt.Before(at)) {
			at = r.job.RunAt
		}
	}
	return at
}

// Heartbeat implements [store.Dispatch].
func (s *Store) Heartbeat(_ context.Context, beats []store.Beat) ([]store.Pulse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]store.Pulse, len(beats))
	for i, b := range beats {
		var r *row
		if sp := s.spaces[b.Namespace]; sp != nil {
			r = sp.rows[b.JobID]
		}
		if r == nil || b.Lease == "" || r.lease != b.Lease {
			continue
		}
		ends := s.clock().Add(b.Extend)
		if last := r.job.StartedAt.Add(r.job.Timeout); ends.After(last) {
			ends = last
		}
		if ends.After(r.leaseEnds) {
			r.leaseEnds = ends
		}
		out[i] = store.Pulse{Alive: true, Cancelled: r.cancel, ExpiresAt: r.leaseEnds}
	}
	return out, nil
}

// Expire implements [store.Dispatch].
func (s *Store) Expire(_ context.Context, limit int) ([]store.Ended, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock()
	var over []*row
	for _, sp := range s.spaces {
		over = append(over, sp.sorted(func(r *row) bool { return r.job.State == job.Running && !r.leaseEnds.After(now) })...)
	}
	slices.SortFunc(over, func(a, b *row) int { return a.leaseEnds.Compare(b.leaseEnds) })
	if len(over) > limit {
		over = over[:limit]
	}
	out := make([]store.Ended, len(over))
	for i, r := range over {
		timedOut := !now.Before(r.job.StartedAt.Add(r.job.Timeout))
		r.end(job.Ending{Lost: !timedOut, TimedOut: timedOut}, nil, now)
		out[i] = r.ended()
	}
	return out, nil
}

func (r *row) ended() store.Ended {
	return store.Ended{
		Namespace: r.job.Namespace, Queue: r.job.Queue, Task: r.job.Task, JobID: r.job.ID, State: r.job.State, Attempt: r.job.Attempt,
	}
}

// Ready implements [store.Dispatch].
func (s *Store) Ready(_ context.Context, interests []store.Interest) ([]store.Readiness, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock()
	out := make([]store.Readiness, len(interests))
	for i, in := range interests {
		sp := s.spaces[in.Namespace]
		wanted := func(r *row) bool {
			return r.job.State == job.Pending && (len(in.Queues) == 0 || slices.Contains(in.Queues, r.job.Queue))
		}
		out[i].Ready = sp.count(func(r *row) bool { return wanted(r) && !r.job.RunAt.After(now) }) > 0
		out[i].NextAt = sp.next(wanted, now)
	}
	return out, nil
}

// Cancel implements [store.Admission].
func (s *Store) Cancel(_ context.Context, ns string, sel store.Selection, limit int) (store.Cancelled, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sp := s.spaces[ns]
	var out store.Cancelled
	var picked []*row
	if len(sel.IDs) > 0 {
		for _, id := range sel.IDs {
			if sp == nil || sp.rows[id] == nil || !sp.rows[id].live() {
				out.NotFound++
				continue
			}
			picked = append(picked, sp.rows[id])
		}
	} else {
		picked = sp.sorted(func(r *row) bool { return r.live() && !r.cancel && matches(sel.Filter, &r.job) })
		if len(picked) > limit {
			picked, out.More = picked[:limit], true
		}
	}
	for _, r := range picked {
		if r.job.State == job.Running {
			r.cancel = true
			out.Cancelling++
			continue
		}
		r.finish(job.Cancelled, s.clock())
		out.Cancelled++
		out.Ended = append(out.Ended, r.ended())
	}
	return out, nil
}
