package retention

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"flexiq/pkg/store"
	"flexiq/pkg/store/postgres"
	"flexiq/pkg/store/redis"
	"flexiq/pkg/store/sqlite"
	"flexiq/pkg/testkit"
)

// database is where a test has its store, also for processes of its own.
type database struct {
	Kind, URL string
	Space     string // the schema, or the prefix of keys
}

// databases make one of each kind.
var databases = map[string]func(t testing.TB) database{
	"sqlite": func(t testing.TB) database {
		return database{Kind: "sqlite", URL: filepath.Join(t.TempDir(), "flexiq.db")}
	},
	"postgres": func(t testing.TB) database {
		url, schema := testkit.PostgresSchema(t)
		return database{"postgres", url, schema}
	},
	"redis": func(t testing.TB) database {
		url, prefix := testkit.RedisPrefix(t)
		return database{"redis", url, prefix}
	},
}

// open opens the store once more. A nil clock leaves it its own.
func (d database) open(ctx context.Context, now func() time.Time, timeout time.Duration) (store.Store, error) {
	switch d.Kind {
	case "postgres":
		return postgres.Open(ctx, d.URL, postgres.Options{Schema: d.Space, Now: now, Timeout: timeout, MaxConns: 4})
	case "redis":
		return redis.Open(ctx, d.URL, redis.Options{Prefix: d.Space, Now: now, Timeout: timeout})
	}
	return sqlite.Open(ctx, d.URL, sqlite.Options{Now: now, Timeout: timeout})
}

// alone make databases on servers that no other test uses.
var alone = map[string]func(t testing.TB) database{
	"sqlite":   databases["sqlite"],
	"postgres": func(t testing.TB) database { return database{"postgres", testkit.StartPostgres(t).URL(), "flexiq"} },
	"redis":    func(t testing.TB) database { return database{"redis", testkit.StartRedis(t).URL(), "fq:"} },
}

// everywhere runs a test on each backend.
func everywhere(t *testing.T, test func(f *fixture)) {
	t.Helper()
	everywhereIn(t, databases, test)
}

func everywhereIn(t *testing.T, databases map[string]func(t testing.TB) database, test func(f *fixture)) {
	t.Helper()
	t.Parallel()
	for kind, make := range databases {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			test(newFixtureIn(t, make(t)))
		})
	}
}

// size is how many bytes the database takes, after its own housekeeping.
func (f *fixture) size() (bytes int64) {
	f.Helper()
	switch f.in.Kind {
	case "postgres":
		f.in.postgres(f.T, func(ctx context.Context, c *pgx.Conn) error {
			if _, err := c.Exec(ctx, "vacuum"); err != nil {
				return err
			}
			return c.QueryRow(ctx, `select sum(pg_total_relation_size(oid)) from pg_class where relkind = 'r' and relnamespace = $1::regnamespace`,
				f.in.Space).Scan(&bytes)
		})
		return bytes
	case "redis":
		return testkit.RedisMemory(f.T, f.in.URL, f.in.Space)
	}
	f.close()
	defer f.open()
	info, err := os.Stat(f.in.URL)
	f.must(err)
	return info.Size()
}
