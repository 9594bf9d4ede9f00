package config

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"flexiq/pkg/auth"
	"flexiq/pkg/job"
	"flexiq/pkg/store"
)

// Set replaces, zero stays zero, also after a restart, and a set without any
// limit is a clear. Revisions only rise.
func TestSetReplaces(t *testing.T) {
	f := newFixture(t)
	admin := f.token("vetch", auth.Admin, auth.Inspect)

	got := f.ok(admin, "GetQuota", `{}`)
	f.same("no document", got["quota"], `{"on_excess":"reject"}`)
	f.same("no document", []any{got["inherited"], got["revision"], got["updated_by"]}, `[false, "0", ""]`)

	got = f.ok(admin, "SetQuota", `{"quota":{"max_pending":0,"max_running":"5"}}`)
	f.same("set", got["quota"], `{"max_pending":"0","on_excess":"reject","max_running":"5"}`)
	f.same("set", []any{got["revision"], got["updated_by"]}, `["1", "`+id(admin)+`"]`)

	f.ok(admin, "EditQuota", `{"quota":{"max_running":6}}`)
	f.close()
	f.open()
	got = f.ok(admin, "GetQuota", `{}`)
	f.same("after a restart", got["quota"], `{"max_pending":"0","on_excess":"reject","max_running":"6"}`)

	got = f.ok(admin, "SetQuota", `{"quota":{"enqueue_rate":"7/m","on_excess":"drop"}}`)
	f.same("replaced", got["quota"], `{"enqueue_rate":"7/m","on_excess":"drop"}`)
	f.same("replaced", got["revision"], `"3"`)

	got = f.ok(admin, "SetQuota", `{"quota":{"on_excess":"drop"}}`)
	f.same("set without a limit", got["quota"], `{"on_excess":"reject"}`)
	f.same("set without a limit", got["revision"], `"4"`)
	got = f.ok(admin, "SetQuota", `{"quota":{"max_dead_rows":1}}`)
	f.same("after the clear", got["revision"], `"5"`)
	got = f.ok(admin, "ClearQuota", `{}`)
	f.same("cleared", []any{got["quota"], got["revision"]}, `[{"on_excess":"reject"}, "6"]`)
}

func TestWritesAreAnnounced(t *testing.T) {
	f := newFixture(t)
	admin := f.token("a:b", auth.Admin)
	f.ok(admin, "SetQuota", `{"quota":{"max_pending":1}}`)
	f.ok(admin, "ClearQuota", `{}`)
	f.ok(f.platform, "SetQuota", `{"default":true,"quota":{"max_pending":1}}`)
	f.refused(admin, "SetQuota", `{"quota":{"max_pending":-1}}`, "INVALID_REQUEST")
	want := []hint{{store.KindQuota, "a:b"}, {store.KindQuota, "a:b"}, {store.KindDefaultQuota, ""}}
	if diff := cmp.Diff(want, f.ears.hints); diff != "" {
		t.Errorf("hints:\n%s", diff)
	}
	if diff := cmp.Diff(want, f.stale); diff != "" {
		t.Errorf("invalidated:\n%s", diff)
	}
}

func TestEdit(t *testing.T) {
	f := newFixture(t)
	admin := f.token("sorrel", auth.Admin, auth.Inspect)
	f.document("sorrel", `{"max_pending":10,"enqueue_rate":"5/s","burst_of_tomorrow":[1,2]}`)

	got := f.ok(admin, "EditQuota", `{"quota":{"max_pending":0,"max_running":3},"unset":["enqueue_rate"]}`)
	f.same("edited", got["quota"], `{"max_pending":"0","on_excess":"reject","max_running":"3"}`)
	docs, err := f.store.Quotas(t.Context(), []string{"sorrel"})
	f.must(err)
	if raw := string(docs[0].Raw); !strings.Contains(raw, `"burst_of_tomorrow":[1,2]`) {
		t.Errorf("an unknown stored field is gone: %s", raw)
	}

	for body, field := range map[string]string{
		`{}`:                     "quota",
		`{"quota":{}}`:           "quota",
		`{"unset":["max_jobs"]}`: "unset",
		`{"quota":{"max_running":1},"unset":["max_running"]}`: "unset",
		`{"quota":{"max_running":-1}}`:                        "quota.max_running",
	} {
		if r := f.refused(admin, "EditQuota", body, "INVALID_REQUEST"); r.details["field"] != field {
			t.Errorf("%s: field %q, want %q", body, r.details["field"], field)
		}
	}
}

