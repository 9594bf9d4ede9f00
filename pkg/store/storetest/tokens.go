package storetest

import (
	"fmt"
	"sync/atomic"
	"time"

	"flexiq/pkg/fault"
	"flexiq/pkg/store"
)

var tokenCases = []testcase{
	{"the first ones once", tokenBootstrap},
	{"the first ones from many processes", tokenBootstrapRace},
	{"put and get", tokenPut},
	{"list", tokenList},
	{"revoke", tokenRevoke},
	{"none comes of one that ended", tokenOfEnded},
	{"a revocation and what comes of the token", tokenRevokeRace},
	{"touch", tokenTouch},
	{"exchanged ones that expired are deleted", tokenPurge},
}

var trailCases = []testcase{
	{"records are kept", trailRecords},
	{"filters", trailFilters},
	{"pages", trailPages},
}

// tokenOfEnded: a token is not made on behalf of one that is revoked, erased or
// was never there, and the refusal leaves no record.
func tokenOfEnded(f *fixture) {
	put := func(id, by string) error {
		return f.s.PutToken(f.ctx, token(id, "ns"), by, store.Record{Namespace: "ns", Operation: "create-token", Target: id})
	}
	f.ok(put("maker", ""))
	f.ok(put("of the maker", "maker"))
	f.reason(put("of nobody", "nobody"), fault.Unauthenticated)
	f.ok(f.s.RevokeToken(f.ctx, "ns", "maker", store.Record{Namespace: "ns", Operation: "revoke-token"}))
	f.reason(put("too late", "maker"), fault.Unauthenticated)
	f.ok(put("grandchild", "of the maker"))
	equal(f, "trail", operations(f.trail("ns", store.AuditFilter{}, 10)), []string{"create-token", "create-token", "revoke-token", "create-token"})
	f.erase(f.s, "ns", 10)
	for _, by := range []string{"maker", "grandchild"} {
		f.reason(put("of an erased one", by), fault.Unauthenticated)
	}
	f.nothingLeft("ns")
}

// tokenRevokeRace: after the answer to a revocation no token comes of the revoked
// one in any process.
func tokenRevokeRace(f *fixture) {
	other := f.open()
	for round := range 10 {
		maker := fmt.Sprint("maker", round)
		f.ok(f.s.PutToken(f.ctx, token(maker, "ns"), "", store.Record{Namespace: "ns"}))
		var revoked atomic.Bool
		together(3, func(i int) {
			if i == 0 {
				f.ok(f.s.RevokeToken(f.ctx, "ns", maker, store.Record{Namespace: "ns"}))
				revoked.Store(true)
				return
			}
			s := []store.Store{f.s, other}[i-1]
			for n := range 20 {
				late := revoked.Load()
				err := s.PutToken(f.ctx, token(fmt.Sprintf("%s of %d by %d", maker, n, i), "ns"), maker, store.Record{Namespace: "ns"})
				if late && !fault.Is(err, fault.Unauthenticated) {
					f.Errorf("after the revocation: %v", err)
				}
				if err != nil {
					return
				}
			}
		})
	}
}

func token(id, ns string) store.Token {
	return store.Token{
		ID: id, Namespace: ns, Scopes: []string{"produce", "work"}, Name: "name of " + id, Hash: [32]byte{1, 0, 255, 31: 7},
		CreatedAt: epoch, CreatedBy: "adm1", ExpiresAt: epoch.Add(90 * 24 * time.Hour),
	}
}

func tokenBootstrap(f *fixture) {
	first := []store.Token{token("plat", ""), token("all", "default")}
	first[0].Scopes = []string{"platform"}
	since := f.latest()
	done, err := f.s.Bootstrap(f.ctx, first)
	f.ok(err)
	equal(f, "at first", done, true)
	equal(f, "changes", len(f.changes(since)), 2)
	for _, want := range first {
		got, err := f.s.Token(f.ctx, want.ID)
		f.ok(err)
		equal(f, "stored", *got, want)
	}
	again := []store.Token{token("plat2", "")}
	done, err = f.open().Bootstrap(f.ctx, again)
	f.ok(err)
	equal(f, "again", done, false)
	_, err = f.s.Token(f.ctx, "plat2")
	f.reason(err, fault.NotFound)
	f.ok(f.s.RevokeToken(f.ctx, "", "plat", store.Record{}))
	f.ok(f.s.RevokeToken(f.ctx, "default", "all", store.Record{Namespace: "default"}))
	f.clock.Advance(366 * 24 * time.Hour)
	done, err = f.s.Bootstrap(f.ctx, again)
	f.ok(err)
	equal(f, "when all are revoked and expired", done, false)
}

