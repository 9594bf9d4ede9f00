package redis

import (
	"context"
	"slices"
	"time"

	"flexiq/pkg/fault"
	"flexiq/pkg/job"
	"flexiq/pkg/store"
)

const (
	pageRows = 250  // rows that one script reads
	examined = 1000 // rows that one page of a listing looks at
)

// Job implements [store.Jobs].
func (s *Store) Job(ctx context.Context, ns, id string) (*job.Job, error) {
	c := s.on(tag(ns), jobScript, id)
	if err := s.run(ctx, again, c); err != nil {
		return nil, s.fail(ctx, "job", err)
	}
	r := c.list()
	if !r.more() {
		return nil, fault.Missing("job")
	}
	d, err := decode(ns, id, r.text())
	if err != nil {
		return nil, s.fail(ctx, "job", err)
	}
	d.job.Payload = d.payload(r.text())
	if result := r.text(); result != "" {
		d.job.Result = []byte(result)
	}
	d.job.Worker = r.text()
	return &d.job, nil
}

// rows reads jobs of some indexes by id upwards. A job whose value is gone is
// passed over, but counts: its id is there.
func (s *Store) rows(ctx context.Context, ns string, indexes []string, after string, limit int) ([]*decoded, error) {
	args := []any{after, limit, len(indexes)}
	for _, name := range indexes {
		args = append(args, name)
	}
	c := s.on(tag(ns), listScript, args...)
	if err := s.run(ctx, again, c); err != nil {
		return nil, err
	}
	var out []*decoded
	for r := c.list(); r.more(); {
		id, value, worker := r.text(), r.text(), r.text()
		d, err := decode(ns, id, value)
		if err != nil {
			d = &decoded{job: job.Job{ID: id}}
		}
		d.job.Worker = worker
		out = append(out, d)
	}
	return out, nil
}

// ListJobs implements [store.Jobs].
func (s *Store) ListJobs(ctx context.Context, ns string, f store.Filter, after string, limit int) (store.Page[job.Job], error) {
	var page store.Page[job.Job]
	indexes := indexesOf(f)
	if len(indexes) == 0 {
		return page, nil
	}
	limit = max(limit, 1)
	for seen := 0; ; {
		n := min(pageRows, limit+1)
		rows, err := s.rows(ctx, ns, indexes, after, n)
		if err != nil {
			return store.Page[job.Job]{}, s.fail(ctx, "list jobs", err)
		}
		for _, row := range rows {
			if len(page.Items) == limit || seen == examined {
				page.Next = after
				return page, nil
			}
			seen, after = seen+1, row.job.ID
			if row.job.State.Valid() && matches(f, &row.job) {
				page.Items = append(page.Items, row.job)
			}
		}
		if len(rows) < n {
			return page, nil
		}
	}
}

// indexesOf are the indexes in which a filter may find something.
func indexesOf(f store.Filter) []string {
	var out []string
	deadOnly := f.Shed != nil || !f.DiedBefore.IsZero()
	add := func(name string, holds ...job.State) {
		if f.State == "" || slices.Contains(holds, f.State) {
			out = append(out, name)
		}
	}
	if !deadOnly {
		add("live", job.Pending, job.Running)
		add("archive", job.Complete, job.Cancelled)
	}
	if f.Shed == nil || !*f.Shed {
		add("dead", job.Dead)
	}
	if f.Shed == nil || *f.Shed {
		add("shed", job.Dead)
	}
	return out
}

// Usage implements [store.Jobs].
func (s *Store) Usage(ctx context.Context, namespaces []string) ([]store.Usage, error) {
	out, err := s.usage(ctx, namespaces)
	return out, s.fail(ctx, "usage", err)
}