// The default quota holds where a namespace has none of its own, and editing
// one limit there lifts no other.
func TestDefaultQuota(t *testing.T) {
	f := newFixture(t)
	admin := f.token("tansy", auth.Admin, auth.Inspect)
	f.ok(f.platform, "SetQuota", `{"default":true,"quota":{"max_pending":1000,"max_running":4}}`)
	got := f.ok(f.platform, "GetQuota", `{"default":true}`)
	f.same("the default", []any{got["quota"], got["inherited"], got["revision"]},
		`[{"max_pending":"1000","on_excess":"reject","max_running":"4"}, false, "1"]`)

	got = f.ok(admin, "GetQuota", `{}`)
	f.same("inherited", []any{got["quota"], got["inherited"], got["revision"]},
		`[{"max_pending":"1000","on_excess":"reject","max_running":"4"}, true, "0"]`)
	got = f.ok(admin, "EditQuota", `{"quota":{"max_running":9}}`)
	f.same("edited", []any{got["quota"], got["inherited"]}, `[{"max_pending":"1000","on_excess":"reject","max_running":"9"}, false]`)
	got = f.ok(admin, "ClearQuota", `{}`)
	f.same("cleared", got["inherited"], `true`)

	got = f.ok(f.platform, "EditQuota", `{"default":true,"unset":["max_pending"],"if_revision":1}`)
	f.same("default edited", []any{got["quota"], got["revision"]}, `[{"on_excess":"reject","max_running":"4"}, "2"]`)
	f.ok(f.platform, "ClearQuota", `{"default":true}`)
	got = f.ok(admin, "GetQuota", `{}`)
	f.same("no default", []any{got["quota"], got["inherited"]}, `[{"on_excess":"reject"}, false]`)
}

func TestDefaultQuotaNeedsPlatform(t *testing.T) {
	f := newFixture(t)
	admin := f.token("tansy", auth.Produce, auth.Work, auth.Inspect, auth.Admin)
	for method, body := range map[string]string{
		"GetQuota":   `{"default":true}`,
		"SetQuota":   `{"default":true,"quota":{"max_pending":1}}`,
		"EditQuota":  `{"default":true,"quota":{"max_pending":1}}`,
		"ClearQuota": `{"default":true}`,
	} {
		if r := f.refused(admin, method, body, "PERMISSION_DENIED"); r.details["field"] != "default" {
			t.Errorf("%s: %v", method, r.details)
		}
		f.refused(f.platform, method, strings.Replace(body, `"default":true`, `"default":false`, 1), "PERMISSION_DENIED")
	}
	got := f.ok(f.platform, "GetQuota", `{"default":true}`)
	f.same("untouched", got["revision"], `"0"`)
}

func TestIfRevision(t *testing.T) {
	f := newFixture(t)
	admin := f.token("fern", auth.Admin, auth.Inspect)
	f.ok(admin, "SetQuota", `{"quota":{"max_pending":1},"if_revision":0}`)

	r := f.refused(admin, "SetQuota", `{"quota":{"max_pending":2},"if_revision":0}`, "REVISION_MISMATCH")
	if r.status != 409 {
		t.Errorf("status %d", r.status)
	}
	f.same("current", []any{r.details["current"], r.details["current_revision"]},
		`["{\"max_pending\":1,\"on_excess\":\"reject\"}", "1"]`)
	for method, body := range map[string]string{
		"SetQuota":   `{"quota":{"max_pending":2},"if_revision":9}`,
		"EditQuota":  `{"quota":{"max_pending":2},"if_revision":9}`,
		"ClearQuota": `{"if_revision":9}`,
	} {
		if r := f.refused(admin, method, body, "REVISION_MISMATCH"); r.details["current_revision"] != "1" {
			t.Errorf("%s: %v", method, r.details)
		}
		body = strings.Replace(body, "9", "-1", 1)
		if r := f.refused(admin, method, body, "INVALID_REQUEST"); r.details["field"] != "if_revision" {
			t.Errorf("%s %s: %v", method, body, r.details)
		}
	}
	f.ok(admin, "EditQuota", `{"quota":{"max_pending":3},"if_revision":1}`)
	got := f.ok(admin, "ClearQuota", `{"if_revision":2}`)
	f.same("cleared", got["revision"], `"3"`)
	// What get shows of a cleared document is what a write may name, and 0 is "none exists".
	f.ok(admin, "SetQuota", `{"quota":{"max_pending":4},"if_revision":3}`)
	f.ok(admin, "ClearQuota", `{}`)
	f.ok(admin, "SetQuota", `{"quota":{"max_pending":5},"if_revision":0}`)

	refusals := 0
	for _, rec := range f.trail("fern") {
		if rec.Outcome == "REVISION_MISMATCH" {
			refusals++
			if rec.Revision != 1 || rec.Old != `{"max_pending":1,"on_excess":"reject"}` {
				t.Errorf("on record: %+v", rec)
			}
		}
	}
	if refusals != 4 {
		t.Errorf("%d conflicts are on record, want each of 4 once", refusals)
	}
}

