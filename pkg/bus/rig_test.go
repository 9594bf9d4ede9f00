package bus_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/auth"
	"flexiq/pkg/auth/embedded"
	"flexiq/pkg/bus"
	"flexiq/pkg/rpc"
	"flexiq/pkg/store"
	"flexiq/pkg/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// tokens is a cache of tokens that knows everything at once, unless it is cold.
type tokens struct {
	mu   sync.Mutex
	byID map[string]store.Token
	cold bool
}

func (s *tokens) Get(_ context.Context, id string) (*store.Token, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t, ok := s.byID[id]; ok {
		return &t, nil
	}
	return nil, nil
}

func (s *tokens) Peek(id string) (*store.Token, bool) {
	t, _ := s.Get(context.Background(), id)
	s.mu.Lock()
	defer s.mu.Unlock()
	return t, !s.cold
}

func (s *tokens) change(id string, fn func(*store.Token)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.byID[id]
	fn(&t)
	s.byID[id] = t
}

// rig is a server with authentication, a service on it, and methods whose
// outcome the test chooses.
type rig struct {
	tokens   *tokens
	verifier *auth.Verifier
	guard    *embedded.Authenticator
	options  *server.Options
	server   *server.Server
	conn     *bus.Conn
	registry *prometheus.Registry

	enqueue  func(ctx context.Context, q *flexiqv1.EnqueueRequest, done func(*flexiqv1.EnqueueResponse, error))
	claim    func(ctx context.Context, q *flexiqv1.ClaimRequest, done func(*flexiqv1.ClaimResponse, error))
	getJob   func(ctx context.Context, q *flexiqv1.GetJobRequest) (*flexiqv1.GetJobResponse, error)
	setQuota func(ctx context.Context, q *flexiqv1.SetQuotaRequest) (*flexiqv1.SetQuotaResponse, error)

	refusals    chan error
	undelivered chan *flexiqv1.ClaimResponse
}

const (
	serviceUser     = "flexiq"
	servicePassword = "service-password"
)

func newRig(t testing.TB, change ...func(*bus.Options)) *rig {
	t.Helper()
	r := &rig{
		tokens:      &tokens{byID: map[string]store.Token{}},
		registry:    prometheus.NewRegistry(),
		refusals:    make(chan error, 16),
		undelivered: make(chan *flexiqv1.ClaimResponse, 16),
	}
	r.verifier = auth.NewVerifier(auth.Cached(r.tokens), time.Now)
	r.guard = embedded.New(r.verifier, serviceUser, servicePassword, zerolog.Nop())
	r.options = testkit.NATSOptions(t)
	r.options.CustomClientAuthentication = r.guard
	r.server = testkit.StartNATS(t, r.options)
	o := bus.Options{
		URL: r.server.ClientURL(), Name: "service", User: serviceUser, Password: servicePassword,
		Metrics: rpc.NewMetrics(r.registry), Registerer: r.registry,
	}
	for _, c := range change {
		c(&o)
	}
	r.conn = dial(t, o)
	return r
}

// dial opens a connection that is closed with the test.
func dial(t testing.TB, o bus.Options) *bus.Conn {
	t.Helper()
	c, err := bus.Connect(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
		defer cancel()
		c.Close(ctx)
	})
	return c
}

// serve answers for all methods.
func (r *rig) serve(t testing.TB) *bus.Endpoints {
	t.Helper()
	e, err := r.conn.Serve("test", r.methods(), r.verifier)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func (r *rig) methods() []rpc.Method {
	return []rpc.Method{
		rpc.Async("Enqueue", func(ctx context.Context, q *flexiqv1.EnqueueRequest, done func(*flexiqv1.EnqueueResponse, error)) {
			r.enqueue(ctx, q, done)
		}),
		rpc.Async("Claim", func(ctx context.Context, q *flexiqv1.ClaimRequest, done func(*flexiqv1.ClaimResponse, error)) {
			r.claim(ctx, q, done)
		}, rpc.OnUndelivered(func(_ auth.Identity, _ *flexiqv1.ClaimRequest, res *flexiqv1.ClaimResponse) { r.undelivered <- res })),
		rpc.Unary("GetJob", func(ctx context.Context, q *flexiqv1.GetJobRequest) (*flexiqv1.GetJobResponse, error) {
			return r.getJob(ctx, q)
		}),
		rpc.Unary("SetQuota", func(ctx context.Context, q *flexiqv1.SetQuotaRequest) (*flexiqv1.SetQuotaResponse, error) {
			return r.setQuota(ctx, q)
		}, rpc.OnRefused(func(_ context.Context, _ string, _ proto.Message, err error) { r.refusals <- err })),
	}
}

// tenant is a client with a token.
type tenant struct {
	*bus.Conn
	token   string
	nsToken string
	id      string
}

func (r *rig) tenant(t testing.TB, ns string, scopes ...auth.Scope) *tenant {
	t.Helper()
	text, tok, err := auth.Mint(ns, scopes, "", time.Hour, "", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	r.tokens.change(tok.ID, func(s *store.Token) { *s = tok })
	c := dial(t, bus.Options{URL: r.server.ClientURL(), Token: text})
	return &tenant{Conn: c, token: text, nsToken: auth.Identity{Namespace: ns}.NSToken(), id: tok.ID}
}

func (c *tenant) subject(verb string) string { return bus.Subject(verb, c.nsToken, c.id) }

// request sends a body as a client without our library would.
func (c *tenant) request(t testing.TB, verb, body string, header ...string) *nats.Msg {
	t.Helper()
	msg := nats.NewMsg(c.subject(verb))
	msg.Data = []byte(body)
	for i := 0; i < len(header); i += 2 {
		msg.Header.Set(header[i], header[i+1])
	}
	reply, err := c.Raw().RequestMsg(msg, testkit.Patience)
	if err != nil {
		t.Fatalf("%s: %v", verb, err)
	}
	return reply
}

// counted is the value of one counter, by its name and the value of its only label.
func (r *rig) counted(t testing.TB, name, label string) float64 {
	t.Helper()
	families, err := r.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			if len(m.GetLabel()) == 0 || m.GetLabel()[0].GetValue() == label {
				return m.GetCounter().GetValue()
			}
		}
	}
	return 0
}

// withJob answers an enqueue with the caller's namespace.
func withJob(ctx context.Context, q *flexiqv1.EnqueueRequest, done func(*flexiqv1.EnqueueResponse, error)) {
	id := auth.From(ctx)
	done(&flexiqv1.EnqueueResponse{Result: &flexiqv1.EnqueueResult{
		Job: &flexiqv1.Job{Namespace: id.Namespace, Task: q.GetJob().GetTask(), EnqueuedBy: id.TokenID, Origin: auth.Door(ctx)},
	}}, nil)
}

// wait takes from a channel, or fails.
func wait[T any](t testing.TB, what string, from <-chan T) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(testkit.Patience):
		t.Fatalf("not within %s: %s", testkit.Patience, what)
		panic("unreachable")
	}
}
