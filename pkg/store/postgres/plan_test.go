package postgres

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"flexiq/pkg/job"
	"flexiq/pkg/store"
	"flexiq/pkg/testkit"
)

// TestPlans runs every operation while the server tells the plan of each
// statement, those of the triggers included, in all states in which a queue's tables
// may be: never used, vacuumed while empty, with a few rows, full, and drained.
// One store keeps its sessions, and so its plans, throughout.
func TestPlans(t *testing.T) {
	server := testkit.StartPostgres(t)
	const schema = "plans"
	old := observed(t, server.URL(), schema)
	sh := func(sql string) { t.Helper(); execute(t, server.URL(), sql) }
	check := func(state string) {
		t.Helper()
		for name, s := range map[string]*observer{"new": observed(t, server.URL(), schema), "old": old} {
			s.exercise(t, fmt.Sprintf("%s, %s sessions", state, name))
		}
	}
	check("fresh")
	sh("vacuum analyze")
	check("few rows")
	sh("delete from plans.jobs; delete from plans.archive; delete from plans.dead_letters; delete from plans.payloads")
	sh("vacuum analyze")
	check("vacuumed while empty")
	old.fill(t, 20_000)
	check("full, not analyzed")
	sh("vacuum analyze")
	check("full")
	sh("delete from plans.jobs; delete from plans.archive; delete from plans.dead_letters")
	check("drained")
	sh("analyze")
	check("drained and analyzed")
}

// observer is a store whose plans are seen.
type observer struct {
	*Store
	mu    sync.Mutex
	plans []string
}

func observed(t *testing.T, url, schema string) *observer {
	t.Helper()
	o := &observer{}
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{
		"session_preload_libraries": "auto_explain", "auto_explain.log_min_duration": "0", "auto_explain.log_level": "notice",
		"auto_explain.log_nested_statements": "on", "auto_explain.log_format": "json", "auto_explain.log_verbose": "on",
	} {
		config.ConnConfig.RuntimeParams[name] = value
	}
	config.ConnConfig.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.plans = append(o.plans, n.Message)
	}
	if o.Store, err = open(t.Context(), config, Options{Schema: schema}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { o.Close() })
	return o
}

// exercise does everything and looks at the plans.
func (o *observer) exercise(t *testing.T, state string) {
	t.Helper()
	o.mu.Lock()
	o.plans = nil
	o.mu.Unlock()
	o.operate(t)
	o.mu.Lock()
	defer o.mu.Unlock()
	seen := make(map[string]bool)
	wrong := make(map[string]bool)
	for _, text := range o.plans {
		_, text, ok := strings.Cut(text, "plan:")
		if !ok {
			continue
		}
		var p struct {
			Query string `json:"Query Text"`
			Plan  node
		}
		if err := json.Unmarshal([]byte(text), &p); err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		p.Plan.check(p.Query, seen, func(format string, args ...any) {
			wrong[fmt.Sprintf(format, args...)+" in\n"+p.Query] = true
		})
	}
	for what := range wrong {
		t.Errorf("%s: %s", state, what)
	}
	for _, index := range []string{
		"jobs_pkey", "jobs_pending", "jobs_leases", "jobs_unique", "jobs_debounce", "archive_pkey", "archive_age",
		"dead_letters_pkey", "dead_letters_age", "dead_letters_retry", "payloads_pkey", "lanes_pkey", "usage_pkey", "history_pkey", "buckets_pkey",
		"namespaces_pkey", "settings_pkey", "overrides_pkey", "relabels_pkey", "lanes_lane", "changes_number", "audit_namespace", "audit_age",
	} {
		if !seen[index] {
			t.Errorf("%s: no statement used %s", state, index)
		}
	}
}

// node is a node of a plan.
type node struct {
	Type     string `json:"Node Type"`
	Relation string `json:"Relation Name"`
	Index    string `json:"Index Name"`
	Cond     string `json:"Index Cond"`
	Plans    []node
}

