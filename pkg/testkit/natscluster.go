package testkit

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// NATSCluster is a cluster of embedded NATS servers with JetStream, of which a
// test may stop some and start them again.
type NATSCluster struct {
	t       testing.TB
	options []*server.Options
	servers []*server.Server
}

// clusterPatience is how long a cluster may take to agree: its elections take
// seconds.
const clusterPatience = time.Minute

// StartNATSCluster starts a cluster of n servers, which ends with the test, and
// returns it when JetStream takes streams of n copies.
func StartNATSCluster(t testing.TB, n int) *NATSCluster {
	t.Helper()
	c := &NATSCluster{t: t, servers: make([]*server.Server, n)}
	var routes []string
	for i := range n {
		port, err := strconv.Atoi(FreePort(t))
		if err != nil {
			t.Fatal(err)
		}
		o := NATSOptions(t)
		o.ServerName = fmt.Sprint("node-", i)
		o.Cluster = server.ClusterOpts{Name: "flexiq", Host: "127.0.0.1", Port: port}
		c.options = append(c.options, o)
		routes = append(routes, fmt.Sprintf("nats://127.0.0.1:%d", port))
	}
	for i, o := range c.options {
		o.Routes = server.RoutesFromStr(strings.Join(routes, ","))
		c.Start(i)
	}
	c.await("the servers agree on a leader", func() bool {
		for _, s := range c.servers {
			if s.JetStreamIsLeader() {
				return len(s.JetStreamClusterPeers()) == n
			}
		}
		return false
	})
	return c
}

// URLs are where the servers answer, separated by commas.
func (c *NATSCluster) URLs() string {
	var out []string
	for _, o := range c.options {
		out = append(out, fmt.Sprintf("nats://127.0.0.1:%d", o.Port))
	}
	return strings.Join(out, ",")
}

// Stop stops a server.
func (c *NATSCluster) Stop(i int) {
	c.servers[i].Shutdown()
	c.servers[i].WaitForShutdown()
}

// Start starts a server, on the port and with the files that it had before, if any.
func (c *NATSCluster) Start(i int) {
	c.t.Helper()
	c.servers[i] = StartNATS(c.t, c.options[i])
}

// StreamLeader is the server that leads a stream, once there is one.
func (c *NATSCluster) StreamLeader(stream string) (leader int) {
	c.t.Helper()
	c.await("the stream "+stream+" has a leader", func() bool {
		for i, s := range c.servers {
			if s.Running() && s.JetStreamIsStreamLeader("$G", stream) {
				leader = i
				return true
			}
		}
		return false
	})
	return leader
}

// Whole waits until every server has the stream as its leader has it.
func (c *NATSCluster) Whole(stream string) {
	c.t.Helper()
	c.await("every server has "+stream, func() bool {
		for _, s := range c.servers {
			if !s.Running() || !s.JetStreamIsStreamCurrent("$G", stream) {
				return false
			}
		}
		return true
	})
}

func (c *NATSCluster) await(what string, so func() bool) {
	c.t.Helper()
	for began := time.Now(); !so(); time.Sleep(10 * time.Millisecond) {
		if time.Since(began) > clusterPatience {
			c.t.Fatalf("not within %s: %s", clusterPatience, what)
		}
	}
}
