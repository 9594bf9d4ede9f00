package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/http/httptest"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/rs/zerolog"

	"flexiq/pkg/auth"
	"flexiq/pkg/auth/embedded"
	"flexiq/pkg/bus"
	"flexiq/pkg/configcache"
	"flexiq/pkg/events"
	"flexiq/pkg/namespace"
	"flexiq/pkg/rpc"
	"flexiq/pkg/store"
	"flexiq/pkg/store/sqlite"
	"flexiq/pkg/testkit"
	"flexiq/services/admission"
	"flexiq/services/config"
	"flexiq/services/dispatchgate"
)

// backend is a whole installation in the test's process: the real services on
// a real store behind real doors.
type backend struct {
	t        testing.TB
	store    *sqlite.Store
	caches   configcache.Caches
	verifier *auth.Verifier
	nats     *server.Server
	conn     *bus.Conn
	cut      func(tokenID string)
	gate     *dispatchgate.Service
	config   *config.Service

	NATS, HTTP        string // addresses
	Default, Platform string // tokens
}

const serviceUser = "services"

// newBackend starts an installation that ends with the test.
func newBackend(t testing.TB) *backend {
	t.Helper()
	b := &backend{t: t}
	ctx := context.Background()
	var err error
	b.store, err = sqlite.Open(ctx, filepath.Join(t.TempDir(), "flexiq.db"), sqlite.Options{})
	b.must(err)
	t.Cleanup(func() { b.must(b.store.Close()) })
	poller := b.openCaches()
	b.openBus(ctx)
	b.openServices(poller)
	b.Default = b.mint(namespace.Default, auth.Produce, auth.Work, auth.Inspect, auth.Admin)
	b.Platform = b.mint("", auth.Platform)
	return b
}

func (b *backend) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

// run runs a part for as long as the installation lives, and everything that
// was opened before it.
func (b *backend) run(part func(context.Context) error) {
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- part(ctx) }()
	b.t.Cleanup(func() {
		stop()
		b.must(<-ended)
	})
}

func (b *backend) openCaches() *configcache.Poller {
	poller := configcache.NewPoller(b.store, func(changes []store.Change) {
		b.caches.Changed(changes)
		b.gate.QuotaChanged("")
	})
	b.caches = configcache.NewCaches(b.store, poller.Fresh, nil)
	b.t.Cleanup(b.caches.Close)
	b.verifier = auth.NewVerifier(auth.Cached(b.caches.Tokens), time.Now)
	return poller
}

func (b *backend) heard(kind store.Kind, key string, revision int64) {
	b.caches.Hint(kind, key, revision)
	if kind == store.KindDefaultQuota {
		key = "" // every namespace may be concerned
	}
	if kind != store.KindToken {
		b.gate.QuotaChanged(key)
	}
}

func (b *backend) openBus(ctx context.Context) {
	password := rand.Text()
	a := embedded.New(b.verifier, serviceUser, password, zerolog.Nop())
	b.nats = testkit.SecureNATS(b.t, a)
	b.cut = func(tokenID string) { a.Cut(tokenID) }
	b.NATS = b.nats.ClientURL()
	var err error
	b.conn, err = bus.Connect(ctx, bus.Options{InProcess: b.nats, User: serviceUser, Password: password})
	b.must(err)
	b.t.Cleanup(func() { b.conn.Close(context.Background()) })
}

func (b *backend) openServices(poller *configcache.Poller) {
	told, err := events.Start(b.conn, zerolog.Nop(), nil)
	b.must(err)
	b.t.Cleanup(told.Close)
	adm, err := admission.New(admission.DefaultConfig(), admission.Deps{
		Store: b.store, Jobs: b.store, Quotas: b.caches.Quotas, Overrides: b.caches.Overrides, Hints: b.conn, Reports: b.conn,
		Events: told,
	})
	b.must(err)
	b.gate, err = dispatchgate.New(dispatchgate.DefaultConfig(), dispatchgate.Deps{Store: b.store, Quotas: b.caches.Quotas, Hints: b.conn, Reports: b.conn, Events: told})
	b.must(err)
	b.t.Cleanup(func() {
		b.must(adm.Close(context.Background()))
		b.must(b.gate.Close(context.Background()))
	})
	_, err = b.conn.OnLeft(b.gate.Left)
	b.must(err)
	_, err = b.conn.OnFreed(b.gate.Freed)
	b.must(err)
	_, err = b.conn.OnReady(b.gate.Woken)
	b.must(err)
	cfg := config.DefaultConfig()
	cfg.Process = "test"
	b.config, err = config.New(cfg, config.Deps{Store: b.store, Bus: b.conn, Invalidate: b.heard, Cut: b.cut, Events: told})
	b.must(err)

	_, err = b.conn.OnConfig(func(kind store.Kind, key string, revision int64) {
		b.heard(kind, key, revision)
		poller.Nudge()
	})
	b.must(err)
	b.run(poller.Run)
	b.run(func(ctx context.Context) error {
		return config.Report(ctx, "test", poller, b.conn.PublishProgress)
	})
	var methods []rpc.Method
	for name, part := range map[string]interface {
		Methods() []rpc.Method
		Run(context.Context) error
	}{"admission": adm, "dispatchgate": b.gate, "config": b.config} {
		b.run(part.Run)
		methods = append(methods, part.Methods()...)
		_, err := b.conn.Serve(name, part.Methods(), b.verifier)
		b.must(err)
	}
	door := httptest.NewServer(rpc.Handler(methods, b.verifier, rpc.HandlerOptions{}))
	b.HTTP = door.URL
	b.t.Cleanup(door.Close)
}

func (b *backend) mint(ns string, scopes ...auth.Scope) string {
	b.t.Helper()
	text, t, err := auth.Mint(ns, scopes, "test", 0, "", time.Now())
	b.must(err)
	b.must(b.store.PutToken(context.Background(), t, "", store.Record{
		Namespace: ns, Operation: "create-token", TargetKind: "token", Target: t.ID, Outcome: "ok", Door: "test",
	}))
	return text
}

// environ is what a user of the installation has in the environment.
func (b *backend) environ(door string) []string {
	address := map[string]string{"nats": b.NATS, "http": b.HTTP}[door]
	return []string{
		"FLEXIQ_SERVER=" + address, "FLEXIQ_TOKEN=" + b.Default,
		"NATS_SERVER=" + b.NATS, "HTTP_SERVER=" + b.HTTP, "DEFAULT=" + b.Default, "PLATFORM=" + b.Platform,
		fmt.Sprintf("TOKEN_ID=%s", tokenID(b.Default)),
	}
}

func tokenID(text string) string {
	parts, err := auth.Parse(text)
	if err != nil {
		return ""
	}
	return parts.ID
}
