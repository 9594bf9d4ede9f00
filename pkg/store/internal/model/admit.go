package model

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"flexiq/pkg/fault"
	"flexiq/pkg/job"
	"flexiq/pkg/quota"
	"flexiq/pkg/store"
)

// Admit implements [store.Admission].
func (s *Store) Admit(ctx context.Context, calls []store.Call) ([]store.Outcome, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock()
	out := make([]store.Outcome, len(calls))
	made := map[string]int{} // jobs made in a namespace by this group
	for i, c := range calls {
		out[i] = s.admit(c, now, made)
	}
	return out, nil
}

func (s *Store) admit(c store.Call, now time.Time, made map[string]int) store.Outcome {
	sp := s.spaces[c.Namespace]
	key := ""
	if c.Signature != nil {
		key = c.Namespace + "\x00" + string(c.Signature.Sum[:])
		if end, used := s.signatures[key]; used && !end.Before(now) {
			return store.Outcome{Err: store.ErrSignature}
		}
	}
	if out, known := sp.repeated(c); known {
		return out
	}
	if c.Slot == nil {
		out := s.decide(c, now, made)
		if out.Err == nil && c.Signature != nil {
			s.signatures[key] = c.Signature.Until
		}
		return out
	}
	one := s.standing(c.Namespace, c.Slot.Schedule, c.Slot.Revision, c.Slot.Due)
	if one == nil {
		return store.Outcome{Err: store.ErrSlot}
	}
	out := s.decide(c, now, made)
	if out.Err == nil {
		one.NextAt, one.LastSlot, one.LastAt, one.Refusal = c.Slot.Next, c.Slot.At, now, store.Refusal{}
	}
	return out
}

// decide decides a call that was not seen before.
func (s *Store) decide(c store.Call, now time.Time, made map[string]int) store.Outcome {
	sp := s.spaces[c.Namespace]
	if c.Stamp != s.stamp(c.Namespace) {
		return store.Outcome{Err: store.ErrStale}
	}
	var b bucket
	if sp != nil {
		b = bucketOf(sp.bucket)
	}
	if b.at > now.UnixMicro() {
		b.at = now.UnixMicro()
		sp.bucket = b.stored()
	}
	if c.Quota.EnqueueRate != nil {
		b = b.under(*c.Quota.EnqueueRate, now)
	}
	pending, n := sp.count(in(job.Pending)), int64(len(c.Jobs))
	switch {
	case c.Quota.MaxPending != nil && pending+n > *c.Quota.MaxPending:
		return s.excess(c, "max_pending", pending, b, now, made)
	case c.Quota.EnqueueRate != nil && n > b.whole():
		return s.excess(c, "enqueue_rate", pending, b, now, made)
	}
	for _, spec := range c.Jobs {
		if s.poison != "" && spec.Task == s.poison {
			return store.Outcome{Err: fault.New(fault.Internal, "poisoned")}
		}
	}
	sp = s.space(c.Namespace)
	if c.Quota.EnqueueRate != nil {
		b.take(n)
		sp.bucket = b.stored()
	}
	return sp.insert(c, now, made)
}

// repeated answers a call some of whose ids exist.
func (sp *space) repeated(c store.Call) (store.Outcome, bool) {
	if sp == nil {
		return store.Outcome{}, false
	}
	known, same := false, true
	for _, j := range c.Jobs {
		if r := sp.rows[j.ID]; r != nil {
			known = true
			same = same && r.fingerprint == j.Fingerprint
		} else {
			same = same && j.UniqueKey != ""
		}
	}
	if !known {
		return store.Outcome{}, false
	}
	if !same {
		return store.Outcome{Err: fault.New(fault.IDConflict, "a call with known ids must repeat the same jobs")}, true
	}
	out := store.Outcome{Repeat: true, Results: make([]store.Result, len(c.Jobs))}
	for i, j := range c.Jobs {
		if r := sp.rows[j.ID]; r != nil {
			out.Results[i] = result(r)
			out.Shed = out.Shed || r.job.Shed()
			continue
		}
		if holder := sp.holder(j.UniqueKey); holder != nil {
			out.Results[i] = result(holder)
		}
		out.Results[i].Deduplicated = true
	}
	return out, true
}

// result shows a row as it stands.
func result(r *row) store.Result {
	j := r.job
	j.Payload = nil
	return store.Result{Job: &j}
}

// holder is the live job with a unique key.
func (sp *space) holder(key string) *row {
	for _, r := range sp.rows {
		if key != "" && r.live() && r.job.UniqueKey == key {
			return r
		}
	}
	return nil
}

// waiting is the pending job with a debounce key.
func (sp *space) waiting(key string) *row {
	for _, r := range sp.rows {
		if key != "" && r.job.State == job.Pending && r.job.Debounce.Key == key {
			return r
		}
	}
	return nil
}

