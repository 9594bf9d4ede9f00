package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"flexiq/pkg/fault"
	"flexiq/pkg/job"
	"flexiq/pkg/store"
	"flexiq/pkg/store/storetest"
	"flexiq/pkg/testkit"
)

// TestNoDeadlocks lets every kind of writer loose on shared namespaces. The
// server counts its deadlocks, also those that another try hides.
func TestNoDeadlocks(t *testing.T) {
	url, schema := testkit.PostgresSchema(t)
	before := deadlocks(t, url)
	storetest.Writers(t, backend, url+" "+schema, func(round int) bool { return round < 15 })
	// The statistics may come late, so this can miss one, but not find one that was none.
	if n := deadlocks(t, url) - before; n != 0 {
		t.Errorf("%d deadlocks", n)
	}
	consistent(t, url, schema)
}

// deadlocks is how many the server met.
func deadlocks(t *testing.T, url string) int64 {
	t.Helper()
	return ask(t, url, `select deadlocks from pg_stat_database where datname = current_database()`)
}

// hold takes the lock of a namespace, as a transaction that hangs would, until
// the returned function is called.
func hold(t *testing.T, url, schema, ns string) (release func()) {
	t.Helper()
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	if _, err = conn.Exec(ctx, "begin"); err == nil {
		_, err = conn.Exec(ctx, "select from "+schema+".namespaces where name = $1 for update", ns)
	}
	if err != nil {
		t.Fatal(err)
	}
	release = sync.OnceFunc(func() { conn.Close(ctx) })
	t.Cleanup(release)
	return release
}

// waiters is how many sessions wait for a lock on a row of the schema.
func waiters(t *testing.T, url, schema string) int64 {
	t.Helper()
	return ask(t, url, `select count(*) from pg_stat_activity where wait_event_type = 'Lock' and query like '%' || $1 || '%'`, schema)
}

// TestHeldLock: the lock of one tenant is held; groups that have units of it
// do the others' at once and theirs not at all.
func TestHeldLock(t *testing.T) {
	url, schema := testkit.PostgresSchema(t)
	s := openAt(t, url, Options{Schema: schema})
	ctx := t.Context()
	for _, ns := range []string{"a", "held", "z"} {
		must(t, s, calls(t, ns, 1, 4))
	}
	running := map[string]store.Leased{}
	for _, ns := range []string{"a", "held", "z"} {
		running[ns] = turn(t, s, nil, want(t, s, ns, 1))[0].Jobs[0]
	}
	release := hold(t, url, schema, "held")

	group := append(append(calls(t, "z", 1, 1), calls(t, "held", 2, 1)...), append(calls(t, "a", 1, 1), calls(t, "new", 1, 1)...)...)
	outs, err := s.Admit(ctx, group)
	if err != nil {
		t.Fatal(err)
	}
	for i, c := range group {
		if c.Namespace == "held" != fault.Is(outs[i].Err, fault.StorageUnavailable) || c.Namespace != "held" && outs[i].Err != nil {
			t.Errorf("call of %s: %v", c.Namespace, outs[i].Err)
		}
	}

	var settle []store.Settlement
	var wants []store.Want
	var beats []store.Beat
	for _, ns := range []string{"z", "held", "a"} {
		l := running[ns]
		settle = append(settle, store.Settlement{Namespace: ns, JobID: l.Job.ID, Lease: l.Lease, Outcome: job.Completed})
		beats = append(beats, store.Beat{Namespace: ns, JobID: l.Job.ID, Lease: l.Lease, Extend: time.Hour})
		wants = append(wants, want(t, s, ns, 1))
	}
	pulses, err := s.Heartbeat(ctx, beats)
	if err != nil {
		t.Fatal(err)
	}
	settled, grants, err := s.Turn(ctx, settle, wants)
	if err != nil {
		t.Fatal(err)
	}
	for i, ns := range []string{"z", "held", "a"} {
		bad := ns == "held"
		if fault.Is(pulses[i].Err, fault.StorageUnavailable) != bad || pulses[i].Alive == bad {
			t.Errorf("beat of %s: %+v", ns, pulses[i])
		}
		if fault.Is(settled[i].Err, fault.StorageUnavailable) != bad || settled[i].Accepted == bad {
			t.Errorf("settlement of %s: %+v", ns, settled[i])
		}
		if fault.Is(grants[i].Err, fault.StorageUnavailable) != bad || len(grants[i].Jobs) == 0 != bad {
			t.Errorf("want of %s: %+v", ns, grants[i])
		}
	}

	// The oldest lease that ended is the held one's; the others' are ended nevertheless.
	execute(t, url, fmt.Sprintf("update %s.jobs set lease_expires = 1 where state = 1 and ns <> 'held'", schema))
	if ended, err := s.Expire(ctx, 10); err != nil || len(ended) != 2 {
		t.Errorf("expired %+v, %v", ended, err)
	}
	release()
	must(t, s, group) // what was refused alone passes now, the rest is a repetition
	turn(t, s, settle[1:2])
	consistent(t, url, schema)
}

