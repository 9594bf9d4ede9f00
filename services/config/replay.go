package config

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/durationpb"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/auth"
	"flexiq/pkg/events"
	"flexiq/pkg/fault"
	"flexiq/pkg/quota"
	"flexiq/pkg/store"
	"flexiq/pkg/wire"
)

// replayTries bounds how often a step is repeated because the quota changed under it.
const replayTries = 5

func (s *Service) replayDeadLetters(ctx context.Context, req *flexiqv1.ReplayDeadLettersRequest) (*flexiqv1.ReplayDeadLettersResponse, error) {
	ns, err := tenant(ctx)
	if err != nil {
		return nil, err
	}
	chosen, err := choose(req)
	if err != nil {
		return nil, err
	}
	after, err := wire.ParsePageToken(replayList, req.GetPageToken())
	if err != nil {
		return nil, err
	}
	most, err := replaySize(req)
	if err != nil {
		return nil, err
	}
	usage, err := s.store.Usage(ctx, []string{ns})
	if err != nil {
		return nil, err
	}
	audit := lettersRecord(ctx, "replay-dead-letters", chosen)
	r := &replayer{s: s, ns: ns, by: auth.From(ctx).TokenID, audit: audit, tally: tally{reasons: map[string]int64{}}}
	next, err := r.run(ctx, chosen, after, most)
	if r.moved > 0 {
		s.deps.Bus.PublishReady([]string{ns})
	}
	s.count(ns, r.counts)
	r.tellRefused()
	s.metrics.letters.WithLabelValues("moved").Add(float64(r.moved))
	if err == nil {
		err = r.refusal()
	}
	if err != nil {
		return nil, err
	}
	res := r.response()
	res.Time, res.NextPageToken = wire.Stamp(usage[0].Now), wire.PageToken(replayList, next)
	return res, nil
}

// replaySize is how many letters a call looks at, 0 for all.
func replaySize(req *flexiqv1.ReplayDeadLettersRequest) (int, error) {
	switch {
	case req.GetPageSize() == 0:
		return 0, nil
	case len(req.GetIds()) > 0:
		return 0, fault.Invalid("page_size", "must not be given together with ids")
	}
	return wire.PageSize(req.GetPageSize())
}

// tally is what became of the letters of a call.
type tally struct {
	moved, left, gone int64
	reasons           map[string]int64
	limited           *fault.Error // the first refusal by a limit
}

// add counts what became of a few letters. It returns the place of the first
// one that a limit kept out, −1 for none.
func (t *tally) add(out []store.Replayed) int {
	first := -1
	for i, r := range out {
		switch {
		case r.Gone:
			t.gone++
		case r.Err == nil:
			t.moved++
		default:
			f := fault.Of(r.Err)
			t.stay(string(f.Reason), 1)
			if first < 0 && (f.Reason == fault.QueueFull || f.Reason == fault.RateLimited) {
				first = i
				if t.limited == nil {
					t.limited = f
				}
			}
		}
	}
	return first
}

func (t *tally) stay(reason string, n int64) {
	t.left += n
	if n > 0 {
		t.reasons[reason] += n
	}
}

func (t *tally) response() *flexiqv1.ReplayDeadLettersResponse {
	res := &flexiqv1.ReplayDeadLettersResponse{Moved: t.moved, Left: t.left, Gone: t.gone}
	for reason, n := range t.reasons {
		res.Reasons = append(res.Reasons, &flexiqv1.ReplayReason{Reason: reason, Count: n})
	}
	slices.SortFunc(res.Reasons, func(a, b *flexiqv1.ReplayReason) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Reason, b.Reason))
	})
	if t.limited != nil {
		if wait, ok := t.limited.RetryAfter(); ok {
			res.RetryAfter = durationpb.New(wait)
		}
	}
	return res
}

// replayer replays letters of a namespace, some at a time.
type replayer struct {
	tally
	s      *Service
	ns, by string
	audit  store.Record
	quota  quota.Quota
	stamp  store.Stamp
	counts wire.AdmissionCounts // for the last minute
}

// note counts and tells what became of one letter for good.
func (r *replayer) note(done store.Replayed) {
	switch {
	case done.Job != nil:
		r.counts.Add(wire.AdmissionCounts{Admitted: 1, Queues: map[string]int64{done.Job.Queue: 1}})
		r.s.tellEnqueued(events.JobEnqueued, done.Job)
	case fault.Is(done.Err, fault.QueueFull), fault.Is(done.Err, fault.RateLimited):
		// Once a call: the letters behind the first one that a limit keeps out only
		// wait for their turn, and whoever paces a replay offers them again and again.
		r.counts.Rejected = 1
	}
}

