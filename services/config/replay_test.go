package config

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/auth"
	"flexiq/pkg/bus"
	"flexiq/pkg/job"
	"flexiq/pkg/store"
	"flexiq/pkg/wire"
)

// dead makes n dead letters, and returns their ids.
func (f *fixture) dead(ns string, n int, options ...func(*job.Spec)) []string {
	f.Helper()
	ids := make([]string, n)
	for i := range ids {
		s := job.Spec{ID: newID(), Task: "t"}
		for _, o := range options {
			o(&s)
		}
		f.enqueue(ns, s)
		ids[i] = f.finish(ns, job.GivenUp)
	}
	return ids
}

// list is a JSON list of texts.
func list(items ...string) string { return `["` + strings.Join(items, `","`) + `"]` }

func (f *fixture) usage(ns string) store.Usage {
	f.Helper()
	u, err := f.store.Usage(f.Context(), []string{ns})
	f.must(err)
	return u[0]
}

// part keeps some fields of an answer.
func part(answer map[string]any, fields ...string) map[string]any {
	out := map[string]any{}
	for _, name := range fields {
		if v, ok := answer[name]; ok {
			out[name] = v
		}
	}
	return out
}

var counted = []string{"moved", "left", "gone", "reasons", "retry_after"}

func TestReplayMovesWhatFits(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	admin := f.token("flail", auth.Admin)
	ids := f.dead("flail", 5)
	other := f.dead("wren", 1)[0]
	f.document("flail", `{"max_pending":2}`)
	got := f.ok(admin, "ReplayDeadLetters", fmt.Sprintf(`{"ids":%s}`, list(ids[3], other, newID(), strings.ToUpper(ids[0]), ids[3], ids[1], ids[2])))
	f.same("the answer", part(got, counted...),
		`{"moved":"2","left":"2","gone":"2","reasons":[{"reason":"QUEUE_FULL","count":"2"}],"retry_after":"1s"}`)
	if u := f.usage("flail"); u.Pending != 2 || u.Dead != 3 {
		t.Errorf("usage %+v", u)
	}
	if u := f.usage("wren"); u.Dead != 1 {
		t.Errorf("another namespace's dead letter moved: %+v", u)
	}
	// Letters that wait for their turn are no refused producers.
	var report wire.AdmissionReport
	f.must(json.Unmarshal(f.ears.stats[len(f.ears.stats)-1], &report))
	if c := report.Namespaces["flail"]; c.Admitted != 2 || c.Rejected != 1 {
		t.Errorf("counted %+v, want 2 admitted and 1 rejected", c)
	}
	if !slices.Equal(f.ears.ready, []string{"flail"}) {
		t.Errorf("gates were told of %q", f.ears.ready)
	}
	page, err := f.store.ListJobs(t.Context(), "flail", store.Filter{State: job.Pending}, "", 10)
	f.must(err)
	var origins []string
	for _, j := range page.Items {
		origins = append(origins, j.Origin)
		if j.EnqueuedBy != id(admin) {
			t.Errorf("enqueued by %q", j.EnqueuedBy)
		}
	}
	slices.Sort(origins)
	want := []string{"replay:" + ids[0], "replay:" + ids[3]}
	if slices.Sort(want); !slices.Equal(origins, want) {
		t.Errorf("origins %q, want %q", origins, want)
	}
	trail := f.trail("flail")
	last := trail[len(trail)-1]
	if last.Operation != "replay-dead-letters" || last.TargetKind != "dead_letters" || last.Target != "6 ids" || last.Outcome != "ok" || last.New != `{"moved":2}` {
		t.Errorf("on record: %+v", last)
	}
}

