package sqlite

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"

	"flexiq/pkg/job"
	"flexiq/pkg/namespace"
	"flexiq/pkg/store"
	"flexiq/pkg/store/storetest"
)

func TestMain(m *testing.M) {
	if path := os.Getenv(childEnv); path != "" {
		fmt.Fprintln(os.Stderr, child(path))
		os.Exit(1)
	}
	storetest.Main(m, backend)
}

func TestConformance(t *testing.T) { storetest.Run(t, backend) }

var backend = storetest.Backend{
	Create: func(t testing.TB) string {
		path := filepath.Join(t.TempDir(), "store.db")
		if err := os.WriteFile(path, template(), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	},
	Open: func(ctx context.Context, address string, now func() time.Time) (store.Store, error) {
		return Open(ctx, address, Options{Now: now, Timeout: time.Minute}) // the race detector makes SQLite slow
	},
	Scribble: func(t testing.TB, address, ns string, raw []byte) {
		shell(t, address, "INSERT INTO settings (key, value) VALUES (?, ?) ON CONFLICT DO UPDATE SET value = excluded.value",
			namespace.QuotaKey(ns), string(raw))
	},
	Remains: remains,
	Drifts: drifts(map[string]string{
		"usage":                 "UPDATE usage SET pending = pending + 1, running = running - 1 WHERE ns = %[1]s",
		"no usage":              "DELETE FROM usage WHERE ns = %[1]s",
		"history":               "UPDATE history SET archived = 0, dead = dead + 7, shed = -1 WHERE ns = %[1]s",
		"no history":            "DELETE FROM history WHERE ns = %[1]s",
		"lanes":                 "UPDATE lanes SET pending = pending + 1, running = running + 1 WHERE ns = %[1]s",
		"a missing lane":        "DELETE FROM lanes WHERE ns = %[1]s AND queue = 'other'",
		"a lane without jobs":   "INSERT INTO lanes (ns, queue, lane, rank, pending) VALUES (%[1]s, 'nobody', 't', 3, 2)",
		"an empty lane":         "INSERT INTO lanes (ns, queue, lane, rank) VALUES (%[1]s, 'nobody', '', 0)",
		"jobs in another lane":  "UPDATE jobs SET lane = 'x' WHERE ns = %[1]s",
		"a payload without job": "INSERT INTO payloads (ns, id, body) VALUES (%[1]s, 'x', zeroblob(9))",
		"a payload in two places": `INSERT INTO payloads (ns, id, body) SELECT ns, id, zeroblob(9) FROM jobs
			WHERE ns = %[1]s AND aside = 0 LIMIT 1`,
	}),
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

// drifts makes statements, with a namespace's number put in, into ways to drift.
func drifts(statements map[string]string) map[string]func(testing.TB, string, string) {
	out := make(map[string]func(testing.TB, string, string))
	for name, query := range statements {
		out[name] = func(t testing.TB, address, ns string) {
			shell(t, address, fmt.Sprintf(query, "(SELECT id FROM namespaces WHERE name = ?1)"), ns)
		}
	}
	return out
}

// template is an empty store's file. Copies of it save the time of many migrations.
var template = sync.OnceValue(func() []byte {
	dir, err := os.MkdirTemp("", "flexiq-sqlite-")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "store.db")
	s, err := Open(context.Background(), path, Options{Timeout: time.Minute})
	if err != nil {
		panic(err)
	}
	if err := s.Close(); err != nil {
		panic(err)
	}
	file, err := os.ReadFile(path)
	if err != nil {
		panic(err)
	}
	return file
})

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

func open(t testing.TB, o Options) *Store {
	t.Helper()
	return openAt(t, filepath.Join(t.TempDir(), "store.db"), o)
}

func openAt(t testing.TB, path string, o Options) *Store {
	t.Helper()
	if o.Timeout == 0 {
		o.Timeout = time.Minute // the race detector makes SQLite slow
	}
	s, err := Open(context.Background(), path, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return s
}

// spec makes a checked job.
func spec(t testing.TB, options ...func(*job.Spec)) job.Spec {
	t.Helper()
	s := job.Spec{ID: uuid.Must(uuid.NewV7()).String(), Task: "t", Payload: []byte(`{"invoice":4711,"to":"someone@example.com"}`), Form: job.Args}
	for _, o := range options {
		o(&s)
	}
	if err := s.Normalize("job", job.LargestMaxPayload); err != nil {
		t.Fatal(err)
	}
	return s
}

// calls makes n calls of k jobs each.
func calls(t testing.TB, ns string, n, k int) []store.Call {
	t.Helper()
	out := make([]store.Call, n)
	for i := range out {
		out[i] = store.Call{Namespace: ns, Origin: job.OriginEnqueue, By: "tok1"}
		for range k {
			out[i].Jobs = append(out[i].Jobs, spec(t))
		}
	}
	return out
}

// consistent fails unless every kept count is that of the rows, no empty lane
// is left and no payload without its job.
func consistent(t testing.TB, path string) {
	t.Helper()
	c, err := connect(path) // one for all: reading the schema is what costs here
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for what, query := range map[string]string{
		"usage": `SELECT count(*) FROM usage u WHERE
			pending <> (SELECT count(*) FROM jobs WHERE ns = u.ns AND state = 0) OR
			running <> (SELECT count(*) FROM jobs WHERE ns = u.ns AND state = 1)`,
		"history": `SELECT count(*) FROM history h WHERE
			archived <> (SELECT count(*) FROM archive WHERE ns = h.ns) OR
			dead <> (SELECT count(*) FROM dead_letters WHERE ns = h.ns) OR
			shed <> (SELECT count(*) FROM dead_letters WHERE ns = h.ns AND shed = 1)`,
		"lanes": `SELECT count(*) FROM (SELECT * FROM lanes EXCEPT
			SELECT ns, queue, lane, rank, sum(state = 0), sum(state = 1) FROM jobs GROUP BY ns, queue, lane, rank)`,
		"missing lanes": `SELECT count(*) FROM (SELECT DISTINCT ns, queue, lane, rank FROM jobs EXCEPT SELECT ns, queue, lane, rank FROM lanes)`,
		"payloads without a job": `SELECT count(*) FROM (SELECT ns, id FROM payloads EXCEPT SELECT ns, id FROM
			(SELECT ns, id, aside FROM jobs UNION ALL SELECT ns, id, aside FROM archive UNION ALL SELECT ns, id, aside FROM dead_letters)
			WHERE aside > 0)`,
		"jobs without their payload": `SELECT count(*) FROM (SELECT ns, id FROM
			(SELECT ns, id, aside FROM jobs UNION ALL SELECT ns, id, aside FROM archive UNION ALL SELECT ns, id, aside FROM dead_letters)
			WHERE aside > 0 EXCEPT SELECT ns, id FROM payloads)`,
		"jobs twice": `SELECT count(*) FROM (SELECT ns, id FROM
			(SELECT ns, id FROM jobs UNION ALL SELECT ns, id FROM archive UNION ALL SELECT ns, id FROM dead_letters)
			GROUP BY ns, id HAVING count(*) > 1)`,
	} {
		if n, err := c.number(query); err != nil || n != 0 {
			t.Errorf("%s: %d rows are wrong, %v", what, n, err)
		}
	}
}

// ask reads one number as another program would.
func ask(t testing.TB, path, query string) int64 {
	t.Helper()
	c, err := connect(path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	n, err := c.number(query)
	if err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return n
}

// remains looks for a namespace's rows in every column that names one.
func remains(t testing.TB, address, ns string) (found []string) {
	t.Helper()
	c, err := connect(address)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	type column struct{ table, name string }
	var columns []column
	err = sqlitex.Execute(c.Conn, `SELECT s.name, i.name FROM sqlite_schema s, pragma_table_info(s.name) i
		WHERE s.type = 'table' AND (i.name IN ('ns', 'namespace', 'scope') OR s.name = 'namespaces' AND i.name = 'name')`,
		&sqlitex.ExecOptions{ResultFunc: func(st *sqlite.Stmt) error {
			columns = append(columns, column{st.ColumnText(0), st.ColumnText(1)})
			return nil
		}})
	if err != nil || len(columns) < 10 {
		t.Fatalf("columns: %v, %v", columns, err)
	}
	for _, col := range columns {
		query := fmt.Sprintf("SELECT count(*) FROM %s WHERE %s = ?1", col.table, col.name)
		if col.name == "ns" { // rows of a number that no namespace has
			query = fmt.Sprintf("SELECT count(*) FROM %s WHERE ns NOT IN (SELECT id FROM namespaces WHERE ?1 IS NOT NULL)", col.table)
		}
		err := sqlitex.Execute(c.Conn, query, &sqlitex.ExecOptions{Args: []any{ns}, ResultFunc: func(st *sqlite.Stmt) error {
			if n := st.ColumnInt(0); n > 0 {
				found = append(found, fmt.Sprintf("%d rows of %s", n, col.table))
			}
			return nil
		}})
		if err != nil {
			t.Fatal(err)
		}
	}
	return found
}
