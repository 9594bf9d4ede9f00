package main

import (
	"bytes"
	"context"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"github.com/rs/zerolog"
	"zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"

	"flexiq/pkg/job"
	"flexiq/pkg/store"
	"flexiq/pkg/testkit"
)

// command runs flexiqd and returns its exit status and what it wrote.
func command(t *testing.T, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	var out, err bytes.Buffer
	status = run(t.Context(), args, &out, &err)
	return status, out.String(), err.String()
}

// fill makes a store with one pending job that has a long payload.
func fill(t *testing.T, o storeOptions) {
	t.Helper()
	o.migrate = true
	s, err := openStore(t.Context(), o, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	spec := job.Spec{ID: uuid.Must(uuid.NewV7()).String(), Task: "t", Form: job.Args, Payload: []byte(`"` + strings.Repeat("x", 4000) + `"`)}
	if err := spec.Normalize("job", job.LargestMaxPayload); err != nil {
		t.Fatal(err)
	}
	out, err := s.Admit(t.Context(), []store.Call{{Namespace: "acme", Jobs: []job.Spec{spec}, Origin: job.OriginEnqueue, By: "t"}})
	if err != nil || out[0].Err != nil {
		t.Fatalf("admit: %v, %+v", err, out)
	}
}

// sqliteShell runs a statement on a store that is closed.
func sqliteShell(t *testing.T, path, query string) {
	t.Helper()
	c, err := sqlite.OpenConn(path, sqlite.OpenReadWrite)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := sqlitex.ExecuteTransient(c, query, nil); err != nil {
		t.Fatal(err)
	}
}

func TestDoctor(t *testing.T) {
	home(t)
	path := filepath.Join(t.TempDir(), "store.db")
	at := "--store=sqlite:" + path
	if status, _, stderr := command(t, "doctor", at); status != exitError || !strings.Contains(stderr, "unable to open") {
		t.Errorf("without a store: status %d, %q", status, stderr)
	}
	fill(t, storeOptions{url: "sqlite:" + path})
	if status, stdout, stderr := command(t, "doctor", at); status != exitOK || stdout != "nothing wrong in 1 namespaces\n" {
		t.Errorf("a sound store: status %d, %q, %q", status, stdout, stderr)
	}
	sqliteShell(t, path, "UPDATE usage SET pending = 5")
	status, stdout, stderr := command(t, "doctor", at)
	want := "NAMESPACE  DEFECT      WHERE    KEPT  COUNTED  MENDED\nacme       miscounted  pending  5     1        no\n"
	if status != exitError || stdout != want || !strings.Contains(stderr, "--repair") {
		t.Errorf("drift: status %d, %q, %q; want %q", status, stdout, stderr, want)
	}
	status, stdout, _ = command(t, "doctor", at, "--repair", "--output=json")
	var answer checkup
	if err := json.Unmarshal([]byte(stdout), &answer); err != nil {
		t.Fatalf("%v: %s", err, stdout)
	}
	if status != exitOK || len(answer.Findings) != 1 || !answer.Findings[0].Mended {
		t.Errorf("repair: status %d, %s", status, stdout)
	}
	if status, stdout, _ := command(t, "doctor", at, "--output=json"); status != exitOK || !strings.Contains(stdout, `"findings": []`) {
		t.Errorf("after the repair: status %d, %s", status, stdout)
	}
	sqliteShell(t, path, "DELETE FROM payloads")
	if status, stdout, stderr := command(t, "doctor", at, "--repair"); status != exitError || !strings.Contains(stdout, "broken") ||
		!strings.Contains(stderr, "could not mend") {
		t.Errorf("a lost payload: status %d, %q, %q", status, stdout, stderr)
	}
	if status, _, _ := command(t, "doctor", at, "--output=xml"); status != exitUsage {
		t.Errorf("an unknown form: status %d", status)
	}
}

func TestDoctorOnRedis(t *testing.T) {
	home(t)
	url := testkit.StartRedis(t).URL()
	fill(t, storeOptions{url: url})
	o, err := redis.ParseURL(url)
	if err != nil {
		t.Fatal(err)
	}
	db := redis.NewClient(o)
	defer db.Close()
	if err := db.Del(context.Background(), "{acme}:live").Err(); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		flag string
		want int
	}{{"", exitError}, {"--repair", exitOK}, {"", exitOK}} {
		args := []string{"doctor", "--store=" + url}
		if step.flag != "" {
			args = append(args, step.flag)
		}
		if status, stdout, stderr := command(t, args...); status != step.want {
			t.Errorf("%v: status %d, want %d: %s%s", step, status, step.want, stdout, stderr)
		}
	}
}

func TestPrintable(t *testing.T) {
	for in, want := range map[string]string{"acme": "acme", "jürgen": "jürgen", "a\x1b[2J": `"a\x1b[2J"`, `a"b`: `"a\"b"`} {
		if got := printable(in); got != want {
			t.Errorf("printable(%q) is %s, want %s", in, got, want)
		}
	}
}
