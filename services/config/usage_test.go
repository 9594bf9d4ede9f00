package config

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"flexiq/pkg/auth"
	"flexiq/pkg/job"
	"flexiq/pkg/wire"
)

func TestUsage(t *testing.T) {
	f := newFixture(t)
	inspect := f.token("wicket", auth.Inspect)
	got := f.ok(inspect, "GetUsage", `{}`)
	f.same("unused", got, `{"pending":"0","running":"0","archived":"0","dead":"0","shed":"0","limits":[],
		"last_minute":{"admitted":"0","rejected":"0","shed":"0"},"revision":"0","unreadable":false}`)

	for range 3 {
		f.enqueue("wicket", job.Spec{Task: "t"}, job.Spec{Task: "t"})
	}
	f.finish("wicket", job.Completed)
	f.finish("wicket", job.GivenUp)
	f.document("wicket", `{"max_pending":3,"enqueue_rate":"50/h","max_dead_rows":0}`)
	report, err := json.Marshal(wire.AdmissionReport{Process: "p", Namespaces: map[string]wire.AdmissionCounts{"wicket": {Admitted: 6, Rejected: 2}}})
	f.must(err)
	f.svc.hearStats(report)
	f.svc.hearStats([]byte("garbage"))
	got = f.ok(inspect, "GetUsage", `{}`)
	f.same("used", got, `{"pending":"4","running":"0","archived":"1","dead":"1","shed":"0","limits":[
		{"field":"max_pending","limit":"3","current":"4","over":"1"},
		{"field":"enqueue_rate","limit":"50","current":"50","over":"0"},
		{"field":"max_dead_rows","limit":"0","current":"1","over":"1"}],
		"last_minute":{"admitted":"6","rejected":"2","shed":"0"},"revision":"1","unreadable":false}`)
}

func TestDeadLetters(t *testing.T) {
	f := newFixture(t)
	inspect := f.token("ingot", auth.Inspect)
	live := newID()
	for i := range 5 {
		f.enqueue("ingot", job.Spec{Task: fmt.Sprint("t", i%2), Queue: "mail", Payload: []byte("hello"), Form: job.Bytes})
		f.finish("ingot", job.GivenUp)
	}
	f.enqueue("ingot", job.Spec{ID: live, Task: "t"})
	f.document("ingot", `{"max_pending":0,"on_excess":"drop"}`)
	f.enqueue("ingot", job.Spec{Task: "t0"})

	list := func(body string) (ids []string) {
		t.Helper()
		for token, pages := "", 0; pages < 10; pages++ {
			got := f.ok(inspect, "ListDeadLetters", strings.TrimSuffix(body, "}")+fmt.Sprintf(`,"page_size":2,"page_token":%q}`, token))
			for _, j := range got["dead_letters"].([]any) {
				letter := j.(map[string]any)
				ids = append(ids, letter["id"].(string))
				if _, there := letter["payload"]; there || letter["status"] != "dead" {
					t.Errorf("listed %v", letter)
				}
			}
			if token, _ = got["next_page_token"].(string); token == "" {
				break
			}
		}
		return ids
	}
	all := list(`{"filter":{}}`)
	if len(all) != 6 || !slices.IsSorted(all) {
		t.Fatalf("listed %v", all)
	}
	for body, n := range map[string]int{
		`{"filter":{"queue":"mail"}}`:                                              5,
		`{"filter":{"task":"t0"}}`:                                                 4,
		`{"filter":{"shed":true}}`:                                                 1,
		`{"filter":{"shed":false,"task":"t1"}}`:                                    2,
		`{"filter":{"before":"2020-01-01T00:00:00Z"}}`:                             0,
		fmt.Sprintf(`{"ids":[%q,%q,%q,%q]}`, all[4], live, all[0], all[4]):         2,
		fmt.Sprintf(`{"ids":[%q,%q,%q]}`, all[4], strings.ToUpper(all[1]), all[0]): 3,
	} {
		if got := list(body); len(got) != n || !slices.IsSorted(got) {
			t.Errorf("%s: %v, want %d", body, got, n)
		}
	}
	for body, field := range map[string]string{
		fmt.Sprintf(`{"ids":[%q],"filter":{}}`, all[0]): "filter",
		`{"ids":["x"]}`:       "ids[0]",
		`{"page_token":"eA"}`: "page_token",
		`{"page_size":501}`:   "page_size",
	} {
		if r := f.refused(inspect, "ListDeadLetters", body, "INVALID_REQUEST"); r.details["field"] != field {
			t.Errorf("%s: field %q, want %q", body, r.details["field"], field)
		}
	}

	got := f.ok(inspect, "GetDeadLetter", fmt.Sprintf(`{"id":%q}`, all[0]))["dead_letter"].(map[string]any)
	f.same("letter", []any{got["id"], got["payload"], got["error"]}, fmt.Sprintf(`[%q, "aGVsbG8=", "boom"]`, all[0]))
	missing := f.refused(inspect, "GetDeadLetter", fmt.Sprintf(`{"id":%q}`, newID()), "NOT_FOUND")
	for _, other := range []reply{
		f.refused(inspect, "GetDeadLetter", fmt.Sprintf(`{"id":%q}`, live), "NOT_FOUND"),
		f.refused(f.token("wren", auth.Inspect), "GetDeadLetter", fmt.Sprintf(`{"id":%q}`, all[0]), "NOT_FOUND"),
	} {
		if other.message != missing.message {
			t.Errorf("%q and %q can be told apart", other.message, missing.message)
		}
	}
	f.refused(inspect, "GetDeadLetter", `{}`, "INVALID_REQUEST")
}

