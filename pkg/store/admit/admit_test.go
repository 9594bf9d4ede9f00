package admit_test

import (
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"flexiq/pkg/fault"
	"flexiq/pkg/job"
	"flexiq/pkg/quota"
	"flexiq/pkg/store"
	"flexiq/pkg/store/admit"
)

var now = time.Date(2026, 3, 8, 6, 30, 0, 0, time.UTC)

const ns = "hasp"

func id(n int) string { return fmt.Sprintf("01890a5d-ac96-774b-8000-%012x", n) }

func spec(t testing.TB, n int, options ...func(*job.Spec)) job.Spec {
	t.Helper()
	s := job.Spec{ID: id(n), Task: "t"}
	for _, o := range options {
		o(&s)
	}
	if err := s.Normalize("job", 100); err != nil {
		t.Fatal(err)
	}
	return s
}

func unique(key string) func(*job.Spec) { return func(s *job.Spec) { s.UniqueKey = key } }

func debounce(window, most time.Duration, payload string) func(*job.Spec) {
	return func(s *job.Spec) {
		s.Debounce = job.Debounce{Key: "d", Window: window, MaxWait: most}
		s.Payload, s.Form = []byte(payload), job.Bytes
	}
}

func parse(t testing.TB, doc string) quota.Quota {
	t.Helper()
	q, err := quota.Parse([]byte(doc))
	if err != nil {
		t.Fatal(err)
	}
	return q
}

func call(q quota.Quota, specs ...job.Spec) store.Call {
	return store.Call{Namespace: ns, Quota: q, Stamp: store.Stamp{Revision: 7}, Jobs: specs, Origin: job.OriginEnqueue, By: "tok1"}
}

func snapshot() *admit.Snapshot { return &admit.Snapshot{Now: now, Stamp: store.Stamp{Revision: 7}} }

// known is a job that the snapshot has, made from a spec.
func known(s job.Spec, state job.State) admit.Known {
	j := &job.Job{ID: s.ID, Namespace: ns, State: state, UniqueKey: s.UniqueKey, Payload: s.Payload, CreatedAt: now.Add(-time.Hour)}
	return admit.Known{Job: j, Fingerprint: s.Fingerprint}
}

func words(p *admit.Plan) []string {
	var out []string
	for _, o := range p.Outcomes {
		switch {
		case errors.Is(o.Err, store.ErrStale):
			out = append(out, "stale")
		case o.Err != nil:
			out = append(out, string(fault.Of(o.Err).Reason))
		case o.Repeat:
			out = append(out, "repeat")
		case o.Shed:
			out = append(out, "shed")
		default:
			out = append(out, "ok")
		}
	}
	return out
}

// tester is a test, of package testing or of rapid.
type tester interface {
	Helper()
	Fatalf(string, ...any)
}

func equal[T any](t tester, what string, got, want T) {
	t.Helper()
	if reflect.DeepEqual(got, want) { // much cheaper, and nearly always so
		return
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		t.Fatalf("%s (-want +got):\n%s", what, diff)
	}
}

func TestLiveRow(t *testing.T) {
	t.Parallel()
	s := spec(t, 1, unique("k"), func(s *job.Spec) {
		s.Queue, s.Payload, s.Form, s.Priority, s.Delay, s.MaxAttempts = "mail", []byte("p"), job.Bytes, 5, time.Minute, 3
		s.Timeout, s.BackoffBase, s.BackoffMax, s.Metadata = time.Hour, time.Minute, time.Hour, map[string]string{"a": "b"}
	})
	p := admit.Decide(snapshot(), []store.Call{call(quota.Quota{}, s)})
	want := job.Job{
		ID: s.ID, Namespace: ns, Queue: "mail", Task: "t", Payload: []byte("p"), Form: job.Bytes, State: job.Pending, Priority: 5,
		MaxAttempts: 3, Timeout: time.Hour, BackoffBase: time.Minute, BackoffMax: time.Hour, RunAt: now.Add(time.Minute), CreatedAt: now,
		Metadata: map[string]string{"a": "b"}, UniqueKey: "k", Origin: "enqueue", EnqueuedBy: "tok1",
	}
	equal(t, "the row", *p.Live[0].Job, want)
	equal(t, "its fingerprint", p.Live[0].Fingerprint, s.Fingerprint)
	want.Payload = nil
	equal(t, "the result", p.Outcomes, []store.Outcome{{Results: []store.Result{{Job: &want}}}})
	if p.Bucket != nil || len(p.Shed)+len(p.Update) > 0 || !p.Writes() {
		t.Errorf("plan %+v", p)
	}
}

