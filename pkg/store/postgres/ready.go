package postgres

import (
	"context"
	"slices"

	"flexiq/pkg/store"
)

// interestsAtOnce bounds the rows that one statement is asked for.
const interestsAtOnce = 500

var selectReady = statement(`select w.at, coalesce(l.due, false), coalesce(l.next_at, 0)
	from unnest($2::int[], $3::text[], $4::int[], $5::int[]) w(at, ns, first, last)
	cross join lateral (` + dueAndNext("$6::text[]", nowOr1) + `) l`)

// Ready implements [store.Dispatch].
func (s *Store) Ready(ctx context.Context, interests []store.Interest) ([]store.Readiness, error) {
	out := make([]store.Readiness, len(interests))
	done := 0
	for part := range slices.Chunk(interests, interestsAtOnce) {
		var r round
		for i := range part {
			r.at, r.ns = append(r.at, int32(done+i)), append(r.ns, part[i].Namespace)
			r.addQueues(part[i].Queues)
		}
		done += len(part)
		err := s.query(ctx, "ready", func(b *batch) {
			b.each(selectReady, func(scan func(...any) error) error {
				var at int32
				var due bool
				var next int64
				err := scan(&at, &due, &next)
				out[at] = store.Readiness{Ready: due, NextAt: instant(next)}
				return err
			}, s.override(), r.at, r.ns, r.from, r.to, r.queues)
		})
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}
