package embedded_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"flexiq/pkg/auth"
	"flexiq/pkg/auth/embedded"
	"flexiq/pkg/fault"
	"flexiq/pkg/store"
	"flexiq/pkg/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = testkit.Patience

// source is a store of tokens in memory.
type source struct {
	mu   sync.Mutex
	byID map[string]store.Token
	err  error
}

func (s *source) Token(_ context.Context, id string) (*store.Token, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return nil, s.err
	}
	t, ok := s.byID[id]
	if !ok {
		return nil, fault.Missing("token")
	}
	return &t, nil
}

func (s *source) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

func (s *source) change(id string, fn func(*store.Token)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.byID[id]
	fn(&t)
	s.byID[id] = t
}

type rig struct {
	source        *source
	authenticator *embedded.Authenticator
	server        *server.Server
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{source: &source{byID: map[string]store.Token{}}}
	r.authenticator = embedded.New(auth.NewVerifier(r.source, time.Now), "flexiq", "service-password", zerolog.Nop())
	r.server = testkit.SecureNATS(t, r.authenticator)
	return r
}

func (r *rig) mint(t *testing.T, ns string, ttl time.Duration, scopes ...auth.Scope) (text, id string) {
	t.Helper()
	text, tok, err := auth.Mint(ns, scopes, "", ttl, "", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	r.source.change(tok.ID, func(s *store.Token) { *s = tok })
	return text, tok.ID
}

// connection is a client that notes what the server says of it.
type connection struct {
	*nats.Conn
	errs   chan error
	closed chan struct{}
}

func (r *rig) connect(t *testing.T, opts ...nats.Option) (*connection, error) {
	t.Helper()
	c := &connection{errs: make(chan error, 64), closed: make(chan struct{})}
	nc, err := nats.Connect(r.server.ClientURL(), append(opts,
		nats.NoReconnect(),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { c.errs <- err }),
		nats.ClosedHandler(func(*nats.Conn) { close(c.closed) }),
	)...)
	if err != nil {
		return nil, err
	}
	c.Conn = nc
	t.Cleanup(func() { nc.Close(); <-c.closed })
	return c, nil
}

