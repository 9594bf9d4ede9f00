package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"

	"github.com/rs/zerolog"

	"flexiq/pkg/store"
	"flexiq/pkg/store/sqlite"
)

// openStore opens the store that a URL names. A new backend is a line here.
func openStore(ctx context.Context, url string, migrate bool, log zerolog.Logger) (store.Store, error) {
	scheme, rest, _ := strings.Cut(url, ":")
	switch {
	case scheme == "sqlite" && rest != "":
		if err := os.MkdirAll(filepath.Dir(rest), 0o700); err != nil {
			return nil, err
		}
		return sqlite.Open(ctx, rest, sqlite.Options{Log: log, NoMigrate: !migrate})
	case scheme == "sqlite":
		return nil, &usageError{"--store", "names no file; use sqlite:PATH"}
	}
	// The rest of the URL may hold a password, so only the scheme is shown.
	return nil, &usageError{"--store", "must be sqlite:PATH, got the scheme \"" + scheme + "\""}
}