func TestShedRow(t *testing.T) {
	t.Parallel()
	q := parse(t, `{"max_pending":1,"on_excess":"drop"}`)
	u, d := spec(t, 1, unique("k")), spec(t, 2, debounce(time.Second, 0, "p"))
	p := admit.Decide(snapshot(), []store.Call{call(q, u, spec(t, 3, unique("k"))), call(q, spec(t, 4), spec(t, 5)), call(q, d), call(q, spec(t, 6, unique("k")))})
	equal(t, "outcomes", words(p), []string{"shed", "shed", "ok", "shed"})
	equal(t, "shed rows", len(p.Shed), 5)
	row := *p.Shed[0].Job
	want := job.Job{
		ID: u.ID, Namespace: ns, Queue: "default", Task: "t", State: job.Dead, MaxAttempts: 25, Timeout: 30 * time.Minute,
		BackoffBase: time.Second, BackoffMax: time.Hour, RunAt: now, CreatedAt: now, FinishedAt: now, Origin: "enqueue", EnqueuedBy: "tok1",
		Error: "quota: namespace 'hasp' is over max_pending 1 with 0 pending", DeadMetadata: map[string]string{"shed": "quota"},
	}
	equal(t, "the first", row, want)
	equal(t, "the error once a job waits", p.Shed[4].Job.Error, "quota: namespace 'hasp' is over max_pending 1 with 1 pending")
	for i, r := range p.Shed {
		if r.Job.UniqueKey != "" || r.Job.Debounce != (job.Debounce{}) {
			t.Errorf("shed row %d keeps a key", i)
		}
	}
	equal(t, "pending rows", len(p.Live), 1)
}

// TestCallsMeet: calls of a group are decided one after another.
func TestCallsMeet(t *testing.T) {
	t.Parallel()
	q := parse(t, `{"max_pending":4,"enqueue_rate":"5/h"}`)
	first := call(q, spec(t, 1), spec(t, 2, unique("k")))
	changed := call(q, spec(t, 1, func(s *job.Spec) { s.Priority = 1 }))
	s := snapshot()
	s.Pending = 1
	p := admit.Decide(s, []store.Call{
		first,
		call(q, spec(t, 3), spec(t, 4)),  // depth
		call(q, spec(t, 5, unique("k"))), // a duplicate of the first call's
		call(q, spec(t, 6)),
		first,
		changed,
		call(q, spec(t, 7)), // depth again
	})
	equal(t, "outcomes", words(p), []string{"ok", "QUEUE_FULL", "ok", "ok", "repeat", "ID_CONFLICT", "QUEUE_FULL"})
	equal(t, "the duplicate's job", p.Outcomes[2].Results[0].Job.ID, id(2))
	equal(t, "rows", len(p.Live), 3)
	equal(t, "tokens spent", 5-p.Bucket.Tokens(), int64(4))
	equal(t, "pending as the last call saw it", fault.Of(p.Outcomes[6].Err).Details["current"], "4")
	equal(t, "the conflict names the job", fault.Of(p.Outcomes[5].Err).Details["job_id"], id(1))
}

