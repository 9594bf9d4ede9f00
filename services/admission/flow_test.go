package admission

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/auth"
	"flexiq/pkg/configcache"
	"flexiq/pkg/fault"
	"flexiq/pkg/store"
	"flexiq/pkg/testkit"
)

// A changed quota is in force at once, although nobody told this process.
func TestQuotaChangesUnderTheCache(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.quota("a", `{"max_pending":1}`)
	f.ok("a", "Enqueue", `{"job":{"task":"t"}}`)
	for i := range 5 {
		f.quota("a", fmt.Sprintf(`{"max_pending":%d}`, i+2))
		f.ok("a", "Enqueue", `{"job":{"task":"t"}}`)
		f.refused("a", "Enqueue", `{"job":{"task":"t"}}`, "QUEUE_FULL")
	}
	if n := f.count(metricStale); n != 5 {
		t.Errorf("%v decisions were repeated, want 5", n)
	}
}

func TestQuotaKeepsChanging(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	tries := 0
	f.way.instead(func(_ context.Context, calls []store.Call) ([]store.Outcome, error) {
		tries++
		out := make([]store.Outcome, len(calls))
		for i := range out {
			out[i].Err = store.ErrStale
		}
		return out, nil
	})
	a := f.refused("a", "Enqueue", `{"job":{"task":"t"}}`, "OVERLOADED")
	if a.Status != http.StatusServiceUnavailable || tries != maxTries {
		t.Errorf("%d after %d tries, want 503 after %d", a.Status, tries, maxTries)
	}
}

// Only the calls of one message whose quota had changed go round again.
func TestPartlyStale(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	first := true
	var sizes []int
	f.way.instead(func(ctx context.Context, calls []store.Call) ([]store.Outcome, error) {
		sizes = append(sizes, len(calls))
		out, err := f.store.Admit(ctx, calls[:1])
		if first {
			for range calls[1:] {
				out = append(out, store.Outcome{Err: store.ErrStale})
			}
			first = false
			return out, err
		}
		rest, err := f.store.Admit(ctx, calls[1:])
		return append(out, rest...), err
	})
	res := f.ok("a", "EnqueueCalls", `{"calls":[{"jobs":[{"task":"x"}]},{"jobs":[{"task":"y"}]},{"jobs":[{"task":"z"}]}]}`)
	for i, task := range []string{"x", "y", "z"} {
		if got := testkit.Dig(res, "outcomes", i, "results", 0, "job", "task"); got != task {
			t.Errorf("outcome %d is of %v, want %s", i, got, task)
		}
	}
	if !slices.Equal(sizes, []int{3, 2}) {
		t.Errorf("calls by flush: %v", sizes)
	}
	f.wantPending("a", 3)
}

// An unreadable quota stops its namespace alone, and its repair is felt at once.
func TestUnreadableQuota(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.quota("broken", `{"max_pending":-1}`)
	for range 2 {
		a := f.refused("broken", "Enqueue", `{"job":{"task":"t"}}`, "QUOTA_UNREADABLE")
		if a.Status != http.StatusInternalServerError || !strings.HasPrefix(a.Message, "the stored quota cannot be read: max_pending: ") {
			t.Errorf("%d %q", a.Status, a.Message)
		}
	}
	res := f.ok("broken", "EnqueueCalls", `{"calls":[{"jobs":[{"task":"t"}]}]}`)
	if e := testkit.Dig(res, "outcomes", 0, "error"); testkit.Dig(e, "reason") != "QUOTA_UNREADABLE" || testkit.Dig(e, "code") != "INTERNAL" {
		t.Errorf("%v", res)
	}
	f.ok("whole", "Enqueue", `{"job":{"task":"t"}}`)
	f.quota("broken", `{"max_pending":1}`)
	f.quotas.Invalidate("broken", 0) // the hint
	f.ok("broken", "Enqueue", `{"job":{"task":"t"}}`)
	f.wantPending("broken", 1)
}

// A flood under an unreadable quota does not load it for each call; a repair
// that nobody told of is found by who comes later.
func TestUnreadableFlood(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.quota("broken", `{}x`)
	loads := &slowQuotas{Cache: f.quotas, release: make(chan struct{})}
	close(loads.release)
	f.svc.quotas = loads
	begun := time.Now()
	for range 200 {
		if err := <-f.start(t.Context(), "broken"); !fault.Is(err, fault.QuotaUnreadable) {
			t.Fatalf("got %v", err)
		}
	}
	if most := 2 + int(time.Since(begun)/unreadablePause); loads.gets > most {
		t.Errorf("%d loads for 200 calls in %s", loads.gets, time.Since(begun))
	}
	f.quota("broken", "")
	testkit.Eventually(t, "the repair is found", func() bool { return <-f.start(t.Context(), "broken") == nil })
}

