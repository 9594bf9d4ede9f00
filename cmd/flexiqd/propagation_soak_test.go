//go:build soak

package main

import (
	"database/sql"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/redis/go-redis/v9"
	"zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"

	"flexiq/pkg/namespace"
	"flexiq/pkg/testkit"
)

// TestSoakPropagation measures in twelve service processes on one NATS server how
// long a change takes that only their caches carry: from its answer until the
// last of the processes that still went by the old value was asked.
func TestSoakPropagation(t *testing.T) {
	const near, far = 50 * time.Millisecond, 2500 * time.Millisecond
	eachStore(t, func(t *testing.T, s kept) {
		soak := testkit.StartSoak(t, "propagation-"+s.kind, "changes that only caches carry, in twelve service processes on one NATS server")
		a := newAudience(t)
		twelve(t, a, s)
		const ns = "heron"
		token := a.token(ns)
		// round ends one token and measures each process.
		round := func(heard bool) []time.Duration {
			k := a.token(ns)
			if heard {
				return a.ended(k, func() { a.revoke(ns, k) })
			}
			return a.ended(k, func() { a.revokeUnheard(ns, k) })
		}
		rounds := func(n int, heard bool) (all []time.Duration) {
			for range n {
				all = append(all, round(heard)...)
			}
			return all
		}
		report := func(what string, sample []time.Duration, most time.Duration) {
			t.Helper()
			soak.Durations(what, sample) // which sorts it
			p99 := sample[(len(sample)-1)*99/100]
			soak.Check(p99 <= most, "%s: p99 %s, at most %s", what, p99.Round(time.Millisecond), most)
		}

		report("token, hints working", rounds(50, true), near)

		a.limited(token)
		report("scribbled document", a.scribbled(t, s, ns, token, scribblers[s.kind]), near)

		report("override, hints working", a.overridden(t, a.token("heron overrides"), 20), near)

		looks := a.neverOlder(token, ns, 200)
		soak.Figure("confused hints", "200 changes of a quota under hints reordered, repeated and of the future; %d decisions looked at", looks)
		soak.Check(!t.Failed(), "no process decided by an older revision after a newer or after its answer")

		held := time.Now()
		var hole []time.Duration
		for a.link.Hold(); time.Since(held) < 40*time.Second; {
			k := a.token(ns)
			hole = append(hole, a.ended(k, func() { a.revokeUnheard(ns, k) })...)
		}
		a.link.Release()
		report("token, hints held 40s", hole, far)

		a.link.Slow(100)
		stop := a.confuse(ns, 1)
		report("token, slow consumer", rounds(5, false), far)
		soak.Figure("  hints meanwhile", "%d", stop())
		a.link.Release()

		var after []time.Duration
		for i := range 3 {
			k := a.token(ns)
			a.restart(5 * time.Second)
			after = append(after, a.ended(k, func() { a.revoke(ns, k) })...)
			a.limited(a.token(fmt.Sprint("heron after restart ", i)))
		}
		report("token, NATS restarted", after, far)
		soak.Check(!t.Failed(), "after each restart max_pending 3 admitted exactly 3 in all processes together")
	})
}

// twelve starts four processes of each role.
func twelve(t *testing.T, a *audience, s kept) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "flexiq")
	for i := range 12 {
		role := []string{configService, admissionService, dispatchgateService}[i%3]
		port := testkit.FreePort(t)
		args := []string{"serve", role}
		if role == dispatchgateService {
			args = append(args, retentionService)
		}
		args = append(args, a.natsFlag(), "--data-dir="+dir, "--http-listen=127.0.0.1:"+port, "--log-level=error")
		spawn(t, append(args, s.args...)...)
		a.add("http://127.0.0.1:"+port, role)
	}
	c, err := readCredentials(credentialsFile(dir))
	if err != nil {
		t.Fatal(err)
	}
	a.admin, a.db = c.Tokens["platform"], open(t, s.opts)
}

