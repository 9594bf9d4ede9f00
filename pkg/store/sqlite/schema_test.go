package sqlite

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"flexiq/pkg/fault"
	"flexiq/pkg/store"
	"flexiq/pkg/store/migration"
)

func TestOpenRefuses(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	openAt(t, path("newer"), Options{}).Close()
	shell(t, path("newer"), "INSERT INTO schema_versions VALUES (99, 98, 0)")
	for _, name := range []string{"other", "empty"} {
		if err := os.WriteFile(path(name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	shell(t, path("other"), "CREATE TABLE t (x)")
	shell(t, path("empty"), "PRAGMA user_version = 1")
	for _, c := range []struct {
		name, file string
		noMigrate  bool
		want       string
	}{
		{"a schema that needs a newer program", "newer", false, "needs a program of version 98 or newer"},
		{"another program's database", "other", false, "a database of another program"},
		{"a file without a schema when migrations are off", "empty", true, "migrations are off"},
		{"a missing file when migrations are off", "missing", true, "unable to open database file"},
		{"a missing folder", "a/b/c", false, "no such file or directory"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, err := Open(t.Context(), path(c.file), Options{NoMigrate: c.noMigrate})
			if err == nil {
				s.Close()
				t.Fatal("it opened")
			}
			if !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got %q, want it to contain %q", err, c.want)
			}
		})
	}
	if n := ask(t, path("other"), "SELECT count(*) FROM sqlite_schema"); n != 1 {
		t.Errorf("another program's database was changed: %d objects", n)
	}
}

func TestOpenAcceptsNewerSchemaThatKeepsThisProgram(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store.db")
	openAt(t, path, Options{}).Close()
	shell(t, path, "INSERT INTO schema_versions VALUES (99, 1, 0)")
	s := openAt(t, path, Options{NoMigrate: true})
	if err := s.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// TestSchemaNeedsNoNewSQLite: an operator's own sqlite3 must read the file, and
// one function that it lacks in a generated column makes a whole table
// unreadable. STRICT needs 3.37, so nothing may need more.
func TestSchemaNeedsNoNewSQLite(t *testing.T) {
	since37 := []string{"instr", "length", "max", "raise", "substr", "changes"} // the last is our table, too
	tooNew := []string{"->", "distinct from", "jsonb"}                          // 3.38, 3.39, 3.45

	s := open(t, Options{})
	c, err := connect(s.path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	functions := map[string]bool{"raise": true} // which is syntax
	if err := c.each("SELECT name FROM pragma_function_list", func(r *row) bool {
		functions[r.text()] = true
		return true
	}); err != nil {
		t.Fatal(err)
	}
	if !functions["octet_length"] {
		t.Fatal("the list of functions lacks one, so it proves nothing")
	}
	comment, called := regexp.MustCompile(`--.*`), regexp.MustCompile(`([a-z_0-9]+)\s*\(`)
	if err := c.each("SELECT name, lower(sql) FROM sqlite_schema WHERE sql IS NOT NULL", func(r *row) bool {
		name, sql := r.text(), comment.ReplaceAllString(r.text(), "")
		for _, m := range called.FindAllStringSubmatch(sql, -1) {
			if functions[m[1]] && !slices.Contains(since37, m[1]) {
				t.Errorf("%s calls %s, which is not known to be in SQLite 3.37", name, m[1])
			}
		}
		for _, words := range tooNew {
			if strings.Contains(sql, words) {
				t.Errorf("%s has %q, which is newer than SQLite 3.37", name, words)
			}
		}
		return true
	}); err != nil {
		t.Fatal(err)
	}
}

func TestOpenAtOnceMigratesOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store.db")
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			s, err := Open(context.Background(), path, Options{Timeout: time.Minute})
			if err != nil {
				t.Errorf("open: %v", err)
				return
			}
			if err := s.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
		})
	}
	wg.Wait()
	if n := ask(t, path, "SELECT count(*) FROM schema_versions"); n != programVersion() {
		t.Errorf("%d schema versions on record, want %d", n, programVersion())
	}
}

