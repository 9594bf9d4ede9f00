package config

import (
	"context"
	"fmt"
	"testing"

	"flexiq/pkg/auth"
	"flexiq/pkg/job"
	"flexiq/pkg/store"
	"flexiq/pkg/testkit"
)

func TestDeleteNamespace(t *testing.T) {
	f := newFixture(t)
	admin := f.token("lark", auth.Admin, auth.Inspect)
	f.ok(admin, "SetQuota", `{"quota":{"max_pending":3}}`)
	f.ok(admin, "PutSetting", `{"key":"a","value":"x"}`)
	f.enqueue("lark", job.Spec{Task: "t"}, job.Spec{Task: "t"})
	f.finish("lark", job.GivenUp)
	neighbour := f.token("wren", auth.Inspect)
	f.enqueue("wren", job.Spec{Task: "t"})

	f.refused(admin, "DeleteNamespace", `{"namespace":"lark"}`, "PERMISSION_DENIED")
	f.refused(f.platform, "DeleteNamespace", `{}`, "INVALID_REQUEST")
	f.ears.hints = nil
	f.same("answer", f.ok(f.platform, "DeleteNamespace", `{"namespace":"lark"}`), `{"more":false}`)
	f.refused(admin, "GetUsage", `{}`, "UNAUTHENTICATED")
	if len(f.cut) != 1 || f.cut[0] != id(admin) {
		t.Errorf("cut %v", f.cut)
	}
	if want := []hint{{store.KindToken, id(admin)}, {store.KindQuota, "lark"}}; len(f.ears.hints) != 2 || f.ears.hints[0] != want[0] || f.ears.hints[1] != want[1] {
		t.Errorf("told %v, want %v", f.ears.hints, want)
	}
	for _, v := range f.ok(f.platform, "ListNamespaces", `{}`)["namespaces"].([]any) {
		if v.(map[string]any)["namespace"] == "lark" {
			t.Error("it is still listed")
		}
	}
	f.same("the neighbour", f.ok(neighbour, "GetUsage", `{}`)["pending"], `"1"`)
	again := f.token("lark", auth.Inspect, auth.Admin)
	f.same("used anew", f.ok(again, "GetUsage", `{}`)["dead"], `"0"`)
	f.same("no limits", f.ok(again, "GetQuota", `{}`)["quota"], `{"on_excess":"reject"}`)
	f.same("no old trail", f.ok(again, "ListAudit", `{}`)["records"], `[]`)
	var trail []any
	for _, r := range f.trail("") {
		trail = append(trail, r.Operation+" "+r.Target+" "+r.Outcome+" by "+r.TokenID)
	}
	f.same("trail", trail, fmt.Sprintf(`["delete-namespace  INVALID_REQUEST by %[1]s","delete-namespace lark ok by %[1]s"]`, id(f.platform)))
}

// lingering is a store in which somebody writes whenever a namespace was just
// erased, as a process does that has not noticed yet.
type lingering struct {
	Store
	writes []func()
}

func (l *lingering) EraseNamespace(ctx context.Context, ns string, limit int) (store.Erased, error) {
	out, err := l.Store.EraseNamespace(ctx, ns, limit)
	if err == nil && !out.More && len(l.writes) > 0 {
		l.writes[0]()
		l.writes = l.writes[1:]
	}
	return out, err
}

// What a token made or a trigger fired while the namespace was being deleted
// does not bring it back.
func TestDeletedNamespaceStaysDeleted(t *testing.T) {
	f := newFixture(t)
	f.svc.cfg.MaxWait = testkit.Patience
	f.token("lark", auth.Admin)
	f.enqueue("lark", job.Spec{Task: "t"})
	var late string
	l := &lingering{Store: f.svc.store, writes: []func(){
		func() { f.enqueue("lark", job.Spec{Task: "fired by a trigger that is believed"}) },
		func() { late = f.token("lark", auth.Produce) },
		func() { f.must(f.store.Audit(t.Context(), store.Record{Namespace: "lark", Operation: "refused"})) },
	}}
	f.svc.store = l
	f.same("answer", f.ok(f.platform, "DeleteNamespace", `{"namespace":"lark"}`), `{"more":false}`)
	if len(l.writes) != 0 {
		t.Errorf("%d writes were not tried", len(l.writes))
	}
	f.refused(late, "GetUsage", `{}`, "UNAUTHENTICATED")
	if out, err := f.store.EraseNamespace(t.Context(), "lark", 10); err != nil || out != (store.Erased{}) {
		t.Errorf("left: %+v, %v", out, err)
	}
}

// When others never stop writing, the call ends and says that there is more.
func TestDeletingWhatComesBackEnds(t *testing.T) {
	f := newFixture(t)
	f.svc.cfg.MaxWait = 1 // no time at all
	l := &lingering{Store: f.svc.store}
	for range 100 {
		l.writes = append(l.writes, func() { f.enqueue("lark", job.Spec{Task: "t"}) })
	}
	l.writes[0]()
	f.svc.store = l
	f.same("answer", f.ok(f.platform, "DeleteNamespace", `{"namespace":"lark"}`), `{"more":true}`)
}

// A token that another process revoked gives no other token, though this process
// still lets it in.
func TestNoTokenComesOfARevokedOne(t *testing.T) {
	f := newFixture(t)
	admin := f.token("lark", auth.Admin)
	f.svc.store = &unaware{Store: f.svc.store, before: func() {
		f.must(f.store.RevokeToken(t.Context(), "lark", id(admin), store.Record{}))
	}}
	f.refused(admin, "CreateToken", `{"scopes":["admin"]}`, "UNAUTHENTICATED")
	tokens, err := f.store.ListTokens(t.Context(), "lark", "", 10)
	f.must(err)
	if len(tokens.Items) != 1 {
		t.Errorf("tokens: %+v", tokens.Items)
	}
}

// unaware is a store in which something happens after a caller was let in.
type unaware struct {
	Store
	before func()
}

func (u *unaware) PutToken(ctx context.Context, t store.Token, by string, audit store.Record) error {
	u.before()
	return u.Store.PutToken(ctx, t, by, audit)
}

// One call deletes what its time allows; the next goes on.
func TestDeleteNamespaceInSteps(t *testing.T) {
	f := newFixture(t)
	f.svc.cfg.MaxWait = 1 // no time at all
	for range 3 {
		specs := make([]job.Spec, 400)
		for i := range specs {
			specs[i].Task = "t"
		}
		f.enqueue("lark", specs...)
	}
	calls := 1
	for f.ok(f.platform, "DeleteNamespace", `{"namespace":"lark"}`)["more"] == true {
		calls++
	}
	if calls < 3 {
		t.Errorf("%d calls for 1200 jobs", calls)
	}
	f.same("nothing is left", f.ok(f.token("lark", auth.Inspect), "GetUsage", `{}`)["pending"], `"0"`)
}