func tokenBootstrapRace(f *fixture) {
	const processes = 6
	handles := []store.Store{f.s, f.open(), f.open()}
	var done atomic.Int64
	together(processes, func(i int) {
		ok, err := handles[i%len(handles)].Bootstrap(f.ctx, []store.Token{token(fmt.Sprint("p", i), ""), token(fmt.Sprint("d", i), "default")})
		if err != nil {
			f.Errorf("process %d: %v", i, err)
		} else if ok {
			done.Add(1)
		}
	})
	equal(f, "processes that wrote the first tokens", done.Load(), 1)
	for ns, n := range map[string]int{"": 1, "default": 1} {
		page, err := f.s.ListTokens(f.ctx, ns, "", 10)
		f.ok(err)
		equal(f, fmt.Sprintf("tokens of %q", ns), len(page.Items), n)
	}
}

func tokenPut(f *fixture) {
	want := token("t1", "a:b")
	want.ActingAs, want.Name, want.Scopes = "plat", "", []string{"inspect"}
	audit := store.Record{Namespace: "a:b", TokenID: "plat", ActingAs: "a:b", Door: "http", Operation: "create-token", TargetKind: "token", Target: "t1", New: `{"name":""}`}
	f.ok(f.s.PutToken(f.ctx, want, "", audit))
	got, err := f.open().Token(f.ctx, "t1")
	f.ok(err)
	equal(f, "stored", *got, want)
	audit.Time, audit.Outcome = epoch, "ok"
	equal(f, "record", f.trail("a:b", store.AuditFilter{}, 10), []store.Record{audit})
	for _, id := range []string{"t2", "", "T1", "t1 ", "t%"} {
		_, err := f.s.Token(f.ctx, id)
		e := f.reason(err, fault.NotFound)
		equal(f, "message", e.Message, "token not found")
	}
	f.clock.Advance(365 * 24 * time.Hour)
	got, err = f.s.Token(f.ctx, "t1")
	f.ok(err)
	equal(f, "an expired one is found", got.ExpiresAt, want.ExpiresAt)
	done, err := f.s.Bootstrap(f.ctx, []store.Token{token("plat", "")})
	f.ok(err)
	equal(f, "bootstrap after a token", done, false)
}

func tokenList(f *fixture) {
	want := map[string][]string{}
	for i := range 15 {
		ns := []string{"a", "b", ""}[i%3]
		id := fmt.Sprintf("t%02d", (i*4)%15)
		f.ok(f.s.PutToken(f.ctx, token(id, ns), "", store.Record{Namespace: ns}))
	}
	for i := range 15 {
		for j := range 15 {
			if id := fmt.Sprintf("t%02d", i); (j*4)%15 == i {
				ns := []string{"a", "b", ""}[j%3]
				want[ns] = append(want[ns], id)
			}
		}
	}
	f.ok(f.s.RevokeToken(f.ctx, "a", want["a"][1], store.Record{Namespace: "a"}))
	for _, ns := range []string{"a", "b", "", "c", "A"} {
		for _, size := range []int{1, 2, 5, 100} {
			var got []string
			for after := ""; ; {
				page, err := f.s.ListTokens(f.ctx, ns, after, size)
				f.ok(err)
				for _, t := range page.Items {
					got = append(got, t.ID)
				}
				if after = page.Next; after == "" {
					break
				}
			}
			equal(f, fmt.Sprintf("tokens of %q in pages of %d", ns, size), got, want[ns])
		}
	}
}

