package postgres

import (
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

	"flexiq/pkg/fault"
	"flexiq/pkg/job"
	"flexiq/pkg/store"
	"flexiq/pkg/testkit"
)

// Once a namespace is pressed against a limit its calls are refused without its
// lock, which another session holds here; and the first call that there is room
// for is admitted.
func TestRefusalsNeedNoLock(t *testing.T) {
	url, schema := testkit.PostgresSchema(t)
	s := openAt(t, url, Options{Schema: schema})
	admit := func(n int) []store.Outcome {
		t.Helper()
		group := calls(t, "full", n, 1)
		for i := range group {
			group[i].Quota.MaxPending = new(int64(2))
		}
		out, err := s.Admit(t.Context(), append(group, calls(t, "free", 1, 1)...))
		if err != nil {
			t.Fatal(err)
		}
		if err := out[n].Err; err != nil {
			t.Errorf("the neighbour's call: %v", err)
		}
		return out[:n]
	}
	refused := func(when string, out []store.Outcome) {
		t.Helper()
		for i := range out {
			if f := fault.Of(out[i].Err); f == nil || f.Reason != fault.QueueFull {
				t.Errorf("%s: call %d: %v, want QUEUE_FULL", when, i, out[i].Err)
			}
		}
	}
	first := admit(2)
	refused("under the lock", admit(3))

	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	lock := fmt.Sprintf("begin; select from %s.namespaces where name = 'full' for update", pgx.Identifier{schema}.Sanitize())
	if _, err := conn.Exec(t.Context(), lock); err != nil {
		t.Fatal(err)
	}
	refused("while the lock is held", admit(3))
	if _, err := conn.Exec(t.Context(), "rollback"); err != nil {
		t.Fatal(err)
	}

	known := calls(t, "full", 1, 1, func(sp *job.Spec) { sp.ID = first[0].Results[0].Job.ID })
	known[0].Quota.MaxPending = new(int64(2))
	if out, err := s.Admit(t.Context(), known); err != nil || !out[0].Repeat {
		t.Errorf("a repeated call while the queue is full: %+v, %v, want its first answer", out, err)
	}
	refused("after the repeat", admit(1))
	refused("without the lock again", admit(1))
	if _, err := s.Cancel(t.Context(), "full", store.Selection{IDs: []string{first[0].Results[0].Job.ID}}, 10); err != nil {
		t.Fatal(err)
	}
	out := admit(2)
	if out[0].Err != nil {
		t.Errorf("there was room for one: %v", out[0].Err)
	}
	refused("beyond the room", out[1:])
}