// TestFirstUse: locking a row that does not exist locks nothing.
func TestFirstUse(t *testing.T) {
	url, schema := testkit.PostgresSchema(t)
	handles := []*Store{openAt(t, url, Options{Schema: schema}), openAt(t, url, Options{Schema: schema})}
	limit := int64(1)
	for round := range 10 {
		var admitted atomic.Int64
		var group sync.WaitGroup
		for i := range 6 {
			c := calls(t, fmt.Sprintf("new-%d", round), 1, 1)
			c[0].Quota.MaxPending = &limit
			group.Go(func() {
				out, err := handles[i%2].Admit(context.Background(), c)
				if err == nil && out[0].Err == nil {
					admitted.Add(1)
				}
			})
		}
		group.Wait()
		if n := admitted.Load(); n != 1 {
			t.Fatalf("round %d: %d calls admitted under max_pending 1", round, n)
		}
	}
}

// TestDefaultQuotaOutlivesDeciders: a change of the default quota is not
// answered while a transaction is open that may have decided by the old one.
func TestDefaultQuotaOutlivesDeciders(t *testing.T) {
	url, schema := testkit.PostgresSchema(t)
	s := openAt(t, url, Options{Schema: schema})
	must(t, s, calls(t, "a", 1, 1))
	release := hold(t, url, schema, "a")
	answered := make(chan error, 1)
	go func() {
		_, err := s.PutQuota(context.Background(), store.QuotaChange{Default: true, Raw: []byte(`{"max_pending":5}`)})
		answered <- err
	}()
	until(t, "the change is committed", func() bool {
		return ask(t, url, "select default_revision from "+schema+".installation") > 0
	})
	select {
	case err := <-answered:
		t.Fatalf("answered while a transaction holds a namespace: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	release()
	if err := <-answered; err != nil {
		t.Fatal(err)
	}
}

// TestChangesAppearInOrder: a change that got its number first appears first,
// even when another transaction is done sooner.
func TestChangesAppearInOrder(t *testing.T) {
	url, schema := testkit.PostgresSchema(t)
	s := openAt(t, url, Options{Schema: schema})
	ctx := t.Context()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, "begin"); err != nil {
		t.Fatal(err)
	}
	const scribble = `insert into %s.settings (key, value) values ('quota:ns:5:first', '{}')`
	if _, err := conn.Exec(ctx, fmt.Sprintf(scribble, schema)); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := s.PutQuota(context.Background(), store.QuotaChange{Namespace: "second", Raw: []byte(`{"max_pending":1}`)})
		done <- err
	}()
	until(t, "the second waits for the first", func() bool { return waiters(t, url, schema) > 0 })
	before, err := s.Changes(ctx, 0, 10)
	if err != nil || len(before.Items) != 0 {
		t.Fatalf("before the first is committed: %+v, %v", before, err)
	}
	if _, err := conn.Exec(ctx, "commit"); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	after, err := s.Changes(ctx, before.Latest, 10)
	if err != nil || fmt.Sprint(after.Items) != "[{quota first} {quota second}]" {
		t.Fatalf("afterwards: %+v, %v", after, err)
	}
}

// TestNewTermWaitsForBatches: a batch of the older term that has begun is over
// before the new term is given out, and the next one has no effect.
func TestNewTermWaitsForBatches(t *testing.T) {
	url, schema := testkit.PostgresSchema(t)
	s := openAt(t, url, Options{Schema: schema})
	ctx := t.Context()
	old, err := s.NewTerm(ctx, "old")
	if err != nil {
		t.Fatal(err)
	}
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, "begin")
	_, err2 := conn.Exec(ctx, "select from "+schema+".term for share")
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	issued := make(chan int64, 1)
	go func() {
		term, err := s.NewTerm(context.Background(), "new")
		if err != nil {
			t.Error(err)
		}
		issued <- term
	}()
	until(t, "the new term waits", func() bool { return waiters(t, url, schema) > 0 })
	if _, err := conn.Exec(ctx, "commit"); err != nil {
		t.Fatal(err)
	}
	if term := <-issued; term <= old {
		t.Fatalf("term %d after %d", term, old)
	}
	keep := int64(0)
	trimmed, err := s.Trim(ctx, store.Trim{Term: old, Namespace: "a", Table: store.Archive, Keep: &keep, Limit: 1})
	if err != nil || !trimmed.Superseded {
		t.Fatalf("a batch of the old term: %+v, %v", trimmed, err)
	}
}
