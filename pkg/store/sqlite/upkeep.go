package sqlite

import (
	"context"
	"fmt"
	"time"

	"zombiezen.com/go/sqlite"

	"flexiq/pkg/store"
)

const (
	ping       = "ping"
	refusalAge = 5 * time.Second // how long Ping reports a refused write that nothing contradicts
)

// Ping implements [store.Upkeep]. It fails too while the disk refuses what
// other operations write.
//
// Its own write changes one row in place, and a nearly full disk has room for
// that long after it has none for jobs; how much a job needs, only jobs tell. So
// Ping believes their latest failure, until the same operation succeeds or the
// failure is old. Then a store that nobody writes to is good again as far as
// anybody knows: if it is not, the next write says so.
func (s *Store) Ping(ctx context.Context) error {
	err := s.write(ctx, ping, func(t *tx) error {
		// The value must differ from the last, or there would be nothing to write.
		return t.exec("UPDATE installation SET pinged_at = max(pinged_at + 1, ?)", t.now)
	})
	if err != nil {
		return err
	}
	if r := s.refused.Load(); r != nil && time.Since(r.at) < refusalAge {
		return s.fail(ctx, ping, fmt.Errorf("the last %s was refused: %w", r.op, r.err))
	}
	return nil
}

// refusal is a write, Ping's own excepted, that the disk refused.
type refusal struct {
	op  string
	err error
	at  time.Time // by the machine's clock, not by Options.Now, which may step
}

// heed remembers a write that the disk refused, and forgets it when the same
// operation has written again. One that changes a row in place may succeed all
// the time beside one that needs space, hence the same; wrote is false of one
// that had nothing to write.
func (s *Store) heed(op string, wrote bool, err error) {
	switch r := s.refused.Load(); {
	case op == ping:
	case refusedByDisk(err):
		s.refused.Store(&refusal{op: op, err: err, at: time.Now()})
	case err == nil && wrote && r != nil && r.op == op:
		s.refused.Store(nil)
	}
}

// refusedByDisk reports whether an error says that the disk takes no writes.
func refusedByDisk(err error) bool {
	switch sqlite.ErrCode(err).ToPrimary() {
	case sqlite.ResultFull, sqlite.ResultIOErr, sqlite.ResultReadOnly, sqlite.ResultCantOpen:
		return true
	}
	return false
}

// changed counts the rows that the connection changed since it was opened.
func (c *conn) changed() int64 {
	n, err := c.number("SELECT total_changes()")
	if err != nil {
		return 0 // the connection is out of order, and the operation says so
	}
	return n
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
