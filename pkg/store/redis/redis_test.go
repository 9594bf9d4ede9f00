package redis

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

	"flexiq/pkg/namespace"
	"flexiq/pkg/store"
	"flexiq/pkg/store/storetest"
	"flexiq/pkg/testkit"
)

func TestMain(m *testing.M) {
	code := m.Run()
	testkit.StopRedis()
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// backend is the suite's view of a server. An address is a key prefix.
func backend(url string) storetest.Backend {
	return storetest.Backend{
		Create: func(t testing.TB) string {
			_, prefix := testkit.RedisPrefix(t)
			return prefix
		},
		Open: func(ctx context.Context, prefix string, now func() time.Time) (store.Store, error) {
			return Open(ctx, url, Options{Prefix: prefix, Now: now, Timeout: time.Minute})
		},
		Scribble: func(t testing.TB, prefix, ns string, raw []byte) {
			s, err := Open(t.Context(), url, Options{Prefix: prefix})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			if err := s.db.HSet(t.Context(), s.key(tag(ns), "settings"), namespace.QuotaKey(ns), raw).Err(); err != nil {
				t.Fatal(err)
			}
		},
	}
}

func TestStore(t *testing.T) { storetest.Run(t, backend(testkit.Redis(t))) }
