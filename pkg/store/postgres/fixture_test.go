package postgres

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"flexiq/pkg/job"
	"flexiq/pkg/quota"
	"flexiq/pkg/store"
	"flexiq/pkg/testkit"
)

// start opens a store in a schema of the test's own.
func start(t testing.TB, o Options) *Store {
	t.Helper()
	url, schema := testkit.PostgresSchema(t)
	o.Schema = schema
	return openAt(t, url, o)
}

func openAt(t testing.TB, url string, o Options) *Store {
	t.Helper()
	s, err := Open(context.Background(), url, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return s
}

// execute runs a statement as somebody with psql would.
func execute(t testing.TB, url, sql string, args ...any) {
	t.Helper()
	if err := tryExecute(url, sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func tryExecute(url, sql string, args ...any) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	if len(args) > 0 {
		_, err = conn.Exec(ctx, sql, args...)
	} else {
		_, err = conn.PgConn().Exec(ctx, sql).ReadAll() // perhaps several
	}
	return err
}

// spec makes a checked job.
func spec(t testing.TB, options ...func(*job.Spec)) job.Spec {
	t.Helper()
	s := job.Spec{ID: uuid.Must(uuid.NewV7()).String(), Task: "t", Payload: []byte(`{"invoice":4711,"to":"someone@example.com"}`), Form: job.Args}
	for _, o := range options {
		o(&s)
	}
	if err := s.Normalize("job", job.LargestMaxPayload); err != nil {
		t.Fatal(err)
	}
	return s
}

// calls makes n calls of k jobs each, under no quota.
func calls(t testing.TB, ns string, n, k int, options ...func(*job.Spec)) []store.Call {
	t.Helper()
	out := make([]store.Call, n)
	for i := range out {
		out[i] = store.Call{Namespace: ns, Origin: job.OriginEnqueue, By: "tok1"}
		for range k {
			out[i].Jobs = append(out[i].Jobs, spec(t, options...))
		}
	}
	return out
}

// must admits calls under the quotas in force.
func must(t testing.TB, s *Store, cs []store.Call) {
	t.Helper()
	for i := range cs {
		cs[i].Quota, cs[i].Stamp = inForce(t, s, cs[i].Namespace)
	}
	out, err := s.Admit(context.Background(), cs)
	if err != nil {
		t.Fatal(err)
	}
	for i := range out {
		if out[i].Err != nil {
			t.Fatalf("call %d: %v", i, out[i].Err)
		}
	}
}

func inForce(t testing.TB, s *Store, ns string) (quota.Quota, store.Stamp) {
	t.Helper()
	docs, err := s.Quotas(context.Background(), []string{ns})
	if err != nil {
		t.Fatal(err)
	}
	if docs[0].Raw == nil {
		return quota.Quota{}, docs[0].Stamp
	}
	q, err := quota.Read(docs[0].Raw)
	if err != nil {
		t.Fatal(err)
	}
	return q, docs[0].Stamp
}

// setQuota sets a quota.
func setQuota(t testing.TB, s *Store, ns, raw string) store.Document {
	t.Helper()
	q, err := quota.Parse([]byte(raw))
	if err != nil {
		t.Fatal(err)
	}
	doc, err := s.PutQuota(context.Background(), store.QuotaChange{Namespace: ns, Raw: []byte(raw), Rate: q.EnqueueRate,
		Audit: store.Record{Namespace: ns, TargetKind: "namespace", Target: ns}})
	if err != nil {
		t.Fatal(err)
	}
	return doc
}

// want asks for n jobs under the quota in force.
func want(t testing.TB, s *Store, ns string, n int, queues ...string) store.Want {
	t.Helper()
	q, stamp := inForce(t, s, ns)
	return store.Want{Namespace: ns, Queues: queues, Max: n, LeaseFor: time.Minute, Worker: "w", MaxRunning: q.MaxRunning, Stamp: stamp}
}

// turn settles and claims; nothing may fail.
func turn(t testing.TB, s *Store, settle []store.Settlement, wants ...store.Want) []store.Grant {
	t.Helper()
	settled, grants, err := s.Turn(context.Background(), settle, wants)
	if err != nil {
		t.Fatal(err)
	}
	for i := range settled {
		if settled[i].Err != nil || !settled[i].Accepted {
			t.Fatalf("settlement %d: %+v", i, settled[i])
		}
	}
	for i := range grants {
		if grants[i].Err != nil {
			t.Fatalf("want %d: %v", i, grants[i].Err)
		}
	}
	return grants
}

// ask reads one number as somebody with psql would.
func ask(t testing.TB, url, sql string, args ...any) (n int64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	if err := conn.QueryRow(ctx, sql, args...).Scan(&n); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return n
}

const everyJob = `(select ns, id, aside from flexiq.jobs union all select ns, id, aside from flexiq.archive
	union all select ns, id, aside from flexiq.dead_letters) every_job`

// consistent fails unless every kept count is that of the rows, every lane has
// its exact front, and payloads are where their jobs are.
func consistent(t testing.TB, url, schema string) {
	t.Helper()
	for what, sql := range map[string]string{
		"usage": `select count(*) from flexiq.usage u where
			pending <> (select count(*) from flexiq.jobs where ns = u.ns and state = 0) or
			running <> (select count(*) from flexiq.jobs where ns = u.ns and state = 1)`,
		"history": `select count(*) from flexiq.history h where
			archived <> (select count(*) from flexiq.archive where ns = h.ns) or
			dead <> (select count(*) from flexiq.dead_letters where ns = h.ns) or
			shed <> (select count(*) from flexiq.dead_letters where ns = h.ns and shed)`,
		"jobs without usage": `select count(*) from (select ns from flexiq.jobs except select ns from flexiq.usage) x`,
		"lanes": `select count(*) from (
			(select ns, queue, lane, rank, pending, running, front_at, front_id from flexiq.lanes where pending + running > 0
			except all select ns, queue, lane, rank, count(*) filter (where state = 0), count(*) filter (where state = 1),
				(array_agg(run_at order by run_at, id) filter (where state = 0))[1], (array_agg(id order by run_at, id) filter (where state = 0))[1]
			from flexiq.jobs group by 1, 2, 3, 4)
			union all
			(select ns, queue, lane, rank, null, null, null, null from (select distinct ns, queue, lane, rank from flexiq.jobs
			except select ns, queue, lane, rank from flexiq.lanes) y)) x`,
		"payloads without a job":     `select count(*) from (select ns, id from flexiq.payloads except select ns, id from ` + everyJob + ` where aside > 0) x`,
		"jobs without their payload": `select count(*) from (select ns, id from ` + everyJob + ` where aside > 0 except select ns, id from flexiq.payloads) x`,
		"jobs twice":                 `select count(*) from (select ns, id from ` + everyJob + ` group by ns, id having count(*) > 1) x`,
	} {
		if n := ask(t, url, inSchema(sql, schema)); n != 0 {
			t.Errorf("%s: %d rows are wrong", what, n)
		}
	}
}
