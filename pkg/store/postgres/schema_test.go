package postgres

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"flexiq/pkg/job"
	"flexiq/pkg/store"
	"flexiq/pkg/store/migration"
	"flexiq/pkg/testkit"
)

// TestOpenTogether: processes that start at once on nothing make one schema.
func TestOpenTogether(t *testing.T) {
	url, schema := testkit.PostgresSchema(t)
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			s, err := Open(context.Background(), url, Options{Schema: schema})
			if err != nil {
				t.Error(err)
				return
			}
			s.Close()
		})
	}
	group.Wait()
	if n := ask(t, url, "select count(*) from "+schema+".schema_versions"); n != int64(len(migrations)) {
		t.Errorf("%d migrations on record", n)
	}
}

// TestVersions: what an installation allows and needs is told, not found out.
func TestVersions(t *testing.T) {
	url, schema := testkit.PostgresSchema(t)
	refused := func(o Options, part string) {
		t.Helper()
		if o.Schema == "" {
			o.Schema = schema
		}
		s, err := Open(t.Context(), url, o)
		if err == nil {
			s.Close()
		}
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("got %v, want …%s…", err, part)
		}
	}
	refused(Options{NoMigrate: true}, "no schema and migrations are off")
	refused(Options{Schema: "it's"}, "not a plain name")
	openAt(t, url, Options{Schema: schema})
	openAt(t, url, Options{Schema: schema, NoMigrate: true})
	newer := programVersion() + 1
	add := fmt.Sprintf("insert into %s.schema_versions (version, oldest_program) values ", schema)
	execute(t, url, add+fmt.Sprintf("(%d, %d)", newer, programVersion()))
	openAt(t, url, Options{Schema: schema}) // a rolling upgrade
	execute(t, url, add+fmt.Sprintf("(%d, %d)", newer+1, newer))
	refused(Options{}, fmt.Sprintf("needs a program of version %d or newer", newer))
	if s, err := Open(t.Context(), "postgres://:no such port", Options{}); err == nil || strings.Contains(err.Error(), "such port") {
		t.Errorf("a URL that cannot be read: %v, %v", s, err)
	}
}

// TestOtherPrograms: rows that somebody writes with psql are counted, and what
// could not be counted is refused.
func TestOtherPrograms(t *testing.T) {
	url, schema := testkit.PostgresSchema(t)
	s := openAt(t, url, Options{Schema: schema})
	sh := func(sql string) { t.Helper(); execute(t, url, inSchema(sql, schema)) }
	must(t, s, calls(t, "a", 1, 9, func(sp *job.Spec) { sp.Payload = make([]byte, asideFrom) }))
	must(t, s, calls(t, "b", 1, 3))
	turn(t, s, nil, want(t, s, "a", 3))
	for _, sql := range []string{
		`update flexiq.jobs set state = 0, lease = null where id in (select id from flexiq.jobs where state = 1 limit 1)`,
		`update flexiq.jobs set run_at = run_at + 3600000000 where ns = 'b'`,
		`update flexiq.jobs set rank = rank + 1, queue = 'other' where id in (select id from flexiq.jobs where ns = 'a' and state = 0 limit 2)`,
		`update flexiq.jobs set ns = 'c' where ns = 'b' and id in (select id from flexiq.jobs where ns = 'b' limit 1)`,
		`delete from flexiq.jobs where id in (select id from flexiq.jobs where ns = 'b' and aside = 0 limit 1)`,
		`with gone as (delete from flexiq.jobs where ns = 'c' returning *)
			insert into flexiq.jobs (ns, id, state, queue, rank, run_at, task, max_attempts, timeout, backoff_base, backoff_max, created_at, unique_key,
				debounce_key, debounce_window, debounce_max_wait, origin, enqueued_by, metadata, fingerprint, form, aside, payload)
			select 'never used', gen_random_uuid(), 0, queue, 5, run_at, task, 1, timeout, backoff_base, backoff_max, created_at, '',
				'', 0, 0, origin, '', '', fingerprint, form, aside, payload from gone`,
	} {
		sh(sql)
		consistent(t, url, schema)
	}
	if grants := turn(t, s, nil, want(t, s, "never used", 5)); len(grants[0].Jobs) != 0 {
		t.Errorf("a job of an hour later was given: %+v", grants[0])
	}
	for _, table := range []string{"jobs", "archive", "dead_letters", "payloads", "lanes", "usage", "history", "namespaces", "settings", "tokens"} {
		if err := tryExecute(url, inSchema("truncate flexiq."+table+" cascade", schema)); err == nil || !strings.Contains(err.Error(), "forbidden") {
			t.Errorf("truncate %s: %v", table, err)
		}
	}
	turn(t, s, nil, want(t, s, "a", 3))
	consistent(t, url, schema)
}

