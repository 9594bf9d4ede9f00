package sqlite

import (
	"context"
	"slices"
	"strings"

	"flexiq/pkg/fault"
	"flexiq/pkg/job"
	"flexiq/pkg/store"
)

const selectJob = `SELECT ` + liveColumns + payloadColumns + `, NULL AS result FROM jobs WHERE ns = ?1 AND id = ?2
	UNION ALL SELECT ` + archiveColumns + payloadColumns + `, result FROM archive WHERE ns = ?1 AND id = ?2
	UNION ALL SELECT ` + deadColumns + payloadColumns + `, NULL FROM dead_letters WHERE ns = ?1 AND id = ?2`

// Job implements [store.Jobs].
func (s *Store) Job(ctx context.Context, ns, id string) (*job.Job, error) {
	var j *job.Job
	err := s.read(ctx, "job", func(t *tx) error {
		sp, err := t.space(ns)
		if err != nil {
			return err
		}
		aside := int64(0)
		_, err = t.one(selectJob, func(r *row) {
			j, _ = r.job(ns)
			aside, j.Payload, j.Result = r.int(), r.bytes(), r.bytes()
		}, sp.id, id)
		if err == nil && aside > 0 {
			j.Payload, err = t.payload(sp.id, id)
		}
		return err
	})
	switch {
	case err != nil:
		return nil, err
	case j == nil:
		return nil, fault.Missing("job")
	}
	return j, nil
}

// ListJobs implements [store.Jobs].
func (s *Store) ListJobs(ctx context.Context, ns string, f store.Filter, after string, limit int) (store.Page[job.Job], error) {
	var page store.Page[job.Job]
	query := listing(f)
	if query == "" {
		return page, nil
	}
	limit = max(limit, 1)
	err := s.read(ctx, "list jobs", func(t *tx) error {
		page = store.Page[job.Job]{}
		sp, err := t.space(ns)
		if err != nil {
			return err
		}
		rows, last := 0, ""
		// One row more than may be examined tells whether the listing goes on.
		return t.each(query, func(r *row) bool {
			if len(page.Items) == limit || rows == examined {
				page.Next = last
				return false
			}
			j, _ := r.job(ns)
			rows, last = rows+1, j.ID
			if matches(f, j) {
				page.Items = append(page.Items, *j)
			}
			return true
		}, sp.id, after, examined+1)
	})
	return page, err
}

// listing is the statement that lists the tables in which a filter may find
// something, merged by id; empty when there is none.
func listing(f store.Filter) string {
	var parts []string
	deadOnly := f.Shed != nil || !f.DiedBefore.IsZero()
	add := func(columns, table string, holds ...job.State) {
		if f.State == "" || slices.Contains(holds, f.State) {
			parts = append(parts, "SELECT "+columns+" FROM "+table+" WHERE ns = ?1 AND id > ?2")
		}
	}
	if !deadOnly {
		add(liveColumns, "jobs", job.Pending, job.Running)
		add(archiveColumns, "archive", job.Complete, job.Cancelled)
	}
	add(deadColumns, "dead_letters", job.Dead)
	if len(parts) == 0 {
		return ""
	}
	return strings.Join(parts, " UNION ALL ") + " ORDER BY id LIMIT ?3"
}

const selectHistory = `SELECT archived, dead, shed FROM history WHERE ns = ?`

// Usage implements [store.Jobs].
func (s *Store) Usage(ctx context.Context, namespaces []string) ([]store.Usage, error) {
	out := make([]store.Usage, 0, len(namespaces))
	for part := range slices.Chunk(namespaces, interestsAtOnce) {
		err := s.read(ctx, "usage", func(t *tx) error {
			for _, name := range part {
				u, _, err := t.usage(name)
				if err != nil {
					return err
				}
				out = append(out, u)
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (t *tx) usage(name string) (store.Usage, *space, error) {
	sp, err := t.space(name)
	if err != nil {
		return store.Usage{}, nil, err
	}
	u := store.Usage{Namespace: name, Pending: sp.pending, Running: sp.running, Bucket: sp.bucket, Stamp: sp.stamp, Now: t.now}
	_, err = t.one(selectHistory, func(r *row) { u.Archived, u.Dead, u.Shed = r.int(), r.int(), r.int() }, sp.id)
	return u, sp, err
}

// Namespaces implements [store.Jobs].
func (s *Store) Namespaces(ctx context.Context, after string, limit int) (store.Page[string], error) {
	var page store.Page[string]
	limit = max(limit, 1)
	err := s.read(ctx, "namespaces", func(t *tx) error {
		page = store.Page[string]{}
		return t.each("SELECT name FROM namespaces WHERE name > ? ORDER BY name LIMIT ?", func(r *row) bool {
			if len(page.Items) == limit {
				page.Next = page.Items[limit-1]
				return false
			}
			page.Items = append(page.Items, r.text())
			return true
		}, after, limit+1)
	})
	return page, err
}
