package config

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"
	"google.golang.org/protobuf/proto"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/auth"
	"flexiq/pkg/auth/embedded"
	"flexiq/pkg/bus"
	"flexiq/pkg/configcache"
	"flexiq/pkg/fault"
	"flexiq/pkg/store"
	"flexiq/pkg/testkit"
)

// network is the fixture's service on a NATS server with authentication.
type network struct {
	*fixture
	url string

	mu    sync.Mutex
	heard []hint // by another process
}

func newNetwork(t *testing.T) *network {
	t.Helper()
	n := &network{fixture: newFixture(t)}
	const user, password = "services", "only for this test"
	verifier := auth.NewVerifier(n.store, time.Now)
	gate := embedded.New(verifier, user, password, zerolog.Nop())
	n.url = testkit.SecureNATS(t, gate).ClientURL()

	other := n.connect(bus.Options{User: user, Password: password})
	_, err := other.OnConfig(func(kind store.Kind, key string, _ int64) {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.heard = append(n.heard, hint{kind, key})
	})
	n.must(err)

	conn := n.connect(bus.Options{User: user, Password: password})
	n.svc, err = New(Config{Process: "self", MaxWait: 10 * time.Second}, Deps{
		Store: n.store, Bus: conn, Log: zerolog.Nop(),
		Invalidate: func(store.Kind, string, int64) {}, Cut: func(id string) { gate.Cut(id) },
	})
	n.must(err)
	poller := configcache.NewPoller(n.store, func([]store.Change) {})
	n.run(n.svc.Run)
	n.run(poller.Run)
	n.run(func(ctx context.Context) error { return Report(ctx, "self", poller, conn.PublishProgress) })
	endpoints, err := conn.Serve("config", n.svc.Methods(), verifier)
	n.must(err)
	t.Cleanup(func() { n.must(endpoints.Stop(context.Background())) })
	return n
}

// run runs a part of the process until the test ends.
func (n *network) run(part func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- part(ctx) }()
	n.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			n.Error(err)
		}
	})
}

func (n *network) connect(o bus.Options) *bus.Conn {
	n.Helper()
	o.URL, o.Log = n.url, zerolog.Nop()
	c, err := bus.Connect(n.Context(), o)
	n.must(err)
	n.Cleanup(func() { c.Close(context.Background()) })
	return c
}

func (n *network) ask(c *bus.Conn, token, verb string, req, res proto.Message) error {
	n.Helper()
	parts, err := auth.Parse(token)
	n.must(err)
	ctx, cancel := context.WithTimeout(n.Context(), testkit.Patience)
	defer cancel()
	return c.Call(ctx, bus.Subject(verb, parts.NSToken, parts.ID), req, res)
}

// Over NATS the door is the same, a plain publish is carried out and told of
// in the trail, other processes hear of it, and wait waits for real.
func TestQuotaOverNATS(t *testing.T) {
	n := newNetwork(t)
	admin := n.token("Brig: 7", auth.Admin, auth.Inspect)
	c := n.connect(bus.Options{Token: admin})

	var set flexiqv1.SetQuotaResponse
	n.must(n.ask(c, admin, "set-quota", &flexiqv1.SetQuotaRequest{
		Quota: &flexiqv1.NamespaceQuota{MaxPending: proto.Int64(0)}, Wait: true,
	}, &set))
	if set.Revision != 1 || set.Quota.GetOnExcess() != "reject" || set.EnforcedBy.GetProcesses() != 1 || len(set.EnforcedBy.GetLagging()) != 0 {
		t.Errorf("answered %v", &set)
	}
	err := n.ask(c, admin, "edit-quota", &flexiqv1.EditQuotaRequest{Unset: []string{"max_bytes"}}, &flexiqv1.EditQuotaResponse{})
	if f := fault.Of(err); f == nil || f.Reason != fault.InvalidRequest || f.Details[fault.KeyField] != "unset" {
		t.Errorf("a wrong edit: %v", err)
	}

	parts, err := auth.Parse(admin)
	n.must(err)
	n.must(c.Raw().Publish(bus.Subject("set-quota", parts.NSToken, parts.ID), []byte(`{"quota":{"max_pending":3}}`)))
	testkit.Eventually(t, "the plain publish is carried out", func() bool {
		docs, err := n.store.Quotas(t.Context(), []string{"Brig: 7"})
		n.must(err)
		return docs[0].Stamp.Revision == 2
	})
	var outcomes []string
	for _, r := range n.trail("Brig: 7") {
		outcomes = append(outcomes, r.Door+" "+r.Operation+" "+r.Outcome)
	}
	if want := []string{"nats set-quota ok", "nats edit-quota INVALID_REQUEST", "nats set-quota ok"}; !slices.Equal(outcomes, want) {
		t.Errorf("on record: %q", outcomes)
	}
	testkit.Eventually(t, "another process hears of both", func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		return slices.Equal(n.heard, []hint{{store.KindQuota, "Brig: 7"}, {store.KindQuota, "Brig: 7"}})
	})
}

// Revoking a token closes the connection that was made with it, and no other.
func TestRevokeClosesConnections(t *testing.T) {
	n := newNetwork(t)
	admin, worker := n.token("lark", auth.Admin, auth.Inspect), n.token("lark", auth.Inspect)
	mine := n.connect(bus.Options{Token: admin})
	theirs := n.connect(bus.Options{Token: worker})
	n.must(n.ask(theirs, worker, "get-usage", &flexiqv1.GetUsageRequest{}, &flexiqv1.GetUsageResponse{}))
	n.must(n.ask(mine, admin, "revoke-token", &flexiqv1.RevokeTokenRequest{Id: id(worker)}, &flexiqv1.RevokeTokenResponse{}))
	testkit.Eventually(t, "the revoked token's connection is closed", func() bool { return theirs.Raw().Status() != nats.CONNECTED })
	n.must(n.ask(mine, admin, "get-usage", &flexiqv1.GetUsageRequest{}, &flexiqv1.GetUsageResponse{}))
}
