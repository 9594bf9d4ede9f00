package dispatchgate

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/auth"
	"flexiq/pkg/configcache"
	"flexiq/pkg/job"
	"flexiq/pkg/quota"
	"flexiq/pkg/rpc"
	"flexiq/pkg/store"
	"flexiq/pkg/store/postgres"
	"flexiq/pkg/store/redis"
	"flexiq/pkg/store/sqlite"
	"flexiq/pkg/testkit"
)

// ears is a bus that remembers the hints of one gate and passes them on.
type ears struct {
	mu     sync.Mutex
	ready  [][]string
	freed  [][]string
	left   []string
	listen func(namespaces []string) // to ready; nil: nobody
	watch  func(namespaces []string) // to freed; nil: nobody
}

func (e *ears) PublishReady(namespaces []string) {
	e.mu.Lock()
	e.ready = append(e.ready, slices.Clone(namespaces))
	listen := e.listen
	e.mu.Unlock()
	if listen != nil {
		listen(namespaces)
	}
}

func (e *ears) PublishFreed(namespaces []string) {
	e.mu.Lock()
	e.freed = append(e.freed, slices.Clone(namespaces))
	watch := e.watch
	e.mu.Unlock()
	if watch != nil {
		watch(namespaces)
	}
}

func (e *ears) PublishLeft(ns, worker string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.left = append(e.left, ns+" "+worker)
}

// heard takes the hints of work so far.
func (e *ears) heard() [][]string {
	e.mu.Lock()
	defer e.mu.Unlock()
	ready := e.ready
	e.ready = nil
	return ready
}

// heardFreed takes the hints of free slots so far.
func (e *ears) heardFreed() [][]string {
	e.mu.Lock()
	defer e.mu.Unlock()
	freed := e.freed
	e.freed = nil
	return freed
}

// turner is the store's Turn.
type turner func(ctx context.Context, settlements []store.Settlement, wants []store.Want) ([]store.Settled, []store.Grant, error)

// interposed is a store whose Turn is counted and can be made to behave otherwise.
type interposed struct {
	store.Dispatch
	mu     sync.Mutex
	around func(next turner) turner // nil: the store's
	turns  int
	wants  int
}

func (s *interposed) Turn(ctx context.Context, settlements []store.Settlement, wants []store.Want) ([]store.Settled, []store.Grant, error) {
	s.mu.Lock()
	s.turns++
	s.wants += len(wants)
	turn := turner(s.Dispatch.Turn)
	if s.around != nil {
		turn = s.around(turn)
	}
	s.mu.Unlock()
	return turn(ctx, settlements, wants)
}

func (s *interposed) wrap(around func(next turner) turner) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.around = around
}

func (s *interposed) count() (turns, wants int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.turns, s.wants
}

// fixture is the gate behind the HTTP door, on a real store. It does not run:
// nothing but wake-ups and timers brings a waiting claim its work. Nobody
// tells its cache of changed quotas.
type fixture struct {
	*testing.T
	store    store.Store
	another  func() store.Store // opens the same database again, as another process does
	way      *interposed        // between the gate and the store
	quotas   *configcache.Cache[configcache.Quota]
	gate     *Service
	door     *httptest.Server
	ears     *ears
	registry *prometheus.Registry
	tokens   map[string]string // a worker's, by namespace
}

func newFixture(t *testing.T, change ...func(*Config)) *fixture {
	t.Helper()
	return newFixtureOn(t, backends["sqlite"], change...)
}

func newFixtureOn(t *testing.T, database func(t *testing.T) func() (store.Store, error), change ...func(*Config)) *fixture {
	t.Helper()
	f := &fixture{T: t, tokens: map[string]string{}}
	open := database(t)
	f.another = func() store.Store {
		s, err := open()
		f.must(err)
		t.Cleanup(func() {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
		return s
	}
	f.store = f.another()
	f.open(change...)
	return f
}

// backends make a database and open it, as often as is asked.
var backends = map[string]func(t *testing.T) func() (store.Store, error){
	"sqlite": func(t *testing.T) func() (store.Store, error) {
		path := filepath.Join(t.TempDir(), "flexiq.db")
		return func() (store.Store, error) {
			return sqlite.Open(context.Background(), path, sqlite.Options{Timeout: testkit.Patience})
		}
	},
	"postgres": func(t *testing.T) func() (store.Store, error) {
		url, schema := testkit.PostgresSchema(t)
		return func() (store.Store, error) {
			return postgres.Open(context.Background(), url, postgres.Options{Schema: schema, Timeout: testkit.Patience})
		}
	},
	"redis": func(t *testing.T) func() (store.Store, error) {
		url, prefix := testkit.RedisPrefix(t)
		return func() (store.Store, error) {
			return redis.Open(context.Background(), url, redis.Options{Prefix: prefix, Timeout: testkit.Patience})
		}
	},
}

// everywhere runs a test on each backend.
func everywhere(t *testing.T, test func(t *testing.T, f *fixture)) {
	t.Parallel()
	for name, database := range backends {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, newFixtureOn(t, database))
		})
	}
}

