package redis

import (
	"net/url"
	"testing"

	"flexiq/pkg/store/storetest"
	"flexiq/pkg/testkit"
)

// TestCluster runs the suite on three servers, with keys of each case on all of them.
func TestCluster(t *testing.T) {
	address := clusterURL(t, testkit.StartRedisCluster(t, 3))
	b := backend
	cases := make(chan string, 1)
	cases <- ""
	b.Create = func(testing.TB) string {
		prefix := <-cases + "x"
		cases <- prefix
		return address + " " + prefix + ":"
	}
	storetest.Run(t, b)
}

// clusterURL is the address of a cluster by its first server.
func clusterURL(t testing.TB, servers []*testkit.RedisServer) string {
	t.Helper()
	u, err := url.Parse(servers[0].URL())
	if err != nil {
		t.Fatal(err)
	}
	u.Scheme = "redis+cluster"
	return u.String()
}
