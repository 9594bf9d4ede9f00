package storetest

import (
	"fmt"
	"sync/atomic"
	"time"

	"flexiq/pkg/fault"
	"flexiq/pkg/store"
)

var quotaCases = []testcase{
	{"set, get, clear", quotaDocuments},
	{"revisions only rise", quotaRevisions},
	{"if_revision", quotaIfRevision},
	{"if_revision from many writers", quotaIfRace},
	{"nobody decides by an old one", quotaObeyed},
	{"the default quota", quotaDefault},
	{"a scribbled document comes back as it is", quotaScribbled},
	{"each change has its record", quotaAudit},
	{"changes, each object once", quotaChanges},
	{"no change is missed", quotaChangesRace},
}

func (f *fixture) document(ns string) store.Document {
	f.Helper()
	docs, err := f.s.Quotas(f.ctx, []string{ns})
	f.ok(err)
	return docs[0]
}

func quotaDocuments(f *fixture) {
	equal(f, "at first", f.document("a"), store.Document{})
	raw := `{"max_pending":5, "on_excess":"drop"}`
	put := f.put("a", raw)
	want := store.Document{Raw: []byte(raw), Stamp: put.Stamp, UpdatedAt: epoch, UpdatedBy: "adm1"}
	equal(f, "as set", put, want)
	equal(f, "as read", f.document("a"), want)
	if put.Stamp.Revision < 1 || put.Stamp.Default != 0 {
		f.Errorf("stamp %+v", put.Stamp)
	}
	f.clock.Advance(time.Second)
	f.put("b", `{"max_pending":0}`)
	docs, err := f.s.Quotas(f.ctx, []string{"b", "never", "a", "b"})
	f.ok(err)
	var got []string
	for _, d := range docs {
		got = append(got, string(d.Raw))
	}
	equal(f, "in order", got, []string{`{"max_pending":0}`, "", raw, `{"max_pending":0}`})
	if docs[1].Raw != nil {
		f.Error("an absent document is not nil")
	}
	cleared := f.put("a", "")
	if cleared.Raw != nil || cleared.Stamp.Revision <= put.Stamp.Revision {
		f.Errorf("cleared: %+v after %+v", cleared, put)
	}
	equal(f, "as read after the clear", f.document("a"), cleared)
	docs, err = f.s.Quotas(f.ctx, nil)
	f.ok(err)
	equal(f, "of none", len(docs), 0)
}

func quotaRevisions(f *fixture) {
	last := store.Stamp{}
	for i := range 10 {
		raw := fmt.Sprintf(`{"max_pending":%d}`, i/2) // also when nothing changes
		if i%3 == 2 {
			raw = ""
		}
		doc := f.put("ns", raw)
		if doc.Stamp.Revision <= last.Revision {
			f.Fatalf("revision %d after %d", doc.Stamp.Revision, last.Revision)
		}
		equal(f, "stamp in the usage", f.usage("ns").Stamp, doc.Stamp)
		last = doc.Stamp
		f.put("other", `{"max_pending":1}`)
		equal(f, "after another's change", f.document("ns").Stamp, last)
	}
}

