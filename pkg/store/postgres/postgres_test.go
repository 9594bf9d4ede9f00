package postgres

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

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
	Remains: remains,
	Drifts: drifts(map[string]string{
		"usage":                 "update flexiq.usage set pending = pending + 1, running = running - 1 where ns = $1",
		"no usage":              "delete from flexiq.usage where ns = $1",
		"history":               "update flexiq.history set archived = 0, dead = dead + 7, shed = -1 where ns = $1",
		"no history":            "delete from flexiq.history where ns = $1",
		"lanes":                 "update flexiq.lanes set pending = pending + 1, running = running + 1 where ns = $1",
		"a missing lane":        "delete from flexiq.lanes where ns = $1 and queue = 'other'",
		"a lane without jobs":   "insert into flexiq.lanes (ns, queue, lane, rank, pending, running) values ($1, 'nobody', 't', 3, 2, 0)",
		"a front too late":      "update flexiq.lanes set front_at = front_at + 1 where ns = $1",
		"a front of no job":     "update flexiq.lanes set front_id = gen_random_uuid() where ns = $1",
		"a lane without front":  "update flexiq.lanes set front_at = null, front_id = null where ns = $1",
		"jobs in another lane":  "update flexiq.jobs set lane = 'x' where ns = $1",
		"a payload without job": "insert into flexiq.payloads (ns, id, body) values ($1, gen_random_uuid(), 'x')",
		"a payload in two places": `insert into flexiq.payloads (ns, id, body)
			select ns, id, 'x' from flexiq.jobs where ns = $1 and aside = 0 limit 1`,
	}),
	Poison: func(t testing.TB, address, task string) func() {
		shell(t, address, `create function flexiq.poison() returns trigger language plpgsql as 'begin raise exception ''poisoned''; end'`)
		for _, table := range []string{"jobs", "dead_letters"} {
			shell(t, address, fmt.Sprintf(`create trigger poison before insert on flexiq.%s for each row when (new.task = '%s')
				execute function flexiq.poison()`, table, task))
		}
		return func() { shell(t, address, "drop function flexiq.poison cascade") }
	},
}

// drifts makes statements that take a namespace into ways to drift.
func drifts(statements map[string]string) map[string]func(testing.TB, string, string) {
	out := make(map[string]func(testing.TB, string, string))
	for name, sql := range statements {
		out[name] = func(t testing.TB, address, ns string) { shell(t, address, sql, ns) }
	}
	return out
}

// shell runs a statement as somebody with psql would.
func shell(t testing.TB, address, sql string, args ...any) {
	t.Helper()
	url, schema, _ := strings.Cut(address, " ")
	execute(t, url, inSchema(sql, schema), args...)
}

// TestDecided begins a group operation while another one, of the same namespace,
// waits for the disk: it is not held up, and finds what the other wrote.
func TestDecided(t *testing.T) {
	s := start(t, Options{})
	must(t, s, calls(t, "a", 1, 1)) // the namespace has its row
	told := 0
	ctx := store.OnDecided(t.Context(), func() {
		told++
		must(t, s, calls(t, "a", 1, 1))
		usage, err := s.Usage(t.Context(), []string{"a"})
		if err != nil || usage[0].Pending != 3 {
			t.Errorf("once decided: %d pending, %v, want 3", usage[0].Pending, err)
		}
	})
	outcomes, err := s.Admit(ctx, calls(t, "a", 1, 1))
	if err != nil || outcomes[0].Err != nil || told != 1 {
		t.Errorf("Admit = %v, %v, and told %d times, want once", outcomes, err, told)
	}
}

// remains looks for a namespace's rows in every column that names one.
func remains(t testing.TB, address, ns string) (found []string) {
	t.Helper()
	url, schema, _ := strings.Cut(address, " ")
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	rows, _ := conn.Query(t.Context(), `select table_name || ' where ' || column_name from information_schema.columns
		where table_schema = $1 and (column_name in ('ns', 'namespace', 'scope') or table_name = 'namespaces' and column_name = 'name')`, schema)
	columns, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(columns) < 10 {
		t.Fatalf("columns: %v, %v", columns, err)
	}
	for _, c := range columns {
		var n int
		sql := fmt.Sprintf("select count(*) from %s.%s = $1", pgx.Identifier{schema}.Sanitize(), c)
		if err := conn.QueryRow(t.Context(), sql, ns).Scan(&n); err != nil {
			t.Fatal(err)
		}
		if n > 0 {
			found = append(found, fmt.Sprintf("%d rows of %s", n, c))
		}
	}
	return found
}