// By the rules of enqueues: where the quota rejects and lets nothing in, the call
// fails; where it drops, it succeeds and nothing is shed.
func TestReplayRefused(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	admin := f.token("flail", auth.Admin)
	ids := f.dead("flail", 3)
	for _, body := range []string{`{"filter":{}}`, fmt.Sprintf(`{"ids":%s}`, list(ids...))} {
		f.document("flail", `{"max_pending":0}`)
		r := f.refused(admin, "ReplayDeadLetters", body, "QUEUE_FULL")
		if r.status != http.StatusTooManyRequests || r.details["left"] != "3" || r.details["retry"] != "never" || r.details["asked"] != "1" {
			t.Errorf("%d %v", r.status, r.details)
		}
		if r.message != "queue 'default' is full: 0 pending >= max_pending 0" {
			t.Errorf("message %q", r.message)
		}
		f.document("flail", `{"max_pending":0,"on_excess":"drop"}`)
		f.same("where it drops", part(f.ok(admin, "ReplayDeadLetters", body), counted...),
			`{"moved":"0","left":"3","gone":"0","reasons":[{"reason":"QUEUE_FULL","count":"3"}]}`)
		f.document("flail", `{"max_pending":"many"}`)
		f.refused(admin, "ReplayDeadLetters", body, "QUOTA_UNREADABLE")
		if u := f.usage("flail"); u.Dead != 3 || u.Shed != 0 || u.Pending != 0 {
			t.Fatalf("usage %+v", u)
		}
	}
	var outcomes []string
	for _, r := range f.trail("flail") {
		if r.TargetKind == "dead_letters" {
			outcomes = append(outcomes, r.Outcome+" "+r.Target)
		}
	}
	if want := []string{"QUEUE_FULL {}", "QUOTA_UNREADABLE {}", "QUEUE_FULL 3 ids", "QUOTA_UNREADABLE 3 ids"}; !slices.Equal(outcomes, want) {
		t.Errorf("on record: %q, want %q", outcomes, want)
	}
}

func TestReplayHeldKeys(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	admin := f.token("quill", auth.Admin)
	keyed := func(s *job.Spec) { s.UniqueKey = "k" }
	held := f.dead("quill", 2, keyed)
	free := f.dead("quill", 2)
	f.enqueue("quill", job.Spec{ID: newID(), Task: "t", UniqueKey: "k"})
	f.document("quill", `{"enqueue_rate":"10/h"}`)
	f.same("while it is held", part(f.ok(admin, "ReplayDeadLetters", `{"filter":{}}`), counted...),
		`{"moved":"2","left":"2","gone":"0","reasons":[{"reason":"UNIQUE_KEY_HELD","count":"2"}]}`)
	if u := f.usage("quill"); u.Bucket.Tokens() != 8 || u.Dead != 2 {
		t.Errorf("usage %+v", u)
	}
	f.same("again", part(f.ok(admin, "ReplayDeadLetters", fmt.Sprintf(`{"ids":%s}`, list(append(held, free...)...))), counted...),
		`{"moved":"0","left":"2","gone":"2","reasons":[{"reason":"UNIQUE_KEY_HELD","count":"2"}]}`)
}

// TestReplayInPages: a page token goes on where a limit stopped, in front of the
// first dead letter that it kept out.
func TestReplayInPages(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	admin := f.token("ns", auth.Admin)
	f.dead("ns", 7, func(s *job.Spec) { s.Queue = "a" })
	f.dead("ns", 3, func(s *job.Spec) { s.Queue = "b" })
	f.document("ns", `{"max_pending":5}`)
	token, sizes := "", []string{}
	for _, drain := range []bool{false, false, true, false, false} {
		if drain {
			for range 5 {
				f.finish("ns", job.Completed)
			}
		}
		got := f.ok(admin, "ReplayDeadLetters", fmt.Sprintf(`{"filter":{"queue":"a"},"page_size":3,"page_token":%q}`, token))
		sizes = append(sizes, fmt.Sprint(got["moved"], "/", got["left"]))
		if token, _ = got["next_page_token"].(string); token == "" {
			break
		}
	}
	if want := []string{"3/0", "2/1", "2/0"}; !slices.Equal(sizes, want) {
		t.Errorf("moved/left of the calls %q, want %q", sizes, want)
	}
	if u := f.usage("ns"); u.Dead != 3 || u.Pending != 2 {
		t.Errorf("usage %+v", u)
	}
	for body, field := range map[string]string{
		`{}`: "ids", `{"ids":["x"]}`: "ids[0]", fmt.Sprintf(`{"ids":[%q],"filter":{}}`, newID()): "filter",
		fmt.Sprintf(`{"ids":[%q],"page_size":3}`, newID()): "page_size", `{"filter":{},"page_size":501}`: "page_size",
		`{"filter":{"queue":"\n"}}`: "filter.queue", `{"filter":{},"page_token":"x"}`: "page_token",
	} {
		if r := f.refused(admin, "ReplayDeadLetters", body, "INVALID_REQUEST"); r.details["field"] != field {
			t.Errorf("%s: names %q", body, r.details["field"])
		}
	}
}