func (n *node) check(query string, seen map[string]bool, wrong func(string, ...any)) {
	switch n.Type {
	case "Seq Scan", "Bitmap Heap Scan", "Hash Join", "Merge Join":
		wrong("%s of %s", n.Type, n.Relation)
	}
	if n.Index != "" && n.Relation != "tokens" { // of which there are few, and not suddenly more
		seen[n.Index] = true
		if want, cond := indexFor(query, n.Relation); !n.second(query) && (want != n.Index || !strings.Contains(n.Cond, cond)) {
			wrong("%s of %s by %s (%s), want %s (…%s…)", n.Type, n.Relation, n.Index, n.Cond, want, cond)
		}
	}
	for i := range n.Plans {
		n.Plans[i].check(query, seen, wrong)
	}
}

// second reports whether a statement that looks into a table by two indexes uses
// the other one.
func (n *node) second(query string) bool {
	switch n.Index {
	case "lanes_lane":
		return strings.Contains(n.Cond, "lane = ") && strings.Contains(query, "lane = o.name")
	case "jobs_pkey":
		return strings.Contains(n.Cond, "id = ") && strings.Contains(query, "with me as")
	}
	return false
}

// indexFor is the index by which a statement must find the rows of a table, and a part
// of the condition by which it is searched.
func indexFor(query, table string) (index, cond string) {
	has := func(part string) bool { return strings.Contains(query, part) }
	listing := has("order by id limit $3")
	erasing := has("order by ns, id limit $2")
	switch table {
	case "jobs":
		switch {
		case has("unique_key = u.key"):
			return "jobs_unique", "unique_key = "
		case has("debounce_key = u.key"):
			return "jobs_debounce", "debounce_key = "
		case has("lease_expires <="):
			return "jobs_leases", "lease_expires <= "
		case has("lease_expires > 0"):
			return "jobs_leases", "lease_expires > "
		case has("with few as"):
			return "jobs_pkey", "id > "
		case has("order by j.run_at, j.id limit 1"), has("order by run_at, id limit w.room"), has("order by j.run_at, j.id limit least(w.room"), has("with me as"):
			return "jobs_pending", "rank = "
		case listing:
			return "jobs_pkey", "id > "
		case erasing:
			return "jobs_pkey", "ns = "
		}
		return "jobs_pkey", "id = "
	case "archive", "dead_letters":
		switch {
		case has("not shed"):
			return "dead_letters_retry", "finished_at < "
		case has("order by finished_at, id"):
			return table + "_age", "finished_at < "
		case listing:
			return table + "_pkey", "id > "
		case erasing:
			return table + "_pkey", "ns = "
		}
		return table + "_pkey", "id = "
	case "payloads":
		if erasing {
			return "payloads_pkey", "ns = "
		}
		return "payloads_pkey", "id = "
	case "lanes":
		return "lanes_pkey", "ns = "
	case "usage", "history", "buckets", "overrides":
		return table + "_pkey", "ns = "
	case "relabels":
		return "relabels_pkey", ""
	case "namespaces":
		return "namespaces_pkey", "name "
	case "settings":
		if has("order by scope, key") {
			return "settings_pkey", "scope = "
		}
		return "settings_pkey", "key = "
	case "changes":
		if has("kind = 'token'") {
			return "changes_pkey", "key = "
		}
		return "changes_number", "number > "
	case "audit":
		if has("order by at, number") {
			return "audit_age", "at < "
		}
		return "audit_namespace", "namespace "
	}
	return table + "_pkey", "" // the tables of one row
}

// fill makes n jobs and as many rows of history.
func (o *observer) fill(t *testing.T, n int) {
	t.Helper()
	for range n / 1000 {
		for _, q := range []string{"default", "mail"} {
			must(t, o.Store, calls(t, "full", 1, 500, func(s *job.Spec) { s.Queue = q }))
		}
	}
	execute(t, o.pool.Config().ConnString(), `insert into plans.archive select ns, gen_random_uuid(), 2, created_at, queue, rank, run_at, 1, created_at, null, '', '',
		task, max_attempts, timeout, backoff_base, backoff_max, created_at, '', '', 0, 0, origin, enqueued_by, '', fingerprint, 1, 0, payload, null
		from plans.jobs`)
}

