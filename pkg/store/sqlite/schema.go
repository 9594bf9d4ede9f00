package sqlite

import (
	"embed"
	"fmt"
	"time"

	"zombiezen.com/go/sqlite/sqlitex"

	"flexiq/pkg/store/migration"
)

// applicationID marks a file as a FlexiQ store: "FLXQ".
const applicationID = 0x464c5851

//go:embed migrations/*.sql
var migrationFiles embed.FS

// migrations are the embedded steps in order.
var migrations = migration.MustLoad(migrationFiles, "migrations")

func programVersion() int64 { return migrations.Program() }

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
	if err != nil {
		return err
	}
	migrate, err := migrations.Check(version, oldest, migrating)
	if err != nil || !migrate {
		return err
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
	for _, m := range migrations.After(version) {
		if err := sqlitex.ExecScript(c.Conn, m.SQL); err != nil {
			return fmt.Errorf("migration %d: %w", m.Version, err)
		}
		err := c.exec("INSERT INTO schema_versions (version, oldest_program, applied_at) VALUES (?, ?, ?)", m.Version, m.Oldest, now)
		if err != nil {
			return err
		}
	}
	return nil
}