// TestMigrations is not parallel to others: it replaces the list of migrations.
func TestMigrations(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store.db")
	openAt(t, path, Options{}).Close()
	before := migrations
	t.Cleanup(func() { migrations = before })
	next := migration.Step{Version: programVersion() + 1, Oldest: programVersion() + 1, SQL: "CREATE TABLE extra (x); INSERT INTO extra VALUES (7);"}

	migrations = append(slices.Clone(before), next)
	if _, err := Open(t.Context(), path, Options{NoMigrate: true}); err == nil || !strings.Contains(err.Error(), "this program needs") {
		t.Fatalf("an old schema with migrations off: got %v", err)
	}
	migrations = append(slices.Clone(before), next, migration.Step{Version: next.Version + 1, Oldest: 1, SQL: "CREATE TABLE extra (x)"})
	if _, err := Open(t.Context(), path, Options{}); err == nil || !strings.Contains(err.Error(), "already exists") {
		t.Fatalf("a bad migration: got %v", err)
	}
	if n := ask(t, path, "SELECT max(version) FROM schema_versions"); n != next.Version-1 {
		t.Fatalf("a failed migration left version %d", n)
	}
	migrations = append(slices.Clone(before), next)
	openAt(t, path, Options{}).Close()
	if n := ask(t, path, "SELECT x FROM extra"); n != 7 {
		t.Fatalf("the migration was not applied: %d", n)
	}
	migrations = before
	if _, err := Open(t.Context(), path, Options{}); err == nil || !strings.Contains(err.Error(), "upgrade it") {
		t.Fatalf("an older program on the new schema: got %v", err)
	}
}

// TestSchemaAppliesWhileRunning: a process that runs finds out when it opens a
// connection again that a newer program made the store unfit for it.
func TestSchemaChangedWhileRunning(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store.db")
	s := openAt(t, path, Options{})
	shell(t, path, "INSERT INTO schema_versions VALUES (99, 99, 0)")
	breakWriter(t, s)
	err := s.Ping(t.Context())
	if !fault.Is(err, fault.StorageUnavailable) || !strings.Contains(err.Error(), "upgrade it") {
		t.Fatalf("got %v", err)
	}
	shell(t, path, "DELETE FROM schema_versions WHERE version = 99")
	if err := s.Ping(t.Context()); err != nil {
		t.Fatalf("after the repair: %v", err)
	}
}

// breakWriter makes the writing connection fail once as on a read-only disk.
func breakWriter(t *testing.T, s *Store) {
	t.Helper()
	err := s.write(t.Context(), "break", func(tx *tx) error { return tx.run("PRAGMA query_only = ON") })
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Ping(t.Context()); !fault.Is(err, fault.StorageUnavailable) {
		t.Fatalf("on a read-only disk: %v", err)
	}
}

func TestQuotaTriggersCatchScribbles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store.db")
	s := openAt(t, path, Options{})
	since := int64(0)
	step := func(what, query string, want ...store.Change) {
		t.Helper()
		if query != "" {
			shell(t, path, query)
		}
		c, err := s.Changes(t.Context(), since, 100)
		if err != nil {
			t.Fatal(err)
		}
		since = c.Latest
		if !slices.Equal(c.Items, want) {
			t.Fatalf("%s: got the changes %v, want %v", what, c.Items, want)
		}
	}
	revision := func(ns string) int64 {
		t.Helper()
		d, err := s.Quotas(t.Context(), []string{ns})
		if err != nil {
			t.Fatal(err)
		}
		return d[0].Stamp.Revision
	}
	quota := func(ns string) store.Change { return store.Change{Kind: store.KindQuota, Key: ns} }
	standard := store.Change{Kind: store.KindDefaultQuota}

	step("insert", `INSERT INTO settings (key, value) VALUES ('quota:ns:3:a:b', '{"max_pending":1}')`, quota("a:b"))
	step("update", `UPDATE settings SET value = 'junk' WHERE key = 'quota:ns:3:a:b'`, quota("a:b"))
	step("replace", `INSERT OR REPLACE INTO settings (key, value) VALUES ('quota:ns:3:a:b', '{}')`, quota("a:b"))
	if n := revision("a:b"); n != 3 {
		t.Errorf("revision %d after three scribbles", n)
	}
	step("delete", `DELETE FROM settings WHERE key = 'quota:ns:3:a:b'`, quota("a:b"))
	if n := revision("a:b"); n != 4 {
		t.Errorf("revision %d after the document was deleted", n)
	}
	step("default namespace", `INSERT INTO settings (key, value) VALUES ('quota:default', '{}')`, quota("default"))
	step("several bytes a letter", `INSERT INTO settings (key, value) VALUES ('quota:ns:4:éé', '{}')`, quota("éé"))
	step("default quota", `INSERT INTO settings (key, value) VALUES ('installation:quota', '{}')`, standard)
	step("default quota again", `UPDATE settings SET value = '1' WHERE key = 'installation:quota'`, standard)
	for _, key := range []string{"quota:ns:2:éé", "quota:ns:7:default", "quota:ns:0:", "quota:ns:04:abcd", "quota:ns:x:abcd", "quota:", "QUOTA:default"} {
		step("no key of a quota: "+key, `INSERT INTO settings (key, value) VALUES ('`+key+`', '{}')`)
	}
	step("another scope", `INSERT INTO settings (scope, key, value) VALUES ('a', 'quota:default', '{}')`)
	step("token", `INSERT INTO tokens VALUES ('id', 'ns', '[]', '', x'00', 0, '', '', 0, 0, 0)`, store.Change{Kind: store.KindToken, Key: "id"})
	step("token used", `UPDATE tokens SET last_used = 7`)
	step("token revoked", `UPDATE tokens SET revoked_at = 7`, store.Change{Kind: store.KindToken, Key: "id"})
	step("token deleted", `DELETE FROM tokens`, store.Change{Kind: store.KindToken, Key: "id"})
	step("nothing", "")

	older := since
	shell(t, path, "UPDATE installation SET change_seq = 1") // as in a file from a backup
	if c, err := s.Changes(t.Context(), older, 100); err != nil || len(c.Items) == 0 || c.Latest != 1 {
		t.Errorf("a number from the future: got %v, %v; want every change", c, err)
	}
}

