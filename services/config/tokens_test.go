package config

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"flexiq/pkg/auth"
	"flexiq/pkg/store"
	"flexiq/pkg/testkit"
)

func TestTokenLife(t *testing.T) {
	f := newFixture(t)
	admin := f.token("lark", auth.Admin, auth.Inspect)
	created := f.ok(admin, "CreateToken", `{"scopes":["inspect"],"name":"dashboards","ttl":"3600s"}`)
	token, tokenID := created["token"].(string), created["id"].(string)
	if id(token) != tokenID {
		t.Errorf("the id is %s, of %s", tokenID, token)
	}
	f.ok(token, "GetQuota", `{}`)
	f.refused(token, "ClearQuota", `{}`, "PERMISSION_DENIED")

	list := f.ok(admin, "ListTokens", `{}`)["tokens"].([]any)
	i := slices.IndexFunc(list, func(v any) bool { return v.(map[string]any)["id"] == tokenID })
	if i < 0 || len(list) != 2 {
		t.Fatalf("the list is %v", list)
	}
	info := list[i].(map[string]any)
	f.same("listed", []any{info["namespace"], info["name"], info["scopes"], info["created_by"], info["expires_at"]},
		fmt.Sprintf(`["lark", "dashboards", ["inspect"], %q, %q]`, id(admin), created["expires_at"]))
	if _, there := info["revoked_at"]; there {
		t.Error("listed as revoked")
	}
	parts, err := auth.Parse(token)
	f.must(err)
	if strings.Contains(fmt.Sprint(list, f.trail("lark")), parts.Secret) {
		t.Error("the secret is in a list or in the trail")
	}

	f.ok(admin, "RevokeToken", fmt.Sprintf(`{"id":%q}`, tokenID))
	f.refused(token, "GetQuota", `{}`, "UNAUTHENTICATED")
	if want := []hint{{store.KindToken, tokenID}}; !slices.Equal(f.ears.hints, want) || !slices.Equal(f.stale, want) {
		t.Errorf("told others %v, own caches %v", f.ears.hints, f.stale)
	}
	if !slices.Equal(f.cut, []string{tokenID}) {
		t.Errorf("cut %v", f.cut)
	}
	f.ok(admin, "RevokeToken", fmt.Sprintf(`{"id":%q}`, tokenID))
}

func TestCreateTokenIsBounded(t *testing.T) {
	f := newFixture(t)
	admin := f.token("lark", auth.Admin, auth.Inspect)
	for _, c := range []struct{ token, body, reason, field string }{
		{admin, `{"scopes":["work"]}`, "PERMISSION_DENIED", "scopes"},
		{admin, `{"scopes":["inspect","platform"]}`, "PERMISSION_DENIED", "scopes"},
		{admin, `{"scopes":["inspect"],"namespace":"wren"}`, "PERMISSION_DENIED", "namespace"},
		{admin, `{"scopes":["everything"]}`, "INVALID_REQUEST", "scopes"},
		{admin, `{"scopes":[]}`, "INVALID_REQUEST", "scopes"},
		{admin, `{"scopes":["inspect"],"ttl":"0s"}`, "INVALID_REQUEST", "ttl"},
		{admin, `{"scopes":["inspect"],"ttl":"-5s"}`, "INVALID_REQUEST", "ttl"},
		{admin, `{"scopes":["inspect"],"ttl":"31536001s"}`, "INVALID_REQUEST", "ttl"},
		{admin, `{"scopes":["inspect"],"name":" x"}`, "INVALID_REQUEST", "name"},
		{f.platform, `{"scopes":["inspect"],"namespace":"a\u0000b"}`, "INVALID_REQUEST", "namespace"},
		{f.platform, `{"scopes":["platform"],"namespace":"wren"}`, "INVALID_REQUEST", "scopes"},
		{f.platform, `{"scopes":["inspect"]}`, "INVALID_REQUEST", "scopes"},
	} {
		if r := f.refused(c.token, "CreateToken", c.body, c.reason); r.details["field"] != c.field {
			t.Errorf("%s: field %q, want %q", c.body, r.details["field"], c.field)
		}
	}
	year := f.ok(admin, "CreateToken", `{"scopes":["inspect"],"ttl":"31536000s","namespace":"lark"}`)
	usual := f.ok(admin, "CreateToken", `{"scopes":["admin"]}`)
	for created, days := range map[string]int{year["expires_at"].(string): 365, usual["expires_at"].(string): 90} {
		at, err := time.Parse(time.RFC3339, created)
		f.must(err)
		if got := time.Until(at).Round(time.Hour); got != time.Duration(days)*24*time.Hour {
			t.Errorf("lives %s, want %d days", got, days)
		}
	}
}

