package postgres

import (
	"context"
	"time"
)

var oldestHorizon = statement(`select coalesce((extract(epoch from clock_timestamp() - min(xact_start)) * 1000000)::bigint, 0)
	from pg_stat_activity where backend_xmin is not null and pid <> pg_backend_pid()`)

// Horizon is for how long the oldest transaction of any session of the server
// has kept vacuum from removing row versions, zero when there is none. Hot rows
// gather dead versions meanwhile, and every lock and claim has to pass them by.
// Without the role pg_monitor only sessions of the same user are seen.
func (s *Store) Horizon(ctx context.Context) (time.Duration, error) {
	var age int64 // in microseconds
	err := s.query(ctx, "horizon", func(b *batch) {
		b.each(oldestHorizon, func(scan func(...any) error) error { return scan(&age) })
	})
	return time.Duration(max(age, 0)) * time.Microsecond, err
}
