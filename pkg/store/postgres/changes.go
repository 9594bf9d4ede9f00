package postgres

import (
	"context"

	"flexiq/pkg/store"
)

// selectChanges reads the counter and what follows a number at one moment. A
// number above the counter comes from before the database was replaced by an
// older one: then anything may have changed.
var selectChanges = statement(`select c.change, coalesce(x.kind, ''), coalesce(x.key, ''), coalesce(x.number, 0)
	from (select change from flexiq.change_counter where single) c
	left join lateral (
		select kind, key, number from flexiq.changes
		where number > case when $1 > c.change then 0 else $1 end order by number limit $2
	) x on true order by x.number`)

// Changes implements [store.Quotas].
func (s *Store) Changes(ctx context.Context, since int64, limit int) (store.Changes, error) {
	var out store.Changes
	limit = max(limit, 1)
	err := s.query(ctx, "changes", func(b *batch) {
		out = store.Changes{}
		b.each(selectChanges, func(scan func(...any) error) error {
			var c store.Change
			var latest, number int64
			if err := scan(&latest, (*string)(&c.Kind), &c.Key, &number); err != nil {
				return err
			}
			if number != 0 {
				out.Items = append(out.Items, c)
			}
			if out.Latest = latest; len(out.Items) == limit {
				out.Latest = number
			}
			return nil
		}, since, limit)
	})
	return out, err
}
