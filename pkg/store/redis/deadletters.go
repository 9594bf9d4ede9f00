package redis

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"flexiq/pkg/fault"
	"flexiq/pkg/job"
	"flexiq/pkg/quota"
	"flexiq/pkg/store"
	"flexiq/pkg/store/admit"
)

// The answers to a letter, as replay.lua numbers them.
const (
	replayMoved = iota
	replayGone
	replayRefused
	replayStale
	replayUniqueHeld
	replayDebounceHeld
	replayBroken
)

// Replay implements [store.Letters].
func (s *Store) Replay(ctx context.Context, r store.Replay) ([]store.Replayed, error) {
	if len(r.Letters) == 0 {
		return nil, nil
	}
	rate := quota.Rate{}
	if r.Quota.EnqueueRate != nil {
		rate = *r.Quota.EnqueueRate
	}
	outcome, audit := "", ""
	if r.Audit != nil {
		outcome, audit = "ok", fixed(r.Audit)
	}
	args := []any{quotaField(r.Namespace), r.Stamp.Revision, r.Stamp.Default, maybe(r.Quota.MaxPending),
		rate.Count, int(rate.Unit), r.By, flag(r.Automatic), outcome, audit, len(r.Letters)}
	for _, l := range r.Letters {
		args = append(args, l.ID, l.As)
	}
	c := s.on(tag(r.Namespace), replayScript, args...)
	if err := s.run(ctx, once, c); err != nil {
		return nil, s.fail(ctx, "replay", err)
	}
	out := make([]store.Replayed, len(r.Letters))
	reply := c.list()
	if reply.int() != 0 { // the namespace was never used
		for i := range out {
			out[i].Gone = true
		}
		return out, nil
	}
	now := reply.time()
	stale := false
	for i := range out {
		answer := reply.list()
		switch kind := answer.int(); kind {
		case replayMoved:
			id := r.Letters[i].As
			d, err := decode(r.Namespace, id, answer.text())
			if err != nil {
				return nil, s.fail(ctx, "replay", err)
			}
			out[i].Job = &d.job
		case replayGone:
			out[i].Gone = true
		case replayRefused:
			ask := quota.Ask{Namespace: r.Namespace, Queue: answer.text(), Jobs: 1, Revision: r.Stamp.InForce()}
			u := quota.Usage{Pending: answer.int(), Bucket: readBucket(answer)}
			q := r.Quota
			q.OnExcess = quota.Reject
			v := q.Decide(u, ask, now)
			if v.Decision != quota.Refuse {
				return nil, s.fail(ctx, "replay", fmt.Errorf("refused where %+v admits", u))
			}
			out[i].Err = v.Fault
		case replayStale:
			if !stale {
				s.stale(ctx, r.Namespace, r.Stamp, answer)
			}
			stale = true
			out[i].Err = store.ErrStale
		case replayUniqueHeld:
			out[i].Err = admit.KeyHeld(fault.UniqueKeyHeld, answer.text())
		case replayDebounceHeld:
			out[i].Err = admit.KeyHeld(fault.DebounceKeyHeld, answer.text())
		default:
			s.log.Error().Str("namespace", r.Namespace).Str("job", r.Letters[i].ID).Msg("a dead letter cannot be replayed")
			out[i].Err = s.fail(ctx, "replay", fmt.Errorf("dead letter %s cannot be read, or %s is a job already", r.Letters[i].ID, r.Letters[i].As))
		}
	}
	return out, nil
}

// DeleteDead implements [store.Letters].
func (s *Store) DeleteDead(ctx context.Context, ns string, ids []string, audit store.Record) (int64, error) {
	n := int64(0)
	for part := range chunks(unique(ids)) {
		args := []any{"ok", fixed(&audit), len(part)}
		for _, id := range part {
			args = append(args, id)
		}
		c := s.on(tag(ns), buryScript, args...)
		if err := s.run(ctx, once, c); err != nil {
			return n, s.fail(ctx, "delete dead letters", err)
		}
		n += c.int()
	}
	return n, nil
}

// retryableLook is how many dead letters one call of Retryable looks at.
const retryableLook = 4000

// Retryable implements [store.Letters].
func (s *Store) Retryable(ctx context.Context, q store.Retryable) (store.Page[string], error) {
	at, id, _ := strings.Cut(q.After, ":")
	if q.After == "" {
		at = "-inf"
	} else if _, err := strconv.ParseInt(at, 10, 64); err != nil || job.CheckID("id", id) != nil {
		return store.Page[string]{}, fault.Wrap(errors.New("redis: cursor "+q.After), fault.InvalidRequest, "the listing cannot go on from there")
	}
	c := s.on(tag(q.Namespace), retryableScript, at, id, micros(q.Before), q.Most, max(q.Limit, 1), retryableLook)
	if err := s.run(ctx, again, c); err != nil {
		return store.Page[string]{}, s.fail(ctx, "retryable dead letters", err)
	}
	r := c.list()
	var page store.Page[string]
	if lastAt, lastID := r.text(), r.text(); lastID != "" {
		page.Next = lastAt + ":" + lastID
	}
	for r.more() {
		page.Items = append(page.Items, r.text())
	}
	return page, nil
}