// TestPoolers goes through everything in the way that PgBouncer in transaction
// mode allows: no session keeps anything between two transactions.
func TestPoolers(t *testing.T) {
	url, schema := testkit.PostgresSchema(t)
	sep := "?"
	if strings.Contains(url, "?") {
		sep = "&"
	}
	s := openAt(t, url+sep+"default_query_exec_mode=cache_describe", Options{Schema: schema, MaxConns: 1})
	if s.flusher != nil {
		t.Error("commits are flushed late, though sessions are not ours")
	}
	(&observer{Store: s}).operate(t)
	consistent(t, url, schema)
	conn, err := s.pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	for sql, want := range map[string]string{
		"show enable_seqscan":                               "on",
		"select count(*)::text from pg_prepared_statements": "0",
	} {
		var got string
		if err := conn.QueryRow(t.Context(), sql).Scan(&got); err != nil || got != want {
			t.Errorf("%s: %s, %v; the session kept something", sql, got, err)
		}
	}
}

// TestScribbledQuota: who writes a document past the door raises its revision
// and is noticed.
func TestScribbledQuota(t *testing.T) {
	url, schema := testkit.PostgresSchema(t)
	s := openAt(t, url, Options{Schema: schema})
	for _, c := range []struct{ key, ns string }{
		{"quota:default", "default"}, {"quota:ns:3:a:b", "a:b"}, {"quota:ns:2:é", "é"},
		{"quota:ns:7:default", ""}, {"quota:ns:4:a:b", ""}, {"quota:ns:3:", ""}, {"quota:x", ""}, {"quota:ns:1:é", ""},
	} {
		before, err := s.Changes(t.Context(), 0, 1000)
		if err != nil {
			t.Fatal(err)
		}
		const upsert = `insert into flexiq.settings (key, value) values ($1, '{"max_pending":1}') on conflict (scope, key) do update set value = excluded.value`
		execute(t, url, inSchema(upsert, schema), c.key)
		after, err := s.Changes(t.Context(), before.Latest, 1000)
		if err != nil {
			t.Fatal(err)
		}
		if c.ns == "" {
			if len(after.Items) != 0 {
				t.Errorf("%s: %+v", c.key, after.Items)
			}
			continue
		}
		if len(after.Items) != 1 || after.Items[0] != (store.Change{Kind: store.KindQuota, Key: c.ns}) {
			t.Errorf("%s: %+v", c.key, after.Items)
		}
		if _, stamp := inForce(t, s, c.ns); stamp.Revision != 1 {
			t.Errorf("%s: %+v", c.key, stamp)
		}
	}
}

// TestMigrateDown is not parallel to others: it replaces the list of migrations.
func TestMigrateDown(t *testing.T) {
	url, schema := testkit.PostgresSchema(t)
	status := func(want int64) migration.Status {
		t.Helper()
		got, err := SchemaStatus(t.Context(), url, schema)
		if err != nil || got.Version != want {
			t.Fatalf("got %+v, %v, want version %d", got, err, want)
		}
		return got
	}
	refused := func(want string) {
		t.Helper()
		if _, err := MigrateDown(t.Context(), url, schema); err == nil || !strings.Contains(err.Error(), want) {
			t.Fatalf("got %v, want %q", err, want)
		}
	}
	status(0)
	refused("no schema")
	before := migrations
	t.Cleanup(func() { migrations = before })
	migrations = slices.Clone(before[:1])
	next := programVersion() + 1
	migrations = append(migrations, migration.Step{Version: next, Name: "extra", Oldest: 1,
		SQL: "create table flexiq.extra (x int)", Down: "drop table flexiq.extra"})
	openAt(t, url, Options{Schema: schema})
	if got := status(next); got.Oldest != 1 || got.Program != next {
		t.Fatalf("got %+v", got)
	}
	if step, err := MigrateDown(t.Context(), url, schema); err != nil || step.Name != "extra" {
		t.Fatalf("got %+v, %v", step, err)
	}
	status(next - 1)
	if n := ask(t, url, "select count(*) from pg_tables where schemaname = $1 and tablename = 'extra'", schema); n != 0 {
		t.Error("the table is still there")
	}
	refused("would delete every job")
}
