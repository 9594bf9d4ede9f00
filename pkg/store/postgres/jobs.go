package postgres

import (
	"context"
	"slices"
	"strings"

	"flexiq/pkg/fault"
	"flexiq/pkg/job"
	"flexiq/pkg/store"
)

// selectJob asks live, archived and dead rows in one statement, and so at one moment.
var selectJob = statement(`select k.*, p.body from (
		select ` + liveColumns + payloadColumns + `, null::bytea as result from flexiq.jobs where ns = $1 and id = $2
		union all select ` + archiveColumns + payloadColumns + `, result from flexiq.archive where ns = $1 and id = $2
		union all select ` + deadColumns + payloadColumns + `, null from flexiq.dead_letters where ns = $1 and id = $2
	) k left join lateral (select body from flexiq.payloads where ns = k.ns and id = k.id and k.aside > 0 limit 1) p on true`)

// Job implements [store.Jobs].
func (s *Store) Job(ctx context.Context, ns, id string) (*job.Job, error) {
	k, ok := key(id)
	if !ok {
		return nil, fault.Missing("job")
	}
	var j *job.Job
	err := s.queryDurable(ctx, "job", func(b *batch) {
		j = nil
		b.each(selectJob, func(scan func(...any) error) error {
			var r jobRow
			var aside int32
			var inline, result, body []byte
			err := scan(r.dests(&aside, &inline, &result, &body)...)
			if j = r.take(); aside > 0 {
				inline = body
			}
			j.Payload, j.Result = inline, result
			return err
		}, ns, k)
	})
	switch {
	case err != nil:
		return nil, err
	case j == nil:
		return nil, fault.Missing("job")
	}
	return j, nil
}

// listing lists the tables in which a filter may find something, merged by id.
// Each part is limited, so that each index is read no further than the page.
func listing(live, archive, dead bool) stmt {
	var parts []string
	add := func(wanted bool, columns, table string) {
		if wanted {
			parts = append(parts, `select * from (select `+columns+` from flexiq.`+table+` where ns = $1 and id > $2 order by id limit $3) `+table)
		}
	}
	add(live, liveColumns, "jobs")
	add(archive, archiveColumns, "archive")
	add(dead, deadColumns, "dead_letters")
	return statement(strings.Join(parts, " union all ") + " order by id limit $3")
}

var (
	listAll     = listing(true, true, true)
	listLive    = listing(true, false, false)
	listArchive = listing(false, true, false)
	listDead    = listing(false, false, true)
)

// listingFor is the statement for a filter; ok is false when no table can have a match.
func listingFor(f store.Filter) (st stmt, ok bool) {
	deadOnly := f.Shed != nil || !f.DiedBefore.IsZero()
	switch f.State {
	case "":
		if deadOnly {
			return listDead, true
		}
		return listAll, true
	case job.Pending, job.Running:
		return listLive, !deadOnly
	case job.Complete, job.Cancelled:
		return listArchive, !deadOnly
	case job.Dead:
		return listDead, true
	}
	return 0, false
}

// ListJobs implements [store.Jobs].
func (s *Store) ListJobs(ctx context.Context, ns string, f store.Filter, after string, limit int) (store.Page[job.Job], error) {
	var page store.Page[job.Job]
	st, ok := listingFor(f)
	if !ok {
		return page, nil
	}
	var from [16]byte
	if after != "" {
		if from, ok = key(after); !ok {
			return page, fault.Invalid("page_token", "is not one that a listing gave")
		}
	}
	limit = max(limit, 1)
	rows := examined
	if f == (store.Filter{}) {
		rows = min(rows, limit) // each row matches
	}
	err := s.queryDurable(ctx, "list jobs", func(b *batch) {
		page = store.Page[job.Job]{}
		seen, last := 0, ""
		// One row more than may be examined tells whether the listing goes on.
		b.each(st, func(scan func(...any) error) error {
			if page.Next != "" {
				return nil
			}
			if len(page.Items) == limit || seen == rows {
				page.Next = last
				return nil
			}
			var r jobRow
			if err := scan(r.dests()...); err != nil {
				return err
			}
			j := r.take()
			seen, last = seen+1, j.ID
			if matches(f, j) {
				page.Items = append(page.Items, *j)
			}
			return nil
		}, ns, from, rows+1)
	})
	return page, err
}

var selectUsage = statement(`select ` + spaceColumns + `, coalesce(h.archived, 0), coalesce(h.dead, 0), coalesce(h.shed, 0)` + fromSpaces + `
	left join lateral (select archived, dead, shed from flexiq.history where ns = u.name limit 1) h on true order by u.at`)

// Usage implements [store.Jobs].
func (s *Store) Usage(ctx context.Context, namespaces []string) ([]store.Usage, error) {
	out := make([]store.Usage, 0, len(namespaces))
	for part := range slices.Chunk(namespaces, interestsAtOnce) {
		done := len(out)
		err := s.query(ctx, "usage", func(b *batch) {
			out = out[:done]
			s.usage(b, part, &out)
		})
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

// usage queues the reading of namespaces' usage.
func (s *Store) usage(b *batch, names []string, into *[]store.Usage) {
	b.each(selectUsage, func(scan func(...any) error) error {
		var sp spaceRow
		var u store.Usage
		if err := scan(sp.dests(&u.Archived, &u.Dead, &u.Shed)...); err != nil {
			return err
		}
		sp.take()
		u.Namespace, u.Stamp, u.Pending, u.Running, u.Bucket = sp.name, sp.stamp, sp.pending, sp.running, sp.bucket
		u.Now = s.clock(sp.at)
		*into = append(*into, u)
		return nil
	}, names)
}

// A namespace has a row from its first call on, even when that was refused; it
// is listed once it had a job or a quota.
var selectNamespaces = statement(`select name from flexiq.namespaces n where name > $1 and (quota_revision > 0
		or (select true from flexiq.usage where ns = n.name limit 1) or (select true from flexiq.history where ns = n.name limit 1))
	order by name limit $2`)

// Namespaces implements [store.Jobs].
func (s *Store) Namespaces(ctx context.Context, after string, limit int) (store.Page[string], error) {
	var page store.Page[string]
	limit = max(limit, 1)
	err := s.query(ctx, "namespaces", func(b *batch) {
		page = store.Page[string]{}
		b.each(selectNamespaces, func(scan func(...any) error) error {
			var name string
			if err := scan(&name); err != nil {
				return err
			}
			if len(page.Items) == limit {
				page.Next = page.Items[limit-1]
				return nil
			}
			page.Items = append(page.Items, name)
			return nil
		}, after, limit+1)
	})
	return page, err
}

var recount = statement(`select
	(select count(*) from flexiq.jobs where ns = $1 and state = 0),
	(select count(*) from flexiq.jobs where ns = $1 and state = 1),
	(select count(*) from flexiq.archive where ns = $1),
	(select count(*) from flexiq.dead_letters where ns = $1),
	(select count(*) from flexiq.dead_letters where ns = $1 and shed)`)

// Recount implements [store.Upkeep].
func (s *Store) Recount(ctx context.Context, ns string) (store.Usage, error) {
	var all []store.Usage
	var u store.Usage
	err := s.query(ctx, "recount", func(b *batch) {
		all = nil
		s.usage(b, []string{ns}, &all)
		b.each(recount, func(scan func(...any) error) error {
			u = all[0]
			return scan(&u.Pending, &u.Running, &u.Archived, &u.Dead, &u.Shed)
		}, ns)
	})
	return u, err
}
