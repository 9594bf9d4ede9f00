package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	attempts        = 3
	rollbackTimeout = 2 * time.Second
)

// tx is one transaction: a read trip and a commit trip, each any number of
// statements in one round trip to the server.
type tx struct {
	s    *Store
	conn *pgxpool.Conn

	late       bool   // commit without waiting for the disk; the caller flushes
	mark       uint64 // of the flusher; 0: the commit waits for the disk itself
	repeatable bool   // doing it twice is doing it once: it may be tried again after a commit of unknown outcome

	open       bool // begun, neither committed nor rolled back
	committing bool // the commit was sent
}

// batch is the statements of one trip.
type batch struct {
	pgx.Batch
	sql []string
}

// exec queues a statement whose rows, if any, do not matter.
func (b *batch) exec(st stmt, args ...any) *pgx.QueuedQuery { return b.Queue(b.sql[st], args...) }

// each queues a statement and calls read for each of its rows, in which scan
// takes the row's columns.
func (b *batch) each(st stmt, read func(scan func(...any) error) error, args ...any) {
	b.Queue(b.sql[st], args...).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			if err := read(rows.Scan); err != nil {
				return err
			}
		}
		return rows.Err()
	})
}

// write runs fn in a transaction that is rolled back unless fn commits it. It
// runs fn again when the database undid it for a reason that passes.
func (s *Store) write(ctx context.Context, op string, fn func(context.Context, *tx) error) error {
	return s.fail(ctx, op, s.tryWrite(ctx, fn))
}

// tryWrite is write without the translation of errors.
func (s *Store) tryWrite(ctx context.Context, fn func(context.Context, *tx) error) error {
	for attempt := 1; ; attempt++ {
		again, err := s.once(ctx, s.timeout, fn)
		if err == nil || !again || attempt == attempts || ctx.Err() != nil {
			return err
		}
	}
}

// once runs fn in one transaction and tells, of an error, whether to try again.
func (s *Store) once(ctx context.Context, timeout time.Duration, fn func(context.Context, *tx) error) (again bool, err error) {
	own, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	conn, err := s.pool.Acquire(own)
	if err != nil {
		return false, err
	}
	t := &tx{s: s, conn: conn}
	defer t.end(ctx)
	err = fn(own, t)
	if lost(err) {
		s.pool.Reset() // the others are likely as dead
		return !t.committing || t.repeatable, err
	}
	return passing(err), err
}

// read sends the statements that queue adds, after those that begin the transaction.
func (t *tx) read(ctx context.Context, queue func(*batch)) error {
	return t.send(ctx, t.fill(queue))
}

// commit sends the statements that queue adds and commits.
func (t *tx) commit(ctx context.Context, queue func(*batch)) error {
	b := t.fill(queue)
	b.Queue("commit")
	t.committing = true
	if err := t.send(ctx, b); err != nil {
		return err
	}
	t.open = false
	return nil
}

func (t *tx) fill(queue func(*batch)) *batch {
	b := &batch{sql: t.s.sql}
	if !t.open {
		t.open = true
		b.Queue("begin isolation level read committed")
		if t.s.settings != "" {
			b.Queue(t.s.settings)
		}
		if t.late && t.s.flusher != nil {
			if t.mark = t.s.flusher.mark(); t.mark != 0 {
				b.Queue("set local synchronous_commit = off")
			}
		}
	}
	queue(b)
	return b
}

func (t *tx) send(ctx context.Context, b *batch) error {
	return t.conn.SendBatch(ctx, &b.Batch).Close()
}

// end gives the connection back, out of any transaction. Rolling back has a
// time of its own, because the caller's may be over.
func (t *tx) end(ctx context.Context) {
	if t.open && !t.conn.Conn().IsClosed() {
		own, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
		defer cancel()
		if _, err := t.conn.Exec(own, "rollback"); err != nil {
			t.s.log.Debug().Err(err).Msg("roll-back failed; the server ends the transaction with the connection")
		}
	}
	t.conn.Release()
}

// query runs statements that only read, in one round trip. Each sees its own
// moment; what must be of one moment is one statement.
func (s *Store) query(ctx context.Context, op string, queue func(*batch)) error {
	return s.fail(ctx, op, s.tryWrite(ctx, func(ctx context.Context, t *tx) error {
		t.repeatable = true
		if s.settings != "" {
			return t.commit(ctx, queue)
		}
		b := &batch{sql: s.sql}
		queue(b)
		return t.send(ctx, b)
	}))
}

var walBehind = statement(`select pg_current_wal_flush_lsn() < pg_current_wal_insert_lsn()`)

// queryDurable is query for statements whose answer tells of jobs: what they
// saw is on the disk before it is told.
func (s *Store) queryDurable(ctx context.Context, op string, queue func(*batch)) error {
	mark := uint64(0)
	if s.flusher != nil {
		mark = s.flusher.mark()
	}
	if mark != 0 {
		behind := false
		err := s.query(ctx, op, func(b *batch) {
			queue(b)
			b.each(walBehind, func(scan func(...any) error) error { return scan(&behind) })
		})
		if err == nil && behind {
			err = s.flusher.flush(ctx, mark)
		}
		if !errors.Is(err, errFlushLost) {
			return s.fail(ctx, op, err)
		}
	}
	// Another process may flush late, so the session that sees the rows flushes.
	return s.write(ctx, op, func(ctx context.Context, t *tx) error {
		t.repeatable = true
		return t.commit(ctx, func(b *batch) {
			queue(b)
			b.Queue(flush)
		})
	})
}