// An unreadable document stops reads and edits; set and clear repair it.
func TestUnreadable(t *testing.T) {
	f := newFixture(t)
	admin := f.token("heron", auth.Admin, auth.Inspect)
	for _, repair := range []struct{ stored, method, body string }{
		{`{"max_pending":-7}`, "SetQuota", `{"quota":{"max_pending":7}}`}, {`{"max_pending":-7}`, "ClearQuota", `{}`},
		{``, "SetQuota", `{"quota":{"max_pending":7}}`}, {``, "ClearQuota", `{}`},
	} {
		f.document("heron", repair.stored)
		f.refused(admin, "GetQuota", `{}`, "QUOTA_UNREADABLE")
		f.refused(admin, "EditQuota", `{"quota":{"max_pending":1}}`, "QUOTA_UNREADABLE")
		got := f.ok(admin, "GetUsage", `{}`)
		f.same("usage", []any{got["unreadable"], got["limits"]}, `[true, []]`)
		f.ok(admin, repair.method, repair.body)
		f.ok(admin, "GetQuota", `{}`)
		got = f.ok(admin, "GetUsage", `{}`)
		f.same("usage after the repair", got["unreadable"], `false`)
	}
}

func TestDryRun(t *testing.T) {
	f := newFixture(t)
	admin := f.token("wicket", auth.Admin, auth.Inspect)
	f.enqueue("wicket", job.Spec{Task: "t"}, job.Spec{Task: "t"}, job.Spec{Task: "t"})
	f.finish("wicket", job.Completed)
	f.ok(admin, "SetQuota", `{"quota":{"max_pending":100}}`)
	before := f.trail("wicket")

	got := f.ok(admin, "SetQuota", `{"dry_run":true,"quota":{"max_pending":2,"enqueue_rate":"1/s","max_archived_rows":0,"max_running":0}}`)
	f.same("would", got["would"], `{"over":[{"field":"max_pending","limit":"2","current":"2"},{"field":"max_running","limit":"0","current":"0"}],
		"delete":[{"table":"archived","rows":"1"}],"inherited":false,
		"quota":{"max_pending":"2","on_excess":"reject","enqueue_rate":"1/s","max_running":"0","max_archived_rows":"0"}}`)
	f.same("in force", []any{got["quota"], got["revision"]}, `[{"max_pending":"100","on_excess":"reject"}, "1"]`)
	got = f.ok(admin, "EditQuota", `{"dry_run":true,"unset":["max_pending"]}`)
	f.same("would", got["would"], `{"over":[],"delete":[],"inherited":false,"quota":{"on_excess":"reject"}}`)
	got = f.ok(admin, "EditQuota", `{"dry_run":true,"quota":{"max_running":4}}`)
	f.same("the whole document", got["would"].(map[string]any)["quota"], `{"max_pending":"100","on_excess":"reject","max_running":"4"}`)
	f.ok(admin, "ClearQuota", `{"dry_run":true,"if_revision":1}`)
	f.refused(admin, "ClearQuota", `{"dry_run":true,"if_revision":2}`, "REVISION_MISMATCH")
	f.refused(admin, "SetQuota", `{"dry_run":true,"quota":{"max_pending":-2}}`, "INVALID_REQUEST")
	f.refused(admin, "SetQuota", `{"dry_run":true,"wait":true,"quota":{"max_pending":2}}`, "INVALID_REQUEST")
	f.refused(f.platform, "ClearQuota", `{"dry_run":true,"default":true}`, "INVALID_REQUEST")

	got = f.ok(admin, "GetQuota", `{}`)
	f.same("nothing changed", []any{got["quota"], got["revision"]}, `[{"max_pending":"100","on_excess":"reject"}, "1"]`)
	if diff := cmp.Diff(before, f.trail("wicket")); diff != "" {
		t.Errorf("dry runs are on record:\n%s", diff)
	}

	f.document("wicket", "{")
	got = f.ok(admin, "SetQuota", `{"dry_run":true,"quota":{"max_pending":2}}`)
	if got["quota"] != nil {
		t.Errorf("the unreadable quota is shown as %v", got["quota"])
	}
	f.same("over an unreadable one", got["would"].(map[string]any)["over"], `[{"field":"max_pending","limit":"2","current":"2"}]`)
}

