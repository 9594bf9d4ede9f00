package config

import (
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/fault"
	"flexiq/pkg/job"
	"flexiq/pkg/quota"
	"flexiq/pkg/store"
	"flexiq/pkg/wire"
)

// What holds something back; see the interface's Finding.
const (
	foundUnreadable  = "quota_unreadable"
	foundPausedQueue = "paused_queue"
	foundPausedTask  = "paused_task"
	foundQueueCap    = "queue_max_concurrent"
	foundTaskCap     = "task_max_concurrent"
	foundNoWorker    = "no_worker"
	foundBusy        = "busy_workers"
	foundDelayed     = "delayed"
	foundRetry       = "retry"
	foundDebounce    = "debounce"
	foundBehind      = "behind"
	foundInvalid     = "invalid"
)

// namespace says what holds the namespace back.
func (sc *scene) namespace() []*flexiqv1.Finding {
	out := sc.unreadable()
	due := false
	for _, q := range sc.queues {
		due = due || !q.OldestDue.IsZero()
	}
	for _, o := range sc.set {
		waits := sc.pendingOf(o.Name)
		if o.Kind == store.OverrideTask || waits == nil || *waits > 0 {
			out = append(out, sc.paused(o.Kind, o.Name)...)
		}
	}
	if due || !sc.allKnown {
		out = append(out, sc.maxRunning()...)
		for _, o := range sc.set {
			out = append(out, sc.cap(o.Kind, o.Name)...)
		}
	}
	for _, q := range sc.queues {
		if !q.OldestDue.IsZero() && !sc.set.of(store.OverrideQueue, q.Queue).IsPaused() {
			out = append(out, sc.noWorker(q.Queue, q.OldestDue)...)
		}
	}
	return append(out, sc.refusing()...)
}

// waiting says what holds a pending job back.
func (sc *scene) waiting(j *job.Job, ahead store.Ahead) []*flexiqv1.Finding {
	out := sc.holding(j.Queue, j.Task)
	for _, f := range out {
		sc.before(f, ahead)
	}
	if wait := j.RunAt.Sub(sc.usage.Now); wait > 0 {
		f := &flexiqv1.Finding{What: foundDelayed, Since: wire.Stamp(j.CreatedAt), Estimate: durationpb.New(wait)}
		f.Message = "it is not due before " + j.RunAt.Format(time.RFC3339)
		switch {
		case j.Attempt > 0:
			f.What, f.Since = foundRetry, wire.Stamp(j.StartedAt)
			f.Message = fmt.Sprintf("attempt %d of %d failed; the next is due at %s", j.Attempt, j.MaxAttempts, j.RunAt.Format(time.RFC3339))
		case j.Debounce.Key != "":
			f.What = foundDebounce
			f.Message = fmt.Sprintf("its debounce window is open until %s", j.RunAt.Format(time.RFC3339))
		}
		return append(out, f)
	}
	for _, f := range sc.noWorker(j.Queue, j.RunAt) {
		sc.before(f, ahead)
		out = append(out, f)
	}
	if ahead.Count > 0 || len(out) == 0 {
		f := &flexiqv1.Finding{
			What: foundBehind, Since: wire.Stamp(j.RunAt), Ahead: &ahead.Count, AheadOrMore: ahead.More, Name: j.Queue,
			Estimate: sc.lasting(j.Queue, ahead.Count+1),
		}
		verb := "go"
		if ahead.Count == 1 && !ahead.More {
			verb = "goes"
		}
		f.Message = fmt.Sprintf("%s%s of its queue %s first", count(ahead.Count, "due job"), orMore(ahead.More), verb)
		out = append(out, f)
	}
	return out
}

// before makes what waits what waits before a job: it does not wait for itself.
func (sc *scene) before(f *flexiqv1.Finding, ahead store.Ahead) {
	switch {
	case f.Ahead == nil:
	case f.GetWhat() == quota.MaxRunning: // of the namespace
		f.Ahead = new(max(0, sc.usage.Pending-1))
	default:
		f.Ahead, f.AheadOrMore = &ahead.Count, ahead.More
	}
}

