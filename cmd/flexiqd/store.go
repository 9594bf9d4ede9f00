package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/rs/zerolog"

	"flexiq/pkg/store"
	"flexiq/pkg/store/migration"
	"flexiq/pkg/store/postgres"
	"flexiq/pkg/store/redis"
	"flexiq/pkg/store/sqlite"
)

// storeOptions say where jobs are kept.
type storeOptions struct {
	url      string
	pgSchema string // of PostgreSQL alone
	migrate  bool
}

// backend is one kind of store. A new one is a case of [storeOptions.backend].
type backend struct {
	open   func(context.Context, zerolog.Logger) (store.Store, error)
	status func(context.Context) (migration.Status, error)
	down   func(context.Context) (migration.Step, error)
}

// openStore opens the store that a URL names.
func openStore(ctx context.Context, o storeOptions, log zerolog.Logger) (store.Store, error) {
	b, err := o.backend()
	if err != nil {
		return nil, err
	}
	return b.open(ctx, log)
}

// backend is what the URL names. Its errors say plainly that there is no store, or
// that it cannot be reached.
func (o storeOptions) backend() (backend, error) {
	b, err := o.kind()
	if err != nil {
		return b, err
	}
	raw := b
	b.open = func(ctx context.Context, log zerolog.Logger) (store.Store, error) {
		s, err := raw.open(ctx, log)
		return s, o.plainly(err)
	}
	b.status = func(ctx context.Context) (migration.Status, error) {
		s, err := raw.status(ctx)
		return s, o.plainly(err)
	}
	b.down = func(ctx context.Context) (migration.Step, error) {
		s, err := raw.down(ctx)
		return s, o.plainly(err)
	}
	return b, nil
}

// plainly names the store that cannot be reached, and why, once.
func (o storeOptions) plainly(err error) error {
	var lookup *net.DNSError
	var dial *net.OpError
	switch {
	case errors.As(err, &lookup):
		return fmt.Errorf("cannot reach the store %s: %w", redactURL(o.url), lookup)
	case errors.As(err, &dial) && dial.Op == "dial":
		return fmt.Errorf("cannot reach the store %s: %w", redactURL(o.url), dial)
	}
	return err
}

// present makes sure that there is a file to look at: only the daemon and
// migrate up make one.
func present(path string) error {
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("there is no store at %s: flexiqd migrate up makes one, and --store or --data-dir names another", path)
	}
	return nil // whatever else is wrong shows when it is opened
}

func (o storeOptions) kind() (backend, error) {
	scheme, rest, _ := strings.Cut(o.url, ":")
	switch scheme {
	case "sqlite":
		if rest == "" {
			return backend{}, &usageError{"--store", "names no file; use sqlite:PATH"}
		}
		return backend{
			open: func(ctx context.Context, log zerolog.Logger) (store.Store, error) { return o.openFile(ctx, rest, log) },
			status: func(ctx context.Context) (migration.Status, error) {
				if err := present(rest); err != nil {
					return migration.Status{}, err
				}
				return sqlite.SchemaStatus(ctx, rest)
			},
			down: func(ctx context.Context) (migration.Step, error) {
				if err := present(rest); err != nil {
					return migration.Step{}, err
				}
				return sqlite.MigrateDown(ctx, rest)
			},
		}, nil
	case "postgres", "postgresql":
		return backend{
			open: func(ctx context.Context, log zerolog.Logger) (store.Store, error) {
				return postgres.Open(ctx, o.url, postgres.Options{Log: log, Schema: o.pgSchema, NoMigrate: !o.migrate})
			},
			status: func(ctx context.Context) (migration.Status, error) {
				return postgres.SchemaStatus(ctx, o.url, o.pgSchema)
			},
			down: func(ctx context.Context) (migration.Step, error) { return postgres.MigrateDown(ctx, o.url, o.pgSchema) },
		}, nil
	case "redis", "rediss", "redis+cluster", "rediss+cluster":
		return backend{
			open: func(ctx context.Context, log zerolog.Logger) (store.Store, error) {
				return redis.Open(ctx, o.url, redis.Options{Log: log, NoMigrate: !o.migrate})
			},
			status: func(ctx context.Context) (migration.Status, error) { return redis.SchemaStatus(ctx, o.url) },
			down:   func(ctx context.Context) (migration.Step, error) { return redis.MigrateDown(ctx, o.url) },
		}, nil
	}
	// The rest of the URL may hold a password, so only the scheme is shown.
	return backend{}, &usageError{"--store", fmt.Sprintf("must be sqlite:PATH, postgres://… or redis://…, got the scheme %q", scheme)}
}

func (o storeOptions) openFile(ctx context.Context, path string, log zerolog.Logger) (store.Store, error) {
	if o.migrate {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return nil, fmt.Errorf("cannot create the store's folder: %w", err)
		}
	} else if err := present(path); err != nil {
		return nil, err
	}
	return sqlite.Open(ctx, path, sqlite.Options{Log: log, NoMigrate: !o.migrate})
}