func TestNamespaces(t *testing.T) {
	f := newFixture(t)
	var names []string
	for i := range 7 {
		ns := fmt.Sprintf("tenant %d", i)
		names = append(names, ns)
		f.enqueue(ns, job.Spec{Task: "t"})
		f.document(ns, fmt.Sprintf(`{"max_pending":%d}`, []int{4, 1, 8, 2, 0, 8, 16}[i]))
	}
	f.document("tenant 3", "{")
	list := func(order string, size int) (got []string) {
		t.Helper()
		for token, pages := "", 0; pages < 10; pages++ {
			page := f.ok(f.platform, "ListNamespaces", fmt.Sprintf(`{"order":%q,"page_size":%d,"page_token":%q}`, order, size, token))
			for _, v := range page["namespaces"].([]any) {
				ns := v.(map[string]any)
				got = append(got, ns["namespace"].(string))
				if u := ns["usage"].(map[string]any); u["pending"] != "1" || u["unreadable"] != (ns["namespace"] == "tenant 3") {
					t.Errorf("%v", ns)
				}
			}
			if token, _ = page["next_page_token"].(string); token == "" {
				break
			}
		}
		return got
	}
	full := []string{"tenant 3", "tenant 4", "tenant 1", "tenant 0", "tenant 2", "tenant 5", "tenant 6"}
	for _, size := range []int{1, 3, 500} {
		for _, order := range []string{"", "name"} {
			if got := list(order, size); !slices.Equal(got, names) {
				t.Errorf("by name, %d a page: %v", size, got)
			}
		}
		if got := list("usage", size); !slices.Equal(got, full) {
			t.Errorf("by usage, %d a page: %v", size, got)
		}
	}
	f.refused(f.platform, "ListNamespaces", `{"order":"age"}`, "INVALID_REQUEST")
	f.refused(f.platform, "ListNamespaces", `{"page_token":"AAAA"}`, "INVALID_REQUEST")
	byName := f.ok(f.platform, "ListNamespaces", `{"page_size":1}`)["next_page_token"]
	f.refused(f.platform, "ListNamespaces", fmt.Sprintf(`{"order":"usage","page_token":%q}`, byName), "INVALID_REQUEST")
	f.refused(f.platform, "GetUsage", `{}`, "PERMISSION_DENIED")
}

// A write with wait answers who enforces it; without reports, that we lag.
func TestSetWithWait(t *testing.T) {
	f := newFixture(t)
	admin := f.token("ns", auth.Admin)
	f.svc.progress.listen(time.Now().Add(-time.Minute))
	f.svc.progress.tell(t, "self", 1<<40, time.Now())
	f.svc.progress.tell(t, "other", 1<<40, time.Now())
	got := f.ok(admin, "SetQuota", `{"wait":true,"quota":{"max_pending":1}}`)
	f.same("all enforce it", got["enforced_by"], `{"processes":"2","lagging":[]}`)

	f.svc.cfg.MaxWait = time.Second
	f.svc.progress.tell(t, "self", 0, time.Now())
	got = f.ok(admin, "ClearQuota", `{"wait":true}`)
	f.same("one lags", got["enforced_by"], `{"processes":"1","lagging":["self"]}`)
	f.same("the change stands", got["quota"], `{"on_excess":"reject"}`)
}

// A filter that nothing can match is a mistake, and not an empty list.
func TestFiltersAreChecked(t *testing.T) {
	f := newFixture(t)
	inspect := f.token("ingot", auth.Inspect)
	for _, field := range []string{"queue", "task"} {
		for _, name := range []string{`a\u0000`, ` mail`, strings.Repeat("q", 256)} {
			body := `{"filter":{"` + field + `":"` + name + `"}}`
			if r := f.refused(inspect, "ListDeadLetters", body, "INVALID_REQUEST"); r.details["field"] != "filter."+field {
				t.Errorf("%.40s: field %q", body, r.details["field"])
			}
		}
	}
}
