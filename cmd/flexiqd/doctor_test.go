package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
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
	if status, _, stderr := command(t, "doctor", at); status != exitError || !strings.Contains(stderr, "there is no store at "+path) {
		t.Errorf("without a store: status %d, %q", status, stderr)
	}
	fill(t, storeOptions{url: "sqlite:" + path})
	if status, stdout, stderr := command(t, "doctor", at); status != exitOK || stdout != "nothing wrong in 1 namespace\n" {
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

// A store that is not there is named, once, and is not made.
func TestAMissingStoreIsNamed(t *testing.T) {
	dir := home(t)
	path := filepath.Join(dir, "none", "flexiq.db")
	closed := "127.0.0.1:" + testkit.FreePort(t)
	for url, want := range map[string]string{
		"sqlite:" + path:                        "flexiqd: there is no store at " + path + ": flexiqd migrate up makes one, and --store or --data-dir names another\n",
		"postgres://u:secret@" + closed + "/db": "flexiqd: cannot reach the store postgres://u:xxxxx@" + closed + "/db: dial tcp " + closed + ": connect: connection refused\n",
		"redis://:secret@" + closed:             "flexiqd: cannot reach the store redis://:xxxxx@" + closed + ": dial tcp " + closed + ": connect: connection refused\n",
	} {
		for _, verb := range []string{"doctor", "migrate status"} {
			status, stdout, stderr := command(t, append(strings.Fields(verb), "--store="+url)...)
			if status != exitError || stdout != "" || stderr != want {
				t.Errorf("%s of %s: status %d, %q%q, want %q", verb, url, status, stdout, stderr, want)
			}
		}
	}
	if _, err := os.Stat(filepath.Dir(path)); err == nil {
		t.Error("a folder was made for a store that was only looked at")
	}
}

// An option that is empty in the environment is not set.
func TestEmptyEnvironment(t *testing.T) {
	dir := home(t)
	for _, name := range []string{
		"FLEXIQ_STORE", "FLEXIQ_STORE_FILE", "FLEXIQ_NATS_AUTH", "FLEXIQ_NATS_CREDS", "FLEXIQ_TLS_CERT", "FLEXIQ_TLS_KEY", "FLEXIQ_TLS_CA",
		"FLEXIQ_CLAIM_LEASE", "FLEXIQ_MAX_PAYLOAD", "FLEXIQ_ARCHIVE_AGE", "FLEXIQ_INSECURE", "FLEXIQ_PG_SCHEMA",
	} {
		t.Setenv(name, "")
	}
	if status, stdout, stderr := command(t, "migrate", "up", "--data-dir="+filepath.Join(dir, "d")); status != exitOK {
		t.Errorf("migrate up: status %d: %s%s", status, stdout, stderr)
	}
	// Refused for what it lacks, and not for what is empty.
	if status, _, stderr := command(t, "serve", "admission"); status != exitUsage || !strings.HasPrefix(stderr, "flexiqd: --nats-url: is required") {
		t.Errorf("serve: status %d: %s", status, stderr)
	}
}
