package sqlite

import (
	"context"

	"flexiq/pkg/store"
)

// Ping implements [store.Upkeep].
func (s *Store) Ping(ctx context.Context) error {
	return s.write(ctx, "ping", func(t *tx) error {
		// The value must differ from the last, or there would be nothing to write.
		return t.exec("UPDATE installation SET pinged_at = max(pinged_at + 1, ?)", t.now)
	})
}

const recount = `SELECT
	(SELECT count(*) FROM jobs WHERE ns = ?1 AND state = 0),
	(SELECT count(*) FROM jobs WHERE ns = ?1 AND state = 1),
	(SELECT count(*) FROM archive WHERE ns = ?1),
	(SELECT count(*) FROM dead_letters WHERE ns = ?1),
	(SELECT count(*) FROM dead_letters WHERE ns = ?1 AND shed = 1)`

// Recount implements [store.Upkeep].
func (s *Store) Recount(ctx context.Context, ns string) (store.Usage, error) {
	var u store.Usage
	err := s.read(ctx, "recount", func(t *tx) error {
		var sp *space
		var err error
		if u, sp, err = t.usage(ns); err != nil {
			return err
		}
		_, err = t.one(recount, func(r *row) {
			u.Pending, u.Running, u.Archived, u.Dead, u.Shed = r.int(), r.int(), r.int(), r.int(), r.int()
		}, sp.id)
		return err
	})
	return u, err
}