func (r *rig) mustConnect(t *testing.T, opts ...nats.Option) *connection {
	t.Helper()
	c, err := r.connect(t, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// refused waits for the server's word that what was done is not permitted.
func (c *connection) refused(t *testing.T, what string) {
	t.Helper()
	if err := c.Flush(); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	select {
	case err := <-c.errs:
		if !errors.Is(err, nats.ErrPermissionViolation) {
			t.Errorf("%s: %v, want a permission violation", what, err)
		}
	case <-time.After(patience):
		t.Errorf("%s: permitted", what)
	}
}

// permitted checks that nothing was refused so far.
func (c *connection) permitted(t *testing.T, what string) {
	t.Helper()
	if err := c.Flush(); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	if err := c.LastError(); err != nil {
		t.Errorf("%s: %v", what, err)
	}
}

func TestTokensOpenConnections(t *testing.T) {
	r := newRig(t)
	text, _ := r.mint(t, "lark", 0, auth.Produce)
	for name, o := range map[string]nats.Option{
		"auth_token": nats.Token(text),
		"user name":  nats.UserInfo(text, ""),
		"password":   nats.UserInfo("anybody", text),
	} {
		if c, err := r.connect(t, o); err != nil {
			t.Errorf("%s: %v", name, err)
		} else {
			c.permitted(t, name)
		}
	}
}

func TestNobodyElseConnects(t *testing.T) {
	r := newRig(t)
	text, id := r.mint(t, "lark", 0, auth.Produce)
	expired, _ := r.mint(t, "lark", time.Nanosecond, auth.Produce)
	revoked, revokedID := r.mint(t, "lark", 0, auth.Produce)
	r.source.change(revokedID, func(s *store.Token) { s.RevokedAt = time.Now() })
	parts, err := auth.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	options := map[string][]nats.Option{
		"nothing":                nil,
		"empty token":            {nats.Token("")},
		"no namespace":           {nats.Token("fqt.." + id + "." + parts.Secret)},
		"another namespace":      {nats.Token("fqt.wren." + id + "." + parts.Secret)},
		"wrong secret":           {nats.Token("fqt.lark." + id + ".aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa")},
		"expired":                {nats.Token(expired)},
		"revoked":                {nats.Token(revoked)},
		"service without secret": {nats.UserInfo("flexiq", "")},
		"service with a wrong":   {nats.UserInfo("flexiq", "service-passwor")},
		"service as a token":     {nats.Token("service-password")},
	}
	for name, o := range options {
		if _, err := r.connect(t, o...); !errors.Is(err, nats.ErrAuthorization) {
			t.Errorf("%s: %v", name, err)
		}
	}
	r.source.fail(errors.New("disk on fire"))
	if _, err := r.connect(t, nats.Token(text)); !errors.Is(err, nats.ErrAuthorization) {
		t.Errorf("without storage: %v", err)
	}
}

// What a tenant with every scope of its own must not touch.
func TestTenantStaysInside(t *testing.T) {
	r := newRig(t)
	text, id := r.mint(t, "lark", 0, auth.Produce, auth.Work, auth.Inspect, auth.Admin)
	_, other := r.mint(t, "lark", 0, auth.Produce)
	service := r.mustConnect(t, nats.UserInfo("flexiq", "service-password"), nats.CustomInboxPrefix(auth.ServiceInbox))
	heard, err := service.SubscribeSync(auth.HintPrefix + ">")
	if err != nil {
		t.Fatal(err)
	}
	requests, err := service.SubscribeSync(auth.RequestPrefix + ">")
	if err != nil {
		t.Fatal(err)
	}
	service.permitted(t, "the service's subscriptions")

	c := r.mustConnect(t, nats.Token(text), nats.CustomInboxPrefix(auth.Inbox("lark", id)))
	for _, subject := range []string{
		"fqi.v1.ready", "fqi.v1.config.quota.lark", "fqi.v1.stats.admission", "fqi.v1.progress",
		"$SYS.REQ.SERVER.PING", "$SYS.REQ.ACCOUNT.PING.CONNZ", "$SYS.REQ.USER.INFO",
		"$JS.API.INFO", "$JS.API.STREAM.CREATE.X", "$JS.API.STREAM.PURGE.KV_FQ_LEASE", "$JS.API.CONSUMER.CREATE.KV_FQ_LEASE",
		"$JS.ACK.KV_FQ_LEASE.x.1.1.1.1.1", "$KV.FQ_LEASE.retention", "$SRV.PING", "$SRV.INFO.admission",
		"fqe.v1.lark.quota.changed", "fqe.v1.wren.quota.changed", "fqx.v1.wren.x", "fqx.v1.lark",
		"fq.v1.enqueue.wren." + id, "fq.v1.enqueue.lark." + other, "fq.v1.enqueue.=." + id, "fq.v1.enqueue.lark",
		"fq.v1.enqueue.lark." + id + ".x", "fq.v1.list-namespaces.lark." + id, "fq.v1.exchange-token.lark." + id,
		"fq.v1.nonsense.lark." + id, "_INBOX.wren.x.y", auth.ServiceInbox + ".x", "_INBOX.lark." + id + ".x", "anything",
	} {
		if err := c.Publish(subject, []byte("{}")); err != nil {
			t.Fatalf("%s: %v", subject, err)
		}
		c.refused(t, "publish to "+subject)
	}
	for _, subject := range []string{
		">", "*", "*.>", "_INBOX.>", "_INBOX.*.>", "_INBOX.lark.>", "_INBOX.lark." + other + ".>", "_INBOX.wren.>",
		"_INBOX.lark." + id, "_INBOX.*." + id + ".>", auth.ServiceInbox + ".>",
		"fq.v1.>", "fq.v1.enqueue.*.*", "fq.v1.*.lark." + id, "fq.v1.enqueue.lark." + id,
		"fqi.>", "fqi.v1.ready", "fqi.v1.>", "*.v1.ready", "fqx.v1.lark.>", "fqe.v1.>", "fqe.v1.*.>", "fqe.v1.wren.>", "fqe.>",
		"$SYS.>", "$JS.>", "$JS.API.>", "$KV.>", "$SRV.>", "$G.>",
	} {
		if _, err := c.SubscribeSync(subject); err != nil {
			t.Fatalf("%s: %v", subject, err)
		}
		c.refused(t, "subscribe to "+subject)
		if _, err := c.QueueSubscribeSync(subject, "admission"); err != nil {
			t.Fatalf("%s: %v", subject, err)
		}
		c.refused(t, "queue subscribe to "+subject)
	}
	service.permitted(t, "the service")
	for name, sub := range map[string]*nats.Subscription{"a hint": heard, "a request": requests} {
		if n, _, err := sub.Pending(); n != 0 || err != nil {
			t.Errorf("%s came through: %d, %v", name, n, err)
		}
	}
}

func TestTenantMayDoWhatItsScopesSay(t *testing.T) {
	r := newRig(t)
	text, id := r.mint(t, "a.b", 0, auth.Produce, auth.Inspect)
	service := r.mustConnect(t, nats.UserInfo("flexiq", "service-password"), nats.CustomInboxPrefix(auth.ServiceInbox))
	echo := func(m *nats.Msg) { _ = service.Publish(m.Reply, []byte(m.Subject)) }
	if _, err := service.QueueSubscribe("fq.v1.enqueue.*.*", "admission", echo); err != nil {
		t.Fatal(err)
	}
	service.permitted(t, "serving")
	c := r.mustConnect(t, nats.Token(text), nats.CustomInboxPrefix(auth.Inbox("a=2eb", id)))
	reply, err := c.Request(auth.Subject("enqueue", "a=2eb", id), nil, patience)
	if err != nil || string(reply.Data) != "fq.v1.enqueue.a=2eb."+id {
		t.Fatalf("reply %v, %v", reply, err)
	}
	events, err := c.SubscribeSync("fqe.v1.a=2eb.>")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.QueueSubscribeSync("fqe.v1.a=2eb.job.*", "mine"); err != nil {
		t.Fatal(err)
	}
	if err := c.Publish("fqx.v1.a=2eb.orders.new", nil); err != nil {
		t.Fatal(err)
	}
	c.permitted(t, "events and triggers")
	if err := service.Publish("fqe.v1.a=2eb.job.dead", nil); err != nil {
		t.Fatal(err)
	}
	if _, err := events.NextMsg(patience); err != nil {
		t.Errorf("event: %v", err)
	}
	service.permitted(t, "replies and events")
}

func TestServiceHasWhatItNeeds(t *testing.T) {
	r := newRig(t)
	c := r.mustConnect(t, nats.UserInfo("flexiq", "service-password"), nats.CustomInboxPrefix(auth.ServiceInbox))
	js, err := c.JetStream()
	if err != nil {
		t.Fatal(err)
	}
	kv, err := js.CreateKeyValue(&nats.KeyValueConfig{Bucket: auth.LeaseBucket, Storage: nats.FileStorage})
	if err != nil {
		t.Fatal(err)
	}
	revision, err := kv.Create("retention", []byte("me"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kv.Update("retention", []byte("me again"), revision); err != nil {
		t.Fatal(err)
	}
	if _, err := kv.Get("retention"); err != nil {
		t.Fatal(err)
	}
	if err := kv.Purge("retention"); err != nil {
		t.Fatal(err)
	}
	c.permitted(t, "the lease")
	for _, subject := range []string{"$SYS.REQ.SERVER.PING", "$SRV.PING", "fq.v1.enqueue.lark.x", "anything"} {
		if err := c.Publish(subject, nil); err != nil {
			t.Fatal(err)
		}
		c.refused(t, subject)
	}
}

func TestCut(t *testing.T) {
	r := newRig(t)
	text, id := r.mint(t, "lark", 0, auth.Produce)
	keep, _ := r.mint(t, "lark", 0, auth.Produce)
	first, second, kept := r.mustConnect(t, nats.Token(text)), r.mustConnect(t, nats.Token(text)), r.mustConnect(t, nats.Token(keep))
	if n := r.authenticator.Cut(id); n != 2 {
		t.Errorf("cut %d connections, want 2", n)
	}
	for _, c := range []*connection{first, second} {
		select {
		case <-c.closed:
		case <-time.After(patience):
			t.Fatal("a cut connection lives on")
		}
	}
	kept.permitted(t, "the other token")
	if _, err := r.connect(t, nats.Token(text)); !errors.Is(err, nats.ErrAuthorization) {
		t.Errorf("a token that was just cut, and that a cache still takes for valid: %v", err)
	}
	if n := r.authenticator.Cut(id); n != 0 {
		t.Errorf("cut %d connections again", n)
	}
}

func TestConnectionEndsWithItsToken(t *testing.T) {
	src := &source{byID: map[string]store.Token{}}
	frozen := time.Now()
	a := embedded.New(auth.NewVerifier(src, func() time.Time { return frozen }), "", "", zerolog.Nop())
	r := &rig{source: src, authenticator: a, server: testkit.SecureNATS(t, a)}
	text, _ := r.mint(t, "lark", 500*time.Millisecond, auth.Produce)
	c, err := r.connect(t, nats.Token(text))
	if err != nil {
		return // so slow a machine that the token's life was over before
	}
	select {
	case <-c.closed:
	case <-time.After(patience):
		t.Fatal("the connection outlives its token")
	}
}

// Closed connections are forgotten, however many there were.
func TestForgetsClosedConnections(t *testing.T) {
	r := newRig(t)
	text, id := r.mint(t, "lark", 0, auth.Produce)
	for range 20 {
		nc, err := nats.Connect(r.server.ClientURL(), nats.Token(text))
		if err != nil {
			t.Fatal(err)
		}
		nc.Close()
	}
	testkit.Eventually(t, "the server forgets closed connections", func() bool { return r.server.NumClients() == 0 })
	r.authenticator.Sweep()
	if n := r.authenticator.Remembered(id); n != 0 {
		t.Errorf("%d closed connections are remembered", n)
	}
}
