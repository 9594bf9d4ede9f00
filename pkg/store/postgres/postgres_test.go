package postgres

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

	"flexiq/pkg/namespace"
	"flexiq/pkg/store"
	"flexiq/pkg/store/storetest"
	"flexiq/pkg/testkit"
)

func TestMain(m *testing.M) {
	code := m.Run()
	testkit.StopPostgres()
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// An address of the suite is the name of a schema on the binary's server.
var backend = storetest.Backend{
	Create: func(t testing.TB) string {
		_, schema := testkit.PostgresSchema(t)
		return schema
	},
	Open: nil, // needs the server: see TestStore
	Scribble: func(t testing.TB, schema, ns string, raw []byte) {
		shell(t, fmt.Sprintf("update %s.settings set value = $1 where scope = '' and key = $2", schema), string(raw), namespace.QuotaKey(ns))
	},
	Poison: func(t testing.TB, schema, task string) func() {
		shell(t, fmt.Sprintf(`create function %[1]s.poison() returns trigger language plpgsql as
			'begin raise exception ''poisoned''; end'`, schema))
		shell(t, fmt.Sprintf(`create trigger poison before insert on %[1]s.jobs for each row when (new.task = '%[2]s')
			execute function %[1]s.poison()`, schema, task))
		return func() { shell(t, fmt.Sprintf("drop function %s.poison cascade", schema)) }
	},
}

// shell runs a statement on the binary's server.
func shell(t testing.TB, sql string, args ...any) {
	t.Helper()
	execute(t, testkit.Postgres(t), sql, args...)
}

func TestStore(t *testing.T) {
	url := testkit.Postgres(t)
	b := backend
	b.Open = func(ctx context.Context, schema string, now func() time.Time) (store.Store, error) {
		return Open(ctx, url, Options{Schema: schema, Now: now, MaxConns: 4})
	}
	storetest.Run(t, b)
}