func quotaIfRevision(f *fixture) {
	const ns = "ns"
	set := func(raw string, revision int64) (store.Document, error) {
		c := f.change(ns, raw)
		c.IfRevision = &revision
		return f.s.PutQuota(f.ctx, c)
	}
	refused := func(raw string, revision int64) {
		f.Helper()
		before := f.document(ns)
		doc, err := set(raw, revision)
		f.reason(err, fault.RevisionMismatch)
		equal(f, "the present document", doc, before)
		equal(f, "the document afterwards", f.document(ns), before)
		records := f.trail(ns, store.AuditFilter{}, 100)
		last := records[len(records)-1]
		equal(f, "outcome and old value", []string{last.Outcome, last.Old}, []string{"REVISION_MISMATCH", string(before.Raw)})
	}
	refused(`{"max_pending":1}`, 1)
	first, err := set(`{"max_pending":1}`, 0)
	f.ok(err)
	refused(`{"max_pending":2}`, 0)
	refused("", 0)
	refused(`{"max_pending":2}`, first.Stamp.Revision+1)
	second, err := set(`{"max_pending":2}`, first.Stamp.Revision)
	f.ok(err)
	refused(`{"max_pending":3}`, first.Stamp.Revision)
	refused("", first.Stamp.Revision)
	cleared, err := set("", second.Stamp.Revision)
	f.ok(err)
	refused(`{"max_pending":3}`, second.Stamp.Revision)
	third, err := set(`{"max_pending":3}`, 0) // cleared: no document exists
	f.ok(err)
	if third.Stamp.Revision <= cleared.Stamp.Revision {
		f.Errorf("revision %d after the clear's %d", third.Stamp.Revision, cleared.Stamp.Revision)
	}
	cleared, err = set("", third.Stamp.Revision)
	f.ok(err)
	refused(`{"max_pending":4}`, third.Stamp.Revision)
	_, err = set(`{"max_pending":4}`, cleared.Stamp.Revision) // the clear's revision, which a reader was shown
	f.ok(err)
}

// quotaIfRace: of many writers that read the same revision one wins.
func quotaIfRace(f *fixture) {
	const ns, writers, rounds = "ns", 8, 5
	handles := []store.Store{f.s, f.open(), f.open()}
	for round := range rounds {
		revision := f.document(ns).Stamp.Revision
		changes := make([]store.QuotaChange, writers)
		for i := range changes {
			changes[i] = f.change(ns, fmt.Sprintf(`{"max_pending":%d}`, i))
			changes[i].IfRevision = &revision
		}
		var won atomic.Int64
		together(writers, func(i int) {
			_, err := handles[i%len(handles)].PutQuota(f.ctx, changes[i])
			switch {
			case err == nil:
				won.Add(1)
			case !fault.Is(err, fault.RevisionMismatch):
				f.Errorf("writer %d: %v", i, err)
			}
		})
		equal(f, fmt.Sprintf("writers that won round %d", round), won.Load(), 1)
	}
	equal(f, "records", len(f.trail(ns, store.AuditFilter{}, 100)), writers*rounds)
}

func quotaDefault(f *fixture) {
	doc, err := f.s.DefaultQuota(f.ctx)
	f.ok(err)
	equal(f, "at first", doc, store.Document{})
	f.put("own", `{"max_pending":9}`)
	f.put("cleared", `{"max_pending":8}`)
	f.put("cleared", "")
	own, cleared := f.document("own"), f.document("cleared")
	set := f.setDefault(`{"max_pending":1}`)
	doc, err = f.s.DefaultQuota(f.ctx)
	f.ok(err)
	equal(f, "as read", doc, set)
	equal(f, "raw", string(set.Raw), `{"max_pending":1}`)
	equal(f, "a document of its own", f.document("own"), own)
	for ns, revision := range map[string]int64{"never": 0, "cleared": cleared.Stamp.Revision} {
		d := f.document(ns)
		equal(f, ns+" inherits", [2]any{d.Inherited, string(d.Raw)}, [2]any{true, `{"max_pending":1}`})
		if d.Stamp.Revision != revision || d.Stamp.Default < 1 {
			f.Errorf("%s has the stamp %+v", ns, d.Stamp)
		}
		equal(f, "stamp in the usage", f.usage(ns).Stamp, d.Stamp)
		f.enqueue(ns, f.spec())
		equal(f, "over the default quota", outcome(f.try(ns, f.spec())), "QUEUE_FULL")
	}
	before := f.document("never").Stamp
	f.setDefault(`{"max_pending":2}`)
	after := f.document("never").Stamp
	if after.Default <= before.Default {
		f.Errorf("the default's revision went from %d to %d", before.Default, after.Default)
	}
	mine := f.put("never", `{"max_pending":7}`)
	equal(f, "its own from now on", [2]any{mine.Inherited, mine.Stamp.Default}, [2]any{false, int64(0)})
	mine = f.put("never", "")
	equal(f, "inherited again", [2]any{mine.Inherited, string(mine.Raw)}, [2]any{true, `{"max_pending":2}`})
	c := f.change("", `{"max_pending":3}`)
	c.Default, c.IfRevision = true, new(int64(0))
	doc, err = f.s.PutQuota(f.ctx, c)
	f.reason(err, fault.RevisionMismatch)
	equal(f, "the present default quota", string(doc.Raw), `{"max_pending":2}`)
	if d := f.setDefault(""); d.Raw != nil {
		f.Errorf("the default quota after a clear: %q", d.Raw)
	}
	if d := f.document("never"); d.Raw != nil || d.Inherited {
		f.Errorf("inherited after the clear: %+v", d)
	}
	f.enqueue("never", f.specs(3)...)
}