// tellRefused tells of the letters that a limit kept out.
func (r *replayer) tellRefused() {
	if r.limited != nil {
		r.s.deps.Events.Refused(events.Event{
			Namespace: r.ns, Reason: r.limited.Reason, Origin: "replay", Count: r.counts.Rejected, Details: maps.Clone(r.limited.Details),
		})
	}
}

// run replays what was chosen until it ends, the time is over or a limit keeps
// one out. Those behind that one are counted and not tried: the limit would keep
// them out as well. It returns where a later call goes on.
func (r *replayer) run(ctx context.Context, c chosen, after string, most int) (next string, err error) {
	if err := r.load(ctx); err != nil {
		return "", err
	}
	for looked := 0; ; {
		size := wire.MaxPageSize
		if most > 0 {
			size = min(size, most-looked)
		}
		ids, end, err := c.page(ctx, r.s.store, r.ns, after, size)
		if err != nil {
			return "", err
		}
		out, err := r.step(ctx, ids)
		if err != nil {
			return "", err
		}
		looked += len(ids)
		if at := r.add(out); at >= 0 {
			if most == 0 {
				err = r.count(ctx, c, end)
			}
			return before(ids, at, after), err
		}
		switch {
		case end == "":
			return "", nil
		case most > 0 && looked >= most, short(ctx):
			return end, nil
		}
		after = end
	}
}

// before is the position in front of an id of a page that began after a position.
func before(ids []string, at int, after string) string {
	switch {
	case at > 0:
		return ids[at-1]
	case after != "":
		return after
	}
	return uuid.Nil.String()
}

// count counts the letters behind a position as left by the limit.
func (r *replayer) count(ctx context.Context, c chosen, after string) error {
	for after != "" && !short(ctx) {
		ids, end, err := c.page(ctx, r.s.store, r.ns, after, wire.MaxPageSize)
		if err != nil {
			return err
		}
		r.stay(string(r.limited.Reason), int64(len(ids)))
		after = end
	}
	return nil
}

// step replays a few letters. What was decided by a quota out of force is
// decided again.
func (r *replayer) step(ctx context.Context, ids []string) ([]store.Replayed, error) {
	out := make([]store.Replayed, len(ids))
	todo := make([]int, len(ids))
	for i := range todo {
		todo[i] = i
	}
	for range replayTries {
		if len(todo) == 0 {
			return out, nil
		}
		letters := make([]store.Letter, len(todo))
		for k, i := range todo {
			id, err := uuid.NewV7()
			if err != nil {
				return nil, err
			}
			letters[k] = store.Letter{ID: ids[i], As: id.String()}
		}
		done, err := r.s.store.Replay(ctx, store.Replay{
			Namespace: r.ns, Quota: r.quota, Stamp: r.stamp, Letters: letters, By: r.by, Audit: &r.audit,
		})
		if err != nil {
			return nil, err
		}
		var stale []int
		for k, i := range todo {
			if out[i] = done[k]; errors.Is(done[k].Err, store.ErrStale) {
				stale = append(stale, i)
				continue
			}
			r.note(done[k])
		}
		if todo = stale; len(todo) > 0 {
			if err := r.load(ctx); err != nil {
				return nil, err
			}
		}
	}
	if len(todo) > 0 {
		return nil, fault.New(fault.Overloaded, "the quota of the namespace keeps changing")
	}
	return out, nil
}

// load reads the quota in force.
func (r *replayer) load(ctx context.Context) error {
	docs, err := r.s.store.Quotas(ctx, []string{r.ns})
	if err != nil {
		return err
	}
	r.stamp = docs[0].Stamp
	r.quota, err = readDocument(docs[0])
	return err
}

// refusal is the error of a call whose every letter a limit kept out, where the
// quota rejects: as an enqueue would have failed.
func (r *replayer) refusal() error {
	if r.limited == nil || r.moved > 0 || r.quota.Excess() == quota.Drop {
		return nil
	}
	return r.limited.With("left", strconv.FormatInt(r.left, 10))
}

// stepMargin is kept of a call's time to answer in.
const stepMargin = time.Second

// short reports whether the time of a call is nearly over.
func short(ctx context.Context) bool {
	end, ok := ctx.Deadline()
	return ok && time.Until(end) < stepMargin
}
