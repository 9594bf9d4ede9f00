package retention

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"

	"flexiq/pkg/namespace"
	"flexiq/pkg/store"
	"flexiq/pkg/testkit"
)

// ledger is the database's own record of what happened to a table of history,
// made past the store: the database wrote it in the step of each change.
type ledger struct {
	rows  map[int64]int64 // deleted, by the term that was the newest at that moment
	stray int64           // rows deleted by somebody who did not have the newest term; SQLite cannot tell
	most  int64           // rows of one delete; SQLite deletes them one by one
	of    map[string]tally
}

// tally is a namespace's part.
type tally struct {
	left     int64
	fewest   int64 // that were ever left by a delete; a large number before any
	disorder int64 // rows that were deleted while an older one was left
}

// deleted is how many rows were deleted under any term.
func (l *ledger) deleted() (sum int64) {
	for _, n := range l.rows {
		sum += n
	}
	return sum
}

// record makes the database record what happens to a table, which is empty, from
// now on, and returns how to read what it recorded. Whoever deletes has opened the
// store as [database.named].
func (d database) record(t testing.TB, table store.Table) (read func() ledger) {
	t.Helper()
	switch d.Kind {
	case "postgres":
		return d.recordPostgres(t, table)
	case "redis":
		return d.recordRedis(t, table)
	}
	return d.recordSQLite(t, table)
}

// The ledger of SQLite takes down every row that comes and goes, as cheaply as it
// can: a delete holds up all writers, and is measured.
const sqliteLedger = `
	CREATE TABLE ledger (number INTEGER PRIMARY KEY, term INTEGER, ns INTEGER NOT NULL, at INTEGER NOT NULL, id TEXT NOT NULL);
	CREATE TRIGGER ledger_inserted AFTER INSERT ON archive BEGIN
		INSERT INTO ledger (ns, at, id) VALUES (NEW.ns, NEW.finished_at, NEW.id);
	END;
	CREATE TRIGGER ledger_deleted AFTER DELETE ON archive BEGIN
		INSERT INTO ledger (term, ns, at, id) SELECT (SELECT max(term) FROM terms), OLD.ns, OLD.finished_at, OLD.id;
	END;`

func (d database) recordSQLite(t testing.TB, table store.Table) func() ledger {
	t.Helper()
	with := func(do func(*sqlite.Conn) error) {
		t.Helper()
		c, err := sqlite.OpenConn(d.URL, sqlite.OpenReadWrite)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		c.SetBusyTimeout(testkit.Patience)
		if err := do(c); err != nil {
			t.Fatal(err)
		}
	}
	with(func(c *sqlite.Conn) error {
		return sqlitex.ExecuteScript(c, strings.ReplaceAll(sqliteLedger, "archive", string(table)), nil)
	})
	return func() ledger {
		t.Helper()
		l := ledger{rows: map[int64]int64{}, of: map[string]tally{}}
		spaces := map[string]*monitoredSpace{}
		with(func(c *sqlite.Conn) error {
			return sqlitex.Execute(c, `SELECT term, name, at, ledger.id FROM ledger JOIN namespaces ON namespaces.id = ns ORDER BY number`,
				&sqlitex.ExecOptions{ResultFunc: func(st *sqlite.Stmt) error {
					space := spaces[st.ColumnText(1)]
					if space == nil {
						space = newMonitoredSpace()
						spaces[st.ColumnText(1)] = space
					}
					if st.ColumnIsNull(0) {
						space.add(entry{float64(st.ColumnInt64(2)), st.ColumnText(3)})
						return nil
					}
					space.remove([]string{st.ColumnText(3)})
					l.rows[st.ColumnInt64(0)]++
					l.most = 1
					return nil
				}})
		})
		for ns, space := range spaces {
			l.of[ns] = space.read()
		}
		return l
	}
}