// quotaScribbled: what someone wrote past the door is read as it is, and set
// and clear repair it.
func quotaScribbled(f *fixture) {
	if f.backend.Scribble == nil {
		f.Skip("this backend has no way past the door")
	}
	const ns = "a:b"
	for _, raw := range []string{`{"max_pending":"many"}`, "not JSON\x01", ``} {
		before := f.put(ns, `{"max_pending":5}`)
		latest := f.latest()
		f.backend.Scribble(f, f.address, ns, []byte(raw))
		doc := f.document(ns)
		equal(f, "as scribbled", string(doc.Raw), raw)
		if doc.Raw == nil {
			f.Error("an empty document is taken for none")
		}
		if doc.Stamp == before.Stamp {
			f.Error("the stamp of a scribbled document did not change")
		}
		equal(f, "changes", f.changes(latest), []store.Change{{Kind: store.KindQuota, Key: ns}})
		set := f.put(ns, `{"max_pending":6}`)
		if set.Stamp.Revision <= doc.Stamp.Revision {
			f.Errorf("revision %d after the scribbled %d", set.Stamp.Revision, doc.Stamp.Revision)
		}
		f.backend.Scribble(f, f.address, ns, []byte(raw))
		if cleared := f.put(ns, ""); cleared.Raw != nil {
			f.Errorf("cleared: %q", cleared.Raw)
		}
	}
}

func quotaAudit(f *fixture) {
	const ns = "ns"
	first := f.put(ns, `{"max_pending":1}`)
	f.clock.Advance(time.Second)
	second := f.put(ns, `{"max_pending":2}`)
	f.clock.Advance(time.Second)
	c := f.change(ns, "")
	c.Audit.TokenID, c.Audit.ActingAs, c.Audit.Door = "plat1", ns, "grpc"
	third, err := f.s.PutQuota(f.ctx, c)
	f.ok(err)
	record := func(n int, token, acting, door, operation, old, new string, revision int64) store.Record {
		return store.Record{
			Time: epoch.Add(time.Duration(n) * time.Second), Namespace: ns, TokenID: token, ActingAs: acting, Door: door, Operation: operation,
			TargetKind: "namespace", Target: ns, Outcome: "ok", Old: old, New: new, Revision: revision,
		}
	}
	equal(f, "trail", f.trail(ns, store.AuditFilter{}, 10), []store.Record{
		record(0, "adm1", "", "nats", "set-quota", "", `{"max_pending":1}`, first.Stamp.Revision),
		record(1, "adm1", "", "nats", "set-quota", `{"max_pending":1}`, `{"max_pending":2}`, second.Stamp.Revision),
		record(2, "plat1", ns, "grpc", "clear-quota", `{"max_pending":2}`, "", third.Stamp.Revision),
	})
	f.setDefault(`{"max_pending":3}`)
	equal(f, "the installation's trail", operations(f.trail("", store.AuditFilter{}, 10)), []string{"set-quota"})
	equal(f, "the namespace's trail", len(f.trail(ns, store.AuditFilter{}, 10)), 3)
}