func (sp *space) insert(c store.Call, now time.Time, made map[string]int) store.Outcome {
	out := store.Outcome{Results: make([]store.Result, len(c.Jobs))}
	var before *row
	for i, spec := range c.Jobs {
		if holder := sp.holder(spec.UniqueKey); holder != nil {
			out.Results[i] = result(holder)
			out.Results[i].Deduplicated = true
			continue
		}
		if holder := sp.waiting(spec.Debounce.Key); holder != nil {
			at, latest := now.Add(spec.Debounce.Window), holder.job.CreatedAt.Add(spec.Debounce.MaxWait)
			if latest.Before(at) {
				at = latest
			}
			holder.job.Payload, holder.job.Form, holder.job.RunAt = spec.Payload, spec.Form, at
			out.Results[i] = result(holder)
			out.Results[i].Debounced = true
			continue
		}
		r := sp.add(c, spec, now, made)
		// Two jobs of a call that ask for the same instant keep the call's order.
		if before != nil && !spec.RunAt.IsZero() && before.job.RunAt.Compare(r.job.RunAt) >= 0 && sameInstant(c, before, spec) {
			r.job.RunAt = before.job.RunAt
			if before.job.ID > r.job.ID {
				r.job.RunAt = r.job.RunAt.Add(time.Microsecond)
			}
		}
		before = r
		out.Results[i] = result(r)
	}
	return out
}

// sameInstant reports whether the job made before asked for the spec's run_at.
func sameInstant(c store.Call, before *row, spec job.Spec) bool {
	for _, other := range c.Jobs {
		if other.ID == before.job.ID {
			return other.RunAt.Equal(spec.RunAt)
		}
	}
	return false
}

// add makes a pending row.
func (sp *space) add(c store.Call, spec job.Spec, now time.Time, made map[string]int) *row {
	at := now.Add(time.Duration(made[c.Namespace]) * time.Microsecond)
	made[c.Namespace]++
	j := job.Job{
		ID: spec.ID, Namespace: c.Namespace, Queue: spec.Queue, Task: spec.Task, Payload: spec.Payload, Form: spec.Form,
		State: job.Pending, Priority: spec.Priority, MaxAttempts: spec.MaxAttempts, Timeout: spec.Timeout,
		BackoffBase: spec.BackoffBase, BackoffMax: spec.BackoffMax, RunAt: at.Add(spec.Delay), CreatedAt: at,
		Metadata: spec.Metadata, UniqueKey: spec.UniqueKey, Debounce: spec.Debounce, Origin: c.Origin, EnqueuedBy: c.By,
	}
	if spec.RunAt.After(at) {
		j.RunAt = spec.RunAt
	}
	if spec.Debounce.Key != "" {
		j.RunAt = at.Add(spec.Debounce.Window)
	}
	r := &row{job: j, fingerprint: spec.Fingerprint}
	sp.rows[j.ID] = r
	return r
}

// excess refuses or sheds a call that is over a limit.
func (s *Store) excess(c store.Call, limit string, pending int64, b bucket, now time.Time, made map[string]int) store.Outcome {
	q := c.Quota
	if q.OnExcess == quota.Drop {
		out := store.Outcome{Shed: true}
		text := fmt.Sprintf("quota: namespace '%s' is over enqueue_rate %s", c.Namespace, q.EnqueueRate)
		if limit == "max_pending" {
			text = fmt.Sprintf("quota: namespace '%s' is over max_pending %d with %d pending", c.Namespace, *q.MaxPending, pending)
		}
		for _, spec := range c.Jobs {
			r := s.space(c.Namespace).add(c, spec, now, made)
			r.job.UniqueKey, r.job.Debounce = "", job.Debounce{}
			r.job.Error, r.job.DeadMetadata = text, map[string]string{"shed": "quota"}
			r.finish(job.Dead, r.job.CreatedAt)
			out.Results = append(out.Results, result(r))
		}
		return out
	}
	n := int64(len(c.Jobs))
	d := map[string]string{"namespace": c.Namespace, "limit": limit, "asked": text(n), "revision": text(max(c.Stamp.Revision, c.Stamp.Default))}
	e := &fault.Error{Reason: fault.QueueFull, Details: d}
	fits := int64(-1)
	if q.MaxPending != nil {
		fits = max(0, *q.MaxPending-pending)
	}
	if q.EnqueueRate != nil && (fits < 0 || b.whole() < fits) {
		fits = b.whole()
	}
	d["fits"] = text(fits)
	if limit == "max_pending" {
		d["cap"], d["current"] = text(*q.MaxPending), text(pending)
		e.Message = fmt.Sprintf("queue '%s' is full: %d pending >= max_pending %d", c.Jobs[0].Queue, pending, *q.MaxPending)
	} else {
		d["cap"], d["current"] = text(q.EnqueueRate.Count), text(b.whole())
		e.Reason = fault.RateLimited
		e.Message = fmt.Sprintf("rate limit exceeded for: namespace '%s' enqueue_rate %s", c.Namespace, q.EnqueueRate)
	}
	switch {
	case q.MaxPending != nil && n > *q.MaxPending, q.EnqueueRate != nil && n > q.EnqueueRate.Count:
		d["retry"] = "never"
	case limit == "max_pending":
		d["retry_after_ms"], d["estimate"] = "1000", "true"
	default:
		d["retry_after_ms"] = text(b.millisUntil(n))
	}
	return store.Outcome{Err: e}
}

func text(n int64) string { return strconv.FormatInt(n, 10) }

// Poison makes calls with a job of the task fail as if the database refused
// it. An empty task heals.
func (w *World) Poison(task string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.poison = task
}
