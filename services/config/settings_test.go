package config

import (
	"fmt"
	"strings"
	"testing"

	"flexiq/pkg/auth"
	"flexiq/pkg/job"
	"flexiq/pkg/store"
)

func TestSettings(t *testing.T) {
	f := newFixture(t)
	all := f.token("lark", auth.Admin, auth.Inspect)
	f.refused(all, "GetSetting", `{"key":"mail/from"}`, "NOT_FOUND")
	put := f.ok(all, "PutSetting", `{"key":"mail/from","value":"ü@example.org"}`)
	f.same("put", []any{put["key"], put["value"], put["revision"], put["updated_by"]}, fmt.Sprintf(`["mail/from","ü@example.org","1",%q]`, id(all)))
	f.same("again", f.ok(all, "PutSetting", `{"key":"mail/from","value":""}`)["revision"], `"2"`)
	got := f.ok(all, "GetSetting", `{"key":"mail/from"}`)
	f.same("get", []any{got["key"], got["value"], got["revision"]}, `["mail/from","","2"]`)
	for _, k := range []string{"b", "a", "0"} {
		f.ok(all, "PutSetting", fmt.Sprintf(`{"key":%q,"value":"v"}`, k))
	}
	var keys []any
	for token, pages := "", 0; pages < 5; pages++ {
		page := f.ok(all, "ListSettings", fmt.Sprintf(`{"page_size":3,"page_token":%q}`, token))
		for _, s := range page["settings"].([]any) {
			keys = append(keys, s.(map[string]any)["key"])
		}
		if token, _ = page["next_page_token"].(string); token == "" {
			break
		}
	}
	f.same("list", keys, `["0","a","b","mail/from"]`)

	other := f.token("wren", auth.Admin, auth.Inspect)
	f.refused(other, "GetSetting", `{"key":"a"}`, "NOT_FOUND")
	f.refused(other, "DeleteSetting", `{"key":"a"}`, "NOT_FOUND")
	f.same("others see nothing", f.ok(other, "ListSettings", `{}`)["settings"], `[]`)
	f.refused(f.token("lark", auth.Inspect), "PutSetting", `{"key":"a","value":"x"}`, "PERMISSION_DENIED")
	f.refused(f.token("lark", auth.Admin), "GetSetting", `{"key":"a"}`, "PERMISSION_DENIED")
	f.refused(f.platform, "PutSetting", `{"key":"a","value":"x"}`, "PERMISSION_DENIED")
	f.ok(all, "DeleteSetting", `{"key":"a"}`)
	f.refused(all, "DeleteSetting", `{"key":"a"}`, "NOT_FOUND")

	var trail []any
	for _, r := range f.trail("lark") {
		trail = append(trail, r.Operation+" "+r.TargetKind+" "+r.Target+" "+r.Outcome)
	}
	f.same("trail", trail, `["put-setting setting mail/from ok","put-setting setting mail/from ok","put-setting setting b ok","put-setting setting a ok",
		"put-setting setting 0 ok","put-setting setting a PERMISSION_DENIED","delete-setting setting a ok","delete-setting setting a NOT_FOUND"]`)
}

// A quota document lies among the settings of some stores. No key of the
// generic interface reaches it, however it is spelt.
func TestReservedKeysAreOutOfReach(t *testing.T) {
	f := newFixture(t)
	for _, ns := range []string{"default", "lark"} {
		all := f.token(ns, auth.Admin, auth.Inspect)
		f.ok(all, "SetQuota", `{"quota":{"max_pending":5}}`)
		for _, key := range []string{
			"quota:default", "quota:ns:4:lark", "QUOTA:default", "Quota:ns:4:lark", "quota%3Adefault", "quota%3Ans%3A4%3Alark", "installation:quota",
			"", " quota", "-quota", "quota\u0000", "quöta", strings.Repeat("k", 201),
		} {
			body := fmt.Sprintf(`{"key":%q}`, key)
			if strings.Contains(key, "\u0000") {
				body = `{"key":"quota\u0000"}`
			}
			missing := f.refused(all, "GetSetting", `{"key":"nothing-here"}`, "NOT_FOUND")
			if r := f.refused(all, "GetSetting", body, "NOT_FOUND"); r.message != missing.message {
				t.Errorf("%q: %q, a missing one %q", key, r.message, missing.message)
			}
			f.refused(all, "DeleteSetting", body, "NOT_FOUND")
			if r := f.refused(all, "PutSetting", strings.TrimSuffix(body, "}")+`,"value":"{}"}`, "INVALID_REQUEST"); r.details["field"] != "key" {
				t.Errorf("%q: %v", key, r.details)
			}
		}
		f.same("listed", f.ok(all, "ListSettings", `{"page_size":500}`)["settings"], `[]`)
		f.same("quota", f.ok(all, "GetQuota", `{}`)["quota"], `{"max_pending":"5","on_excess":"reject"}`)
	}
}

func TestSettingValues(t *testing.T) {
	f := newFixture(t)
	admin := f.token("lark", auth.Admin)
	f.ok(admin, "PutSetting", fmt.Sprintf(`{"key":%q,"value":%q}`, strings.Repeat("k", 200), strings.Repeat("v", store.MaxSetting)))
	for _, value := range []string{strings.Repeat("v", store.MaxSetting+1), `a\u0000b`} {
		if r := f.refused(admin, "PutSetting", `{"key":"a","value":"`+value+`"}`, "INVALID_REQUEST"); r.details["field"] != "value" {
			t.Errorf("%v", r.details)
		}
	}
}

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
