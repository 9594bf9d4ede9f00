// Package sqlite keeps everything in one SQLite file: the embedded default, for
// any number of processes on one host.
//
// One connection of a process writes, in immediate transactions, and a few
// read, in transactions that end within a page, because a reader that stays
// open keeps the write-ahead log from shrinking. The log is synced at every
// commit, so what was answered is durable; group operations share that cost.
//
// Every operation has a deadline of its own and gives back STORAGE_UNAVAILABLE
// when the disk is full, read-only, gone or too slow. A connection that saw
// such an error is opened anew by the next operation, so the process recovers
// when the disk does.
//
// Nothing else in the process may open the file: closing it would drop the
// locks of this package (https://www.sqlite.org/howtocorrupt.html, 2.2). Other
// processes may, with SQLite.
//
// Counts are kept by triggers of the tables (see migrations), never by this
// code, so rows that another program writes are counted too.
//
// The package is longer than most, because it holds all of one backend; each
// file is one noun of package store.
package sqlite

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"flexiq/pkg/store"
)

const (
	defaultTimeout = 5 * time.Second
	migrateTimeout = 10 * time.Minute
	readers        = 4        // reading connections of a process
	walLimit       = 64 << 20 // bytes of log beyond which it is truncated
)

// Options of [Open]. The zero value is usable.
type Options struct {
	// Now is the clock; nil is time.Now. It may step in either direction.
	Now func() time.Time
	// Log hears what no caller is told, such as a write-ahead log that could not
	// be truncated. The zero value is silent.
	Log zerolog.Logger
	// Timeout bounds each operation below its context's deadline; 0 is 5 s.
	Timeout time.Duration
	// NoMigrate forbids Open to create or migrate the schema: it then fails
	// when the schema is missing or older than this program's.
	NoMigrate bool
}

// Store is an open store. It is safe for concurrent use.
type Store struct {
	path     string
	now      func() time.Time
	log      zerolog.Logger
	timeout  time.Duration
	walLimit int64

	// A slot is the right to use one connection; it is nil until first used and
	// after an error that may have broken it.
	writer chan *conn
	reader chan *conn

	refused      atomic.Pointer[refusal] // the latest, nil when it was made up for
	checkpointed time.Time               // last attempt to truncate the log; owned by the writer's slot
	closeOnce    sync.Once
	closed       chan struct{}
	closeErr     error
}

var _ store.Store = (*Store)(nil)

// Open opens the store in the file at path. It creates the file and brings its
// schema up to date, unless forbidden. It fails on a file that is not a
// FlexiQ store, or whose schema a newer program made unfit for this one.
func Open(ctx context.Context, path string, o Options) (*Store, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Timeout <= 0 {
		o.Timeout = defaultTimeout
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	if !o.NoMigrate {
		if err := create(path); err != nil {
			return nil, err
		}
	}
	s := &Store{
		path: path, now: o.Now, log: o.Log, timeout: o.Timeout, walLimit: walLimit,
		writer: make(chan *conn, 1), reader: make(chan *conn, readers), closed: make(chan struct{}),
	}
	own, cancel := context.WithTimeout(ctx, migrateTimeout)
	defer cancel()
	c, err := s.openWriter(own, !o.NoMigrate)
	switch {
	case unavailable(err):
		return nil, s.fail(ctx, "open", err)
	case err != nil:
		return nil, fmt.Errorf("sqlite: open %s: %w", path, err)
	}
	s.writer <- c
	for range readers {
		s.reader <- nil
	}
	return s, nil
}

// creating serialises create within the process, see there.
var creating sync.Mutex

// create makes an empty file that only its owner can read, as tokens' hashes and
// payloads are nobody else's business; the log gets the mode of the file. It
// must never open a file that exists, nor one that another goroutine is opening:
// closing a file drops all locks that the process has on it, SQLite's too.
func create(path string) error {
	creating.Lock()
	defer creating.Unlock()
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return f.Close()
}

// Close waits for running operations, writes the log back into the file and
// closes it. Closing twice is safe.
func (s *Store) Close() error {
	s.closeOnce.Do(func() {
		close(s.closed)
		for range readers {
			if c := <-s.reader; c != nil {
				s.closeErr = firstOf(s.closeErr, c.Close())
			}
		}
		if c := <-s.writer; c != nil {
			c.SetBusyTimeout(0)
			if err := c.run("PRAGMA wal_checkpoint(TRUNCATE)"); err != nil {
				s.log.Debug().Err(err).Msg("log not written back at close")
			}
			s.closeErr = firstOf(s.closeErr, c.Close())
		}
	})
	return s.closeErr
}

func firstOf(a, b error) error {
	if a != nil {
		return a
	}
	return b
}
