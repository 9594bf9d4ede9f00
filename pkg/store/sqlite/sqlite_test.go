package sqlite

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"
	"zombiezen.com/go/sqlite/sqlitex"

	"flexiq/pkg/namespace"
	"flexiq/pkg/store"
	"flexiq/pkg/store/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConformance(t *testing.T) { storetest.Run(t, backend) }

var backend = storetest.Backend{
	Create: func(t testing.TB) string { return filepath.Join(t.TempDir(), "store.db") },
	Open: func(ctx context.Context, address string, now func() time.Time) (store.Store, error) {
		return Open(ctx, address, Options{Now: now, Timeout: time.Minute}) // the race detector makes SQLite slow
	},
	Scribble: func(t testing.TB, address, ns string, raw []byte) {
		shell(t, address, "INSERT INTO settings (key, value) VALUES (?, ?) ON CONFLICT DO UPDATE SET value = excluded.value",
			namespace.QuotaKey(ns), string(raw))
	},
	Poison: func(t testing.TB, address, task string) func() {
		for _, table := range []string{"jobs", "dead_letters"} {
			shell(t, address, fmt.Sprintf(`CREATE TRIGGER poison_%s BEFORE INSERT ON %s WHEN NEW.task = '%s'
				BEGIN SELECT raise(ABORT, 'poisoned'); END`, table, table, task))
		}
		return func() {
			shell(t, address, "DROP TRIGGER poison_jobs")
			shell(t, address, "DROP TRIGGER poison_dead_letters")
		}
	},
}

// shell runs a statement as another program would.
func shell(t testing.TB, path, query string, args ...any) {
	t.Helper()
	c, err := connect(path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := sqlitex.Execute(c.Conn, query, &sqlitex.ExecOptions{Args: args}); err != nil {
		t.Fatal(err)
	}
}
