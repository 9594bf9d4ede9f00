package retention

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/google/uuid"

	"flexiq/pkg/events"
	"flexiq/pkg/fault"
	"flexiq/pkg/quota"
	"flexiq/pkg/store"
	"flexiq/pkg/wire"
)

// retryBatch is how many dead letters one step replays.
const retryBatch = 100

// retrying is a namespace whose dead letters are retried: where the next step
// begins, and the quota that decides.
type retrying struct {
	usage store.Usage
	after string
	quota quota.Quota
	stamp store.Stamp
}

// retries replays dead letters that are old enough and were not retried too
// often, the oldest first, by turns between namespaces and within each one's
// quota. What a limit keeps out stays for a later sweep. Those whose keys are
// held are passed over, and when they fill a namespace's share of the sweep,
// the next sweep goes on behind them: so they do not starve the others.
func (s *sweeper) retries(ctx context.Context) (bool, error) {
	if s.cfg.DeadRetryAge <= 0 {
		return false, nil
	}
	_, err := walk(ctx, s, s.planRetries, func(r retrying) (*retrying, error) { return s.retry(ctx, r) })
	return false, err // what is left waits for the next tick
}

func (s *sweeper) planRetries(ctx context.Context, names []string) ([]retrying, error) {
	usages, err := s.usage(ctx, names)
	if err != nil {
		return nil, err
	}
	var real []string
	var out []retrying
	for _, u := range usages {
		if u.Dead > u.Shed {
			real = append(real, u.Namespace)
			out = append(out, retrying{usage: u, after: s.retryFrom[u.Namespace]})
		}
	}
	if len(real) == 0 {
		return nil, nil
	}
	docs, err := s.quotas(ctx, real)
	if err != nil {
		return nil, err
	}
	readable := out[:0]
	for i, doc := range docs {
		if q, ok := s.read(real[i], doc); ok {
			out[i].quota, out[i].stamp = q, doc.Stamp
			readable = append(readable, out[i])
		}
	}
	return readable, nil
}

// retry does one step of a namespace and returns what is left of it for this
// sweep.
func (s *sweeper) retry(ctx context.Context, r retrying) (*retrying, error) {
	ns := r.usage.Namespace
	if s.failed[ns] {
		return nil, nil
	}
	if err := s.guard(ctx); err != nil {
		return nil, err
	}
	page, err := ask(ctx, s, func(ctx context.Context) (store.Page[string], error) {
		return s.store.Retryable(ctx, store.Retryable{
			Namespace: ns, Before: r.usage.Now.Add(-s.cfg.DeadRetryAge), Most: s.cfg.DeadRetryMost, After: r.after, Limit: retryBatch,
		})
	})
	if err != nil {
		return nil, s.skip(ctx, ns, err)
	}
	out, err := s.replay(ctx, r, page.Items)
	if err != nil {
		return nil, s.skip(ctx, ns, err)
	}
	moved, stopped := s.retried(ns, out)
	if moved > 0 && s.ready != nil {
		s.ready([]string{ns})
	}
	s.tellRetried(ns, out)
	switch {
	case stopped == errLimited:
		s.retryFrom[ns] = r.after
		return nil, nil
	case errors.Is(stopped, store.ErrStale):
		docs, err := s.quotas(ctx, []string{ns})
		if err != nil {
			return nil, s.skip(ctx, ns, err)
		}
		q, ok := s.read(ns, docs[0])
		if !ok {
			return nil, nil
		}
		r.quota, r.stamp = q, docs[0].Stamp
		return &r, nil
	case page.Next == "":
		delete(s.retryFrom, ns)
		return nil, nil
	}
	r.after = page.Next
	s.retryFrom[ns] = page.Next
	return &r, nil
}

func (s *sweeper) replay(ctx context.Context, r retrying, ids []string) ([]store.Replayed, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	replay := store.Replay{Namespace: r.usage.Namespace, Quota: r.quota, Stamp: r.stamp, Automatic: true}
	for _, id := range ids {
		as, err := uuid.NewV7()
		if err != nil {
			return nil, err
		}
		replay.Letters = append(replay.Letters, store.Letter{ID: id, As: as.String()})
	}
	return ask(ctx, s, func(ctx context.Context) ([]store.Replayed, error) { return s.store.Replay(ctx, replay) })
}

// errLimited says that the quota lets no more in for now.
var errLimited = errors.New("the quota lets no more in")

// retried counts a step, and tells what stopped it, nil when nothing did.
func (s *sweeper) retried(ns string, out []store.Replayed) (moved int64, stopped error) {
	blocked := int64(0)
	for _, o := range out {
		switch {
		case o.Job != nil:
			moved++
			continue
		case o.Gone:
			continue
		case fault.Is(o.Err, fault.QueueFull), fault.Is(o.Err, fault.RateLimited):
			stopped = errLimited
		case errors.Is(o.Err, store.ErrStale):
			stopped = o.Err
		case !fault.Is(o.Err, fault.UniqueKeyHeld) && !fault.Is(o.Err, fault.DebounceKeyHeld):
			s.log.Warn().Err(o.Err).Str("namespace", ns).Msg("a dead letter could not be retried")
		}
		blocked++
	}
	s.report.Retried, s.report.Blocked = s.report.Retried+moved, s.report.Blocked+blocked
	if moved+blocked > 0 {
		s.account.change(ns, func(c *wire.SweepCounts) { c.Retried, c.Blocked = c.Retried+moved, c.Blocked+blocked })
	}
	return moved, stopped
}

// tellRetried tells of the jobs that a step made, and counts them.
func (s *sweeper) tellRetried(ns string, out []store.Replayed) {
	counts := wire.AdmissionCounts{Queues: map[string]int64{}}
	for _, o := range out {
		if o.Job == nil {
			continue
		}
		counts.Admitted++
		counts.Queues[o.Job.Queue]++
		s.events.Tell(events.Event{
			Namespace: ns, Type: events.JobEnqueued, JobID: o.Job.ID, Queue: o.Job.Queue, Task: o.Job.Task, Origin: o.Job.Origin,
		})
	}
	if s.count == nil || counts.Admitted == 0 {
		return
	}
	report, err := json.Marshal(wire.AdmissionReport{Process: s.holder, Namespaces: map[string]wire.AdmissionCounts{ns: counts}})
	if err == nil { // texts and numbers always marshal
		s.count(report)
	}
}
