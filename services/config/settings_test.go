package config

import (
	"fmt"
	"strings"
	"testing"

	"flexiq/pkg/auth"
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