// TestPrecedence: each check stands before those that come after it.
func TestPrecedence(t *testing.T) {
	t.Parallel()
	full := parse(t, `{"max_pending":0,"enqueue_rate":"1/h"}`)
	slow := parse(t, `{"max_pending":9,"enqueue_rate":"1/h"}`)
	held := spec(t, 1, unique("k"))
	fresh := func() *admit.Snapshot {
		s := snapshot()
		s.Pending = 1
		s.Bucket = quota.Bucket{}.Refill(*full.EnqueueRate, now).Take(1)
		s.Known = map[string]admit.Known{held.ID: known(held, job.Pending)}
		s.Unique = map[string]*job.Job{"k": s.Known[held.ID].Job}
		return s
	}
	old := func(c store.Call) store.Call { c.Stamp.Revision--; return c }
	byDefault := func(c store.Call) store.Call { c.Stamp.Default = 1; return c }
	for name, tt := range map[string]struct {
		call store.Call
		want string
	}{
		"a repeat before a stale stamp":     {old(call(full, held)), "repeat"},
		"a conflict before a stale stamp":   {old(call(full, held, spec(t, 2))), "ID_CONFLICT"},
		"a stale stamp before depth":        {old(call(full, spec(t, 2))), "stale"},
		"a stale default":                   {byDefault(call(full, spec(t, 2))), "stale"},
		"depth before the rate":             {call(full, spec(t, 2)), "QUEUE_FULL"},
		"the rate before a duplicate":       {call(slow, spec(t, 2, unique("k"))), "RATE_LIMITED"},
		"a repeat at an empty bucket":       {call(slow, held), "repeat"},
		"a repeat with a known duplicate":   {call(slow, held, spec(t, 2, unique("k"))), "repeat"},
		"a duplicate where limits are none": {call(quota.Quota{}, spec(t, 2, unique("k"))), "ok"},
	} {
		p := admit.Decide(fresh(), []store.Call{tt.call})
		equal(t, name, words(p), []string{tt.want})
		if p.Writes() {
			t.Errorf("%s: writes %+v", name, p)
		}
	}
}

func TestRepeatedCall(t *testing.T) {
	t.Parallel()
	a, b := spec(t, 1), spec(t, 2, unique("k"))
	for name, tt := range map[string]struct {
		jobs   []job.Spec
		holder bool
		want   string
	}{
		"all known":                      {[]job.Spec{a, b}, true, "repeat"},
		"a part":                         {[]job.Spec{b}, true, "repeat"},
		"with a duplicate that is held":  {[]job.Spec{a, spec(t, 3, unique("k"))}, true, "repeat"},
		"with a duplicate without one":   {[]job.Spec{a, spec(t, 3, unique("other"))}, false, "repeat"},
		"with a job more":                {[]job.Spec{a, spec(t, 3)}, false, "ID_CONFLICT"},
		"with a job more, first":         {[]job.Spec{spec(t, 3), a}, false, "ID_CONFLICT"},
		"changed":                        {[]job.Spec{spec(t, 1, func(s *job.Spec) { s.Task = "u" }), b}, false, "ID_CONFLICT"},
		"only unknown duplicates is new": {[]job.Spec{spec(t, 3, unique("k"))}, true, "ok"},
	} {
		s := snapshot()
		s.Known = map[string]admit.Known{a.ID: known(a, job.Complete), b.ID: known(b, job.Pending)}
		s.Unique = map[string]*job.Job{"k": s.Known[b.ID].Job}
		p := admit.Decide(s, []store.Call{call(quota.Quota{}, tt.jobs...)})
		equal(t, name, words(p), []string{tt.want})
		if tt.want == "ID_CONFLICT" {
			continue
		}
		last := p.Outcomes[0].Results[len(tt.jobs)-1]
		if (last.Job != nil && last.Job.ID == b.ID) != tt.holder {
			t.Errorf("%s: the last job's result is %+v", name, last)
		}
	}
}

func TestRepeatedShedCall(t *testing.T) {
	t.Parallel()
	a := spec(t, 1)
	s := snapshot()
	k := known(a, job.Dead)
	k.Job.DeadMetadata = job.ShedMetadata()
	s.Known = map[string]admit.Known{a.ID: k}
	p := admit.Decide(s, []store.Call{call(quota.Quota{}, a)})
	if o := p.Outcomes[0]; !o.Repeat || !o.Shed {
		t.Errorf("got %+v", o)
	}
}

