package sqlite

import (
	"strings"
	"testing"
	"time"

	"flexiq/pkg/job"
	"flexiq/pkg/store"
)

// hot are the statements whose cost must not depend on how many rows there
// are, each with what its plan must use.
var hot = map[string][]string{
	selectSpace:    {"namespaces_name (name=?)", "SEARCH u USING INTEGER PRIMARY KEY"},
	selectKnown:    {"SEARCH jobs USING INDEX sqlite_autoindex_jobs_1 (ns=? AND id=?)", "SEARCH archive", "SEARCH dead_letters"},
	selectNewest:   {"SEARCH jobs USING COVERING INDEX sqlite_autoindex_jobs_1 (ns=?)", "SEARCH archive", "SEARCH dead_letters"},
	selectUnique:   {"jobs_unique (ns=? AND unique_key=?)"},
	selectWaiting:  {"jobs_debounce (ns=? AND debounce_key=?)"},
	selectDue:      {"jobs_pending (ns=? AND queue=? AND lane=? AND rank=? AND (run_at,id)>(?,?))"},
	selectNext:     {"jobs_pending (ns=? AND queue=? AND lane=? AND rank=? AND run_at>?)"},
	claimJob:       {"INTEGER PRIMARY KEY (rowid=?)"},
	retryJob:       {"INTEGER PRIMARY KEY (rowid=?)"},
	archiveJob:     {"INTEGER PRIMARY KEY (rowid=?)"},
	buryJob:        {"INTEGER PRIMARY KEY (rowid=?)"},
	deleteJob:      {"INTEGER PRIMARY KEY (rowid=?)"},
	selectSettled:  {"sqlite_autoindex_archive_1 (ns=? AND id=?)", "sqlite_autoindex_dead_letters_1 (ns=? AND id=?)"},
	anyExpired:     {"jobs_leases (lease_expires<?)"},
	selectExpired:  {"jobs_leases (lease_expires<?)"},
	readyOfSpace:   {"SEARCH l USING PRIMARY KEY (ns=?)", "jobs_pending (ns=? AND queue=? AND lane=? AND rank=? AND run_at>?)"},
	readyOfQueue:   {"SEARCH l USING PRIMARY KEY (ns=? AND queue=?)", "jobs_pending (ns=? AND queue=? AND lane=? AND rank=?)"},
	selectJob:      {"sqlite_autoindex_jobs_1 (ns=? AND id=?)", "SEARCH archive", "SEARCH dead_letters"},
	selectHistory:  {"INTEGER PRIMARY KEY"},
	selectDocument: {"sqlite_autoindex_settings_1 (scope=? AND key=?)"},
	selectTokens:   {"tokens_namespace (namespace=? AND id>?)"},
	selectRecords:  {"audit_namespace (namespace=? AND id>?)"},

	selectCancellable:                         {"sqlite_autoindex_jobs_1 (ns=? AND id>?)"},
	listing(store.Filter{}):                   {"MERGE (UNION ALL)", "sqlite_autoindex_jobs_1 (ns=? AND id>?)", "sqlite_autoindex_archive_1", "sqlite_autoindex_dead_letters_1"},
	listing(store.Filter{State: job.Dead}):    {"sqlite_autoindex_dead_letters_1 (ns=? AND id>?)"},
	histories[store.Archive].selectOldest:     {"archive_age (ns=? AND finished_at<?)"},
	histories[store.DeadLetters].selectOldest: {"dead_letters_age (ns=? AND finished_at<?)"},
	histories[store.Archive].deleteRow:        {"sqlite_autoindex_archive_1 (ns=? AND id=?)"},
	selectLetter:                              {"sqlite_autoindex_dead_letters_1 (ns=? AND id=?)"},
	selectRetryable:                           {"dead_letters_retry (ns=? AND (finished_at,id)>(?,?)"},
	lanesOfSpace:                              {"USING PRIMARY KEY (ns=?)"},
	lanesOfQueue:                              {"USING PRIMARY KEY (ns=? AND queue=?)"},
	deleteRecords:                             {"audit_age (at<?)"},
	selectChanges:                             {"(seq>?)"},
}

// TestPlans explains every hot statement on a fresh store, on one that was
// analysed full, and on one that was analysed drained: a queue's tables change
// their sizes all the time, and plans must not.
func TestPlans(t *testing.T) {
	clock := time.Now()
	s := open(t, Options{Now: func() time.Time { clock = clock.Add(time.Second); return clock }})
	ctx := t.Context()
	explain := func(state string) {
		t.Helper()
		c, err := connect(s.path) // plans are made anew
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		for query, wants := range hot {
			var plan strings.Builder
			err := c.each("EXPLAIN QUERY PLAN "+query, func(r *row) bool {
				r.n = 3
				plan.WriteString(r.text() + "\n")
				return true
			})
			if err != nil {
				t.Fatalf("%s: %v", query, err)
			}
			for _, want := range wants {
				if !strings.Contains(plan.String(), want) {
					t.Errorf("%s: the plan does not use %q:\n%s\n%s", state, want, query, plan.String())
				}
			}
			for _, bad := range []string{"SCAN jobs", "SCAN archive", "SCAN dead_letters", "SCAN lanes", "SCAN l", "SCAN namespaces", "TEMP B-TREE"} {
				if strings.Contains(plan.String(), bad) {
					t.Errorf("%s: %s:\n%s\n%s", state, bad, query, plan.String())
				}
			}
		}
	}
	explain("fresh")
	for range 3 {
		if _, err := s.Admit(ctx, append(calls(t, "ns", 3, 100), calls(t, "other", 1, 10)...)); err != nil {
			t.Fatal(err)
		}
	}
	work := func(n int) {
		t.Helper()
		_, grants, err := s.Turn(ctx, nil, []store.Want{{Namespace: "ns", Max: n, LeaseFor: time.Hour}})
		if err != nil {
			t.Fatal(err)
		}
		var settle []store.Settlement
		for i, l := range grants[0].Jobs {
			settle = append(settle, store.Settlement{Namespace: "ns", JobID: l.Job.ID, Lease: l.Lease,
				Outcome: []job.Outcome{job.Completed, job.GivenUp, job.Failed}[i%3]})
		}
		if _, _, err := s.Turn(ctx, settle, nil); err != nil {
			t.Fatal(err)
		}
	}
	work(200)
	shell(t, s.path, "ANALYZE")
	explain("full")
	clock = clock.Add(24 * time.Hour)
	for range 4 {
		work(200)
	}
	shell(t, s.path, "DELETE FROM jobs")
	shell(t, s.path, "ANALYZE")
	explain("drained")
	consistent(t, s.path)
}