// hold claims under overrides, with caps that are filled in the middle of a
// grant and while jobs move between lanes, and shows what operators are shown.
func (o *observer) hold(t *testing.T, ns string) {
	t.Helper()
	ctx, s := t.Context(), o.Store
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	two := int64(2)
	for _, over := range []store.Override{
		{Namespace: ns, Kind: store.OverrideQueue, Name: "default", MaxConcurrent: new(int64(1_000_000))},
		{Namespace: ns, Kind: store.OverrideTask, Name: "few", MaxConcurrent: &two},
		{Namespace: ns, Kind: store.OverrideTask, Name: "none", Paused: new(true)},
	} {
		ok(s.PutOverride(ctx, over, store.Record{Namespace: uuid.NewString()}))
	}
	must(t, s, calls(t, ns, 1, 5, func(sp *job.Spec) { sp.Task, sp.Priority = "few", 9 }))
	grants := turn(t, s, nil, want(t, s, ns, 7), want(t, s, ns, 1, "default"))
	_, err := s.pool.Exec(ctx, s.sql[markRelabel], ns)
	ok(err)
	turn(t, s, nil, want(t, s, ns, 2))
	_, err = s.Overrides(ctx, []string{ns, "a"})
	ok(err)
	_, err = s.Queues(ctx, ns, "", 10)
	ok(err)
	_, err = s.Holders(ctx, ns, "", "few", 10)
	ok(err)
	page, err := s.ListJobs(ctx, ns, store.Filter{State: job.Pending}, "", 1)
	ok(err)
	_, err = s.Ahead(ctx, ns, page.Items[0].ID, 100)
	ok(err)
	var settle []store.Settlement
	for _, g := range grants {
		for _, l := range g.Jobs {
			settle = append(settle, store.Settlement{Namespace: ns, JobID: l.Job.ID, Lease: l.Lease, Outcome: job.Completed})
		}
	}
	turn(t, s, settle)
	for _, name := range []string{"few", "none"} {
		ok(s.ClearOverride(ctx, ns, store.OverrideTask, name, store.Record{Namespace: uuid.NewString()}))
	}
	ok(s.ClearOverride(ctx, ns, store.OverrideQueue, "default", store.Record{Namespace: uuid.NewString()}))
}

// operate does every operation that touches large tables.
func (o *observer) operate(t *testing.T) {
	t.Helper()
	ctx, s := t.Context(), o.Store
	const ns = "full"
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	big := make([]byte, 4*asideFrom)
	rate := `{"max_running":1000000,"enqueue_rate":"1000000/s"}`
	setQuota(t, s, ns, rate)
	must(t, s, calls(t, ns, 3, 5, func(sp *job.Spec) { sp.Payload, sp.UniqueKey = big, sp.ID }))
	for range 2 {
		must(t, s, calls(t, ns, 1, 1, func(sp *job.Spec) {
			sp.Debounce, sp.Payload = job.Debounce{Key: "d", Window: time.Hour}, big
		}))
	}
	group := append(calls(t, "a", 1, 2), calls(t, "b", 1, 2)...)
	must(t, s, group)
	must(t, s, group)

	grants := turn(t, s, nil, want(t, s, ns, 20), want(t, s, ns, 3), want(t, s, "a", 5, "default", "mail"))
	var settle []store.Settlement
	outcomes := []job.Outcome{job.Completed, job.Failed, job.GivenUp, job.Released}
	for i, l := range grants[0].Jobs {
		settle = append(settle, store.Settlement{Namespace: ns, JobID: l.Job.ID, Lease: l.Lease, Outcome: outcomes[i%4], Error: "x"})
	}
	turn(t, s, settle, want(t, s, ns, 3))
	for _, l := range grants[1].Jobs {
		_, err := s.Heartbeat(ctx, []store.Beat{{Namespace: ns, JobID: l.Job.ID, Lease: l.Lease, Extend: time.Hour}})
		ok(err)
	}
	o.hold(t, ns)
	_, err := s.Expire(ctx, 100)
	ok(err)
	_, err = s.Ready(ctx, []store.Interest{{Namespace: ns}, {Namespace: "a", Queues: []string{"default"}}})
	ok(err)
	_, err = s.Cancel(ctx, ns, store.Selection{}, 3)
	ok(err)
	_, err = s.Cancel(ctx, "b", store.Selection{IDs: []string{group[1].Jobs[0].ID}}, 3)
	ok(err)
	_, err = s.Job(ctx, "a", group[0].Jobs[0].ID)
	ok(err)
	for _, state := range append([]job.State{""}, job.States...) {
		_, err = s.ListJobs(ctx, ns, store.Filter{State: state}, "", 10)
		ok(err)
	}
	_, err = s.Usage(ctx, []string{ns, "a", "none"})
	ok(err)
	_, err = s.Namespaces(ctx, "", 10)
	ok(err)
	_, err = s.Changes(ctx, 0, 10)
	ok(err)
	_, err = s.Bootstrap(ctx, []store.Token{{ID: "t1"}})
	ok(err)
	_, err = s.Token(ctx, "t1")
	ok(err)
	_, err = s.ListTokens(ctx, "", "", 10)
	ok(err)
	_, err = s.ListAudit(ctx, ns, store.AuditFilter{}, "", 10)
	ok(err)
	term, err := s.NewTerm(ctx, "me")
	ok(err)
	keep := int64(2)
	for _, table := range []store.Table{store.Archive, store.DeadLetters} {
		_, err = s.Trim(ctx, store.Trim{Term: term, Namespace: ns, Table: table, Keep: &keep, Limit: 3})
		ok(err)
		_, err = s.Trim(ctx, store.Trim{Term: term, Namespace: ns, Table: table, Before: time.Now().Add(-time.Hour), Limit: 3})
		ok(err)
	}
	_, err = s.TrimAudit(ctx, term, time.Now().Add(-time.Hour), 3)
	ok(err)
	o.erase(t)
	o.letters(t, ns)
}

