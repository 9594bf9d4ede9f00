package redis

import (
	"context"
	"encoding/binary"
	"fmt"
	"time"

	"flexiq/pkg/fault"
	"flexiq/pkg/job"
	"flexiq/pkg/quota"
	"flexiq/pkg/store"
	"flexiq/pkg/store/admit"
)

// most is how many jobs one script makes or moves.
const most = 1000

// group is some calls of one namespace, with their places among all calls: the
// work of one script.
type group struct {
	name  string
	calls []*store.Call
	at    []int
	jobs  int
	seq   int // jobs of the namespace's calls before these
}

// groups sorts calls by namespace, keeps their order within each, and lets no
// group have more jobs than a script may.
func groups(calls []store.Call) []*group {
	var out []*group
	last := make(map[string]*group)
	for i := range calls {
		c := &calls[i]
		g := last[c.Namespace]
		if g == nil || g.jobs+len(c.Jobs) > most {
			next := &group{name: c.Namespace}
			if g != nil {
				next.seq = g.seq + g.jobs
			}
			g = next
			last[c.Namespace] = g
			out = append(out, g)
		}
		g.calls, g.at, g.jobs = append(g.calls, c), append(g.at, i), g.jobs+len(c.Jobs)
	}
	return out
}

// Admit implements [store.Admission].
func (s *Store) Admit(ctx context.Context, calls []store.Call) ([]store.Outcome, error) {
	if len(calls) == 0 {
		return nil, nil
	}
	parts := groups(calls)
	cmds := make([]*command, len(parts))
	for i, g := range parts {
		cmds[i] = s.admitCommand(g, nil)
	}
	_ = s.run(ctx, again, cmds...) // each command has its own error
	s.admitFresh(ctx, parts, cmds)
	if err := common(cmds); err != nil {
		return nil, s.fail(ctx, "admit", err)
	}
	out := make([]store.Outcome, len(calls))
	for i, g := range parts {
		if err := cmds[i].err; err != nil {
			s.log.Error().Err(err).Str("namespace", g.name).Msg("enqueue calls failed alone")
			for _, at := range g.at {
				out[at] = store.Outcome{Err: s.fail(ctx, "admit", err)}
			}
			continue
		}
		s.survey.met(g.name)
		s.outcomes(ctx, g, cmds[i].list(), out)
	}
	return out, nil
}

// common is the error of a database that did nothing of what it was asked.
func common(cmds []*command) error {
	for _, c := range cmds {
		if !unavailable(c.err) {
			return nil
		}
	}
	return cmds[0].err
}

// admitFresh registers the namespaces that are not, and runs their groups again.
func (s *Store) admitFresh(ctx context.Context, parts []*group, cmds []*command) {
	var names []string
	var fresh []int
	for i, g := range parts {
		if cmds[i].err == nil && cmds[i].list().int() == 1 {
			names, fresh = append(names, g.name), append(fresh, i)
		}
	}
	if len(fresh) == 0 {
		return
	}
	st, _, err := s.register(ctx, names, false, false)
	second := make([]*command, len(fresh))
	for k, i := range fresh {
		second[k] = s.admitCommand(parts[i], &st)
		second[k].err = err
		cmds[i] = second[k]
	}
	if err == nil {
		_ = s.run(ctx, again, second...) // each command has its own error
	}
}

// admitCommand writes the calls of a group for the script.
func (s *Store) admitCommand(g *group, st *standing) *command {
	args := make([]any, 0, 8+10*len(g.calls)+3*g.jobs)
	args = append(args, quotaField(g.name), "", "", g.seq, len(g.calls))
	if st != nil {
		args[1], args[2] = st.revision, st.term
	}
	for _, c := range g.calls {
		rate := quota.Rate{}
		if c.Quota.EnqueueRate != nil {
			rate = *c.Quota.EnqueueRate
		}
		args = append(args, len(c.Jobs), c.Stamp.Revision, c.Stamp.Default, maybe(c.Quota.MaxPending), rate.Count, int(rate.Unit))
		before, after, overRate := "", "", ""
		if c.Quota.Excess() == quota.Drop {
			before, after = c.Quota.ShedOverDepth(c.Namespace)
			overRate = c.Quota.ShedOverRate(c.Namespace)
		}
		args = append(args, flag(c.Quota.Excess() == quota.Drop), before, after, overRate, flag(c.Slot != nil))
		if at := c.Slot; at != nil {
			args = append(args, at.Schedule, at.Revision, micros(at.Due), micros(at.At), micros(at.Next))
		}
		args = append(args, flag(c.Signature != nil))
		if sig := c.Signature; sig != nil {
			args = append(args, sig.Sum[:], micros(sig.Until))
		}
		for k := range c.Jobs {
			value, aside := encode(&c.Jobs[k], c.Origin, c.By)
			args = append(args, c.Jobs[k].ID, value, aside)
		}
	}
	return s.on(tag(g.name), admitScript, args...)
}

// The answers to a call, as admit.lua numbers them.
const (
	answerAdmitted = iota
	answerShed
	answerRefused
	answerStale
	answerConflict
	answerRepeat
	answerSlot
	answerSignature
)