func tokenRevoke(f *fixture) {
	f.ok(f.s.PutToken(f.ctx, token("t1", "a"), "", store.Record{Namespace: "a", Operation: "create-token"}))
	f.ok(f.s.PutToken(f.ctx, token("t2", ""), "", store.Record{Operation: "create-token"}))
	f.clock.Advance(time.Minute)
	for ns, id := range map[string]string{"b": "t1", "": "t1", "a": "t2", "A": "t1"} {
		f.reason(f.s.RevokeToken(f.ctx, ns, id, store.Record{Namespace: ns}), fault.NotFound)
	}
	got, err := f.s.Token(f.ctx, "t1")
	f.ok(err)
	equal(f, "after refused ones", got.RevokedAt, time.Time{})
	revoke := store.Record{Namespace: "a", TokenID: "adm1", Operation: "revoke-token", TargetKind: "token", Target: "t1"}
	f.ok(f.s.RevokeToken(f.ctx, "a", "t1", revoke))
	at := f.clock.Now()
	f.clock.Advance(time.Minute)
	f.ok(f.s.RevokeToken(f.ctx, "a", "t1", revoke))
	want := token("t1", "a")
	want.RevokedAt = at
	got, err = f.s.Token(f.ctx, "t1")
	f.ok(err)
	equal(f, "revoked", *got, want)
	equal(f, "trail", operations(f.trail("a", store.AuditFilter{}, 10))[:2], []string{"create-token", "revoke-token"})
	f.ok(f.s.RevokeToken(f.ctx, "", "t2", store.Record{}))
}

func tokenTouch(f *fixture) {
	f.ok(f.s.PutToken(f.ctx, token("t1", "a"), "", store.Record{Namespace: "a"}))
	f.ok(f.s.PutToken(f.ctx, token("t2", "a"), "", store.Record{Namespace: "a"}))
	at := epoch.Add(time.Minute)
	f.ok(f.s.TouchTokens(f.ctx, map[string]time.Time{"t1": at, "unknown": at, "": at}))
	got, err := f.s.Token(f.ctx, "t1")
	f.ok(err)
	want := token("t1", "a")
	want.LastUsed = at
	equal(f, "touched", *got, want)
	got, err = f.s.Token(f.ctx, "t2")
	f.ok(err)
	equal(f, "not touched", got.LastUsed, time.Time{})
	f.ok(f.s.TouchTokens(f.ctx, map[string]time.Time{"t1": at.Add(time.Minute), "t2": at}))
	got, err = f.s.Token(f.ctx, "t1")
	f.ok(err)
	equal(f, "touched again", got.LastUsed, at.Add(time.Minute))
	f.ok(f.s.TouchTokens(f.ctx, nil))
}

// trail reads a namespace's whole trail.
func (f *fixture) trail(ns string, filter store.AuditFilter, size int) []store.Record {
	f.Helper()
	var out []store.Record
	after := ""
	for range 10_000 {
		page, err := f.s.ListAudit(f.ctx, ns, filter, after, size)
		f.ok(err)
		if len(page.Items) > size {
			f.Fatalf("a page of %d has %d records", size, len(page.Items))
		}
		out = append(out, page.Items...)
		if after = page.Next; after == "" {
			return out
		}
	}
	f.Fatal("the trail does not end")
	return nil
}

func operations(records []store.Record) []string {
	var out []string
	for _, r := range records {
		out = append(out, r.Operation)
	}
	return out
}

func trailRecords(f *fixture) {
	want := store.Record{
		Namespace: "ns", TokenID: "t1", ActingAs: "ns", Door: "http", Operation: "set-quota", TargetKind: "namespace", Target: "wren",
		Outcome: "PERMISSION_DENIED", Old: "not JSON", New: `{"a":"é\u0000"}`, Revision: 1 << 62,
	}
	f.ok(f.s.Audit(f.ctx, want))
	f.ok(f.s.Audit(f.ctx, store.Record{Outcome: "ok"}))
	want.Time = epoch
	equal(f, "a record", f.trail("ns", store.AuditFilter{}, 10), []store.Record{want})
	equal(f, "an empty one", f.trail("", store.AuditFilter{}, 10), []store.Record{{Time: epoch, Outcome: "ok"}})
}