// letters makes dead letters, replays and deletes some.
func (o *observer) letters(t *testing.T, ns string) {
	t.Helper()
	ctx, s := t.Context(), o.Store
	made := calls(t, ns, 1, 4, func(sp *job.Spec) { sp.Queue, sp.Payload, sp.UniqueKey = "letters", make([]byte, 4*asideFrom), sp.ID })
	must(t, s, made)
	var settle []store.Settlement
	for _, l := range turn(t, s, nil, want(t, s, ns, 10, "letters"))[0].Jobs {
		settle = append(settle, store.Settlement{Namespace: ns, JobID: l.Job.ID, Lease: l.Lease, Outcome: job.GivenUp})
	}
	turn(t, s, settle)
	q := want(t, s, ns, 1)
	ids := made[0].Jobs
	r := store.Replay{Namespace: ns, Automatic: true, Stamp: q.Stamp, Letters: []store.Letter{{ID: ids[0].ID, As: uuid.NewString()}, {ID: ids[1].ID, As: uuid.NewString()}}}
	out, err := s.Replay(ctx, r)
	if err != nil || out[0].Job == nil || out[1].Job == nil {
		t.Fatalf("replay: %+v, %v", out, err)
	}
	if n, err := s.DeleteDead(ctx, ns, []string{ids[2].ID, ids[3].ID}, store.Record{Namespace: ns}); n != 2 || err != nil {
		t.Fatalf("deleted %d: %v", n, err)
	}
	if _, err := s.Retryable(ctx, store.Retryable{Namespace: ns, Before: time.Now(), Most: 1, Limit: 10}); err != nil {
		t.Fatal(err)
	}
}

// erase fills a namespace and erases it.
func (o *observer) erase(t *testing.T) {
	t.Helper()
	ctx, s := t.Context(), o.Store
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	const other = "erased"
	must(t, s, calls(t, other, 2, 2, func(sp *job.Spec) { sp.Payload = make([]byte, 4*asideFrom) }))
	for i := range 3 {
		ok(s.PutToken(ctx, store.Token{ID: "x" + uuid.NewString(), Namespace: other, ActingAs: "t1"}, "", store.Record{Namespace: other}))
		_, err := s.PutSetting(ctx, store.Setting{Namespace: other, Key: fmt.Sprint("k", i)}, store.Record{Namespace: other})
		ok(err)
	}
	_, err := s.Setting(ctx, other, "k0")
	ok(err)
	_, err = s.ListSettings(ctx, other, "", 2)
	ok(err)
	ok(s.DeleteSetting(ctx, other, "k1", store.Record{Namespace: other}))
	for more := true; more; {
		out, err := s.EraseNamespace(ctx, other, 3)
		ok(err)
		more = out.More
	}
}
