package postgres

import (
	"context"

	"flexiq/pkg/namespace"
	"flexiq/pkg/store"
)

// erasing deletes at most $2 rows of a namespace of one table, found by one of
// its indexes, and tells how many. Triggers keep the counts and tell of changes.
func erasing(table, where, order string) stmt {
	return statement(`with gone as (
			delete from flexiq.` + table + ` using (
				select ctid as tid from flexiq.` + table + ` where ` + where + ` order by ` + order + ` limit $2
			) o where ` + table + `.ctid = o.tid returning 1
		) select count(*) from gone`)
}

// erasingJobs is erasing for jobs, which take their payloads along.
func erasingJobs(table string) stmt {
	return statement(`with gone as (
			delete from flexiq.` + table + ` using (
				select ctid as tid from flexiq.` + table + ` where ns = $1 order by ns, id limit $2
			) o where ` + table + `.ctid = o.tid returning ns, id, aside
		), bodies as (
			delete from flexiq.payloads using (
				select p.ctid as tid from gone
				cross join lateral (select ctid from flexiq.payloads where ns = gone.ns and id = gone.id limit 1) p where gone.aside > 0
			) p where payloads.ctid = p.tid
		) select count(*) from gone`)
}

// erasable are the deletions of a namespace's rows, in order.
var erasable = []stmt{
	erasing("tokens", "namespace = $1", "namespace, id"),
	erasing("schedules", "namespace = $1", "namespace, name"),
	erasing("triggers", "namespace = $1", "namespace, name"),
	erasingJobs("jobs"),
	erasingJobs("archive"),
	erasingJobs("dead_letters"),
	erasing("payloads", "ns = $1", "ns, id"),
	erasing("signatures", "namespace = $1", "namespace, signature"),
	erasing("settings", "scope = $1", "scope, key"),
	erasing("overrides", "ns = $1", "ns, kind, name"),
	erasing("audit", "namespace between $1 and $1", "namespace, number"), // by = it would walk all numbers of a small trail
}

// lastErased end a namespace that has no other rows, by its name.
var lastErased = []stmt{
	statement(`delete from flexiq.lanes where ns = $1`),
	statement(`delete from flexiq.usage where ns = $1`),
	statement(`delete from flexiq.history where ns = $1`),
	statement(`delete from flexiq.buckets where ns = $1`),
	endRelabel,
	statement(`delete from flexiq.namespaces where name = $1`),
	// Tells every process, also when there was no document.
	statement(`select flexiq.note('quota', $1)`),
}

var eraseQuota = statement(`delete from flexiq.settings where scope = '' and key = $1`)

// EraseNamespace implements [store.Upkeep].
func (s *Store) EraseNamespace(ctx context.Context, ns string, limit int) (out store.Erased, err error) {
	if namespace.Check(ns) != nil {
		return out, nil
	}
	limit = max(limit, 1)
	err = s.write(ctx, "erase namespace", func(ctx context.Context, t *tx) error {
		t.repeatable = true
		out = store.Erased{}
		held := map[string]bool{}
		if err := t.read(ctx, func(b *batch) { b.lock([]string{ns}, locking{}, held) }); err != nil {
			return err
		}
		left := limit
		out.Any = held[ns]
		for _, st := range erasable {
			gone := 0
			err := t.read(ctx, func(b *batch) {
				b.each(st, func(scan func(...any) error) error { return scan(&gone) }, ns, left)
			})
			if err != nil {
				return err
			}
			out.Any = out.Any || gone > 0
			if left -= gone; left <= 0 {
				out.More = true
				return t.commit(ctx, func(*batch) {})
			}
		}
		return t.commit(ctx, func(b *batch) {
			b.exec(eraseQuota, namespace.QuotaKey(ns))
			if held[ns] {
				for _, st := range lastErased {
					b.exec(st, ns)
				}
			}
		})
	})
	return out, err
}