// A cleared namespace gets the installation's default quota, and a dry run knows it.
func TestDryRunOfAClear(t *testing.T) {
	f := newFixture(t)
	admin := f.token("wicket", auth.Admin)
	f.ok(admin, "SetQuota", `{"quota":{"max_pending":100}}`)
	f.ok(f.platform, "SetQuota", `{"default":true,"quota":{"max_running":7}}`)
	got := f.ok(admin, "ClearQuota", `{"dry_run":true}`)
	f.same("would", got["would"], `{"over":[],"delete":[],"inherited":true,"quota":{"on_excess":"reject","max_running":"7"}}`)
	f.same("in force", got["quota"], `{"max_pending":"100","on_excess":"reject"}`)
}

// A wrong field has one name, whatever is wrong with it.
func TestFieldsHaveOneName(t *testing.T) {
	f := newFixture(t)
	admin := f.token("ns", auth.Admin)
	for _, method := range []string{"SetQuota", "EditQuota"} {
		for _, value := range []string{`-1`, `1.5`, `1e2`, `1.0`, `"1e2"`, `"x"`, `true`, `9223372036854775808`} {
			r := f.refused(admin, method, `{"quota":{"max_pending":`+value+`}}`, "INVALID_REQUEST")
			if r.details["field"] != "quota.max_pending" {
				t.Errorf("%s of %s: field %q", method, value, r.details["field"])
			}
		}
	}
}

func TestWrongWritesChangeNothing(t *testing.T) {
	f := newFixture(t)
	admin := f.token("ns", auth.Admin, auth.Inspect)
	f.ok(admin, "SetQuota", `{"quota":{"max_pending":5}}`)
	for _, body := range []string{
		`{}`, `{"quota":null}`, `{"quota":{"max_bytes":1}}`, `{"quota":{"max_pending":-1}}`, `{"quota":{"max_pending":1.5}}`,
		`{"quota":{"max_pending":9223372036854775808}}`, `{"quota":{"max_pending":1,"max_pending":2}}`,
		`{"quota":{"max_pending":1}} {}`, `{"quota":{"on_excess":"REJECT"}}`, `{"quota":{"on_excess":""}}`,
		`{"quota":{"enqueue_rate":"0/s"}}`, `{"quota":{"enqueue_rate":"500/sec"}}`, `{"quota":{"enqueue_rate":" 500/s"}}`,
		`{"quota":{"enqueue_rate":"007/s"}}`, `{"quota":{"enqueue_rate":"1.5/s"}}`, `{"quota":{"max_pending":1},"namespace":"wren"}`,
	} {
		f.refused(admin, "SetQuota", body, "INVALID_REQUEST")
	}
	got := f.ok(admin, "GetQuota", `{}`)
	f.same("unchanged", []any{got["quota"], got["revision"]}, `[{"max_pending":"5","on_excess":"reject"}, "1"]`)
	refused := 0
	for _, r := range f.trail("ns") {
		if r.Outcome == "INVALID_REQUEST" {
			refused++
		}
	}
	if refused != 16 {
		t.Errorf("%d refusals are on record, want each of 16", refused)
	}
}