// A store that fails looks like nothing else, and nothing is spent.
func TestStoreFails(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.quota("tansy", `{"max_pending":2}`)
	f.ok("tansy", "Enqueue", `{"job":{"task":"t"}}`)
	f.way.instead(func(context.Context, []store.Call) ([]store.Outcome, error) {
		return nil, fault.New(fault.StorageUnavailable, "the store cannot be reached")
	})
	for range 20 {
		if a := f.refused("tansy", "Enqueue", `{"job":{"task":"t"}}`, "STORAGE_UNAVAILABLE"); a.Status != http.StatusServiceUnavailable {
			t.Errorf("%d", a.Status)
		}
	}
	res := f.ok("tansy", "EnqueueCalls", `{"calls":[{"jobs":[{"task":"t"}]},{"jobs":[{}]}]}`)
	if testkit.Dig(res, "outcomes", 0, "error", "reason") != "STORAGE_UNAVAILABLE" || testkit.Dig(res, "outcomes", 1, "error", "reason") != "INVALID_REQUEST" {
		t.Errorf("%v", res)
	}
	f.way.instead(nil)
	f.wantPending("tansy", 1)
	f.ok("tansy", "Enqueue", `{"job":{"task":"t"}}`)
}

// brokenQuotas is a cache whose store does not answer.
type brokenQuotas struct{ err error }

func (q brokenQuotas) Get(context.Context, string) (configcache.Quota, error) {
	return configcache.Quota{}, q.err
}
func (brokenQuotas) Peek(string) (configcache.Quota, bool) { return configcache.Quota{}, false }
func (brokenQuotas) Invalidate(string, int64)              {}

func TestQuotaCannotBeLoaded(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.svc.quotas = brokenQuotas{fault.New(fault.StorageUnavailable, "down")}
	f.refused("a", "Enqueue", `{"job":{"task":"t"}}`, "STORAGE_UNAVAILABLE")
}

// caller is a context as a door makes it.
func caller(ctx context.Context, ns string) context.Context {
	return auth.WithCaller(ctx, auth.Identity{Namespace: ns, TokenID: "token", Scopes: []auth.Scope{auth.Produce}}, auth.DoorNATS)
}

// start begins an Enqueue of one job; its error arrives on the channel.
func (f *fixture) start(ctx context.Context, ns string) <-chan error {
	done := make(chan error, 1)
	req := &flexiqv1.EnqueueRequest{Job: &flexiqv1.JobSpec{Task: "t"}}
	f.svc.enqueue(caller(ctx, ns), req, func(_ *flexiqv1.EnqueueResponse, err error) { done <- err })
	return done
}

// stopped blocks the store's Admit until released and tells how many calls each flush had.
type stopped struct {
	entered, leave chan struct{}
	mu             sync.Mutex
	sizes          []int
}

func (f *fixture) stopStore() *stopped {
	s := &stopped{entered: make(chan struct{}, 100), leave: make(chan struct{})}
	f.way.instead(func(ctx context.Context, calls []store.Call) ([]store.Outcome, error) {
		s.mu.Lock()
		s.sizes = append(s.sizes, len(calls))
		s.mu.Unlock()
		s.entered <- struct{}{}
		<-s.leave
		return f.store.Admit(ctx, calls)
	})
	return s
}

// While one flush is in the store, calls gather, and the next one takes them all.
func TestCallsGather(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.ok("a", "Enqueue", `{"job":{"task":"warm"}}`) // the quota is known from now on
	f.ok("b", "Enqueue", `{"job":{"task":"warm"}}`)
	s := f.stopStore()
	calls := []<-chan error{f.start(t.Context(), "a")}
	<-s.entered
	for range 50 {
		calls = append(calls, f.start(t.Context(), "a"), f.start(t.Context(), "b"))
	}
	close(s.leave)
	for _, c := range calls {
		if err := <-c; err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Equal(s.sizes, []int{1, 100}) {
		t.Errorf("calls by flush: %v, want 1 and then 100", s.sizes)
	}
	f.wantPending("a", 52)
}

// A call that nobody waits for any more is not written.
func TestNoGhosts(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.ok("a", "Enqueue", `{"job":{"task":"warm"}}`)
	s := f.stopStore()
	first := f.start(t.Context(), "a")
	<-s.entered
	ctx, leave := context.WithCancel(t.Context())
	ghost, last := f.start(ctx, "a"), f.start(t.Context(), "a")
	leave()
	close(s.leave)
	if err := <-ghost; fault.Of(err).Reason != fault.Cancelled {
		t.Errorf("the ghost got %v", err)
	}
	if err := <-first; err != nil {
		t.Error(err)
	}
	if err := <-last; err != nil {
		t.Error(err)
	}
	f.wantPending("a", 3)
}

func TestOverloaded(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(c *Config) { c.MaxCalls = 4 })
	f.ok("a", "Enqueue", `{"job":{"task":"warm"}}`)
	s := f.stopStore()
	var waiting []<-chan error
	refused := 0
	for range 10 {
		done := f.start(t.Context(), "a")
		select {
		case err := <-done:
			if !fault.Is(err, fault.Overloaded) {
				t.Errorf("got %v", err)
			}
			refused++
		default:
			waiting = append(waiting, done)
		}
	}
	if refused == 0 || len(waiting) == 0 {
		t.Errorf("%d refused, %d waiting", refused, len(waiting))
	}
	close(s.leave)
	for _, w := range waiting {
		if err := <-w; err != nil {
			t.Error(err)
		}
	}
}