// moved says where a job stands that does not wait.
func (sc *scene) moved(j *job.Job) []*flexiqv1.Finding {
	f := &flexiqv1.Finding{What: string(j.State), Since: wire.Stamp(j.FinishedAt), Message: "it is " + string(j.State)}
	switch {
	case j.State == job.Running:
		h := store.Holder{JobID: j.ID, Queue: j.Queue, Task: j.Task, Worker: j.Worker, StartedAt: j.StartedAt}
		for _, r := range sc.running.Items {
			if r.JobID == j.ID {
				h = r
			}
		}
		f.Since, f.HeldBy = wire.Stamp(j.StartedAt), holders([]store.Holder{h})
		f.Message = fmt.Sprintf("it runs; attempt %d of %d", j.Attempt, j.MaxAttempts)
		if h.Cancelled {
			f.What, f.Message = "cancelling", "it runs, and its worker is told to stop at the next heartbeat"
		}
	case j.Error != "":
		f.Message += ": " + j.Error
	}
	return []*flexiqv1.Finding{f}
}

// call says what would become of a call: the first reason to refuse or shed it,
// else what its jobs would wait for.
func (sc *scene) call(jobs []*flexiqv1.JobSpec) []*flexiqv1.Finding {
	specs := make([]job.Spec, len(jobs))
	for i, p := range jobs {
		spec, err := wire.Spec(fmt.Sprintf("jobs[%d]", i), p, job.LargestMaxPayload)
		if err != nil {
			return []*flexiqv1.Finding{{What: foundInvalid, Message: fault.Of(err).Message}}
		}
		specs[i] = spec
	}
	if out := sc.unreadable(); len(out) > 0 {
		return out
	}
	if f := sc.refusal(specs[0].Queue, int64(len(specs))); f != nil {
		return []*flexiqv1.Finding{f}
	}
	var out []*flexiqv1.Finding
	seen := make(map[string]bool)
	for _, spec := range specs {
		for _, f := range append(sc.holding(spec.Queue, spec.Task), sc.noWorker(spec.Queue, time.Time{})...) {
			if key := f.GetWhat() + "\x00" + f.GetName(); !seen[key] {
				seen[key] = true
				out = append(out, f)
			}
		}
	}
	return out
}

// holding says what keeps due jobs of a queue and task from starting.
func (sc *scene) holding(queue, task string) []*flexiqv1.Finding {
	out := sc.unreadable()
	out = append(out, sc.paused(store.OverrideQueue, queue)...)
	out = append(out, sc.paused(store.OverrideTask, task)...)
	out = append(out, sc.maxRunning()...)
	out = append(out, sc.cap(store.OverrideQueue, queue)...)
	return append(out, sc.cap(store.OverrideTask, task)...)
}

func (sc *scene) unreadable() []*flexiqv1.Finding {
	if sc.err == nil {
		return nil
	}
	return []*flexiqv1.Finding{{
		What: foundUnreadable, Since: wire.Stamp(sc.since),
		Message: "the quota cannot be read: enqueues fail and nothing starts until it is set or cleared",
	}}
}

func (sc *scene) paused(kind store.OverrideKind, name string) []*flexiqv1.Finding {
	o := sc.set.of(kind, name)
	if !o.IsPaused() {
		return nil
	}
	f := &flexiqv1.Finding{
		What: foundPausedQueue, Name: name, Since: wire.Stamp(o.UpdatedAt),
		Message: fmt.Sprintf("the %s %q is paused", kind, name),
	}
	if kind == store.OverrideTask {
		f.What = foundPausedTask
		return []*flexiqv1.Finding{f}
	}
	f.Ahead = sc.pendingOf(name)
	return []*flexiqv1.Finding{f}
}

func (sc *scene) maxRunning() []*flexiqv1.Finding {
	limit := sc.quota.MaxRunning
	if sc.err != nil || limit == nil || sc.running.Total < *limit {
		return nil
	}
	return []*flexiqv1.Finding{{
		What: quota.MaxRunning, Limit: limit, Current: &sc.running.Total, Ahead: &sc.usage.Pending,
		Since: sc.fullSince(sc.running, *limit, sc.since), HeldBy: holders(sc.running.Items),
		Message: fmt.Sprintf("%d of at most %d jobs of the namespace run", sc.running.Total, *limit),
	}}
}

func (sc *scene) cap(kind store.OverrideKind, name string) []*flexiqv1.Finding {
	o := sc.set.of(kind, name)
	held := sc.capped[overrideKey{kind, name}]
	if o.MaxConcurrent == nil || held.Total < *o.MaxConcurrent {
		return nil
	}
	f := &flexiqv1.Finding{
		What: foundQueueCap, Name: name, Limit: o.MaxConcurrent, Current: &held.Total,
		Since: sc.fullSince(held, *o.MaxConcurrent, o.UpdatedAt), HeldBy: holders(held.Items),
		Message: fmt.Sprintf("%d of at most %d jobs of the %s %q run", held.Total, *o.MaxConcurrent, kind, name),
	}
	if kind == store.OverrideTask {
		f.What = foundTaskCap
	} else {
		f.Ahead = sc.pendingOf(name)
	}
	return []*flexiqv1.Finding{f}
}

