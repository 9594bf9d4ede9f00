package postgres

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"hash/fnv"
	"regexp"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
)

//go:embed migrations/*.sql
var migrationFiles embed.FS

// migration is one numbered step of the schema.
type migration struct {
	version int64
	oldest  int64 // the oldest program that may use the schema, by the highest migration that it knows
	sql     string
}

var oldestProgram = regexp.MustCompile(`(?m)^-- oldest program: (\d+)$`)

// migrations are the embedded steps in order. A program's version in the
// sense of the schema is the number of the last one.
var migrations = mustLoad()

func mustLoad() []migration {
	entries, err := migrationFiles.ReadDir("migrations")
	if err != nil {
		panic(err)
	}
	var out []migration
	for i, e := range entries {
		sql, err := migrationFiles.ReadFile("migrations/" + e.Name())
		if err != nil {
			panic(err)
		}
		number, _, _ := strings.Cut(e.Name(), "_")
		version, err := strconv.ParseInt(number, 10, 64)
		oldest := oldestProgram.FindSubmatch(sql)
		if err != nil || version != int64(i+1) || oldest == nil {
			panic("postgres: migration " + e.Name() + " must be numbered in sequence and name its oldest program")
		}
		m := migration{version: version, sql: string(sql)}
		m.oldest, _ = strconv.ParseInt(string(oldest[1]), 10, 64) // digits by the pattern
		out = append(out, m)
	}
	return out
}

func programVersion() int64 { return migrations[len(migrations)-1].version }

// schema is the schema of a store as seen by one connection.
type schema struct {
	conn *pgx.Conn
	name string
}

// check makes sure that this program can use the schema, and brings it up to
// date if it may.
func (s schema) check(ctx context.Context, migrating bool) error {
	version, oldest, err := s.version(ctx)
	switch program := programVersion(); {
	case err != nil:
		return err
	case oldest > program:
		return fmt.Errorf("the store has schema %d, which needs a program of version %d or newer; this one has version %d: upgrade it",
			version, oldest, program)
	case version >= program:
		return nil
	case !migrating && version == 0:
		return errors.New("the store has no schema and migrations are off: run flexiqd migrate")
	case !migrating:
		return fmt.Errorf("the store has schema %d, this program needs %d and migrations are off: run flexiqd migrate", version, program)
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
	return pgx.BeginFunc(ctx, s.conn, func(tx pgx.Tx) error {
		for _, setting := range []string{"statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"} {
			if _, err := tx.Exec(ctx, "set local "+setting+" = 0"); err != nil {
				return err
			}
		}
		if _, err := tx.Exec(ctx, `select pg_advisory_xact_lock($1)`, s.lockKey()); err != nil {
			return err
		}
		version, _, err := s.version(ctx)
		if err != nil {
			return err
		}
		if version == 0 {
			if err := s.create(ctx, tx); err != nil {
				return err
			}
		}
		for _, m := range migrations {
			if m.version <= version {
				continue
			}
			if _, err := s.conn.PgConn().Exec(ctx, inSchema(m.sql, s.name)).ReadAll(); err != nil {
				return fmt.Errorf("migration %d: %w", m.version, err)
			}
			done := inSchema(`insert into flexiq.schema_versions (version, oldest_program) values ($1, $2)`, s.name)
			if _, err := tx.Exec(ctx, done, m.version, m.oldest); err != nil {
				return err
			}
		}
		return nil
	})
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
