package storetest

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"flexiq/pkg/fault"
	"flexiq/pkg/job"
	"flexiq/pkg/namespace"
	"flexiq/pkg/store"
)

var nameCases = []testcase{
	{"namespaces never meet", nameNamespaces},
	{"queues and tasks never meet", nameQueues},
	{"unique and debounce keys never meet", nameKeys},
	{"workers, tokens and metadata keep every byte", nameOthers},
}

// names are pairs and families that careless quoting, patterns, collations or
// separators would bring together.
var names = []string{
	"a", "A", "\u00e1", "a\u0301", "a:b", "a.b", "a*", "*", ">", "a>", "=", "=61", "a=2eb", "a b", "a  b", "a%", "%", "a_", "_", "ab", "a\\", "\\",
	"'", "''", "\"", "a'b", "{a}", "{a", "}", "[a]", "a/b", "../a", "a?", "🐳", "日本", "ß", "ss", "SS", "\u0131", "i", "I", "\u0130", "\ufb01", "fi", "ns:1:a",
	"quota:ns:1:a", "quota:default", "default", "Default", "null", "NULL", "0", "00", "-1", "1e0", "true", "a\u200b", "\u202ea", "\u00c5", "\u212b", "A\u030a", "\ufffd",
	"x;y", "x,y", "x|y", "$1", "$$", "?", "@a", "#", "a\u00adb", strings.Repeat("x", 255), strings.Repeat("x", 254), strings.Repeat("é", 127),
	strings.Repeat("🐳", 63) + "abc",
}

// distinct is names, each once, in byte order.
func distinct() []string {
	return slices.Compact(slices.Sorted(slices.Values(names)))
}

func nameNamespaces(f *fixture) {
	all := distinct()
	spec := f.spec(withKey("k"))
	var calls []store.Call
	for i, ns := range all {
		f.ok(namespace.Check(ns))
		if i%3 == 0 {
			f.put(ns, fmt.Sprintf(`{"max_pending":%d}`, i+1))
		}
		calls = append(calls, f.call(ns, spec))
	}
	for i, o := range f.admit(calls...) {
		if o.Err != nil || o.Repeat || o.Results[0].Deduplicated {
			f.Errorf("%q: %+v", all[i], o)
		}
	}
	usage, err := f.s.Usage(f.ctx, all)
	f.ok(err)
	docs, err := f.s.Quotas(f.ctx, all)
	f.ok(err)
	for i, ns := range all {
		equal(f, "name and pending", [2]any{usage[i].Namespace, usage[i].Pending}, [2]any{ns, int64(1)})
		want := ""
		if i%3 == 0 {
			want = fmt.Sprintf(`{"max_pending":%d}`, i+1)
		}
		equal(f, fmt.Sprintf("quota of %q", ns), string(docs[i].Raw), want)
		equal(f, "namespace of the job", f.job(ns, spec.ID).Namespace, ns)
		equal(f, "listed", len(f.list(ns, store.Filter{}, 10)), 1)
	}
	var listed []string
	for after := ""; ; {
		page, err := f.s.Namespaces(f.ctx, after, 10)
		f.ok(err)
		listed = append(listed, page.Items...)
		if after = page.Next; after == "" {
			break
		}
	}
	equal(f, "all namespaces in byte order", listed, all)
	f.clock.Advance(time.Second)
	var wants []store.Want
	for _, ns := range all {
		wants = append(wants, f.want(ns, 5))
	}
	_, grants := f.turn(nil, wants...)
	for i, g := range grants {
		if len(g.Jobs) != 1 || g.Jobs[0].Job.Namespace != all[i] {
			f.Errorf("grant of %q: %+v", all[i], g)
		}
	}
	// One is ended; the others must not notice.
	f.settle(job.Completed, grants[0].Jobs[0])
	term := f.term()
	f.keep(term, all[0], store.Archive, 0)
	_, err = f.s.Job(f.ctx, all[0], spec.ID)
	f.reason(err, fault.NotFound)
	for _, ns := range all[1:] {
		f.holds(ns, counts{Running: 1})
	}
}