func trailFilters(f *fixture) {
	for i := range 12 {
		r := store.Record{Namespace: []string{"a", "b"}[i%2], TargetKind: []string{"namespace", "token", "override"}[i%3], Operation: fmt.Sprint(i)}
		f.ok(f.s.Audit(f.ctx, r))
		f.clock.Advance(time.Second)
	}
	for name, tt := range map[string]struct {
		filter store.AuditFilter
		want   []string
	}{
		"all":           {store.AuditFilter{}, []string{"0", "2", "4", "6", "8", "10"}},
		"kind":          {store.AuditFilter{Kind: "token"}, []string{"4", "10"}},
		"since":         {store.AuditFilter{Since: epoch.Add(6 * time.Second)}, []string{"6", "8", "10"}},
		"kind, since":   {store.AuditFilter{Kind: "namespace", Since: epoch.Add(time.Second)}, []string{"6"}},
		"no such kind":  {store.AuditFilter{Kind: "Token"}, nil},
		"since the end": {store.AuditFilter{Since: epoch.Add(time.Hour)}, nil},
	} {
		equal(f, name, operations(f.trail("a", tt.filter, 2)), tt.want)
	}
}

// trailPages: records of one instant are neither repeated nor lost, also while
// others are written.
func trailPages(f *fixture) {
	var want []string
	for i := range 20 {
		f.ok(f.s.Audit(f.ctx, store.Record{Namespace: "ns", Operation: fmt.Sprint(i)}))
		want = append(want, fmt.Sprint(i))
	}
	for _, size := range []int{1, 3, 20, 100} {
		equal(f, fmt.Sprintf("pages of %d", size), operations(f.trail("ns", store.AuditFilter{}, size)), want)
	}
	page, err := f.s.ListAudit(f.ctx, "ns", store.AuditFilter{}, "", 15)
	f.ok(err)
	f.clock.Advance(time.Second)
	f.ok(f.s.Audit(f.ctx, store.Record{Namespace: "ns", Operation: "20"}))
	rest, err := f.s.ListAudit(f.ctx, "ns", store.AuditFilter{}, page.Next, 15)
	f.ok(err)
	equal(f, "with one more", operations(append(page.Items, rest.Items...)), append(want, "20"))
}

// tokenPurge: a token that another was exchanged for goes with a later one, an
// hour after it expired; others stay, expired or not.
func tokenPurge(f *fixture) {
	put := func(id, ns, acting string, ttl time.Duration) {
		t := token(id, ns)
		t.ActingAs, t.CreatedAt = acting, f.clock.Now()
		t.ExpiresAt = t.CreatedAt.Add(ttl)
		f.ok(f.s.PutToken(f.ctx, t, "", store.Record{Namespace: ns, Operation: "exchange-token"}))
	}
	ids := func(ns string) (out []string) {
		page, err := f.s.ListTokens(f.ctx, ns, "", 100)
		f.ok(err)
		for _, t := range page.Items {
			out = append(out, t.ID)
		}
		return out
	}
	for i := range 3 {
		put(fmt.Sprint("a", i), "a", "plat", 5*time.Minute)
		put(fmt.Sprint("b", i), "b", "plat", 5*time.Minute)
	}
	put("own", "a", "", time.Minute)
	f.ok(f.s.RevokeToken(f.ctx, "a", "a1", store.Record{Namespace: "a"}))
	f.clock.Advance(65 * time.Minute)
	put("a8", "a", "plat", 5*time.Minute)
	equal(f, "not yet", ids("a"), []string{"a0", "a1", "a2", "a8", "own"})
	f.clock.Advance(time.Second)
	put("plain", "a", "", 5*time.Minute)
	equal(f, "only an exchange deletes", len(ids("a")), 6)
	since := f.latest()
	put("a9", "a", "plat", 5*time.Minute)
	equal(f, "after the hour", ids("a"), []string{"a8", "a9", "own", "plain"})
	equal(f, "of the other namespace", ids("b"), []string{"b0", "b1", "b2"})
	_, err := f.s.Token(f.ctx, "a1")
	f.reason(err, fault.NotFound)
	equal(f, "changes", f.changes(since), []store.Change{{Kind: store.KindToken, Key: "a9"}})
	for _, c := range f.changes(0) {
		if c.Key == "a0" {
			f.Error("the changes still tell of a deleted token")
		}
	}
}