// open puts a gate in front of the fixture's store.
func (f *fixture) open(change ...func(*Config)) {
	f.Helper()
	f.ears, f.registry, f.way = &ears{}, prometheus.NewRegistry(), &interposed{Dispatch: f.store}
	caches := configcache.NewCaches(f.store, func() bool { return true }, nil)
	f.quotas = caches.Quotas
	cfg := DefaultConfig()
	for _, c := range change {
		c(&cfg)
	}
	gate, err := New(cfg, Deps{Store: f.way, Quotas: caches.Quotas, Hints: f.ears, Log: zerolog.Nop(), Registerer: f.registry})
	f.must(err)
	f.gate = gate
	door := httptest.NewServer(rpc.Handler(gate.Methods(), auth.NewVerifier(f.store, time.Now), rpc.HandlerOptions{}))
	f.door = door
	f.Cleanup(func() {
		gate.StopClaims()
		door.CloseClientConnections()
		door.Close()
		if err := gate.Close(context.Background()); err != nil {
			f.Error(err)
		}
		caches.Close()
	})
}

// second is another gate in front of the same store.
func (f *fixture) second() *fixture {
	f.Helper()
	g := &fixture{T: f.T, store: f.another(), another: f.another, tokens: f.tokens}
	g.open()
	return g
}

// run runs the gate until the test, or stop, ends it.
func (f *fixture) run() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ran := make(chan error, 1)
	go func() { ran <- f.gate.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ran; err != nil {
			f.Error(err)
		}
	})
	f.Cleanup(stop)
	return stop
}

func (f *fixture) must(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
}

// quota sets a namespace's quota in the store; an empty one clears it.
func (f *fixture) quota(ns, raw string) {
	f.Helper()
	c := store.QuotaChange{Namespace: ns}
	if raw != "" {
		c.Raw = []byte(raw)
	}
	_, err := f.store.PutQuota(f.Context(), c)
	f.must(err)
}

// enqueue makes jobs, without a hint, under the quota in force.
func (f *fixture) enqueue(ns string, specs ...job.Spec) []string {
	f.Helper()
	docs, err := f.store.Quotas(f.Context(), []string{ns})
	f.must(err)
	q, _ := quota.Read(docs[0].Raw) // none and an unreadable one: no limits
	ids := make([]string, len(specs))
	for i := range specs {
		if specs[i].Task == "" {
			specs[i].Task = "t"
		}
		f.must(specs[i].Normalize("job", job.LargestMaxPayload))
		ids[i] = specs[i].ID
	}
	out, err := f.store.Admit(f.Context(), []store.Call{{Namespace: ns, Quota: q, Stamp: docs[0].Stamp, Jobs: specs, Origin: job.OriginEnqueue}})
	f.must(err)
	f.must(out[0].Err)
	return ids
}

func (f *fixture) usage(ns string) store.Usage {
	f.Helper()
	u, err := f.store.Usage(f.Context(), []string{ns})
	f.must(err)
	return u[0]
}

// wantUsage checks a namespace's counts.
func (f *fixture) wantUsage(ns string, pending, running, archived, dead int64) {
	f.Helper()
	u := f.usage(ns)
	if u.Pending != pending || u.Running != running || u.Archived != archived || u.Dead != dead {
		f.Errorf("%s has %d pending, %d running, %d archived, %d dead; want %d, %d, %d, %d",
			ns, u.Pending, u.Running, u.Archived, u.Dead, pending, running, archived, dead)
	}
}

// job reads a job.
func (f *fixture) job(ns, id string) *job.Job {
	f.Helper()
	j, err := f.store.Job(f.Context(), ns, id)
	f.must(err)
	return j
}

