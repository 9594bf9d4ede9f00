package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/rs/zerolog"

	"flexiq/pkg/store"
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

// openStore opens the store that a URL names. A new backend is a case here.
func openStore(ctx context.Context, o storeOptions, log zerolog.Logger) (store.Store, error) {
	scheme, rest, _ := strings.Cut(o.url, ":")
	switch scheme {
	case "sqlite":
		if rest == "" {
			return nil, &usageError{"--store", "names no file; use sqlite:PATH"}
		}
		if err := os.MkdirAll(filepath.Dir(rest), 0o700); err != nil {
			return nil, fmt.Errorf("cannot create the store's folder: %w", err)
		}
		return sqlite.Open(ctx, rest, sqlite.Options{Log: log, NoMigrate: !o.migrate})
	case "postgres", "postgresql":
		return postgres.Open(ctx, o.url, postgres.Options{Log: log, Schema: o.pgSchema, NoMigrate: !o.migrate})
	case "redis", "rediss", "redis+cluster", "rediss+cluster":
		return redis.Open(ctx, o.url, redis.Options{Log: log, NoMigrate: !o.migrate})
	}
	// The rest of the URL may hold a password, so only the scheme is shown.
	return nil, &usageError{"--store", fmt.Sprintf("must be sqlite:PATH, postgres://… or redis://…, got the scheme %q", scheme)}
}