func TestDeleteDeadLetters(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	admin := f.token("ns", auth.Admin)
	ids := append(f.dead("ns", 3, func(s *job.Spec) { s.Task = "a" }), f.dead("ns", 2, func(s *job.Spec) { s.Task = "b" })...)
	other := f.dead("wren", 1)[0]
	f.same("by id", f.ok(admin, "DeleteDeadLetters", fmt.Sprintf(`{"ids":%s}`, list(ids[0], ids[0], other, newID()))), `{"deleted":"1","next_page_token":""}`)
	f.same("by filter", f.ok(admin, "DeleteDeadLetters", `{"filter":{"task":"a"}}`), `{"deleted":"2","next_page_token":""}`)
	f.refused(admin, "DeleteDeadLetters", `{}`, "INVALID_REQUEST")
	if u := f.usage("ns"); u.Dead != 2 {
		t.Errorf("usage %+v", u)
	}
	f.same("all", f.ok(admin, "DeleteDeadLetters", `{"filter":{}}`), `{"deleted":"2","next_page_token":""}`)
	if u := f.usage("wren"); u.Dead != 1 {
		t.Errorf("another namespace lost one: %+v", u)
	}
	var lines []string
	for _, r := range f.trail("ns") {
		lines = append(lines, r.Target+" "+r.Outcome+" "+r.New)
	}
	want := []string{`3 ids ok {"deleted":1}`, `{"task":"a"} ok {"deleted":2}`, ` INVALID_REQUEST `, `{} ok {"deleted":2}`}
	if !slices.Equal(lines, want) {
		t.Errorf("on record: %q, want %q", lines, want)
	}
}

// Only admin takes dead letters away, over both doors.
func TestDeadLettersNeedAdmin(t *testing.T) {
	n := newNetwork(t)
	id := n.dead("ns", 1)[0]
	others := n.token("ns", auth.Produce, auth.Work, auth.Inspect)
	for _, method := range []string{"DeleteDeadLetters", "ReplayDeadLetters"} {
		n.refused(others, method, `{"filter":{}}`, "PERMISSION_DENIED")
		n.refused(n.platform, method, `{"filter":{}}`, "PERMISSION_DENIED")
	}
	if u := n.usage("ns"); u.Dead != 1 {
		t.Errorf("usage %+v", u)
	}
	admin := n.token("ns", auth.Admin)
	c := n.connect(bus.Options{Token: admin})
	var moved flexiqv1.ReplayDeadLettersResponse
	n.must(n.ask(c, admin, "replay-dead-letters", &flexiqv1.ReplayDeadLettersRequest{Ids: []string{id}}, &moved))
	if moved.GetMoved() != 1 || moved.GetTime() == nil {
		t.Errorf("answered %v", &moved)
	}
	n.finish("ns", job.GivenUp)
	var deleted flexiqv1.DeleteDeadLettersResponse
	n.must(n.ask(c, admin, "delete-dead-letters", &flexiqv1.DeleteDeadLettersRequest{Filter: &flexiqv1.DeadLetterFilter{}}, &deleted))
	if deleted.GetDeleted() != 1 {
		t.Errorf("answered %v", &deleted)
	}
}