// scribbled overwrites a quota past the door, again and again, and tells how long
// each admission went by the old one.
func (a *audience) scribbled(t *testing.T, s kept, ns, token string, write func(*testing.T, kept, string, string)) (all []time.Duration) {
	t.Helper()
	for i := range 20 {
		broken := i%2 == 0
		text := `{"max_pending":0}`
		if broken {
			text = `{"max_pending":-1}`
		}
		write(t, s, ns, text)
		at := time.Now()
		for _, p := range a.of(admissionService) {
			for {
				asked := time.Now()
				res := a.call(p, token, "ProducerService/Enqueue", `{"job":{"task":"t"}}`)
				if res.Reason != "QUOTA_UNREADABLE" && res.Reason != "QUEUE_FULL" {
					t.Fatalf("an enqueue: %+v", res)
				}
				if (res.Reason == "QUOTA_UNREADABLE") == broken {
					all = append(all, asked.Sub(at))
					break
				}
				if asked.Sub(at) > testkit.Patience {
					t.Fatalf("the scribbled document is not in force after %s", testkit.Patience)
				}
			}
		}
	}
	return all
}

// overridden changes the default of a queue again and again, and tells how long
// each admission wrote the old one into jobs after the answer.
func (a *audience) overridden(t *testing.T, token string, times int) (all []time.Duration) {
	t.Helper()
	for i := range times {
		body := fmt.Sprintf(`{"queue":"q","max_attempts":%d}`, i+1)
		if res := a.call(a.of(configService)[0], token, "AdminService/SetOverride", body); res.Status != http.StatusOK {
			t.Fatalf("set override: %+v", res)
		}
		answered := time.Now()
		var mu sync.Mutex
		var group sync.WaitGroup
		for _, p := range a.of(admissionService) {
			group.Go(func() {
				for {
					asked := time.Now()
					res := a.call(p, token, "ProducerService/Enqueue", `{"job":{"task":"t","queue":"q"}}`)
					switch got := fmt.Sprint(testkit.Dig(res.Body, "result", "job", "max_attempts")); {
					case got == fmt.Sprint(i+1):
						mu.Lock()
						defer mu.Unlock()
						all = append(all, asked.Sub(answered))
						return
					case asked.Sub(answered) > testkit.Patience:
						t.Errorf("an override is not in force after %s: %+v", testkit.Patience, res)
						return
					}
				}
			})
		}
		group.Wait()
	}
	return all
}

// scribblers write a namespace's document as a database shell does.
var scribblers = map[string]func(t *testing.T, s kept, ns, text string){
	"sqlite": func(t *testing.T, s kept, ns, text string) {
		conn, err := sqlite.OpenConn(strings.TrimPrefix(s.opts.url, "sqlite:"), sqlite.OpenReadWrite, sqlite.OpenWAL)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		conn.SetBlockOnBusy()
		err = sqlitex.Execute(conn, "UPDATE settings SET value = ? WHERE key = ?", &sqlitex.ExecOptions{Args: []any{text, namespace.QuotaKey(ns)}})
		if err != nil {
			t.Fatal(err)
		}
	},
	"postgres": func(t *testing.T, s kept, ns, text string) {
		db, err := sql.Open("pgx", s.opts.url)
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		if _, err := db.Exec(`update "`+s.opts.pgSchema+`".settings set value = $1 where key = $2`, text, namespace.QuotaKey(ns)); err != nil {
			t.Fatal(err)
		}
	},
	"redis": func(t *testing.T, s kept, ns, text string) {
		o, err := redis.ParseURL(s.opts.url)
		if err != nil {
			t.Fatal(err)
		}
		db := redis.NewClient(o)
		defer db.Close()
		if err := db.HSet(t.Context(), "{"+namespace.Encode(ns)+"}:settings", namespace.QuotaKey(ns), text).Err(); err != nil {
			t.Fatal(err)
		}
	},
}
