package sqlite

import (
	"embed"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"zombiezen.com/go/sqlite/sqlitex"
)

// applicationID marks a file as a FlexiQ store: "FLXQ".
const applicationID = 0x464c5851

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
			panic("sqlite: migration " + e.Name() + " must be numbered in sequence and name its oldest program")
		}
		m := migration{version: version, sql: string(sql)}
		m.oldest, _ = strconv.ParseInt(string(oldest[1]), 10, 64) // digits by the pattern
		out = append(out, m)
	}
	return out
}

func programVersion() int64 { return migrations[len(migrations)-1].version }

// recognise refuses a database that is something else, before anything is
// changed in it.
func (c *conn) recognise() error {
	// In this order: another process may be creating the schema just now.
	tables, err := c.number("SELECT count(*) FROM sqlite_schema")
	if err != nil {
		return err
	}
	id, err := c.number("PRAGMA application_id")
	if err != nil {
		return err
	}
	if id != applicationID && tables > 0 {
		return fmt.Errorf("the file is a database of another program")
	}
	return nil
}

// schemaVersion reads the schema's version, 0 when there is none, and the
// oldest program that may use it.
func (c *conn) schemaVersion() (version, oldest int64, err error) {
	tables, err := c.number("SELECT count(*) FROM sqlite_schema WHERE name = 'schema_versions'")
	if err != nil || tables == 0 {
		return 0, 0, err
	}
	_, err = c.one("SELECT version, oldest_program FROM schema_versions ORDER BY version DESC LIMIT 1", func(r *row) {
		version, oldest = r.int(), r.int()
	})
	return version, oldest, err
}

// checkSchema makes sure that this program can use the schema, and brings it up
// to date if it may.
func (c *conn) checkSchema(migrating bool, now time.Time) error {
	version, oldest, err := c.schemaVersion()
	switch program := programVersion(); {
	case err != nil:
		return err
	case oldest > program:
		return fmt.Errorf("the store has schema %d, which needs a program of version %d or newer; this one has version %d: upgrade it",
			version, oldest, program)
	case version >= program:
		return nil
	case !migrating && version == 0:
		return fmt.Errorf("the store has no schema and migrations are off: run flexiqd migrate")
	case !migrating:
		return fmt.Errorf("the store has schema %d, this program needs %d and migrations are off: run flexiqd migrate", version, program)
	}
	return c.migrate(now)
}

// migrate applies what is missing, all or nothing. Another process that opens
// the file at the same time waits, and then finds nothing to do.
func (c *conn) migrate(now time.Time) (err error) {
	end, err := sqlitex.ExclusiveTransaction(c.Conn)
	if err != nil {
		return err
	}
	defer end(&err)
	if err := c.run(fmt.Sprintf("PRAGMA application_id = %d", applicationID)); err != nil {
		return err
	}
	const table = `CREATE TABLE IF NOT EXISTS schema_versions (
		version INTEGER PRIMARY KEY, oldest_program INTEGER NOT NULL, applied_at INTEGER NOT NULL) STRICT`
	if err := c.run(table); err != nil {
		return err
	}
	version, _, err := c.schemaVersion()
	if err != nil {
		return err
	}
	for _, m := range migrations {
		if m.version <= version {
			continue
		}
		if err := sqlitex.ExecScript(c.Conn, m.sql); err != nil {
			return fmt.Errorf("migration %d: %w", m.version, err)
		}
		err := c.exec("INSERT INTO schema_versions (version, oldest_program, applied_at) VALUES (?, ?, ?)", m.version, m.oldest, now)
		if err != nil {
			return err
		}
	}
	return nil
}
