package config

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"flexiq/pkg/auth"
	"flexiq/pkg/store"
)

// Every write, done or refused by the handler or by the door, is one record.
func TestEveryWriteIsRecordedOnce(t *testing.T) {
	f := newFixture(t)
	admin, inspect := f.token("lark", auth.Admin), f.token("lark", auth.Inspect)
	f.ok(admin, "SetQuota", `{"quota":{"max_pending":0}}`)
	f.ok(admin, "EditQuota", `{"quota":{"max_pending":2}}`)
	f.refused(admin, "SetQuota", `{"quota":{"max_pending":-1,"on_excess":"shout"}}`, "INVALID_REQUEST")
	f.refused(admin, "ClearQuota", `{"if_revision":9}`, "REVISION_MISMATCH")
	f.refused(inspect, "ClearQuota", `{}`, "PERMISSION_DENIED")
	f.refused(admin, "EditQuota", `{"quota":`, "INVALID_REQUEST")
	f.ok(admin, "ClearQuota", `{}`)
	f.refused(admin, "CreateToken", `{"scopes":["platform"],"name":"x"}`, "PERMISSION_DENIED")
	f.refused(admin, "RevokeToken", `{"id":"nosuch"}`, "NOT_FOUND")
	f.ok(inspect, "GetQuota", `{}`)

	quotaBy := func(token, operation, outcome, before, after string, revision int64) store.Record {
		return store.Record{
			Namespace: "lark", TokenID: id(token), Door: "http", Operation: operation, TargetKind: "namespace", Target: "lark",
			Outcome: outcome, Old: before, New: after, Revision: revision,
		}
	}
	tokenBy := func(token, operation, outcome, target, after string) store.Record {
		r := quotaBy(token, operation, outcome, "", after, 0)
		r.TargetKind, r.Target = "token", target
		return r
	}
	zero, two := `{"max_pending":0,"on_excess":"reject"}`, `{"max_pending":2,"on_excess":"reject"}`
	want := []store.Record{
		quotaBy(admin, "set-quota", "ok", "", zero, 1),
		quotaBy(admin, "edit-quota", "ok", zero, two, 2),
		quotaBy(admin, "set-quota", "INVALID_REQUEST", "", `{"max_pending":-1,"on_excess":"shout"}`, 0),
		quotaBy(admin, "clear-quota", "REVISION_MISMATCH", two, "", 2),
		quotaBy(inspect, "clear-quota", "PERMISSION_DENIED", "", "", 0),
		quotaBy(admin, "edit-quota", "INVALID_REQUEST", "", "", 0),
		quotaBy(admin, "clear-quota", "ok", two, "", 3),
		tokenBy(admin, "create-token", "PERMISSION_DENIED", "", `{"scopes":["platform"],"name":"x"}`),
		tokenBy(admin, "revoke-token", "NOT_FOUND", "nosuch", ""),
	}
	if diff := cmp.Diff(want, f.trail("lark"), cmpopts.IgnoreFields(store.Record{}, "Time")); diff != "" {
		t.Error(diff)
	}
}

// An exchanged token leaves both names in the trail of the namespace that it
// acts for.
func TestExchangeIsRecorded(t *testing.T) {
	f := newFixture(t)
	exchanged, _ := f.ok(f.platform, "ExchangeToken", `{"namespace":"wren"}`)["token"].(string)
	f.ok(exchanged, "SetQuota", `{"quota":{"max_pending":1}}`)
	f.refused(f.platform, "ExchangeToken", `{"namespace":" wren"}`, "INVALID_REQUEST")
	f.ok(f.platform, "SetQuota", `{"default":true,"quota":{"max_pending":1}}`)

	about := cmpopts.IgnoreFields(store.Record{}, "Time", "Old", "New", "Revision")
	want := []store.Record{
		{Namespace: "wren", TokenID: id(f.platform), ActingAs: "wren", Door: "http", Operation: "exchange-token", TargetKind: "token", Target: id(exchanged), Outcome: "ok"},
		{Namespace: "wren", TokenID: id(f.platform), ActingAs: "wren", Door: "http", Operation: "set-quota", TargetKind: "namespace", Target: "wren", Outcome: "ok"},
	}
	if diff := cmp.Diff(want, f.trail("wren"), about); diff != "" {
		t.Errorf("the namespace's trail:\n%s", diff)
	}
	want = []store.Record{
		{TokenID: id(f.platform), Door: "http", Operation: "exchange-token", TargetKind: "token", Outcome: "INVALID_REQUEST"},
		{TokenID: id(f.platform), Door: "http", Operation: "set-quota", TargetKind: "installation", Target: "quota", Outcome: "ok"},
	}
	if diff := cmp.Diff(want, f.trail(""), about); diff != "" {
		t.Errorf("the installation's trail:\n%s", diff)
	}
}

func TestListAudit(t *testing.T) {
	f := newFixture(t)
	admin := f.token("lark", auth.Admin, auth.Inspect)
	f.ok(f.token("wren", auth.Admin), "SetQuota", `{"quota":{"max_pending":9}}`)
	for i := range 5 {
		f.ok(admin, "SetQuota", fmt.Sprintf(`{"quota":{"max_pending":%d}}`, i))
	}
	created := f.ok(admin, "CreateToken", `{"scopes":["inspect"]}`)

	var revisions []any
	for token, pages := "", 0; ; pages++ {
		got := f.ok(admin, "ListAudit", fmt.Sprintf(`{"kind":"namespace","page_size":2,"page_token":%q}`, token))
		for _, r := range got["records"].([]any) {
			rec := r.(map[string]any)
			revisions = append(revisions, rec["revision"])
			f.same("target", []any{rec["target"], rec["token_id"], rec["outcome"], rec["operation"]}, fmt.Sprintf(`["lark", %q, "ok", "set-quota"]`, id(admin)))
		}
		if token, _ = got["next_page_token"].(string); token == "" || pages > 10 {
			break
		}
	}
	f.same("all pages", revisions, `["1","2","3","4","5"]`)

	got := f.ok(admin, "ListAudit", `{"kind":"token"}`)
	records := got["records"].([]any)
	if len(records) != 1 || records[0].(map[string]any)["target"] != created["id"] {
		t.Errorf("tokens: %v", records)
	}
	if _, there := records[0].(map[string]any)["old"]; there {
		t.Error("a new token has an old value")
	}
	got = f.ok(admin, "ListAudit", fmt.Sprintf(`{"since":%q}`, time.Now().Add(time.Hour).Format(time.RFC3339)))
	f.same("since later", got["records"], `[]`)
	f.refused(admin, "ListAudit", `{"page_size":501}`, "INVALID_REQUEST")
	for _, kind := range []string{`a\u0000`, ` token`, strings.Repeat("k", 256)} {
		if r := f.refused(admin, "ListAudit", `{"kind":"`+kind+`"}`, "INVALID_REQUEST"); r.details["field"] != "kind" {
			t.Errorf("kind %.10q: %v", kind, r.details)
		}
	}
	f.refused(admin, "ListAudit", `{"page_size":-1}`, "INVALID_REQUEST")
	if r := f.refused(admin, "ListAudit", `{"page_token":"!"}`, "INVALID_REQUEST"); r.details["field"] != "page_token" {
		t.Errorf("%v", r.details)
	}
}
