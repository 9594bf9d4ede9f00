package events

import (
	"slices"
	"testing"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/fault"
)

func TestFilterSubjects(t *testing.T) {
	for _, c := range []struct{ types, want []string }{
		{nil, []string{"fqe.v1.ns.>"}},
		{[]string{"job.dead"}, []string{"fqe.v1.ns.job.dead"}},
		{[]string{"job.dead", "job", "job.dead", "quota.changed"}, []string{"fqe.v1.ns.job.*", "fqe.v1.ns.quota.changed"}},
		{[]string{"quota", "job"}, []string{"fqe.v1.ns.quota.*", "fqe.v1.ns.job.*"}},
	} {
		f, err := NewFilter(&flexiqv1.WatchEventsRequest{Types: c.types})
		if err != nil {
			t.Errorf("%v: %v", c.types, err)
			continue
		}
		if got := f.Subjects("ns"); !slices.Equal(got, c.want) {
			t.Errorf("%v: %v, want %v", c.types, got, c.want)
		}
	}
}

func TestFilterRefuses(t *testing.T) {
	for field, req := range map[string]*flexiqv1.WatchEventsRequest{
		"types": {Types: []string{"job.dead", "job.*"}},
		"queue": {Queue: " q"},
		"task":  {Task: "a\x00b"},
	} {
		if _, err := NewFilter(req); !fault.Is(err, fault.InvalidRequest) || fault.Of(err).Details["field"] != field {
			t.Errorf("%s: %v", field, err)
		}
	}
	for _, text := range []string{"", ">", "job.", "job.nothing", "job.dead.x"} {
		if _, err := NewFilter(&flexiqv1.WatchEventsRequest{Types: []string{text}}); err == nil {
			t.Errorf("the type %q is taken", text)
		}
	}
}

func TestFilterMatches(t *testing.T) {
	f, err := NewFilter(&flexiqv1.WatchEventsRequest{Queue: "q", Task: "t"})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		e    *flexiqv1.Event
		want bool
	}{
		{&flexiqv1.Event{Queue: "q", Task: "t"}, true},
		{&flexiqv1.Event{Queue: "Q", Task: "t"}, false},
		{&flexiqv1.Event{Queue: "q"}, false},
		{&flexiqv1.Event{Type: "quota.changed"}, false},
	} {
		if got := f.Matches(c.e); got != c.want {
			t.Errorf("%v: %v", c.e, got)
		}
	}
}

// A listener of an older version reads events of a newer one.
func TestDecodeIgnoresWhatIsNew(t *testing.T) {
	e, err := Decode([]byte(`{"type":"job.dead","job_id":"1","shoe_size":44}`))
	if err != nil || e.GetJobId() != "1" {
		t.Errorf("%v, %v", e, err)
	}
}