// slowQuotas holds back the loads of one cache and counts them.
type slowQuotas struct {
	*configcache.Cache[configcache.Quota]
	release chan struct{}
	mu      sync.Mutex
	gets    int
}

func (q *slowQuotas) Get(ctx context.Context, ns string) (configcache.Quota, error) {
	q.mu.Lock()
	q.gets++
	q.mu.Unlock()
	<-q.release
	return q.Cache.Get(ctx, ns)
}

// Calls of a namespace whose quota is not known wait for one load, off the
// callback that brought them, and the door is not blocked.
func TestColdQuota(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(c *Config) { c.MaxCalls = 20 })
	slow := &slowQuotas{Cache: f.quotas, release: make(chan struct{})}
	f.svc.quotas = slow
	var calls []<-chan error
	for range 20 {
		calls = append(calls, f.start(t.Context(), "a"))
	}
	if err := <-f.start(t.Context(), "b"); !fault.Is(err, fault.Overloaded) {
		t.Errorf("beyond the bound: %v", err)
	}
	close(slow.release)
	// They enter the group together, where one key may hold half of the room.
	passed := 0
	for _, c := range calls {
		if err := <-c; err == nil {
			passed++
		} else if !fault.Is(err, fault.Overloaded) {
			t.Error(err)
		}
	}
	if slow.gets != 1 || passed == 0 {
		t.Errorf("%d loads, %d calls passed", slow.gets, passed)
	}
	f.wantPending("a", int64(passed))
}

func TestClose(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.ok("a", "Enqueue", `{"job":{"task":"warm"}}`)
	s := f.stopStore()
	inside := f.start(t.Context(), "a")
	<-s.entered
	waiting := f.start(t.Context(), "a")
	closed := make(chan error, 1)
	go func() { closed <- f.svc.Close(context.Background()) }()
	testkit.Eventually(t, "calls are refused", func() bool {
		select {
		case err := <-f.start(t.Context(), "cold"):
			return fault.Is(err, fault.Overloaded)
		default:
			return false
		}
	})
	close(s.leave)
	for _, c := range []<-chan error{inside, closed} {
		if err := <-c; err != nil {
			t.Error(err)
		}
	}
	if err := <-waiting; err != nil {
		t.Error(err)
	}
	if err := f.svc.Close(context.Background()); err != nil {
		t.Errorf("a second Close: %v", err)
	}
}

func TestConfig(t *testing.T) {
	t.Parallel()
	if err := DefaultConfig().Check(); err != nil {
		t.Error(err)
	}
	for _, c := range []func(*Config){
		func(c *Config) { c.MaxPayload = 0 }, func(c *Config) { c.MaxPayload = 5 << 20 }, func(c *Config) { c.Lanes = 0 },
		func(c *Config) { c.MaxCalls = 0 }, func(c *Config) { c.MaxBytes = 0 },
	} {
		cfg := DefaultConfig()
		c(&cfg)
		if _, err := New(cfg, Deps{}); err == nil {
			t.Errorf("%+v was accepted", cfg)
		}
	}
	if _, err := New(DefaultConfig(), Deps{}); err == nil {
		t.Error("a service without dependencies was made")
	}
}

// No namespace is never every namespace.
func TestNoNamespace(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	if err := <-f.start(t.Context(), ""); !fault.Is(err, fault.PermissionDenied) {
		t.Errorf("got %v", err)
	}
	ctx, cancel := context.WithTimeout(caller(t.Context(), ""), time.Minute)
	defer cancel()
	_, err1 := f.svc.getJob(ctx, &flexiqv1.GetJobRequest{Id: newID()})
	_, err2 := f.svc.listJobs(ctx, &flexiqv1.ListJobsRequest{})
	_, err3 := f.svc.cancelJobs(ctx, &flexiqv1.CancelJobsRequest{Filter: &flexiqv1.CancelFilter{}})
	for _, err := range []error{err1, err2, err3} {
		if !fault.Is(err, fault.PermissionDenied) {
			t.Errorf("got %v", err)
		}
	}
}