func (s *Store) usage(ctx context.Context, namespaces []string) ([]store.Usage, error) {
	cmds := make([]*command, len(namespaces))
	for i, ns := range namespaces {
		cmds[i] = s.on(tag(ns), usageScript, quotaField(ns))
	}
	if err := s.run(ctx, again, cmds...); err != nil {
		return nil, err
	}
	out := make([]store.Usage, len(namespaces))
	var past []string // whose document got no revision yet
	var pastAt, inherits []int
	newest := int64(0)
	for i, c := range cmds {
		r := c.list()
		u := store.Usage{Namespace: namespaces[i], Now: r.time()}
		live := r.int()
		u.Running, u.Archived, u.Dead, u.Shed = r.int(), r.int(), r.int(), r.int()
		u.Pending = live - u.Running
		has := r.bool()
		u.Stamp.Revision = r.int()
		noted := r.int()
		switch {
		case r.bool():
			past, pastAt = append(past, namespaces[i]), append(pastAt, i)
		case !has:
			inherits, newest = append(inherits, i), max(newest, noted)
		}
		u.Bucket = readBucket(r)
		out[i] = u
	}
	if len(inherits) > 0 {
		revision, err := s.fallback(ctx, newest)
		if err != nil {
			return nil, err
		}
		for _, i := range inherits {
			out[i].Stamp.Default = revision
		}
	}
	if len(past) > 0 {
		docs, err := s.Quotas(ctx, past)
		if err != nil {
			return nil, err
		}
		for k, i := range pastAt {
			out[i].Stamp = docs[k].Stamp
		}
	}
	return out, nil
}

// Namespaces implements [store.Jobs].
func (s *Store) Namespaces(ctx context.Context, after string, limit int) (store.Page[string], error) {
	var page store.Page[string]
	limit = max(limit, 1)
	for {
		n := min(limit+1, atOnce)
		names, err := s.known(ctx, after, n)
		if err != nil {
			return store.Page[string]{}, s.fail(ctx, "namespaces", err)
		}
		cmds := make([]*command, len(names))
		for i, ns := range names {
			cmds[i] = plain("hexists", s.key(tag(ns), "ns"), "used")
		}
		if err := s.run(ctx, again, cmds...); err != nil {
			return store.Page[string]{}, s.fail(ctx, "namespaces", err)
		}
		for i, ns := range names {
			after = ns
			if cmds[i].int() == 0 {
				continue
			}
			if len(page.Items) == limit {
				page.Next = page.Items[limit-1]
				return page, nil
			}
			page.Items = append(page.Items, ns)
		}
		if len(names) < n {
			return page, nil
		}
	}
}

// Ready implements [store.Dispatch].
func (s *Store) Ready(ctx context.Context, interests []store.Interest) ([]store.Readiness, error) {
	places := make(map[string][]int)
	var order []string
	for i, in := range interests {
		if places[in.Namespace] == nil {
			order = append(order, in.Namespace)
		}
		places[in.Namespace] = append(places[in.Namespace], i)
	}
	var cmds []*command
	var at [][]int
	for _, ns := range order {
		for part := range chunks(places[ns]) {
			args := []any{len(part)}
			for _, i := range part {
				args = append(args, len(interests[i].Queues))
				for _, q := range interests[i].Queues {
					args = append(args, q)
				}
			}
			cmds, at = append(cmds, s.on(tag(ns), readyScript, args...)), append(at, part)
		}
	}
	if err := s.run(ctx, again, cmds...); err != nil {
		return nil, s.fail(ctx, "ready", err)
	}
	out := make([]store.Readiness, len(interests))
	for k, c := range cmds {
		r := c.list()
		for _, i := range at[k] {
			one := r.list()
			out[i] = store.Readiness{Ready: one.bool(), NextAt: one.time()}
		}
	}
	return out, nil
}

// Ping implements [store.Upkeep].
func (s *Store) Ping(ctx context.Context) error {
	err := s.run(ctx, again, plain("set", s.key(installation, "ping"), time.Now().UnixMicro()))
	return s.fail(ctx, "ping", err)
}
