// Package postgres keeps everything in one schema of a PostgreSQL database
// (15 or newer), for any number of processes on any number of hosts.
//
// A group operation is one transaction of two pipelined round trips: the first
// locks the namespaces and reads, the second writes and commits, and between
// them Go decides by the same rules as for every other backend. Counts are kept
// by triggers of the tables (see migrations), never by this code.
//
// # Locks
//
// Every transaction that writes jobs, history or a quota first locks the rows
// of its namespaces in table namespaces, in byte order, and then needs no other
// lock but the one row of change_counter, always last. So there are no
// deadlocks. A namespace whose lock another transaction holds does not hold up
// the others of a group: see group.
//
// # Durability
//
// Group operations commit without waiting for the disk, so that locks go at
// once, and answer only after a shared flush: see flusher. Everything else
// commits as the server is set up.
//
// # Plans
//
// A queue's tables are empty when they are planned and full when they are used.
// The settings of a session leave the planner one way to run each statement,
// by the index that the statement was written for; a test explains them all.
//
// # Connections
//
// Session settings travel in the start-up packet. Behind PgBouncer in
// transaction mode add default_query_exec_mode=cache_describe to the URL:
// then settings go with each transaction, nothing is prepared in a session, and
// commits wait for the disk themselves.
//
// The package is longer than most, because it holds all of one backend; each
// file is one noun of package store.
package postgres

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rs/zerolog"

	"flexiq/pkg/store"
)

const (
	defaultTimeout  = 5 * time.Second
	defaultMaxConns = 10
	defaultSchema   = "flexiq"
	migrateTimeout  = 10 * time.Minute
	oldestServer    = 150000 // server_version_num
)

// schemaName is what a schema may be called: a name that means the same in an
// identifier and inside a text.
var schemaName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,62}$`)

func checkSchemaName(name string) error {
	if !schemaName.MatchString(name) {
		return fmt.Errorf("postgres: the schema %q is not a plain name of letters, digits and underscores", name)
	}
	return nil
}

var errURL = errors.New("postgres: the URL cannot be read") // the parser's error may show the password

// Options of [Open]. The zero value is usable.
type Options struct {
	// Schema holds the tables; empty is "flexiq". Open creates it.
	Schema string
	// Now is the clock of tests; nil is the server's. It may step in either direction.
	Now func() time.Time
	// Log hears what no caller is told: a unit of a group that failed alone, a
	// lost connection. The zero value is silent.
	Log zerolog.Logger
	// Timeout bounds each transaction below its context's deadline; 0 is 5 s.
	Timeout time.Duration
	// MaxConns bounds the connections of the pool; 0 is 10. One more flushes.
	MaxConns int
	// NoMigrate forbids Open to create or migrate the schema: it then fails
	// when the schema is missing or older than this program's.
	NoMigrate bool
	// NoLateFlush makes every transaction wait for the disk itself.
	NoLateFlush bool
}

// Store is an open store. It is safe for concurrent use.
type Store struct {
	pool      *pgxpool.Pool
	sql       []string // the statements, in this store's schema
	settings  string   // what each transaction sets, when sessions cannot keep it
	now       func() time.Time
	log       zerolog.Logger
	timeout   time.Duration
	flusher   *flusher // nil: transactions flush themselves
	stuck     stuck
	pressed   pressed
	closeOnce sync.Once
}

var _ store.Store = (*Store)(nil)

// Open opens the store at a PostgreSQL URL or DSN. It creates the schema and
// brings it up to date, unless forbidden. It fails when the server cannot be
// reached, is too old or not in UTF-8, or when a newer program made the schema
// unfit for this one.
func Open(ctx context.Context, url string, o Options) (*Store, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, errURL
	}
	return open(ctx, config, o)
}

func open(ctx context.Context, config *pgxpool.Config, o Options) (*Store, error) {
	if o.Schema == "" {
		o.Schema = defaultSchema
	}
	if o.Timeout <= 0 {
		o.Timeout = defaultTimeout
	}
	if o.MaxConns <= 0 {
		o.MaxConns = defaultMaxConns
	}
	if err := checkSchemaName(o.Schema); err != nil {
		return nil, err
	}
	s := &Store{sql: qualify(o.Schema), now: o.Now, log: o.Log, timeout: o.Timeout}
	config.MaxConns = int32(o.MaxConns)
	config.MaxConnIdleTime = idleTime
	config.ConnConfig.ConnectTimeout = o.Timeout
	pooled := config.ConnConfig.DefaultQueryExecMode != pgx.QueryExecModeCacheStatement
	if pooled {
		s.settings = setLocally(o.Timeout)
	} else {
		setForSession(config.ConnConfig, o.Timeout)
	}
	if err := s.prepare(ctx, config.ConnConfig, o); err != nil {
		return nil, err
	}
	var err error
	if s.pool, err = pgxpool.NewWithConfig(context.WithoutCancel(ctx), config); err != nil {
		return nil, fmt.Errorf("postgres: %w", err)
	}
	if !pooled && !o.NoLateFlush {
		s.flusher = startFlusher(config.ConnConfig.Copy(), o.Timeout, o.Log)
	}
	return s, nil
}

// prepare checks the server and the schema, and sees to it that commits are durable.
func (s *Store) prepare(ctx context.Context, config *pgx.ConnConfig, o Options) error {
	own, cancel := context.WithTimeout(ctx, migrateTimeout)
	defer cancel()
	conn, err := pgx.ConnectConfig(own, config)
	if err != nil {
		return s.fail(ctx, "open", err)
	}
	defer func() {
		if err := conn.Close(own); err != nil {
			o.Log.Debug().Err(err).Msg("first session not closed in order")
		}
	}()
	var version int
	var encoding, commit string
	const about = `select current_setting('server_version_num')::int, current_setting('server_encoding'), current_setting('synchronous_commit')`
	if err := conn.QueryRow(own, about).Scan(&version, &encoding, &commit); err != nil {
		return s.fail(ctx, "open", err)
	}
	switch {
	case version < oldestServer:
		return fmt.Errorf("postgres: the server is PostgreSQL %d, FlexiQ needs %d or newer", version/10000, oldestServer/10000)
	case encoding != "UTF8":
		return fmt.Errorf("postgres: the database is encoded in %s, FlexiQ needs UTF8", encoding)
	case commit == "off":
		return errors.New("postgres: synchronous_commit is off for this user or database, so that answered jobs could be lost: set it to on")
	}
	err = schema{conn, o.Schema}.check(own, !o.NoMigrate)
	switch {
	case unavailable(err):
		return s.fail(ctx, "open", err)
	case err != nil:
		return fmt.Errorf("postgres: %w", err)
	}
	return nil
}

// Close waits for running operations and closes every connection. Closing
// twice is safe.
func (s *Store) Close() error {
	s.closeOnce.Do(func() {
		s.pool.Close()
		if s.flusher != nil {
			s.flusher.close()
		}
	})
	return nil
}

var ping = statement(`update flexiq.pings set at = greatest(at + 1, ` + nowOr1 + `) where single`)

// Ping implements [store.Upkeep].
func (s *Store) Ping(ctx context.Context) error {
	return s.write(ctx, "ping", func(ctx context.Context, t *tx) error {
		return t.commit(ctx, func(b *batch) { b.exec(ping, s.override()) })
	})
}
