package redis

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"flexiq/pkg/namespace"
	"flexiq/pkg/store"
	"flexiq/pkg/store/storetest"
	"flexiq/pkg/testkit"
)

func TestMain(m *testing.M) { storetest.Main(servers{m}, backend) }

// servers stops the private server before goroutines are counted.
type servers struct{ *testing.M }

func (s servers) Run() int {
	defer func() {
		testkit.StopRedis()
		// The client library notices only once a second that a pool, whose server
		// was gone, was closed.
		for end := time.Now().Add(3 * time.Second); goleak.Find() != nil && time.Now().Before(end); {
		}
	}()
	return s.M.Run()
}

// backend is the suite's view. An address is a URL and a key prefix.
var backend = storetest.Backend{
	Create: func(t testing.TB) string {
		url, prefix := testkit.RedisPrefix(t)
		return url + " " + prefix
	},
	Open: func(ctx context.Context, address string, now func() time.Time) (store.Store, error) {
		return openAddress(ctx, address, now)
	},
	Scribble: func(t testing.TB, address, ns string, raw []byte) {
		s, err := openAddress(t.Context(), address, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		if err := s.db.HSet(t.Context(), s.key(tag(ns), "settings"), namespace.QuotaKey(ns), raw).Err(); err != nil {
			t.Fatal(err)
		}
	},
	Remains: remains,
	Drifts:  drifts(),
}

// drifts are Redis commands, whose first argument is a key of the namespace.
func drifts() map[string]func(testing.TB, string, string) {
	out := make(map[string]func(testing.TB, string, string))
	for name, command := range map[string][]any{
		"jobs in no index of live ones":  {"del", "live"},
		"leases of no job":               {"zadd", "running", 1, "nobody"},
		"running jobs without a lease":   {"del", "running"},
		"counts of a queue":              {"hset", "counts", "qother", 7},
		"counts of a task":               {"hset", "counts", "tnobody", 7},
		"no counts":                      {"del", "counts"},
		"a task's lane without jobs":     {"hset", "overrides", "task:t", "1000;0;0;0;{}"},
		"a worker of no job":             {"hset", "workers", "nobody", "w"},
		"no archive":                     {"del", "archive"},
		"no archive by time":             {"del", "archived"},
		"dead letters in no index":       {"del", "dead"},
		"dead letters at another time":   {"zadd", "died", 7, "nobody"},
		"shed jobs in no index":          {"del", "shed"},
		"unique keys of nobody":          {"hset", "unique", "k", "nobody"},
		"unique keys without holder":     {"del", "unique"},
		"debounce keys of nobody":        {"zadd", "debounce", 0, "k\x00nobody"},
		"debounced jobs in no index":     {"del", "debounce"},
		"a lane without its pending job": {"del", "p:other\x00122"},
		"a pending job in no lane":       {"zadd", "p:nobody\x00127", 5, "nobody"},
		"no lanes":                       {"del", "lanes"},
		"a lane without jobs":            {"zadd", "lanes", 0, "nobody\x00127"},
		"no lanes of a rank":             {"del", "f:127"},
		"lanes of another rank":          {"zadd", "f:007", 5, "other\x00122"},
		"no ranks":                       {"del", "ranks"},
		"a payload without job":          {"set", "b:nobody", "x"},
		"a result without job":           {"set", "r:nobody", "x"},
	} {
		out[name] = func(t testing.TB, address, ns string) {
			s, err := openAddress(t.Context(), address, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			args := slices.Clone(command)
			args[1] = s.key(tag(ns), args[1].(string))
			if n, err := s.db.Do(t.Context(), args...).Result(); err != nil || n == int64(0) {
				t.Fatalf("%s changed nothing: %v, %v", name, n, err)
			}
		}
	}
	return out
}

func openAddress(ctx context.Context, address string, now func() time.Time) (*Store, error) {
	url, prefix, _ := strings.Cut(address, " ")
	return Open(ctx, url, Options{Prefix: prefix, Now: now, Timeout: time.Minute}) // many cases share the server
}

func TestStore(t *testing.T) { storetest.Run(t, backend) }

// remains lists the keys of a namespace, and the lists of the installation that
// still have it.
func remains(t testing.TB, address, ns string) (found []string) {
	t.Helper()
	s, err := openAddress(t.Context(), address, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	// Every key whose name has the tag, whatever else stands in it.
	found = append(found, s.db.Keys(t.Context(), escaped(s.key(tag(ns), ""))+"*").Val()...)
	// It leaves the lists by a look that comes late.
	s.now = func() time.Time { return time.Now().Add(100 * 365 * 24 * time.Hour) }
	if err := s.forgetErased(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, list := range []string{"erased", "known", "trails", "busy", scheduledList, streamedList} {
		if s.db.ZScore(t.Context(), s.key(installation, list), ns).Err() == nil {
			found = append(found, "a place in "+list)
		}
	}
	for _, list := range []string{"tokens:", "exchanged:"} {
		if s.db.Exists(t.Context(), s.key(installation, list+ns)).Val() > 0 {
			found = append(found, list)
		}
	}
	return found
}

// escaped is a text as a pattern that matches only itself.
func escaped(s string) string {
	return strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`, "]", `\]`).Replace(s)
}
