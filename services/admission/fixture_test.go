package admission

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"flexiq/pkg/auth"
	"flexiq/pkg/configcache"
	"flexiq/pkg/quota"
	"flexiq/pkg/rpc"
	"flexiq/pkg/store"
	"flexiq/pkg/store/sqlite"
	"flexiq/pkg/testkit"
	"flexiq/pkg/wire"
)

// ears is a bus that remembers what was published on it.
type ears struct {
	mu      sync.Mutex
	ready   [][]string
	reports []wire.AdmissionReport
}

func (e *ears) PublishReady(namespaces []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ready = append(e.ready, slices.Clone(namespaces))
}

func (e *ears) PublishStats(data []byte) {
	r, err := wire.ParseAdmissionReport(data)
	if err != nil {
		panic(err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.reports = append(e.reports, r)
}

// heard takes the ready hints so far.
func (e *ears) heard() [][]string {
	e.mu.Lock()
	defer e.mu.Unlock()
	ready := e.ready
	e.ready = nil
	return ready
}

// interposed is a store whose Admit can be made to behave otherwise.
type interposed struct {
	store.Admission
	mu    sync.Mutex
	admit func(ctx context.Context, calls []store.Call) ([]store.Outcome, error) // nil: the store's
}

func (s *interposed) Admit(ctx context.Context, calls []store.Call) ([]store.Outcome, error) {
	s.mu.Lock()
	admit := s.admit
	s.mu.Unlock()
	if admit != nil {
		return admit(ctx, calls)
	}
	return s.Admission.Admit(ctx, calls)
}

func (s *interposed) instead(admit func(ctx context.Context, calls []store.Call) ([]store.Outcome, error)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.admit = admit
}

// fixture is the service behind the HTTP door, on a real store. Nobody tells
// its cache of changed quotas.
type fixture struct {
	*testing.T
	store    *sqlite.Store
	way      *interposed // between the service and the store
	caches   configcache.Caches
	quotas   *configcache.Cache[configcache.Quota]
	svc      *Service
	door     *httptest.Server
	ears     *ears
	registry *prometheus.Registry
	tokens   map[string]string // a producer's, by namespace
}

func newFixture(t *testing.T, change ...func(*Config)) *fixture {
	t.Helper()
	f := &fixture{T: t, ears: &ears{}, registry: prometheus.NewRegistry(), tokens: map[string]string{}}
	var err error
	f.store, err = sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "flexiq.db"), sqlite.Options{Timeout: testkit.Patience})
	f.must(err)
	f.way = &interposed{Admission: f.store}
	caches := configcache.NewCaches(f.store, func() bool { return true }, nil)
	f.caches, f.quotas = caches, caches.Quotas
	cfg := DefaultConfig()
	for _, c := range change {
		c(&cfg)
	}
	f.svc, err = New(cfg, Deps{
		Store: f.way, Jobs: f.store, Quotas: caches.Quotas, Overrides: caches.Overrides, Hints: f.ears, Reports: f.ears,
		Log: zerolog.Nop(), Registerer: f.registry,
	})
	f.must(err)
	f.door = httptest.NewServer(rpc.Handler(f.svc.Methods(), auth.NewVerifier(f.store, time.Now), rpc.HandlerOptions{}))
	t.Cleanup(func() {
		f.door.CloseClientConnections()
		f.door.Close()
		if err := f.svc.Close(context.Background()); err != nil {
			t.Error(err)
		}
		caches.Close()
		if err := f.store.Close(); err != nil {
			t.Error(err)
		}
	})
	return f
}

func (f *fixture) must(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
}

// token stores a new token and returns its text.
func (f *fixture) token(ns string, scopes ...auth.Scope) string {
	f.Helper()
	text, t, err := auth.Mint(ns, scopes, "", 0, "", time.Now())
	f.must(err)
	f.must(f.store.PutToken(f.Context(), t, "", store.Record{Namespace: "made by the test"}))
	return text
}

// producer is a producer's token of the namespace.
func (f *fixture) producer(ns string) string {
	f.Helper()
	if f.tokens[ns] == "" {
		f.tokens[ns] = f.token(ns, auth.Produce)
	}
	return f.tokens[ns]
}

// quota sets a namespace's quota in the store; nil clears it.
func (f *fixture) quota(ns, raw string) {
	f.Helper()
	c := store.QuotaChange{Namespace: ns}
	if raw != "" {
		c.Raw = []byte(raw)
		q, err := quota.Read(c.Raw)
		if err == nil {
			c.Rate = q.EnqueueRate
		}
	}
	_, err := f.store.PutQuota(f.Context(), c)
	f.must(err)
}

// usage reads a namespace's counts.
func (f *fixture) usage(ns string) store.Usage {
	f.Helper()
	u, err := f.store.Usage(f.Context(), []string{ns})
	f.must(err)
	return u[0]
}

func (f *fixture) wantPending(ns string, n int64) {
	f.Helper()
	if u := f.usage(ns); u.Pending != n {
		f.Errorf("%s has %d pending jobs, want %d", ns, u.Pending, n)
	}
}

// post sends a body as JSON with a token.
func (f *fixture) post(token, method, body string) testkit.Answer {
	f.Helper()
	m, ok := auth.MethodNamed(method)
	if !ok {
		f.Fatalf("no method %s", method)
	}
	return testkit.Post(f, f.door.Client(), f.door.URL+m.Procedure(), token, body)
}

// call is post with a producer's token of the namespace.
func (f *fixture) call(ns, method, body string) testkit.Answer {
	f.Helper()
	return f.post(f.producer(ns), method, body)
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

// refused is call for what must be refused.
func (f *fixture) refused(ns, method, body, reason string) testkit.Answer {
	f.Helper()
	a := f.call(ns, method, body)
	if a.Reason != reason {
		f.Errorf("%s %.200s: %d %s %v, want %s", method, body, a.Status, a.Reason, a.Body, reason)
	}
	return a
}

// batchOf is the body of an EnqueueBatch of n jobs.
func batchOf(n int) string {
	jobs := make([]string, n)
	for i := range jobs {
		jobs[i] = `{"task":"t"}`
	}
	return `{"jobs":[` + join(jobs) + `]}`
}

func join(parts []string) string {
	var b bytes.Buffer
	for i, p := range parts {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(p)
	}
	return b.String()
}

// newID makes a job id as clients do.
func newID() string { return uuid.Must(uuid.NewV7()).String() }

// compact writes a part of an answer as JSON.
func compact(t *testing.T, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// count reads a metric of the service, by one label or none.
func (f *fixture) count(name string, label ...string) float64 {
	f.Helper()
	return testkit.Metric(f, f.registry, name, label...)
}
