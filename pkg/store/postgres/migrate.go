package postgres

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"hash/fnv"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"flexiq/pkg/store/migration"
)

//go:embed migrations/*.sql
var migrationFiles embed.FS

// migrations are the embedded steps in order.
var migrations = migration.MustLoad(migrationFiles, "migrations")

func programVersion() int64 { return migrations.Program() }

// schema is the schema of a store as seen by one connection.
type schema struct {
	conn *pgx.Conn
	name string
}

// check makes sure that this program can use the schema, and brings it up to
// date if it may.
func (s schema) check(ctx context.Context, migrating bool) error {
	version, oldest, err := s.version(ctx)
	if err != nil {
		return err
	}
	migrate, err := migrations.Check(version, oldest, migrating)
	if err != nil || !migrate {
		return err
	}
	return s.migrate(ctx)
}

// version reads the schema's version, 0 when there is none, and the oldest
// program that may use it.
func (s schema) version(ctx context.Context) (version, oldest int64, err error) {
	var there bool
	const find = `select exists (select 1 from pg_tables where schemaname = $1 and tablename = 'schema_versions')`
	if err := s.conn.QueryRow(ctx, find, s.name).Scan(&there); err != nil || !there {
		return 0, 0, err
	}
	latest := inSchema(`select version, oldest_program from flexiq.schema_versions order by version desc limit 1`, s.name)
	err = s.conn.QueryRow(ctx, latest).Scan(&version, &oldest)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, 0, nil
	}
	return version, oldest, err
}

const createVersions = `create table if not exists flexiq.schema_versions (
	version        bigint primary key,
	oldest_program bigint not null,
	applied_at     timestamptz not null default clock_timestamp()
)`

// migrate applies what is missing, all or nothing. Another process that starts
// at the same time waits for the lock, and then finds nothing to do.
func (s schema) migrate(ctx context.Context) error {
	return s.locked(ctx, func(tx pgx.Tx) error {
		version, _, err := s.version(ctx)
		if err != nil {
			return err
		}
		if version == 0 {
			if err := s.create(ctx, tx); err != nil {
				return err
			}
		}
		for _, m := range migrations.After(version) {
			if _, err := s.conn.PgConn().Exec(ctx, inSchema(m.SQL, s.name)).ReadAll(); err != nil {
				return fmt.Errorf("migration %d: %w", m.Version, err)
			}
			done := inSchema(`insert into flexiq.schema_versions (version, oldest_program) values ($1, $2)`, s.name)
			if _, err := tx.Exec(ctx, done, m.Version, m.Oldest); err != nil {
				return err
			}
		}
		return nil
	})
}

// locked runs fn in a transaction without the limits of short ones, in which no
// other process migrates the schema.
func (s schema) locked(ctx context.Context, fn func(pgx.Tx) error) error {
	return pgx.BeginFunc(ctx, s.conn, func(tx pgx.Tx) error {
		for _, setting := range []string{"statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"} {
			if _, err := tx.Exec(ctx, "set local "+setting+" = 0"); err != nil {
				return err
			}
		}
		if _, err := tx.Exec(ctx, `select pg_advisory_xact_lock($1)`, s.lockKey()); err != nil {
			return err
		}
		return fn(tx)
	})
}

// down takes the last step back.
func (s schema) down(ctx context.Context) (step migration.Step, err error) {
	err = s.locked(ctx, func(tx pgx.Tx) error {
		version, _, err := s.version(ctx)
		if err != nil {
			return err
		}
		if step, err = migrations.Last(version); err != nil {
			return err
		}
		if _, err := s.conn.PgConn().Exec(ctx, inSchema(step.Down, s.name)).ReadAll(); err != nil {
			return fmt.Errorf("migration %d down: %w", version, err)
		}
		_, err = tx.Exec(ctx, inSchema(`delete from flexiq.schema_versions where version = $1`, s.name), version)
		return err
	})
	return step, err
}

// SchemaStatus tells where a store's schema stands; empty is "flexiq". It changes nothing.
func SchemaStatus(ctx context.Context, url, name string) (out migration.Status, err error) {
	err = withSchema(ctx, url, name, func(ctx context.Context, s schema) error {
		version, oldest, err := s.version(ctx)
		out = migrations.Status(version, oldest)
		return err
	})
	return out, err
}

// MigrateDown takes the last step of a store's schema back, and returns it; the
// empty name is "flexiq". It is an error when that would delete data. No other
// process may have the store open.
func MigrateDown(ctx context.Context, url, name string) (step migration.Step, err error) {
	err = withSchema(ctx, url, name, func(ctx context.Context, s schema) error {
		step, err = s.down(ctx)
		return err
	})
	return step, err
}

// withSchema runs fn on a session of its own.
func withSchema(ctx context.Context, url, name string, fn func(context.Context, schema) error) error {
	ctx, cancel := context.WithTimeout(ctx, migrateTimeout)
	defer cancel()
	if name == "" {
		name = defaultSchema
	}
	config, err := pgxpool.ParseConfig(url) // the URL may have options of the pool
	if err != nil {
		return errURL
	}
	if err := checkSchemaName(name); err != nil {
		return err
	}
	conn, err := pgx.ConnectConfig(ctx, config.ConnConfig)
	if err != nil {
		return fmt.Errorf("postgres: %w", err)
	}
	err = fn(ctx, schema{conn, name})
	if closing := conn.Close(ctx); err == nil {
		err = closing
	}
	if err != nil {
		return fmt.Errorf("postgres: %w", err)
	}
	return nil
}

// create makes the schema with nothing in it but its version. A schema that
// is there already needs no right to create one.
func (s schema) create(ctx context.Context, tx pgx.Tx) error {
	var there bool
	if err := tx.QueryRow(ctx, `select exists (select 1 from pg_namespace where nspname = $1)`, s.name).Scan(&there); err != nil {
		return err
	}
	if !there {
		if _, err := tx.Exec(ctx, "create schema "+pgx.Identifier{s.name}.Sanitize()); err != nil {
			return err
		}
	}
	_, err := tx.Exec(ctx, inSchema(createVersions, s.name))
	return err
}

// lockKey is the advisory lock of the schema's migrations.
func (s schema) lockKey() int64 {
	h := fnv.New64a()
	h.Write([]byte("flexiq migrations of " + s.name))
	return int64(h.Sum64())
}
