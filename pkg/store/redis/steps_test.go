package redis

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"flexiq/pkg/job"
	"flexiq/pkg/namespace"
	"flexiq/pkg/store"
)

// must runs commands as a process does that is killed after them.
func must(t testing.TB, s *Store, c ...*command) {
	t.Helper()
	if err := s.run(t.Context(), once, c...); err != nil {
		t.Fatal(err)
	}
}

func expire(t testing.TB, s *Store) []store.Ended {
	t.Helper()
	ended, err := s.Expire(t.Context(), 1000)
	if err != nil {
		t.Fatal(err)
	}
	return ended
}

func settle(t testing.TB, s *Store, claims []store.Leased) {
	t.Helper()
	var all []store.Settlement
	for _, l := range claims {
		all = append(all, store.Settlement{Namespace: l.Job.Namespace, JobID: l.Job.ID, Lease: l.Lease, Outcome: job.Completed})
	}
	settled, _, err := s.Turn(t.Context(), all, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, st := range settled {
		if !st.Accepted {
			t.Fatalf("%+v", st)
		}
	}
}

func busyNames(t testing.TB, s *Store) []string {
	t.Helper()
	names, _, err := s.busy(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// TestRegisteredOnly: a process was killed between registering a namespace and
// its first job. The namespace had no job, so it is not listed.
func TestRegisteredOnly(t *testing.T) {
	s := open(t, Options{})
	if _, _, err := s.register(t.Context(), []string{"a", "b", "c"}, true, true); err != nil {
		t.Fatal(err)
	}
	enqueue(t, s, calls(t, "b", 1, 1)...)
	page, err := s.Namespaces(t.Context(), "", 1)
	if err != nil || !slices.Equal(page.Items, []string{"b"}) || page.Next != "" {
		t.Errorf("listed: %+v, %v", page, err)
	}
	if ended := expire(t, s); len(ended) != 0 {
		t.Errorf("ended: %v", ended)
	}
}

// TestIdle: a namespace leaves the busy ones after a minute without a grant, and
// comes back with the next.
func TestIdle(t *testing.T) {
	c := newClock()
	s := open(t, Options{Now: c.Now})
	for round := range 3 {
		enqueue(t, s, calls(t, "ns", 1, 2)...)
		c.now = c.now.Add(time.Second)
		settle(t, s, claim(t, s, "ns", 1))
		expire(t, s)
		if got := busyNames(t, s); !slices.Equal(got, []string{"ns"}) {
			t.Fatalf("round %d: busy are %q", round, got)
		}
		held := claim(t, s, "ns", 1)
		c.now = c.now.Add(29 * time.Second)
		expire(t, s)
		settle(t, s, held)
		c.now = c.now.Add(2 * idleAfter)
		expire(t, s)
		if got := busyNames(t, s); len(got) != 0 {
			t.Fatalf("round %d: busy are %q after two minutes", round, got)
		}
	}
	enqueue(t, s, calls(t, "ns", 1, 1)...)
	c.now = c.now.Add(time.Second)
	claim(t, s, "ns", 1)
	c.now = c.now.Add(time.Hour)
	if ended := expire(t, s); len(ended) != 1 {
		t.Errorf("ended: %v", ended)
	}
}

// TestIdleWhileRegistering: between a process's registration of a namespace and
// its claim, another one takes the namespace off the list.
func TestIdleWhileRegistering(t *testing.T) {
	c := newClock()
	s := open(t, Options{Now: c.Now})
	enqueue(t, s, calls(t, "ns", 1, 2)...)
	c.now = c.now.Add(time.Second)
	_, numbers, err := s.register(t.Context(), []string{"ns"}, true, false)
	if err != nil {
		t.Fatal(err)
	}
	s.letGo(t.Context(), []string{"ns"}, numbers, []int64{0}, []int{0})
	if got := busyNames(t, s); len(got) != 0 {
		t.Fatalf("busy are %q", got)
	}
	w := want("ns", 1)
	late := s.turnCommand(&shift{name: "ns", wants: []*store.Want{&w}, wantAt: []int{0}}, numbers[0])
	must(t, s, late)
	if got := late.list().int(); got != turnUnlisted {
		t.Fatalf("a turn under a number that was taken back answers %d", got)
	}
	claim(t, s, "ns", 1) // the whole way, under a new number

	// The other way round: the claim is first.
	_, numbers, err = s.register(t.Context(), []string{"ns"}, true, false)
	if err != nil {
		t.Fatal(err)
	}
	s.letGo(t.Context(), []string{"ns"}, numbers, []int64{c.now.UnixMicro()}, []int{0})
	c.now = c.now.Add(time.Hour)
	if ended := expire(t, s); len(ended) != 1 {
		t.Errorf("ended: %v", ended)
	}
}

// TestLostLists: the lists of the installation come from a copy that was behind.
// Whoever worked in the namespace, or looks everywhere, repairs them.
func TestLostLists(t *testing.T) {
	c := newClock()
	s := open(t, Options{Now: c.Now})
	expire(t, s)
	enqueue(t, s, calls(t, "ns", 1, 3)...)
	c.now = c.now.Add(time.Second)
	claim(t, s, "ns", 2)
	for _, list := range [][]string{{"busy"}, {"busy", "known"}} {
		for _, key := range list {
			must(t, s, plain("del", s.key(installation, key)))
		}
		c.now = c.now.Add(time.Hour)
		if ended := expire(t, s); len(ended) != 0 {
			t.Fatalf("without the list %v ended", ended)
		}
		s.survey.mu.Lock()
		s.survey.last = s.survey.last.Add(-surveyEvery)
		s.survey.mu.Unlock()
		if ended := expire(t, s); len(ended) != 2 {
			t.Fatalf("after the loss of %v: ended %v", list, ended)
		}
		c.now = c.now.Add(time.Hour)
		claim(t, s, "ns", 2)
	}
}

// TestAnnouncedOnly: a process was killed somewhere between announcing a change
// and finishing it. Every look names the object, for a minute.
func TestAnnouncedOnly(t *testing.T) {
	c := newClock()
	s := open(t, Options{Now: c.Now})
	if _, err := s.announce(t.Context(), quotaChange("a:b"), "a:b"); err != nil {
		t.Fatal(err)
	}
	since, item := int64(0), store.Change{Kind: store.KindQuota, Key: "a:b"}
	for _, wait := range []time.Duration{0, time.Second, 58 * time.Second, 2 * time.Second} {
		c.now = c.now.Add(wait)
		got, err := s.Changes(t.Context(), since, 10)
		if err != nil || !slices.Equal(got.Items, []store.Change{item}) || got.Latest <= since {
			t.Fatalf("after %s: %+v, %v", wait, got, err)
		}
		since = got.Latest
	}
	got, err := s.Changes(t.Context(), since, 10)
	if err != nil || len(got.Items) != 0 || got.Latest != since {
		t.Errorf("after more than a minute: %+v, %v", got, err)
	}
}

// TestOutbox: a process was killed before it had brought a token's record into
// the trail.
func TestOutbox(t *testing.T) {
	s := open(t, Options{})
	k := store.Token{ID: "t1", Namespace: "a:b"}
	r := store.Record{Namespace: "a:b", Operation: "create-token", Outcome: "ok"}
	args := append([]any{0, "post1", "a:b", record(&r), 0, 0, "", 1}, tokenArgs(&k)...)
	must(t, s, s.on(installation, tokensScript, args...))
	letters := s.db.HGetAll(t.Context(), s.key(installation, "outbox")).Val()
	trail := func() int {
		t.Helper()
		page, err := s.ListAudit(t.Context(), "a:b", store.AuditFilter{}, "", 10)
		if err != nil {
			t.Fatal(err)
		}
		return len(page.Items)
	}
	if n := trail(); n != 1 {
		t.Fatalf("%d records", n)
	}
	for id, letter := range letters { // another process had read it before, and is late
		must(t, s, plain("hset", s.key(installation, "outbox"), id, letter))
	}
	if c, err := s.Changes(t.Context(), 0, 10); err != nil || len(c.Items) != 1 {
		t.Errorf("changes: %+v, %v", c, err)
	}
	if n := s.db.HLen(t.Context(), s.key(installation, "outbox")).Val(); n != 0 {
		t.Errorf("%d records in the outbox after a look at the changes", n)
	}
	if n := trail(); n != 1 {
		t.Errorf("%d records after a second delivery", n)
	}
	if err := s.PutToken(t.Context(), k, "", r); err == nil {
		t.Error("a second token with the id was stored")
	}
}

func defaultChange(raw string) *store.QuotaChange {
	return &store.QuotaChange{Default: true, Raw: []byte(raw)}
}

// TestDefaultHalfTold: a process was killed between writing the default quota
// and telling every namespace. Calls under the new one are stale once.
func TestDefaultHalfTold(t *testing.T) {
	s := open(t, Options{})
	enqueue(t, s, calls(t, "ns", 1, 1)...)
	if _, _, err := s.putDocument(t.Context(), "", defaultChange(`{"max_pending":5,"max_running":1}`), standing{}); err != nil {
		t.Fatal(err)
	}
	docs, err := s.Quotas(t.Context(), []string{"ns"})
	if err != nil || docs[0].Stamp.Default != 1 || !docs[0].Inherited {
		t.Fatalf("%+v, %v", docs, err)
	}
	c, w := calls(t, "ns", 1, 1), want("ns", 1)
	c[0].Stamp, w.Stamp = docs[0].Stamp, docs[0].Stamp
	for i, want := range []error{store.ErrStale, nil} {
		out, err := s.Admit(t.Context(), c)
		if err != nil || !errors.Is(out[0].Err, want) {
			t.Errorf("try %d: %v, %+v", i, err, out)
		}
	}
	_, grants, err := s.Turn(t.Context(), nil, []store.Want{w})
	if err != nil || len(grants[0].Jobs) != 1 {
		t.Errorf("%+v, %v", grants, err)
	}
}

// TestDefaultGoneBack: the installation's keys come from an older copy than the
// namespace's.
func TestDefaultGoneBack(t *testing.T) {
	s := open(t, Options{})
	for range 3 {
		if _, err := s.PutQuota(t.Context(), *defaultChange(`{"max_pending":5}`)); err != nil {
			t.Fatal(err)
		}
	}
	enqueue(t, s, store.Call{Namespace: "ns", Stamp: store.Stamp{Default: 3}, Jobs: []job.Spec{spec(t)}})
	must(t, s, plain("hset", s.key(installation, "ns"), "revision", 1))
	docs, err := s.Quotas(t.Context(), []string{"ns"})
	if err != nil || docs[0].Stamp.Default != 3 {
		t.Fatalf("%+v, %v", docs, err)
	}
	enqueue(t, s, store.Call{Namespace: "ns", Stamp: docs[0].Stamp, Jobs: []job.Spec{spec(t)}})
	u, err := s.Usage(t.Context(), []string{"never", "ns"})
	if err != nil || u[0].Stamp.Default != 3 || u[1].Stamp.Default != 3 {
		t.Errorf("%+v, %v", u, err)
	}
}

// TestPastTheDoor: a document written with a database shell is in force for the
// next decision, and whoever had read the old one is told.
func TestPastTheDoor(t *testing.T) {
	s := open(t, Options{})
	reader := &Store{db: s.db, prefix: s.prefix, timeout: s.timeout}
	since := func() int64 {
		t.Helper()
		c, err := reader.Changes(t.Context(), 0, 1000)
		if err != nil {
			t.Fatal(err)
		}
		return c.Latest
	}
	scribble := func(raw string) {
		t.Helper()
		must(t, s, plain("hset", s.key("ns", "settings"), namespace.QuotaKey("ns"), raw))
	}
	enqueue(t, s, calls(t, "ns", 1, 2)...)
	for i, decide := range []func() error{
		func() error {
			out, err := s.Admit(t.Context(), calls(t, "ns", 1, 1))
			return errors.Join(err, out[0].Err)
		},
		func() error {
			_, grants, err := s.Turn(t.Context(), nil, []store.Want{want("ns", 1)})
			return errors.Join(err, grants[0].Err)
		},
		func() error { _, err := reader.Changes(t.Context(), 0, 10); return err },
	} {
		docs, err := reader.Quotas(t.Context(), []string{"ns"})
		if err != nil {
			t.Fatal(err)
		}
		before, from := docs[0].Stamp, since()
		scribble(`{"max_running":` + strings.Repeat("1", i+1) + `}`)
		if err := decide(); i < 2 && !errors.Is(err, store.ErrStale) || i == 2 && err != nil {
			t.Errorf("decision %d: %v", i, err)
		}
		c, err := reader.Changes(t.Context(), from, 10)
		if err != nil || !slices.Equal(c.Items, []store.Change{{Kind: store.KindQuota, Key: "ns"}}) {
			t.Errorf("decision %d: changes %+v, %v", i, c, err)
		}
		if docs, err = reader.Quotas(t.Context(), []string{"ns"}); err != nil || docs[0].Stamp.Revision != before.Revision+1 {
			t.Errorf("decision %d: %+v, %v", i, docs, err)
		}
		if c, err = reader.Changes(t.Context(), c.Latest, 10); err != nil || len(c.Items) != 0 {
			t.Errorf("decision %d: more changes %+v, %v", i, c, err)
		}
	}
	must(t, s, plain("hset", s.key(installation, "settings"), defaultQuotaKey, `{"max_pending":1}`))
	if d, err := s.DefaultQuota(t.Context()); err != nil || d.Stamp.Default != 1 || string(d.Raw) != `{"max_pending":1}` {
		t.Errorf("the default quota: %+v, %v", d, err)
	}
}

// TestErasedWhileRegistered: a process registered a namespace, another one erased
// it, and only then the first one writes. What it wrote is found like any other.
func TestErasedWhileRegistered(t *testing.T) {
	c := newClock()
	s := open(t, Options{Now: c.Now})
	enqueue(t, s, calls(t, "ns", 1, 1)...)
	st, err := s.enlist(t.Context(), scheduledList, "ns")
	if err != nil {
		t.Fatal(err)
	}
	for more := true; more; {
		out, err := s.EraseNamespace(t.Context(), "ns", 10)
		if err != nil {
			t.Fatal(err)
		}
		more = out.More
	}

	must(t, s, s.on("ns", putScheduleScript, st.revision, st.term, "nightly", 0, 0, "* * * * *", "UTC", "job", 0,
		micros(c.now), "", done(store.Record{Namespace: "ns"})))
	for _, wait := range []time.Duration{time.Second, forgetAfter, 24 * time.Hour} {
		c.now = c.now.Add(wait)
		if err := s.everywhere(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		due, err := s.DueSchedules(t.Context(), 10)
		if err != nil || len(due.Items) != 1 {
			t.Errorf("%s later these are due: %+v, %v", wait, due, err)
		}
		if names, err := s.Namespaces(t.Context(), "", 10); err != nil || !slices.Equal(names.Items, []string{"ns"}) {
			t.Errorf("%s later these are listed: %v, %v", wait, names, err)
		}
		for _, list := range []string{"known", "trails"} {
			if s.db.ZScore(t.Context(), s.key(installation, list), "ns").Err() != nil {
				t.Errorf("%s later it is not on the list %s", wait, list)
			}
		}
	}
}

// TestForgotten: an erased namespace leaves the lists after a while, unless it
// registered again.
func TestForgotten(t *testing.T) {
	c := newClock()
	s := open(t, Options{Now: c.Now})
	for _, ns := range []string{"gone", "again"} {
		enqueue(t, s, calls(t, ns, 1, 1)...)
		for range 3 {
			if _, err := s.EraseNamespace(t.Context(), ns, 10); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, _, err := s.register(t.Context(), []string{"again"}, false, false); err != nil {
		t.Fatal(err)
	}
	for _, wait := range []time.Duration{0, forgetAfter - time.Second, time.Second, forgetAfter} {
		c.now = c.now.Add(wait)
		if err := s.everywhere(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		want := []string{"again", "gone"}
		if !c.now.Before(newClock().now.Add(forgetAfter)) {
			want = want[:1]
		}
		if names, err := s.known(t.Context(), "", 10); err != nil || !slices.Equal(names, want) {
			t.Errorf("after %s more: known are %v, %v, want %v", wait, names, err, want)
		}
	}
}

// TestDamage: an index entry without its job neither stops a claim nor stays.
func TestDamage(t *testing.T) {
	c := newClock()
	s := open(t, Options{Now: c.Now})
	call := calls(t, "ns", 1, 4)
	enqueue(t, s, call...)
	must(t, s, plain("del", s.key("ns", "j:"+call[0].Jobs[0].ID)))
	c.now = c.now.Add(time.Second)
	_, grants, err := s.Turn(t.Context(), nil, []store.Want{want("ns", 4)})
	if err != nil || len(grants[0].Jobs) != 3 {
		t.Fatalf("%+v, %v", grants, err)
	}
	held := grants[0].Jobs
	must(t, s, plain("del", s.key("ns", "j:"+held[0].Job.ID)))
	c.now = c.now.Add(time.Hour)
	if ended := expire(t, s); len(ended) != 2 {
		t.Errorf("ended %v", ended)
	}
	u, err := s.Usage(t.Context(), []string{"ns"})
	if err != nil || u[0].Pending != 2 || u[0].Running != 0 {
		t.Errorf("%+v, %v", u, err)
	}
	consistent(t, s)
}
