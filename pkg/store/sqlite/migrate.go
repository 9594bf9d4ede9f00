package sqlite

import (
	"context"
	"fmt"
	"path/filepath"

	"zombiezen.com/go/sqlite/sqlitex"

	"flexiq/pkg/store/migration"
)

// SchemaStatus tells where the schema in the file at path stands. It changes
// nothing; a file that is not there is an error.
func SchemaStatus(ctx context.Context, path string) (out migration.Status, err error) {
	err = withFile(ctx, path, func(c *conn) error {
		version, oldest, err := c.schemaVersion()
		out = migrations.Status(version, oldest)
		return err
	})
	return out, err
}

// MigrateDown takes the last step of the schema back, and returns it. It is an
// error when that would delete data. No other process may have the store open.
func MigrateDown(ctx context.Context, path string) (step migration.Step, err error) {
	err = withFile(ctx, path, func(c *conn) (err error) {
		end, err := sqlitex.ExclusiveTransaction(c.Conn)
		if err != nil {
			return err
		}
		defer end(&err)
		version, _, err := c.schemaVersion()
		if err != nil {
			return err
		}
		if step, err = migrations.Last(version); err != nil {
			return err
		}
		if err := sqlitex.ExecScript(c.Conn, step.Down); err != nil {
			return fmt.Errorf("migration %d down: %w", version, err)
		}
		return c.exec("DELETE FROM schema_versions WHERE version = ?", version)
	})
	return step, err
}

// withFile runs fn on a connection of its own to a FlexiQ store, or to an empty file.
func withFile(ctx context.Context, path string, fn func(*conn) error) error {
	ctx, cancel := context.WithTimeout(ctx, migrateTimeout)
	defer cancel()
	path, err := filepath.Abs(path)
	if err != nil {
		return err
	}
	c, err := connect(path)
	if err != nil {
		return fmt.Errorf("sqlite: open %s: %w", path, err)
	}
	defer c.discard()
	c.SetInterrupt(ctx.Done())
	defer c.SetInterrupt(nil) // closing must not be interrupted
	if err = c.recognise(); err == nil {
		err = fn(c)
	}
	if err != nil {
		return fmt.Errorf("sqlite: %s: %w", path, err)
	}
	return nil
}
