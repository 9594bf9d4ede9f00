package client_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"flexiq/pkg/auth"
	"flexiq/pkg/auth/embedded"
	"flexiq/pkg/bus"
	"flexiq/pkg/client"
	"flexiq/pkg/fault"
	"flexiq/pkg/rpc"
	"flexiq/pkg/store"
	"flexiq/pkg/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	serviceUser     = "services"
	servicePassword = "between-us"
)

// installation is one server with its two doors, as a client finds it.
type installation struct {
	t      testing.TB
	tokens *tokens
	ids    *auth.Verifier
	nats   *server.Server
	conn   *bus.Conn // of the services
	http   *httptest.Server
}

// tokens is a source of tokens in memory.
type tokens struct {
	mu   sync.Mutex
	byID map[string]store.Token
}

func (s *tokens) Token(_ context.Context, id string) (*store.Token, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, ok := s.byID[id]
	if !ok {
		return nil, fault.Missing("token")
	}
	return &t, nil
}

// revoke ends every token.
func (s *tokens) revoke() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.byID)
}

// install serves methods over both doors until the test ends.
func install(t testing.TB, methods ...rpc.Method) *installation {
	t.Helper()
	in := &installation{t: t, tokens: &tokens{byID: map[string]store.Token{}}}
	in.ids = auth.NewVerifier(in.tokens, time.Now)
	in.nats = testkit.SecureNATS(t, embedded.New(in.ids, serviceUser, servicePassword, zerolog.Nop()))
	in.conn = in.connect()
	in.serve(in.conn, methods)
	in.http = httptest.NewServer(http.MaxBytesHandler(rpc.Handler(methods, in.ids, rpc.HandlerOptions{}), 8<<20))
	t.Cleanup(in.http.Close)
	return in
}

// connect connects as a service.
func (in *installation) connect() *bus.Conn {
	in.t.Helper()
	conn, err := bus.Connect(in.t.Context(), bus.Options{
		URL: in.nats.ClientURL(), User: serviceUser, Password: servicePassword,
	})
	if err != nil {
		in.t.Fatalf("connect as a service: %v", err)
	}
	in.t.Cleanup(func() { conn.Close(context.WithoutCancel(in.t.Context())) })
	return conn
}

func (in *installation) serve(conn *bus.Conn, methods []rpc.Method) *bus.Endpoints {
	in.t.Helper()
	e, err := conn.Serve("test", methods, in.ids)
	if err != nil {
		in.t.Fatalf("serve: %v", err)
	}
	return e
}

// token makes a token of a namespace.
func (in *installation) token(ns string, scopes ...auth.Scope) string {
	in.t.Helper()
	text, t, err := auth.Mint(ns, scopes, "", 0, "", time.Now())
	if err != nil {
		in.t.Fatalf("mint: %v", err)
	}
	in.tokens.mu.Lock()
	defer in.tokens.mu.Unlock()
	in.tokens.byID[t.ID] = t
	return text
}

// doors are the addresses of the installation, one for each transport.
func (in *installation) doors() map[string]string {
	return map[string]string{"nats": in.nats.ClientURL(), "http": in.http.URL}
}

// dial connects a client that is closed when the test ends.
func (in *installation) dial(o client.Options) *client.Client {
	in.t.Helper()
	if o.Server == "" {
		o.Server = in.nats.ClientURL()
	}
	c, err := client.Dial(in.t.Context(), o)
	if err != nil {
		in.t.Fatalf("dial %s: %v", o.Server, err)
	}
	in.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := c.Close(ctx); err != nil {
			in.t.Errorf("close: %v", err)
		}
	})
	return c
}

// overBothDoors repeats a test for each transport.
func overBothDoors(t *testing.T, test func(t *testing.T, door string)) {
	t.Helper()
	for _, door := range []string{"nats", "http"} {
		t.Run(door, func(t *testing.T) {
			t.Parallel()
			test(t, door)
		})
	}
}
