package redis

import (
	"context"
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
}

func openAddress(ctx context.Context, address string, now func() time.Time) (*Store, error) {
	url, prefix, _ := strings.Cut(address, " ")
	return Open(ctx, url, Options{Prefix: prefix, Now: now, Timeout: time.Minute}) // many cases share the server
}

func TestStore(t *testing.T) { storetest.Run(t, backend) }