func nameQueues(f *fixture) {
	const ns = "ns"
	all := distinct()
	var specs []job.Spec
	for _, name := range all {
		specs = append(specs, f.spec(func(s *job.Spec) { s.Queue, s.Task = name, name }))
	}
	f.enqueue(ns, specs...)
	f.clock.Advance(time.Second)
	for i, name := range all {
		filter := store.Filter{Queue: name}
		if i%2 == 0 {
			filter = store.Filter{Task: name}
		}
		equal(f, fmt.Sprintf("jobs with %+v", filter), idsOfJobs(f.list(ns, filter, 10)), []string{specs[i].ID})
	}
	ready, err := f.s.Ready(f.ctx, []store.Interest{{Namespace: ns, Queues: []string{"a\x00", "aa", "n s"}}})
	f.ok(err)
	equal(f, "ready in queues that there are none of", ready, []store.Readiness{{}})
	var wants []store.Want
	for _, name := range all {
		wants = append(wants, f.want(ns, 10, queues(name)))
	}
	_, grants := f.turn(nil, wants...)
	var ends []store.Settlement
	for i, g := range grants {
		equal(f, fmt.Sprintf("claimed of the queue %q", all[i]), idsOf(g.Jobs), []string{specs[i].ID})
		equal(f, "queue and task", []string{g.Jobs[0].Job.Queue, g.Jobs[0].Job.Task}, []string{all[i], all[i]})
		ends = append(ends, ending(g.Jobs[0], job.Completed))
	}
	settled, _ := f.turn(ends)
	for i, s := range settled {
		equal(f, "answer", s, store.Settled{Accepted: true, State: job.Complete, Queue: all[i], Task: all[i], Attempt: 1})
	}
}

func nameKeys(f *fixture) {
	const ns = "ns"
	all := distinct()
	var unique []job.Spec
	var calls []store.Call
	for _, name := range all {
		unique = append(unique, f.spec(withKey(name)))
		calls = append(calls, f.call(ns, f.spec(func(s *job.Spec) {
			s.Debounce = job.Debounce{Key: name, Window: time.Second}
		})))
	}
	f.enqueue(ns, unique...)
	for i, o := range f.admit(calls...) {
		if o.Err != nil || o.Results[0].Debounced {
			f.Errorf("debounce key %q: %+v", all[i], o)
		}
	}
	for i, o := range f.admit(calls...) {
		if o.Err != nil || !o.Repeat {
			f.Errorf("debounce key %q again: %+v", all[i], o)
		}
	}
	var again []store.Call
	for _, name := range all {
		again = append(again, f.call(ns, f.spec(withKey(name))),
			f.call(ns, f.spec(func(s *job.Spec) { s.Debounce = job.Debounce{Key: name, Window: time.Second} })))
	}
	for i, o := range f.admit(again...) {
		r, name := o.Results[0], all[i/2]
		if i%2 == 0 {
			equal(f, fmt.Sprintf("holder of the unique key %q", name), [2]any{r.Deduplicated, r.Job.ID}, [2]any{true, unique[i/2].ID})
		} else {
			equal(f, fmt.Sprintf("holder of the debounce key %q", name), [2]any{r.Debounced, r.Job.ID}, [2]any{true, calls[i/2].Jobs[0].ID})
		}
	}
	f.holds(ns, counts{Pending: int64(2 * len(all))})
}

func nameOthers(f *fixture) {
	const ns = "ns"
	all := distinct()
	metadata := map[string]string{}
	for i, name := range all {
		if len(name) < 100 {
			metadata[name] = all[len(all)-1-i]
		}
	}
	metadata["control"] = "\x01\x1f\x7f\n\r\t"
	for len(metadata) > 0 && size(metadata) > job.MaxMetadata {
		for k := range metadata {
			delete(metadata, k)
			break
		}
	}
	spec := f.spec(func(s *job.Spec) { s.Metadata = metadata })
	f.enqueue(ns, spec)
	f.clock.Advance(time.Second)
	for i, name := range all {
		if i%4 != 0 {
			continue
		}
		l := f.take(ns, func(w *store.Want) { w.Worker = name })
		equal(f, "worker", f.job(ns, spec.ID).Worker, name)
		equal(f, "metadata", l.Job.Metadata, metadata)
		f.settle(job.Released, l)
	}
	for i, name := range all {
		if i%2 != 0 {
			continue
		}
		t := store.Token{ID: fmt.Sprintf("tok%03d", i), Namespace: name, Name: name, CreatedBy: name, CreatedAt: epoch, ExpiresAt: epoch.Add(time.Hour)}
		f.ok(f.s.PutToken(f.ctx, t, "", store.Record{Namespace: name, TokenID: name, Operation: "create-token", TargetKind: name, Target: name}))
	}
	for i, name := range all {
		if i%2 != 0 {
			continue
		}
		page, err := f.s.ListTokens(f.ctx, name, "", 10)
		f.ok(err)
		if len(page.Items) != 1 || page.Items[0].ID != fmt.Sprintf("tok%03d", i) || page.Items[0].Name != name {
			f.Errorf("tokens of %q: %+v", name, page.Items)
		}
		records := f.trail(name, store.AuditFilter{Kind: name}, 10)
		if len(records) != 1 || records[0].Target != name || records[0].TokenID != name {
			f.Errorf("trail of %q: %+v", name, records)
		}
	}
}

func size(m map[string]string) int {
	n := 0
	for k, v := range m {
		n += len(k) + len(v)
	}
	return n
}
