package sqlite

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"zombiezen.com/go/sqlite"

	"flexiq/pkg/fault"
	"flexiq/pkg/store"
)

// tx is one transaction.
type tx struct {
	*conn
	now          time.Time // read once, after the lock was taken
	defaultStamp *int64    // revision of the default quota, once read
}

var (
	errClosed  = errors.New("the store is closed")
	errNotOpen = errors.New("the file cannot be opened") // the reason may be anything, its schema included
)

// write runs fn in a transaction that holds the write lock of the file. It
// commits when fn returns nil. A transaction that changed nothing costs no sync.
func (s *Store) write(ctx context.Context, op string, fn func(*tx) error) error {
	return s.writeWithin(ctx, s.timeout, op, fn)
}

func (s *Store) writeWithin(ctx context.Context, timeout time.Duration, op string, fn func(*tx) error) error {
	own, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	c, err := s.take(own, s.writer)
	if err != nil {
		return s.fail(ctx, op, err)
	}
	defer func() { s.writer <- c }()
	if c == nil {
		if c, err = s.openWriter(own, false); err != nil {
			return s.fail(ctx, op, fmt.Errorf("%w: %w", errNotOpen, err))
		}
	}
	var before int64
	watched := s.refused.Load() != nil // otherwise nobody asks whether this writes anything
	if watched {
		before = c.changed()
	}
	err = s.inTx(own, c, "BEGIN IMMEDIATE", fn)
	s.heed(op, watched && c.changed() > before, err)
	if broken(err) {
		c.discard()
		c = nil
	} else if err == nil {
		s.boundLog(c)
	}
	return s.fail(ctx, op, err)
}

// read runs fn in a transaction that sees one state of the store. It must be short.
func (s *Store) read(ctx context.Context, op string, fn func(*tx) error) error {
	return s.readWithin(ctx, s.timeout, op, fn)
}

func (s *Store) readWithin(ctx context.Context, timeout time.Duration, op string, fn func(*tx) error) error {
	own, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	c, err := s.take(own, s.reader)
	if err != nil {
		return s.fail(ctx, op, err)
	}
	defer func() { s.reader <- c }()
	if c == nil {
		if c, err = s.openReader(own); err != nil {
			return s.fail(ctx, op, fmt.Errorf("%w: %w", errNotOpen, err))
		}
	}
	err = s.inTx(own, c, "BEGIN", fn)
	if broken(err) {
		c.discard()
		c = nil
	}
	return s.fail(ctx, op, err)
}

// take waits for a slot.
func (s *Store) take(ctx context.Context, slots chan *conn) (*conn, error) {
	select {
	case <-s.closed:
		return nil, errClosed
	default:
	}
	select {
	case c := <-slots:
		return c, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-s.closed:
		return nil, errClosed
	}
}

// inTx runs fn between begin and commit. The connection is out of the
// transaction afterwards, whatever happens, a panic included.
func (s *Store) inTx(ctx context.Context, c *conn, begin string, fn func(*tx) error) error {
	c.SetInterrupt(ctx.Done())
	done := false
	defer func() {
		c.apart = false
		c.SetInterrupt(nil) // a roll-back must not be interrupted
		if !done && !c.AutocommitEnabled() {
			if err := c.exec("ROLLBACK"); err != nil {
				s.log.Warn().Err(err).Msg("roll-back failed")
			}
		}
	}()
	if err := c.begin(ctx, begin); err != nil {
		return err
	}
	if err := fn(&tx{conn: c, now: s.now().UTC().Truncate(time.Microsecond)}); err != nil {
		return err
	}
	err := c.exec("COMMIT")
	done = err == nil
	return err
}

// begin starts a transaction. While another process holds the lock it tries
// again at short, uneven intervals, which share the lock better than
// SQLite's own growing ones.
func (c *conn) begin(ctx context.Context, how string) error {
	const first, most = 100 * time.Microsecond, 4 * time.Millisecond
	for pause := first; ; pause = min(2*pause, most) {
		err := c.exec(how)
		if sqlite.ErrCode(err).ToPrimary() != sqlite.ResultBusy {
			return err
		}
		timer := time.NewTimer(pause/2 + rand.N(pause))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return err
		}
	}
}

// units does a group's units in one transaction; begin prepares for it. When
// the database refuses one, all are done again, each so that its failure undoes
// it alone, and failed hears of those that fail.
func (s *Store) units(ctx context.Context, op string, n int, begin func(*tx) func(i int) error, failed func(i int, err error)) error {
	err := s.write(ctx, op, func(t *tx) error {
		unit := begin(t)
		for i := range n {
			if err := unit(i); err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil || unavailable(err) {
		return err
	}
	return s.write(ctx, op, func(t *tx) error {
		t.apart = true
		for i := range n {
			unit := begin(t) // what it remembers of an undone unit would be wrong
			err := t.savepoint(func() error { return unit(i) })
			if unavailable(err) {
				return err
			}
			if err != nil {
				failed(i, internal(op, err))
			}
		}
		return nil
	})
}

// savepoint runs fn so that its failure undoes only what it did.
func (t *tx) savepoint(fn func() error) error {
	if err := t.exec("SAVEPOINT unit"); err != nil {
		return err
	}
	err := fn()
	if err != nil {
		if undo := t.exec("ROLLBACK TO unit"); undo != nil {
			return undo
		}
	}
	if release := t.exec("RELEASE unit"); release != nil {
		return release
	}
	return err
}

// unavailable reports whether an error is about the database as a whole and
// not about one unit of work.
func unavailable(err error) bool {
	switch sqlite.ErrCode(err).ToPrimary() {
	case sqlite.ResultBusy, sqlite.ResultLocked, sqlite.ResultInterrupt, sqlite.ResultFull:
		return true
	}
	return broken(err) || errors.Is(err, errClosed) || errors.Is(err, errNotOpen) ||
		errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) || fault.Is(err, fault.StorageUnavailable)
}

// broken reports whether the connection that gave the error must be opened anew.
func broken(err error) bool {
	switch sqlite.ErrCode(err).ToPrimary() {
	case sqlite.ResultIOErr, sqlite.ResultReadOnly, sqlite.ResultCorrupt, sqlite.ResultCantOpen, sqlite.ResultNotADB,
		sqlite.ResultProtocol, sqlite.ResultNoMem, sqlite.ResultPerm, sqlite.ResultMisuse:
		return true
	}
	return false
}

// internal is an error that only a bug explains.
func internal(op string, err error) error {
	return fault.Wrap(fmt.Errorf("sqlite: %s: %w", op, err), fault.Internal, "internal error of the store")
}

// fail turns an error into what the contract promises. ctx is the caller's.
func (s *Store) fail(ctx context.Context, op string, err error) error {
	var f *fault.Error
	switch {
	case err == nil, errors.As(err, &f), errors.Is(err, store.ErrStale):
		return err
	case !unavailable(err):
		return internal(op, err)
	case ctx.Err() != nil && !broken(err):
		return fmt.Errorf("sqlite: %s: %w", op, ctx.Err())
	}
	return fault.Wrap(fmt.Errorf("sqlite: %s: %w", op, err), fault.StorageUnavailable, "the store cannot be reached, is full or too slow")
}