// worker is a context as a door makes it for a worker of the namespace.
func worker(ctx context.Context, ns string) context.Context {
	return auth.WithCaller(ctx, auth.Identity{Namespace: ns, TokenID: "token", Scopes: []auth.Scope{auth.Work}}, auth.DoorNATS)
}

// claimed is the end of a claim.
type claimed struct {
	jobs []*flexiqv1.ClaimedJob
	err  error
}

// start begins a claim as a door would.
func (f *fixture) start(ctx context.Context, ns string, req *flexiqv1.ClaimRequest) <-chan claimed {
	done := make(chan claimed, 1)
	f.gate.claim(worker(ctx, ns), req, func(res *flexiqv1.ClaimResponse, err error) { done <- claimed{res.GetJobs(), err} })
	return done
}

// claim is start for what is answered at once; it must not fail.
func (f *fixture) claim(ns string, max int32) []*flexiqv1.ClaimedJob {
	f.Helper()
	c := f.await(f.start(f.Context(), ns, &flexiqv1.ClaimRequest{MaxJobs: max}))
	f.must(c.err)
	return c.jobs
}

func (f *fixture) await(done <-chan claimed) claimed {
	f.Helper()
	select {
	case c := <-done:
		return c
	case <-time.After(testkit.Patience):
		f.Fatal("a claim was not answered")
		return claimed{}
	}
}

// parked waits until so many claims are parked: the store had nothing for them.
func (f *fixture) parked(n int) {
	f.Helper()
	testkit.Eventually(f, fmt.Sprintf("%d claims are parked", n), func() bool {
		parked := 0
		for _, l := range f.gate.lanes {
			l.mu.Lock()
			for _, t := range l.room.tenants {
				for _, p := range t.lines {
					for w := p.first; w != nil && !p.queued && p.asked == 0 && t.hold != loading; w = w.next {
						parked++
					}
				}
			}
			l.mu.Unlock()
		}
		return parked == n
	})
}

// settle settles claimed jobs of a namespace, all in one way.
func (f *fixture) settle(ns string, outcome job.Outcome, jobs ...*flexiqv1.ClaimedJob) []*flexiqv1.SettleResult {
	f.Helper()
	req := &flexiqv1.SettleRequest{}
	for _, j := range jobs {
		req.Settlements = append(req.Settlements, &flexiqv1.Settlement{JobId: j.GetJob().GetId(), Lease: j.GetLease(), Outcome: string(outcome)})
	}
	res, err := f.trySettle(ns, req)
	f.must(err)
	return res.GetResults()
}

func (f *fixture) trySettle(ns string, req *flexiqv1.SettleRequest) (*flexiqv1.SettleResponse, error) {
	type answer struct {
		res *flexiqv1.SettleResponse
		err error
	}
	done := make(chan answer, 1)
	f.gate.settle(worker(f.Context(), ns), req, func(res *flexiqv1.SettleResponse, err error) { done <- answer{res, err} })
	a := <-done
	return a.res, a.err
}

// token is a worker's token of the namespace.
func (f *fixture) token(ns string) string {
	f.Helper()
	if f.tokens[ns] == "" {
		text, t, err := auth.Mint(ns, []auth.Scope{auth.Work}, "", 0, "", time.Now())
		f.must(err)
		f.must(f.store.PutToken(f.Context(), t, "", store.Record{Namespace: "made by the test"}))
		f.tokens[ns] = text
	}
	return f.tokens[ns]
}

// call posts a body as JSON with a worker's token of the namespace.
func (f *fixture) call(ns, method, body string) testkit.Answer {
	f.Helper()
	m, ok := auth.MethodNamed(method)
	if !ok {
		f.Fatalf("no method %s", method)
	}
	return testkit.Post(f, f.door.Client(), f.door.URL+m.Procedure(), f.token(ns), body)
}

// ok is call for what must succeed.
func (f *fixture) ok(ns, method, body string) map[string]any {
	f.Helper()
	a := f.call(ns, method, body)
	if a.Status != http.StatusOK {
		f.Fatalf("%s %.200s: %d %s %v", method, body, a.Status, a.Reason, a.Body)
	}
	return a.Body
}

// count reads a metric of the service, by one label or none.
func (f *fixture) count(name string, label ...string) float64 {
	f.Helper()
	return testkit.Metric(f, f.registry, name, label...)
}
