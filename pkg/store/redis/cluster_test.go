package redis

import (
	"context"
	"net/url"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"flexiq/pkg/fault"
	"flexiq/pkg/job"
	"flexiq/pkg/store"
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

// TestMovingSlot: while a cluster moves a namespace's slot, with its keys on
// both sides, nothing is decided by what is on one side only. Afterwards
// everything is as it was.
func TestMovingSlot(t *testing.T) {
	servers := testkit.StartRedisCluster(t, 2)
	s := openAt(t, clusterURL(t, servers), Options{})
	enqueue(t, s, calls(t, "ns", 1, 10)...)
	held := claim(t, s, "ns", 2)
	ctx := t.Context()
	slot, err := s.db.ClusterKeySlot(ctx, s.key("ns", "ns")).Result()
	if err != nil {
		t.Fatal(err)
	}
	from, err := s.node(ctx, s.key("ns", "ns"))
	if err != nil {
		t.Fatal(err)
	}
	var to *redis.Client
	err = s.db.(*redis.ClusterClient).ForEachMaster(ctx, func(_ context.Context, c *redis.Client) error {
		if c.Options().Addr != from.Options().Addr {
			to = c
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	ask := func(c *redis.Client, args ...any) any {
		t.Helper()
		v, err := c.Do(ctx, args...).Result()
		if err != nil {
			t.Fatalf("%v: %v", args, err)
		}
		return v
	}
	fromID, toID := ask(from, "cluster", "myid"), ask(to, "cluster", "myid")
	ask(to, "cluster", "setslot", slot, "importing", fromID)
	ask(from, "cluster", "setslot", slot, "migrating", toID)
	host, port, _ := strings.Cut(to.Options().Addr, ":")
	keys := from.ClusterGetKeysInSlot(ctx, int(slot), 1000).Val()
	again := calls(t, "ns", 1, 3)
	refused := func(when string) {
		t.Helper()
		if _, err := s.Admit(ctx, again); !fault.Is(err, fault.StorageUnavailable) {
			t.Errorf("admit %s: %v", when, err)
		}
		if _, _, err := s.Turn(ctx, []store.Settlement{{Namespace: "ns", JobID: held[0].Job.ID, Lease: held[0].Lease, Outcome: job.Completed}},
			[]store.Want{want("ns", 3)}); !fault.Is(err, fault.StorageUnavailable) {
			t.Errorf("turn %s: %v", when, err)
		}
		if _, err := s.ListJobs(ctx, "ns", store.Filter{}, "", 100); !fault.Is(err, fault.StorageUnavailable) {
			t.Errorf("list %s: %v", when, err)
		}
	}
	refused("before the first key has moved")
	for i, key := range keys {
		if i == 1 || i == len(keys)/2 {
			refused("in the middle")
		}
		ask(from, "migrate", host, port, key, 0, 5000, "auth", to.Options().Password)
	}
	refused("after the last key has moved")
	for _, c := range []*redis.Client{to, from} {
		ask(c, "cluster", "setslot", slot, "node", toID)
	}
	enqueue(t, s, again...)
	settle(t, s, held)
	claim(t, s, "ns", 11)
	consistent(t, s)
}

// TestFindsCluster: the address of one server of a cluster is enough.
func TestFindsCluster(t *testing.T) {
	servers := testkit.StartRedisCluster(t, 2)
	s := openAt(t, servers[1].URL(), Options{})
	if _, ok := s.db.(*redis.ClusterClient); !ok {
		t.Errorf("the client is a %T", s.db)
	}
	for _, ns := range []string{"a", "b", "c", "d"} {
		enqueue(t, s, calls(t, ns, 1, 1)...)
	}
	if err := servers[0].Crash(); err != nil {
		t.Fatal(err)
	}
	// A group with a namespace on either side: one works, one fails alone.
	node := func(ns string) string {
		n, err := s.node(t.Context(), s.key(ns, "ns"))
		if err != nil {
			t.Fatal(err)
		}
		return n.Options().Addr
	}
	for _, ns := range []string{"a", "b", "c", "d"} {
		gone := node(ns) == servers[0].Address()
		out, err := s.Admit(t.Context(), append(calls(t, ns, 1, 1), calls(t, "a", 1, 1)...))
		if err == nil && gone && !fault.Is(out[0].Err, fault.StorageUnavailable) {
			t.Errorf("%s, whose server is gone: %+v", ns, out[0])
		}
	}
}
