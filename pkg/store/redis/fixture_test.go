package redis

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"flexiq/pkg/job"
	"flexiq/pkg/namespace"
	"flexiq/pkg/store"
	"flexiq/pkg/testkit"
)

// open opens a store under a prefix of its own on the binary's server.
func open(t testing.TB, o Options) *Store {
	t.Helper()
	url, prefix := testkit.RedisPrefix(t)
	o.Prefix = prefix
	return openAt(t, url, o)
}

func openAt(t testing.TB, url string, o Options) *Store {
	t.Helper()
	s, err := Open(t.Context(), url, o)
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

// calls makes n calls of k jobs each.
func calls(t testing.TB, ns string, n, k int) []store.Call {
	t.Helper()
	out := make([]store.Call, n)
	for i := range out {
		out[i] = store.Call{Namespace: ns, Origin: job.OriginEnqueue, By: "tok1"}
		for range k {
			out[i].Jobs = append(out[i].Jobs, spec(t))
		}
	}
	return out
}

// enqueue makes calls that must be admitted.
func enqueue(t testing.TB, s *Store, c ...store.Call) {
	t.Helper()
	out, err := s.Admit(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range out {
		if o.Err != nil {
			t.Fatal(o.Err)
		}
	}
}

// want asks for jobs of a namespace without a quota.
func want(ns string, n int) store.Want {
	return store.Want{Namespace: ns, Max: n, LeaseFor: 30 * time.Second, Worker: "w"}
}

// claim takes exactly n jobs.
func claim(t testing.TB, s *Store, ns string, n int) []store.Leased {
	t.Helper()
	_, grants, err := s.Turn(t.Context(), nil, []store.Want{want(ns, n)})
	if err != nil || grants[0].Err != nil || len(grants[0].Jobs) != n {
		t.Fatalf("claimed %d jobs of %d: %v, %v", len(grants[0].Jobs), n, err, grants[0].Err)
	}
	return grants[0].Jobs
}

// clock is a store's clock that stands still.
type clock struct{ now time.Time }

func (c *clock) Now() time.Time { return c.now }

func newClock() *clock { return &clock{now: time.Date(2026, 3, 8, 6, 30, 0, 0, time.UTC)} }

// consistent fails unless every index of every namespace has exactly what the
// jobs' values say, and nothing else is there.
func consistent(t testing.TB, s *Store) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	err := s.eachKnown(ctx, func(names []string) error {
		for _, ns := range names {
			if err := s.checkIndexes(ctx, ns); err != nil {
				return fmt.Errorf("namespace %q: %w", ns, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// contents are the members of a namespace's collections by key, as they are or
// as they should be. Scores follow the member where they mean something.
type contents map[string][]string

func (c contents) add(key, member string, score ...int64) {
	for _, n := range score {
		member += fmt.Sprintf(" %d", n)
	}
	c[key] = append(c[key], member)
}

func (s *Store) checkIndexes(ctx context.Context, ns string) error {
	prefix := s.key(namespace.Encode(ns), "")
	node, err := s.node(ctx, prefix)
	if err != nil {
		return err
	}
	should, is := contents{}, contents{}
	bodies := map[string]bool{}
	fronts := map[string]int64{}
	for cursor := uint64(0); ; {
		keys, next, err := node.Scan(ctx, cursor, literal.Replace(prefix)+"*", 1000).Result()
		if err != nil {
			return err
		}
		slices.Sort(keys)
		for _, key := range slices.Compact(keys) {
			name := strings.TrimPrefix(key, prefix)
			switch kind, rest, _ := strings.Cut(name, ":"); {
			case kind == "j":
				if err := s.expect(ctx, ns, rest, should, fronts); err != nil {
					return err
				}
			case kind == "b" || kind == "r":
				bodies[name] = true
			case kind == "unique" || kind == "workers":
				err = s.db.HGetAll(ctx, key).Err()
				for k, v := range s.db.HGetAll(ctx, key).Val() {
					is.add(kind, k+" = "+v)
				}
			case kind == "counts":
				err = s.db.HGetAll(ctx, key).Err()
				for field, n := range s.db.HGetAll(ctx, key).Val() {
					for range integer(n) {
						is.add(kind, field)
					}
				}
			case kind == "p" || kind == "f" || slices.Contains([]string{"running", "archived", "died"}, name):
				for _, z := range s.db.ZRangeWithScores(ctx, key, 0, -1).Val() {
					is.add(name, z.Member.(string), int64(z.Score))
				}
			case slices.Contains([]string{"live", "archive", "dead", "shed", "debounce", "lanes", "ranks"}, name):
				is[name] = s.db.ZRange(ctx, key, 0, -1).Val()
			}
			if err != nil {
				return err
			}
		}
		if cursor = next; cursor == 0 {
			break
		}
	}
	for lane, run := range fronts {
		rank := lane[len(lane)-3:]
		should.add("f:"+rank, lane, run)
		should.add("lanes", lane)
		if !slices.Contains(should["ranks"], rank) {
			should.add("ranks", rank)
		}
	}
	return compare(should, is, bodies)
}

// expect notes where a job must be.
func (s *Store) expect(ctx context.Context, ns, id string, should contents, fronts map[string]int64) error {
	value := s.db.Get(ctx, s.key(tag(ns), "j:"+id)).Val()
	d, err := decode(ns, id, value)
	if err != nil {
		return err
	}
	j := &d.job
	if value[2]&flagAside != 0 {
		should.add("bodies", "b:"+id)
	}
	if j.State == job.Pending || j.State == job.Running {
		should.add("live", id)
		if j.UniqueKey != "" {
			should.add("unique", j.UniqueKey+" = "+id)
		}
	}
	switch j.State {
	case job.Pending:
		lane := j.Queue + "\x00"
		if value[2]&flagLaned != 0 {
			lane += j.Task + "\x00"
		}
		lane += fmt.Sprintf("%03d", job.MaxPriority-j.Priority)
		run := j.RunAt.UnixMicro()
		should.add("p:"+lane, id, run)
		if front, ok := fronts[lane]; !ok || run < front {
			fronts[lane] = run
		}
		if j.Debounce.Key != "" {
			should.add("debounce", j.Debounce.Key+"\x00"+id)
		}
	case job.Running:
		ends := s.db.ZScore(ctx, s.key(tag(ns), "running"), id).Val()
		should.add("running", id, int64(ends))
		should.add("counts", "q"+j.Queue)
		should.add("counts", "t"+j.Task)
		if w := s.db.HGet(ctx, s.key(tag(ns), "workers"), id).Val(); w != "" {
			should.add("workers", id+" = "+w)
		}
	case job.Dead:
		should.add("died", id, j.FinishedAt.UnixMicro())
		if j.Shed() {
			should.add("shed", id)
		} else {
			should.add("dead", id)
		}
	default:
		should.add("archived", id, j.FinishedAt.UnixMicro())
		should.add("archive", id)
	}
	if empty := strings.Trim(d.lease, "\x00") == ""; empty == (j.State == job.Running) {
		return fmt.Errorf("job %s is %s with the lease %q", id, j.State, d.lease)
	}
	return nil
}

func compare(should, is contents, bodies map[string]bool) error {
	for _, body := range should["bodies"] {
		if !bodies[body] {
			return fmt.Errorf("the payload %s is missing", body)
		}
	}
	delete(should, "bodies")
	for key := range bodies {
		id := key[2:]
		if !slices.Contains(append(append(slices.Clone(should["live"]), should["archive"]...), append(should["dead"], should["shed"]...)...), id) {
			return fmt.Errorf("%s has no job", key)
		}
	}
	for _, lists := range []contents{should, is} {
		for key := range lists {
			a, b := slices.Sorted(slices.Values(should[key])), slices.Sorted(slices.Values(is[key]))
			if !slices.Equal(a, b) {
				return fmt.Errorf("%q has %q, want %q", key, b, a)
			}
		}
	}
	return nil
}
