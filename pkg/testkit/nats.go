// Package testkit starts real servers for tests, on random ports, and stops
// them when the test ends.
package testkit

import (
	"net"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

const startTimeout = 10 * time.Second

// NATS starts an embedded NATS server with JetStream, on a random port of the
// loopback, where anybody may do anything.
func NATS(t testing.TB) *server.Server {
	t.Helper()
	return StartNATS(t, NATSOptions(t))
}

// SecureNATS starts an embedded NATS server like [NATS] whose connections the
// authenticator admits. An authenticator with a method Attach gets the server
// before it accepts connections.
func SecureNATS(t testing.TB, authenticator server.Authentication) *server.Server {
	t.Helper()
	o := NATSOptions(t)
	o.CustomClientAuthentication = authenticator
	return StartNATS(t, o)
}

// NATSOptions are the options of [NATS], to be changed before [StartNATS].
func NATSOptions(t testing.TB) *server.Options {
	t.Helper()
	return &server.Options{
		Host:               "127.0.0.1",
		Port:               server.RANDOM_PORT,
		NoLog:              true,
		NoSigs:             true,
		JetStream:          true,
		StoreDir:           t.TempDir(),
		JetStreamMaxMemory: 64 << 20,
		JetStreamMaxStore:  256 << 20,
		MaxPayload:         8 << 20,
	}
}

// StartNATS starts a server and waits until it takes connections. A server
// that was shut down comes back when the same options are started again: the
// random port is kept in them.
func StartNATS(t testing.TB, o *server.Options) *server.Server {
	t.Helper()
	s, err := server.NewServer(o.Clone())
	if err != nil {
		t.Fatalf("NATS server: %v", err)
	}
	if a, ok := o.CustomClientAuthentication.(interface{ Attach(*server.Server) }); ok {
		a.Attach(s)
	}
	s.Start()
	t.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	if !s.ReadyForConnections(startTimeout) {
		t.Fatalf("NATS server: not ready within %s", startTimeout)
	}
	o.Port = s.Addr().(*net.TCPAddr).Port
	return s
}