func TestCountsFollowWhateverWrites(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store.db")
	s := openAt(t, path, Options{})
	if _, err := s.Admit(t.Context(), calls(t, "ns", 1, 12)); err != nil {
		t.Fatal(err)
	}
	const pick = " WHERE id IN (SELECT id FROM jobs ORDER BY id LIMIT 7)"
	for _, query := range []string{
		"UPDATE jobs SET lane = 't'" + pick,
		"UPDATE jobs SET queue = 'other', rank = -3",
		"UPDATE jobs SET state = 1, lane = 'u'" + pick,
		"UPDATE jobs SET state = 1 - state, rank = rank",
		"UPDATE jobs SET lane = '', state = 0",
		"UPDATE OR IGNORE jobs SET state = 1, rank = 5" + pick,
		"INSERT INTO archive SELECT ns, 'x' || id, 2, 1, queue, rank, run_at, attempt, started_at, NULL, NULL, NULL, task, max_attempts, timeout," +
			" backoff_base, backoff_max, created_at, NULL, NULL, 0, 0, origin, enqueued_by, NULL, fingerprint, form, aside, payload, NULL FROM jobs",
		"DELETE FROM archive WHERE rowid % 2 = 0",
		"DELETE FROM jobs" + pick,
		"DELETE FROM jobs",
	} {
		shell(t, path, query)
		consistent(t, path)
	}
	if n := ask(t, path, "SELECT count(*) FROM lanes"); n != 0 {
		t.Errorf("%d lanes are left without a job", n)
	}
}

// TestMigrateDown is not parallel to others: it replaces the list of migrations.
func TestMigrateDown(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store.db")
	if _, err := SchemaStatus(t.Context(), path); err == nil {
		t.Error("a file that is not there has a status")
	}
	before := migrations
	t.Cleanup(func() { migrations = before })
	migrations = slices.Clone(before[:1])
	next := programVersion() + 1
	migrations = append(migrations, migration.Step{Version: next, Name: "extra", Oldest: 1,
		SQL: "CREATE TABLE extra (x)", Down: "DROP TABLE extra"})
	s, err := Open(t.Context(), path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	status := func(want int64) {
		t.Helper()
		if got, err := SchemaStatus(t.Context(), path); err != nil || got.Version != want || got.Program != next {
			t.Fatalf("got %+v, %v, want version %d", got, err, want)
		}
	}
	status(next)
	if step, err := MigrateDown(t.Context(), path); err != nil || step.Name != "extra" {
		t.Fatalf("got %+v, %v", step, err)
	}
	status(next - 1)
	if n := ask(t, path, "SELECT count(*) FROM sqlite_schema WHERE name = 'extra'"); n != 0 {
		t.Error("the table is still there")
	}
	if _, err := MigrateDown(t.Context(), path); err == nil || !strings.Contains(err.Error(), "would delete every job") {
		t.Fatalf("the first step: %v", err)
	}
	status(next - 1)
}