// latest is the present change number.
func (f *fixture) latest() int64 {
	f.Helper()
	n := int64(0)
	for {
		c, err := f.s.Changes(f.ctx, n, 1000)
		f.ok(err)
		if n = c.Latest; len(c.Items) == 0 {
			return n
		}
	}
}

// changes reads all changes after a number, in pages of two.
func (f *fixture) changes(since int64) []store.Change {
	f.Helper()
	var out []store.Change
	for range 10_000 {
		c, err := f.s.Changes(f.ctx, since, 2)
		f.ok(err)
		if len(c.Items) > 2 || c.Latest < since || len(c.Items) > 0 && c.Latest == since {
			f.Fatalf("since %d: %+v", since, c)
		}
		if since = c.Latest; len(c.Items) == 0 {
			return out
		}
		out = append(out, c.Items...)
	}
	f.Fatal("the changes do not end")
	return nil
}

func quotaChanges(f *fixture) {
	equal(f, "of an empty store", len(f.changes(0)), 0)
	f.put("a", `{"max_pending":1}`)
	f.put("b", `{"max_pending":1}`)
	f.put("a", `{"max_pending":2}`)
	f.setDefault(`{"max_pending":3}`)
	f.ok(f.s.PutToken(f.ctx, token("t1", "a"), "", store.Record{Namespace: "a"}))
	q := func(key string) store.Change { return store.Change{Kind: store.KindQuota, Key: key} }
	standard, tok := store.Change{Kind: store.KindDefaultQuota}, store.Change{Kind: store.KindToken, Key: "t1"}
	equal(f, "each once, by its last change", f.changes(0), []store.Change{q("b"), q("a"), standard, tok})
	since := f.latest()
	equal(f, "nothing new", len(f.changes(since)), 0)
	f.enqueue("a", f.spec()) // no change of a setting
	f.ok(f.s.TouchTokens(f.ctx, map[string]time.Time{"t1": f.clock.Now()}))
	equal(f, "after an enqueue", len(f.changes(since)), 0)
	f.ok(f.s.RevokeToken(f.ctx, "a", "t1", store.Record{Namespace: "a"}))
	f.put("b", "")
	f.setDefault("")
	equal(f, "the new ones", f.changes(since), []store.Change{tok, q("b"), standard})
	c := f.change("b", `{"max_pending":1}`)
	c.IfRevision = new(int64(999))
	since = f.latest()
	_, err := f.s.PutQuota(f.ctx, c)
	f.reason(err, fault.RevisionMismatch)
	equal(f, "after a refused change", len(f.changes(since)), 0)
}

// quotaChangesRace: while several writers change quotas, a reader that follows
// the change numbers ends up with each one's last revision.
func quotaChangesRace(f *fixture) {
	const writers, rounds = 6, 12
	handles := []store.Store{f.s, f.open(), f.open()}
	changes := make([][]store.QuotaChange, writers)
	for i := range changes {
		for r := range rounds {
			changes[i] = append(changes[i], f.change(fmt.Sprint("ns-", i), fmt.Sprintf(`{"max_pending":%d}`, r)))
		}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		together(writers, func(i int) {
			for _, c := range changes[i] {
				if _, err := handles[i%len(handles)].PutQuota(f.ctx, c); err != nil {
					f.Errorf("writer %d: %v", i, err)
					return
				}
			}
		})
	}()
	seen := map[string]int64{}
	since := int64(0)
	for ended := false; ; {
		if !ended {
			select {
			case <-done:
				ended = true
			default:
			}
		}
		c, err := f.s.Changes(f.ctx, since, 3)
		f.ok(err)
		since = c.Latest
		for _, item := range c.Items {
			seen[item.Key] = f.document(item.Key).Stamp.Revision
		}
		if ended && len(c.Items) == 0 {
			break
		}
	}
	for i := range writers {
		ns := fmt.Sprint("ns-", i)
		equal(f, "the last revision of "+ns, seen[ns], f.document(ns).Stamp.Revision)
	}
	equal(f, "namespaces seen", len(seen), writers)
}