// The ledger of PostgreSQL takes down, for each statement, who held the newest
// term and who deleted.
const postgresLedger = `
	create table flexiq.ledger (term bigint not null, stray boolean not null, n bigint not null);
	create table flexiq.tally (ns text primary key, n bigint not null, fewest bigint not null default 9223372036854775807, disorder bigint not null default 0);
	create function flexiq.ledger_inserted() returns trigger language plpgsql as $$
	begin
		insert into flexiq.tally as y (ns, n) select ns, count(*) from fresh group by ns order by ns
		on conflict (ns) do update set n = y.n + excluded.n;
		return null;
	end $$;
	create function flexiq.ledger_deleted() returns trigger language plpgsql as $$
	declare g record; l record; f record;
	begin
		for g in select ns, count(*) as n from gone group by ns order by ns loop
			select finished_at, id into l from gone where ns = g.ns order by finished_at desc, id desc limit 1;
			select finished_at, id into f from flexiq.archive where ns = g.ns order by finished_at, id limit 1;
			update flexiq.tally y set n = y.n - g.n, fewest = least(y.fewest, y.n - g.n),
				disorder = y.disorder + case when (f.finished_at, f.id) < (l.finished_at, l.id) then g.n else 0 end where ns = g.ns;
			insert into flexiq.ledger select term, holder <> current_setting('application_name'), g.n from flexiq.term;
		end loop;
		return null;
	end $$;
	create trigger ledger_inserted after insert on flexiq.archive referencing new table as fresh
		for each statement execute function flexiq.ledger_inserted();
	create trigger ledger_deleted after delete on flexiq.archive referencing old table as gone
		for each statement execute function flexiq.ledger_deleted()`

func (d database) recordPostgres(t testing.TB, table store.Table) func() ledger {
	t.Helper()
	in := func(sql string) string {
		sql = strings.ReplaceAll(sql, "flexiq.archive", "flexiq."+string(table))
		return strings.ReplaceAll(sql, "flexiq.", pgx.Identifier{d.Space}.Sanitize()+".")
	}
	d.postgres(t, func(ctx context.Context, c *pgx.Conn) error {
		_, err := c.Exec(ctx, in(postgresLedger))
		return err
	})
	return func() ledger {
		t.Helper()
		l := ledger{rows: map[int64]int64{}, of: map[string]tally{}}
		d.postgres(t, func(ctx context.Context, c *pgx.Conn) error {
			rows, err := c.Query(ctx, in(`select term, sum(n), coalesce(sum(n) filter (where stray), 0), max(n) from flexiq.ledger group by term`))
			if err != nil {
				return err
			}
			var term, n, stray, most int64
			if _, err := pgx.ForEachRow(rows, []any{&term, &n, &stray, &most}, func() error {
				l.rows[term], l.stray, l.most = n, l.stray+stray, max(l.most, most)
				return nil
			}); err != nil {
				return err
			}
			if rows, err = c.Query(ctx, in(`select ns, n, fewest, disorder from flexiq.tally`)); err != nil {
				return err
			}
			var ns string
			var y tally
			_, err = pgx.ForEachRow(rows, []any{&ns, &y.left, &y.fewest, &y.disorder}, func() error {
				l.of[ns] = y
				return nil
			})
			return err
		})
		return l
	}
}

// postgres does something with a connection of its own.
func (d database) postgres(t testing.TB, do func(context.Context, *pgx.Conn) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*testkit.Patience)
	defer cancel()
	c, err := pgx.Connect(ctx, d.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(ctx)
	if err := do(ctx, c); err != nil {
		t.Fatal(err)
	}
}

// recordRedis listens to every command that the server carries out, those of
// scripts included, in their order.
func (d database) recordRedis(t testing.TB, table store.Table) func() ledger {
	t.Helper()
	index := map[store.Table]string{store.Archive: "archived", store.DeadLetters: "died"}[table]
	var mu sync.Mutex
	m := newMonitored(d.Space+"{", index)
	catchUp := testkit.MonitorRedis(t, d.URL, func(line string) {
		mu.Lock()
		defer mu.Unlock()
		m.hear(line)
	})
	return func() ledger {
		t.Helper()
		catchUp()
		mu.Lock()
		defer mu.Unlock()
		l := m.ledger
		l.of = map[string]tally{}
		for tag, s := range m.spaces {
			ns, err := namespace.Decode(tag)
			if err != nil { // the installation
				continue
			}
			l.of[ns] = s.read()
		}
		return l
	}
}

// named is the database as a process of that name opens it, so that the
// database's own record tells who did what.
func (d database) named(name string) database {
	if d.Kind == "postgres" {
		sep := "?"
		if strings.Contains(d.URL, "?") {
			sep = "&"
		}
		d.URL += sep + "application_name=" + strings.ReplaceAll(name, " ", "%20")
	}
	return d
}