// TestOrderInACall: jobs that ask for one instant keep the call's order, and
// nobody else's time changes.
func TestOrderInACall(t *testing.T) {
	t.Parallel()
	at := func(d time.Duration) func(*job.Spec) { return func(s *job.Spec) { s.RunAt = now.Add(d) } }
	delay := func(d time.Duration) func(*job.Spec) { return func(s *job.Spec) { s.Delay = d } }
	const µs = time.Microsecond
	for name, tt := range map[string]struct {
		jobs []job.Spec
		want []time.Duration
	}{
		"at once":                  {[]job.Spec{spec(t, 3), spec(t, 2), spec(t, 1)}, []time.Duration{0, µs, 2 * µs}},
		"one instant, rising ids":  {[]job.Spec{spec(t, 1, at(time.Hour)), spec(t, 2, at(time.Hour))}, []time.Duration{time.Hour, time.Hour}},
		"one instant, falling ids": {[]job.Spec{spec(t, 3, at(time.Hour)), spec(t, 2, at(time.Hour)), spec(t, 1, at(time.Hour))}, []time.Duration{time.Hour, time.Hour + µs, time.Hour + 2*µs}},
		"a past instant":           {[]job.Spec{spec(t, 2, at(-time.Hour)), spec(t, 1, at(-time.Hour))}, []time.Duration{0, µs}},
		"two instants":             {[]job.Spec{spec(t, 2, at(time.Hour)), spec(t, 1, at(time.Minute))}, []time.Duration{time.Hour, time.Minute}},
		"a delay before none":      {[]job.Spec{spec(t, 1, delay(time.Minute)), spec(t, 2), spec(t, 3, delay(time.Second))}, []time.Duration{time.Minute, µs, time.Second + 2*µs}},
		"an instant between":       {[]job.Spec{spec(t, 2, at(µs)), spec(t, 1, at(µs))}, []time.Duration{µs, 2 * µs}},
	} {
		p := admit.Decide(snapshot(), []store.Call{call(quota.Quota{}, tt.jobs...)})
		var got []time.Duration
		for _, r := range p.Live {
			got = append(got, r.Job.RunAt.Sub(now))
		}
		equal(t, name, got, tt.want)
	}
}

func TestDebounce(t *testing.T) {
	t.Parallel()
	held := &job.Job{ID: id(9), Namespace: ns, State: job.Pending, Payload: []byte("old"), Form: job.Bytes, CreatedAt: now.Add(-4 * time.Second), RunAt: now.Add(time.Second)}
	s := snapshot()
	s.Waiting = map[string]*job.Job{"d": held}
	p := admit.Decide(s, []store.Call{
		call(quota.Quota{}, spec(t, 1, debounce(2*time.Second, 10*time.Second, "one"))),
		call(quota.Quota{}, spec(t, 2, debounce(2*time.Second, 5*time.Second, "two"))), // as late as the first enqueue allows
	})
	equal(t, "updates", len(p.Update), 1)
	equal(t, "rows", len(p.Live), 0)
	equal(t, "payload", string(p.Update[0].Payload), "two")
	equal(t, "run_at", p.Update[0].RunAt, now.Add(time.Second))
	first := p.Outcomes[0].Results[0]
	equal(t, "first result", [3]any{first.Debounced, first.Job.ID, first.Job.RunAt}, [3]any{true, id(9), now.Add(2 * time.Second)})

	p = admit.Decide(snapshot(), []store.Call{
		call(quota.Quota{}, spec(t, 1, debounce(2*time.Second, 0, "one"))),
		call(quota.Quota{}, spec(t, 2, debounce(3*time.Second, 0, "two"))),
	})
	equal(t, "a job of the same group is written once", [2]int{len(p.Live), len(p.Update)}, [2]int{1, 0})
	equal(t, "with the last payload", string(p.Live[0].Job.Payload), "two")
	equal(t, "and the last run_at", p.Live[0].Job.RunAt, now.Add(3*time.Second))
}

// TestClockStepsBack: the bucket re-anchors even when every call is refused.
func TestClockStepsBack(t *testing.T) {
	t.Parallel()
	q := parse(t, `{"enqueue_rate":"5/s"}`)
	s := snapshot()
	s.Bucket = quota.Bucket{}.Refill(*q.EnqueueRate, now.Add(time.Hour)).Take(5)
	p := admit.Decide(s, []store.Call{call(q, spec(t, 1))})
	equal(t, "outcome", words(p), []string{"RATE_LIMITED"})
	if p.Bucket == nil || p.Bucket.At != now.UnixMicro() || p.Bucket.Level != 0 {
		t.Fatalf("bucket to store: %+v", p.Bucket)
	}
	later := &admit.Snapshot{Now: now.Add(time.Second), Stamp: s.Stamp, Bucket: *p.Bucket}
	p = admit.Decide(later, []store.Call{call(q, spec(t, 1), spec(t, 2), spec(t, 3), spec(t, 4), spec(t, 5))})
	equal(t, "a second later", words(p), []string{"ok"})
}
