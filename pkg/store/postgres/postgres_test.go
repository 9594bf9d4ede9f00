package postgres

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"flexiq/pkg/namespace"
	"flexiq/pkg/store"
	"flexiq/pkg/store/storetest"
	"flexiq/pkg/testkit"
)

func TestMain(m *testing.M) { storetest.Main(servers{m}, backend) }

// servers stops the private server before goroutines are counted.
type servers struct{ *testing.M }

func (s servers) Run() int {
	defer testkit.StopPostgres()
	return s.M.Run()
}

func TestStore(t *testing.T) { storetest.Run(t, backend) }

// backend is the suite's view. An address is the URL of a server and a schema.
var backend = storetest.Backend{
	Create: func(t testing.TB) string {
		url, schema := testkit.PostgresSchema(t)
		return url + " " + schema
	},
	Open: func(ctx context.Context, address string, now func() time.Time) (store.Store, error) {
		url, schema, _ := strings.Cut(address, " ")
		return Open(ctx, url, Options{Schema: schema, Now: now, MaxConns: 4, Timeout: time.Minute}) // the race detector makes all slow
	},
	Scribble: func(t testing.TB, address, ns string, raw []byte) {
		shell(t, address, `insert into flexiq.settings (key, value) values ($1, $2) on conflict (scope, key) do update set value = excluded.value`,
			namespace.QuotaKey(ns), string(raw))
	},
	Poison: func(t testing.TB, address, task string) func() {
		shell(t, address, `create function flexiq.poison() returns trigger language plpgsql as 'begin raise exception ''poisoned''; end'`)
		for _, table := range []string{"jobs", "dead_letters"} {
			shell(t, address, fmt.Sprintf(`create trigger poison before insert on flexiq.%s for each row when (new.task = '%s')
				execute function flexiq.poison()`, table, task))
		}
		return func() { shell(t, address, "drop function flexiq.poison cascade") }
	},
}

// shell runs a statement as somebody with psql would.
func shell(t testing.TB, address, sql string, args ...any) {
	t.Helper()
	url, schema, _ := strings.Cut(address, " ")
	execute(t, url, inSchema(sql, schema), args...)
}
