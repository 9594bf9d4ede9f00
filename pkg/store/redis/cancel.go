package redis

import (
	"context"

	"flexiq/pkg/job"
	"flexiq/pkg/store"
)

// Cancel implements [store.Admission].
func (s *Store) Cancel(ctx context.Context, ns string, sel store.Selection, limit int) (store.Cancelled, error) {
	ids, more, state := unique(sel.IDs), false, any("")
	byFilter := len(ids) == 0
	if byFilter {
		var err error
		if ids, more, err = s.cancellable(ctx, ns, sel.Filter, max(limit, 1)); err != nil {
			return store.Cancelled{}, s.fail(ctx, "cancel", err)
		}
		if sel.Filter.State != "" {
			state = numberOf(sel.Filter.State)
		}
	}
	out := store.Cancelled{More: more}
	for part := range chunks(ids) {
		args := []any{flag(byFilter), state, len(part)}
		for _, id := range part {
			args = append(args, id)
		}
		c := s.on(tag(ns), cancelScript, args...)
		if err := s.run(ctx, once, c); err != nil {
			return store.Cancelled{}, s.fail(ctx, "cancel", err)
		}
		r := c.list()
		out.Cancelled += r.int()
		out.Cancelling += r.int()
		if missing := r.int(); !byFilter {
			out.NotFound += missing
		}
		for ended := r.list(); ended.more(); {
			e := ended.list()
			out.Ended = append(out.Ended, store.Ended{
				Namespace: ns, JobID: e.text(), Queue: e.text(), Task: e.text(), State: job.Cancelled, Attempt: int32(e.int()),
			})
		}
	}
	return out, nil
}

// unique are ids, each once.
func unique(ids []string) []string {
	seen := make(map[string]bool, len(ids))
	var out []string
	for _, id := range ids {
		if !seen[id] {
			seen[id] = true
			out = append(out, id)
		}
	}
	return out
}

// cancellable finds the first live jobs of a filter that are not marked yet.
func (s *Store) cancellable(ctx context.Context, ns string, f store.Filter, limit int) (ids []string, more bool, err error) {
	for after := ""; ; {
		rows, err := s.rows(ctx, ns, []string{"live"}, after, pageRows)
		if err != nil {
			return nil, false, err
		}
		for _, row := range rows {
			after = row.job.ID
			if row.cancelling || !matches(f, &row.job) {
				continue
			}
			if len(ids) == limit {
				return ids, true, nil
			}
			ids = append(ids, row.job.ID)
		}
		if len(rows) < pageRows {
			return ids, false, nil
		}
	}
}

// matches reports whether a job passes a filter.
func matches(f store.Filter, j *job.Job) bool {
	switch {
	case f.State != "" && f.State != j.State,
		f.Queue != "" && f.Queue != j.Queue,
		f.Task != "" && f.Task != j.Task,
		!f.CreatedBefore.IsZero() && !j.CreatedAt.Before(f.CreatedBefore),
		!f.DiedBefore.IsZero() && (j.State != job.Dead || !j.FinishedAt.Before(f.DiedBefore)),
		f.Shed != nil && (j.State != job.Dead || j.Shed() != *f.Shed):
		return false
	}
	return true
}