// noWorker says that nobody is there to run a queue's jobs, or nobody free.
func (sc *scene) noWorker(queue string, due time.Time) []*flexiqv1.Finding {
	if !sc.complete {
		return nil
	}
	there, waiting, last := 0, 0, time.Time{}
	for _, w := range sc.workers {
		if !w.takes(queue) {
			continue
		}
		if w.at.After(last) {
			last = w.at
		}
		if sc.heard.Sub(w.at) <= workerFor {
			there++
			waiting += w.waiting
		}
	}
	f := &flexiqv1.Finding{Name: queue, Ahead: sc.pendingOf(queue)}
	switch {
	case there == 0:
		f.What, f.Message = foundNoWorker, fmt.Sprintf("no worker takes jobs of the queue %q", queue)
		if f.Since = wire.Stamp(due); !last.IsZero() && last.After(due) {
			f.Since = wire.Stamp(last)
		}
	case waiting == 0:
		f.What, f.Since, f.HeldBy = foundBusy, wire.Stamp(due), holders(sc.running.Items)
		f.Message = fmt.Sprintf("no worker of the queue %q has a free slot", queue)
	default:
		return nil
	}
	return []*flexiqv1.Finding{f}
}

// refusing says which limits would refuse or shed a single job now.
func (sc *scene) refusing() []*flexiqv1.Finding {
	if sc.err != nil {
		return nil
	}
	if f := sc.refusal(job.DefaultQueue, 1); f != nil {
		return []*flexiqv1.Finding{f}
	}
	return nil
}

// refusal says why a call of n jobs would not be admitted now; nil: it would.
func (sc *scene) refusal(queue string, n int64) *flexiqv1.Finding {
	q := sc.quota
	shed := q.Excess() == quota.Drop
	q.OnExcess = quota.Reject // for the reason and the delay
	use := quota.Usage{Pending: sc.usage.Pending, Bucket: sc.usage.Bucket}
	v := q.Decide(use, quota.Ask{Namespace: sc.usage.Namespace, Queue: queue, Jobs: n}, sc.usage.Now)
	if v.Decision == quota.Admit {
		return nil
	}
	f := &flexiqv1.Finding{What: v.Fault.Details[quota.KeyLimit], Message: v.Fault.Message}
	for _, l := range limits(sc.quota, sc.usage) {
		if l.GetField() == f.GetWhat() {
			f.Limit, f.Current = &l.Limit, &l.Current
		}
	}
	if wait, ok := v.Fault.RetryAfter(); ok && f.GetWhat() == quota.EnqueueRate {
		f.Estimate = durationpb.New(wait)
	}
	if v.Fault.Details[fault.KeyRetry] != "" {
		f.Message += "; it can never pass"
	}
	if shed {
		f.Message += "; it would be shed"
	}
	return f
}

// fullSince is when the last slot was taken, as far as the holders shown tell:
// the limit itself may be younger.
func (sc *scene) fullSince(held store.Holders, limit int64, set time.Time) *timestamppb.Timestamp {
	last := set
	if held.Total <= int64(len(held.Items)) && limit > 0 {
		for _, h := range held.Items {
			if h.StartedAt.After(last) {
				last = h.StartedAt
			}
		}
	} else if limit > 0 {
		return nil
	}
	return wire.Stamp(last)
}

// lasting is about how long it takes until n more attempts of a queue have
// ended, nil when none did in the last minute.
func (sc *scene) lasting(queue string, n int64) *durationpb.Duration {
	done := sc.finished[queue]
	if done == 0 {
		return nil
	}
	return durationpb.New((time.Duration(n) * time.Minute / time.Duration(done)).Round(time.Second))
}

// pendingOf is how many jobs wait in a queue, nil when it is not among those that
// were looked at.
func (sc *scene) pendingOf(queue string) *int64 {
	for i := range sc.queues {
		if sc.queues[i].Queue == queue {
			return &sc.queues[i].Pending
		}
	}
	if !sc.allKnown {
		return nil
	}
	return new(int64)
}

func count(n int64, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return strings.TrimSpace(fmt.Sprintf("%d %ss", n, noun))
}

func orMore(more bool) string {
	if more {
		return " or more"
	}
	return ""
}