func TestPlatformMakesTokensAnywhere(t *testing.T) {
	f := newFixture(t)
	made := f.ok(f.platform, "CreateToken", `{"namespace":"wren","scopes":["produce","work","inspect","admin"]}`)
	f.ok(made["token"].(string), "GetUsage", `{}`)
	f.ok(f.platform, "CreateToken", `{"scopes":["platform"],"name":"second operator"}`)

	own := f.ok(f.platform, "ListTokens", `{}`)["tokens"].([]any)
	if len(own) != 2 {
		t.Errorf("platform tokens: %v", own)
	}
	theirs := f.ok(f.platform, "ListTokens", `{"namespace":"wren"}`)["tokens"].([]any)
	if len(theirs) != 1 {
		t.Errorf("tokens of the namespace: %v", theirs)
	}
	f.ok(f.platform, "RevokeToken", fmt.Sprintf(`{"namespace":"wren","id":%q}`, made["id"]))
	f.refused(made["token"].(string), "GetUsage", `{}`, "UNAUTHENTICATED")
}

func TestExchange(t *testing.T) {
	f := newFixture(t)
	got := f.ok(f.platform, "ExchangeToken", `{"namespace":"Ünïcode: ns"}`)
	at, err := time.Parse(time.RFC3339, got["expires_at"].(string))
	f.must(err)
	if life := time.Until(at); life > 5*time.Minute || life < 4*time.Minute {
		t.Errorf("lives %s", life)
	}
	token := got["token"].(string)
	f.ok(token, "SetQuota", `{"quota":{"max_pending":1}}`)
	f.ok(token, "GetUsage", `{}`)
	f.refused(token, "ExchangeToken", `{"namespace":"wren"}`, "PERMISSION_DENIED")
	f.refused(token, "GetQuota", `{"default":true}`, "PERMISSION_DENIED")
	f.refused(token, "ListNamespaces", `{}`, "PERMISSION_DENIED")
	f.refused(f.token("lark", auth.Admin), "ExchangeToken", `{"namespace":"lark"}`, "PERMISSION_DENIED")
	f.refused(f.platform, "ExchangeToken", `{}`, "INVALID_REQUEST")
}

// Another namespace's token cannot be told from one that does not exist.
func TestForeignTokensAreMissing(t *testing.T) {
	f := newFixture(t)
	admin, foreign := f.token("lark", auth.Admin), f.token("wren", auth.Inspect)
	same := func(method, one, other string) {
		t.Helper()
		a, b := f.call(admin, method, one), f.call(admin, method, other)
		if a.status == 200 || a.status != b.status || a.reason != b.reason || a.message != b.message {
			t.Errorf("%s: %d %s and %d %s", method, a.status, a.message, b.status, b.message)
		}
	}
	same("RevokeToken", fmt.Sprintf(`{"id":%q}`, id(foreign)), `{"id":"nosuch"}`)
	same("RevokeToken", fmt.Sprintf(`{"id":%q,"namespace":"wren"}`, id(foreign)), `{"id":"nosuch","namespace":"nobody"}`)
	same("ListTokens", `{"namespace":"wren"}`, `{"namespace":"nobody"}`)
	f.refused(admin, "RevokeToken", fmt.Sprintf(`{"id":%q}`, id(f.platform)), "NOT_FOUND")
	f.ok(foreign, "GetQuota", `{}`)
	for _, r := range f.trail("wren") {
		t.Errorf("the other namespace's trail has %+v", r)
	}
	if len(f.cut) != 0 {
		t.Errorf("cut %v", f.cut)
	}
}

// A token that another process revoked loses its connections here.
func TestRevokedElsewhere(t *testing.T) {
	f := newFixture(t)
	var mu sync.Mutex
	var cut []string
	f.svc.deps.Cut = func(id string) {
		mu.Lock()
		defer mu.Unlock()
		cut = append(cut, id)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- f.svc.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	alive, revoked := f.token("lark", auth.Inspect), f.token("lark", auth.Inspect)
	f.must(f.store.RevokeToken(ctx, "lark", id(revoked), store.Record{}))
	f.svc.Changed(store.KindQuota, "lark")
	f.svc.Changed(store.KindToken, id(alive))
	f.svc.Changed(store.KindToken, id(revoked))
	testkit.Eventually(t, "the revoked token is cut", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return slices.Equal(cut, []string{id(revoked)})
	})
}

// Without the right token nothing of the operators' door opens, and nothing
// changes.
func TestDoorIsClosed(t *testing.T) {
	f := newFixture(t)
	tenant := f.token("lark", auth.Produce, auth.Work)
	wrong := tenant[:len(tenant)-1] + "."
	revoked := f.token("lark", auth.Admin)
	f.must(f.store.RevokeToken(t.Context(), "lark", id(revoked), store.Record{Namespace: "made by the test"}))
	before, err := f.store.Changes(t.Context(), 0, 1)
	f.must(err)
	latest, err := f.store.Changes(t.Context(), before.Latest, 500)
	f.must(err)
	for _, m := range auth.Methods {
		if m.Service != auth.AdminService {
			continue
		}
		for _, token := range []string{"", wrong, revoked} {
			f.refused(token, m.Name, `{}`, "UNAUTHENTICATED")
		}
		f.refused(tenant, m.Name, `{}`, "PERMISSION_DENIED")
	}
	after, err := f.store.Changes(t.Context(), latest.Latest, 500)
	f.must(err)
	if len(after.Items) != 0 {
		t.Errorf("changed: %v", after.Items)
	}
}