// outcomes reads the answers to a group's calls.
func (s *Store) outcomes(ctx context.Context, g *group, r *list, out []store.Outcome) {
	r.int() // 0: the namespace is registered
	now := r.time()
	for i, c := range g.calls {
		answer := r.list()
		kind := answer.int()
		if kind == answerStale {
			s.stale(ctx, c.Namespace, c.Stamp, answer)
			out[g.at[i]] = store.Outcome{Err: store.ErrStale}
			continue
		}
		out[g.at[i]] = outcome(c, kind, answer, now)
	}
}

func outcome(c *store.Call, kind int64, r *list, now time.Time) store.Outcome {
	switch kind {
	case answerAdmitted:
		return results(c, r, job.Pending, "")
	case answerShed:
		over, pending := r.int(), r.int()
		text := c.Quota.ShedOverRate(c.Namespace)
		if over == 1 {
			before, after := c.Quota.ShedOverDepth(c.Namespace)
			text = fmt.Sprint(before, pending, after)
		}
		out := results(c, r, job.Dead, text)
		out.Shed = out.Err == nil
		return out
	case answerRefused:
		return refusal(c, r, now)
	case answerConflict:
		return store.Outcome{Err: admit.Conflict(r.text())}
	case answerRepeat:
		return repeated(c, r)
	case answerSlot:
		return store.Outcome{Err: store.ErrSlot}
	case answerSignature:
		return store.Outcome{Err: store.ErrSignature}
	}
	return broken(c, "an answer of kind %d", kind)
}

func broken(c *store.Call, format string, args ...any) store.Outcome {
	err := fmt.Errorf("redis: admit in %q: unexpected reply: %s", c.Namespace, fmt.Sprintf(format, args...))
	return store.Outcome{Err: fault.Wrap(err, fault.Internal, "internal error of the store")}
}

// refusal makes the script's verdict once more from its numbers, for its texts
// and details.
func refusal(c *store.Call, r *list, now time.Time) store.Outcome {
	u := quota.Usage{Pending: r.int(), Bucket: readBucket(r)}
	ask := quota.Ask{Namespace: c.Namespace, Queue: c.Jobs[0].Queue, Jobs: int64(len(c.Jobs)), Revision: c.Stamp.InForce()}
	v := c.Quota.Decide(u, ask, now)
	if v.Decision != quota.Refuse {
		return broken(c, "refused where %+v admits", u)
	}
	return store.Outcome{Err: v.Fault}
}

// readBucket reads a bucket as bucket.lua keeps it.
func readBucket(r *list) quota.Bucket {
	rate := quota.Rate{Count: r.int(), Unit: quota.Unit(r.int())}
	tokens, part, at := r.int(), r.int(), r.int()
	return quota.BucketOf(rate, tokens, part, at)
}

// results reads the entries of an admitted or a shed call.
func results(c *store.Call, r *list, state job.State, text string) store.Outcome {
	out := store.Outcome{Results: make([]store.Result, len(c.Jobs))}
	for i := range c.Jobs {
		switch entry := r.next().(type) {
		case string:
			if len(entry) != 16 {
				return broken(c, "an entry of %d bytes", len(entry))
			}
			j := made(c, &c.Jobs[i], []byte(entry))
			if j.State = state; state == job.Dead {
				j.UniqueKey, j.Debounce = "", job.Debounce{}
				j.FinishedAt, j.Error, j.DeadMetadata = j.CreatedAt, text, job.ShedMetadata()
			}
			out.Results[i].Job = j
		case []any:
			kind, j, err := holder(c.Namespace, &list{items: entry})
			if err != nil {
				return broken(c, "%v", err)
			}
			out.Results[i] = store.Result{Job: j, Deduplicated: kind == 1, Debounced: kind == 2}
		default:
			return broken(c, "an entry %T", entry)
		}
	}
	return out
}

// repeated reads the entries of a repeated call.
func repeated(c *store.Call, r *list) store.Outcome {
	out := store.Outcome{Repeat: true, Results: make([]store.Result, len(c.Jobs))}
	for i := range c.Jobs {
		kind, j, err := holder(c.Namespace, r.list())
		if err != nil {
			return broken(c, "%v", err)
		}
		out.Results[i] = store.Result{Job: j, Deduplicated: kind != 3}
		out.Shed = out.Shed || kind == 3 && j.Shed()
	}
	return out
}

// holder reads a job that was there before, nil for none.
func holder(ns string, r *list) (kind int64, j *job.Job, err error) {
	kind = r.int()
	id, value, worker := r.text(), r.text(), r.text()
	if kind == 0 {
		return 0, nil, nil
	}
	d, err := decode(ns, id, value)
	if err != nil {
		return 0, nil, err
	}
	d.job.Worker = worker
	return kind, &d.job, nil
}

// made is a new job without its payload.
func made(c *store.Call, sp *job.Spec, times []byte) *job.Job {
	return &job.Job{
		ID: sp.ID, Namespace: c.Namespace, Queue: sp.Queue, Task: sp.Task, Form: sp.Form, Priority: sp.Priority,
		MaxAttempts: sp.MaxAttempts, Timeout: sp.Timeout, BackoffBase: sp.BackoffBase, BackoffMax: sp.BackoffMax,
		CreatedAt: instant(int64(binary.LittleEndian.Uint64(times))), RunAt: instant(int64(binary.LittleEndian.Uint64(times[8:]))),
		Metadata: sp.Metadata, UniqueKey: sp.UniqueKey, Debounce: sp.Debounce, Origin: c.Origin, EnqueuedBy: c.By,
	}
}
