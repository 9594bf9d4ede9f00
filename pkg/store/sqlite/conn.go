package sqlite

import (
	"context"
	"fmt"
	"strings"
	"time"

	"zombiezen.com/go/sqlite"
)

// conn is one connection. One goroutine uses it at a time.
type conn struct {
	*sqlite.Conn
	// apart says that the failure of a statement must undo that statement alone.
	// Otherwise it ends the transaction, which is much cheaper: SQLite then
	// keeps no copies of the pages that a statement changes.
	apart bool
}

// connect opens the file, which exists.
func connect(path string) (*conn, error) {
	raw, err := sqlite.OpenConn(path, sqlite.OpenReadWrite)
	if err != nil {
		return nil, err
	}
	return &conn{Conn: raw}, nil
}

// setUp runs the statements that make a connection ready.
func (c *conn) setUp(pragmas ...string) error {
	for _, p := range pragmas {
		if err := c.run("PRAGMA " + p); err != nil {
			return fmt.Errorf("pragma %s: %w", p, err)
		}
	}
	return nil
}

// openWriter opens the writing connection on a schema that this program can
// use, migrating it first if it may.
func (s *Store) openWriter(ctx context.Context, migrating bool) (_ *conn, err error) {
	c, err := connect(s.path)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			c.discard()
		}
	}()
	c.SetInterrupt(ctx.Done()) // other processes are waited for until then
	defer c.SetInterrupt(nil)
	if err := c.recognise(); err != nil {
		return nil, err
	}
	err = c.setUp("journal_mode = WAL", "synchronous = FULL", "wal_autocheckpoint = 4000",
		fmt.Sprintf("journal_size_limit = %d", s.walLimit), "cache_size = -65536", "temp_store = MEMORY")
	if err != nil {
		return nil, err
	}
	if err := c.checkSchema(migrating, s.now()); err != nil {
		return nil, err
	}
	c.SetBusyTimeout(0) // begin waits in its own way
	return c, nil
}

// openReader opens a reading connection.
func (s *Store) openReader(ctx context.Context) (_ *conn, err error) {
	c, err := connect(s.path)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			c.discard()
		}
	}()
	c.SetInterrupt(ctx.Done())
	defer c.SetInterrupt(nil)
	if err := c.setUp("query_only = ON", "cache_size = -8192", "temp_store = MEMORY"); err != nil {
		return nil, err
	}
	if err := c.checkSchema(false, time.Time{}); err != nil {
		return nil, err
	}
	return c, nil
}

// discard closes a connection whose error is known already.
func (c *conn) discard() { _ = c.Close() }

// run executes a statement once, without keeping it.
func (c *conn) run(query string) error {
	st, _, err := c.PrepareTransient(query)
	if err != nil {
		return err
	}
	defer st.Finalize()
	for more := true; more; {
		if more, err = st.Step(); err != nil {
			return err
		}
	}
	return nil
}

// number is the first column of the first row, 0 without one.
func (c *conn) number(query string, args ...any) (n int64, err error) {
	_, err = c.one(query, func(r *row) { n = r.int() }, args...)
	return n, err
}

// statement prepares a statement, or takes the prepared one, with its
// parameters unbound.
func (c *conn) statement(query string) (*sqlite.Stmt, error) {
	if c.apart {
		query = strings.Replace(query, "OR ROLLBACK", "OR ABORT", 1)
	}
	return c.Prepare(query)
}

// exec executes a statement and keeps it prepared.
func (c *conn) exec(query string, args ...any) error {
	st, err := c.bind(query, args)
	if err != nil {
		return err
	}
	return finish(st)
}

// finish runs a statement to its end and leaves it ready for the next use.
func finish(st *sqlite.Stmt) error {
	for {
		more, err := st.Step()
		if err != nil {
			return err
		}
		if !more {
			return st.Reset()
		}
	}
}

// one reads the first row of a query and tells whether there is one.
func (c *conn) one(query string, read func(*row), args ...any) (bool, error) {
	st, err := c.bind(query, args)
	if err != nil {
		return false, err
	}
	found, err := st.Step()
	if err != nil {
		return false, err
	}
	if found {
		read(&row{st: st})
	}
	return found, st.Reset()
}

// each reads the rows of a query until read returns false.
func (c *conn) each(query string, read func(*row) bool, args ...any) error {
	st, err := c.bind(query, args)
	if err != nil {
		return err
	}
	for {
		more, err := st.Step()
		if err != nil {
			return err
		}
		if !more || !read(&row{st: st}) {
			return st.Reset()
		}
	}
}
