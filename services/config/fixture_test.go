package config

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/rs/zerolog"

	"flexiq/pkg/auth"
	"flexiq/pkg/events"
	"flexiq/pkg/fault"
	"flexiq/pkg/job"
	"flexiq/pkg/quota"
	"flexiq/pkg/rpc"
	"flexiq/pkg/store"
	"flexiq/pkg/store/sqlite"
)

// hint is what the service told others.
type hint struct {
	Kind store.Kind
	Key  string
}

// ears is a bus that remembers what was published on it.
type ears struct {
	mu    sync.Mutex
	hints []hint
	ready []string
	stats [][]byte
}

// CheckTriggerStream knows one stream, of the namespace streams.
func (e *ears) CheckTriggerStream(_ context.Context, stream, ns string) error {
	if stream == "S" && ns == "streams" {
		return nil
	}
	return fault.Invalid("nats.durable_stream", "there is no such stream")
}

func (e *ears) PublishConfig(kind store.Kind, key string, _ int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.hints = append(e.hints, hint{kind, key})
}

func (e *ears) PublishReady(namespaces []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ready = append(e.ready, namespaces...)
}

func (e *ears) PublishStats(report []byte) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.stats = append(e.stats, report)
}

func (e *ears) ListenEvents(string, events.Filter) (*events.Listener, error) {
	return nil, fault.New(fault.Overloaded, "there is no NATS here")
}

func (e *ears) PublishMarks([]byte)                  {}
func (e *ears) OnMarks(func([]byte)) (func(), error) { return func() {}, nil }

func (e *ears) OnStats(func([]byte)) (func(), error)    { return func() {}, nil }
func (e *ears) OnSweep(func([]byte)) (func(), error)    { return func() {}, nil }
func (e *ears) OnDispatch(func([]byte)) (func(), error) { return func() {}, nil }
func (e *ears) OnProgress(func([]byte)) (func(), error) { return func() {}, nil }

// fixture is the service behind the HTTP door, on a real store.
type fixture struct {
	*testing.T
	store *sqlite.Store
	path  string
	svc   *Service
	door  *httptest.Server
	ears  *ears
	cut   []string
	stale []hint // what this process's caches were made to forget

	platform string // a platform token
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{T: t, path: filepath.Join(t.TempDir(), "flexiq.db")}
	f.open()
	t.Cleanup(func() { f.close() })
	f.platform = f.token("", auth.Platform)
	return f
}

func (f *fixture) open() {
	f.Helper()
	var err error
	f.store, err = sqlite.Open(context.Background(), f.path, sqlite.Options{Timeout: 5 * time.Minute}) // however busy the machine is
	f.must(err)
	f.ears, f.cut, f.stale = &ears{}, nil, nil
	cfg := DefaultConfig()
	cfg.Process, cfg.Settle = "self", time.Millisecond
	f.svc, err = New(cfg, Deps{
		Store: f.store, Bus: f.ears, Log: zerolog.Nop(),
		Invalidate: func(kind store.Kind, key string, _ int64) { f.stale = append(f.stale, hint{kind, key}) },
		Cut:        func(id string) { f.cut = append(f.cut, id) },
	})
	f.must(err)
	f.door = httptest.NewServer(rpc.Handler(f.svc.Methods(), auth.NewVerifier(f.store, time.Now), rpc.HandlerOptions{}))
}

func (f *fixture) close() {
	f.Helper()
	f.door.CloseClientConnections()
	f.door.Close()
	if err := f.store.Close(); err != nil {
		f.Error(err)
	}
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

// id is a token's id.
func id(token string) string {
	parts, err := auth.Parse(token)
	if err != nil {
		panic(err)
	}
	return parts.ID
}

// answer is what came back through the door.
type reply struct {
	status  int
	reason  string
	message string
	details map[string]string // of an error
	body    map[string]any
}

// call posts a body as JSON.
func (f *fixture) call(token, method, body string) reply {
	f.Helper()
	m, ok := auth.MethodNamed(method)
	if !ok {
		f.Fatalf("no method %s", method)
	}
	req, err := http.NewRequestWithContext(f.Context(), http.MethodPost, f.door.URL+m.Procedure(), bytes.NewBufferString(body))
	f.must(err)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+token)
	res, err := http.DefaultClient.Do(req)
	f.must(err)
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	f.must(err)
	r := reply{status: res.StatusCode, reason: res.Header.Get(rpc.HeaderReason)}
	if err := json.Unmarshal(text, &r.body); err != nil {
		f.Fatalf("%s answered %q: %v", method, text, err)
	}
	r.message, _ = r.body["message"].(string)
	r.details = map[string]string{}
	details, _ := r.body["details"].([]any)
	for _, d := range details {
		debug, _ := d.(map[string]any)["debug"].(map[string]any)
		metadata, _ := debug["metadata"].(map[string]any)
		for k, v := range metadata {
			r.details[k] = fmt.Sprint(v)
		}
	}
	return r
}

// ok posts a body that must be accepted.
func (f *fixture) ok(token, method, body string) map[string]any {
	f.Helper()
	r := f.call(token, method, body)
	if r.status != http.StatusOK {
		f.Fatalf("%s %s: %d %s: %s", method, body, r.status, r.reason, r.message)
	}
	return r.body
}

// refused posts a body that must be refused.
func (f *fixture) refused(token, method, body, reason string) reply {
	f.Helper()
	r := f.call(token, method, body)
	if r.reason != reason {
		f.Errorf("%s %s: %d %s %v, want %s", method, body, r.status, r.reason, r.body, reason)
	}
	return r
}

// same compares a part of an answer with JSON.
func (f *fixture) same(what string, got any, want string) {
	f.Helper()
	var w any
	f.must(json.Unmarshal([]byte(want), &w))
	if diff := cmp.Diff(w, got); diff != "" {
		f.Errorf("%s:\n%s", what, diff)
	}
}

// document overwrites a quota document past the door's checks.
func (f *fixture) document(ns, raw string) {
	f.Helper()
	_, err := f.store.PutQuota(f.Context(), store.QuotaChange{Namespace: ns, Raw: []byte(raw)})
	f.must(err)
}

// trail is a namespace's audit trail.
func (f *fixture) trail(ns string) []store.Record {
	f.Helper()
	page, err := f.store.ListAudit(f.Context(), ns, store.AuditFilter{}, "", 500)
	f.must(err)
	return page.Items
}

// enqueue makes jobs without regard to any quota but the one in force.
func (f *fixture) enqueue(ns string, specs ...job.Spec) {
	f.Helper()
	docs, err := f.store.Quotas(f.Context(), []string{ns})
	f.must(err)
	q, _ := quota.Read(docs[0].Raw) // none and an unreadable one: no limits
	for i := range specs {
		f.must(specs[i].Normalize("job", job.DefaultMaxPayload))
	}
	out, err := f.store.Admit(f.Context(), []store.Call{{Namespace: ns, Quota: q, Stamp: docs[0].Stamp, Jobs: specs, Origin: job.OriginEnqueue}})
	f.must(err)
	f.must(out[0].Err)
}

// finish claims the next job of a namespace and ends it.
func (f *fixture) finish(ns string, as job.Outcome) string {
	f.Helper()
	docs, err := f.store.Quotas(f.Context(), []string{ns})
	f.must(err)
	_, grants, err := f.store.Turn(f.Context(), nil, []store.Want{{Namespace: ns, Max: 1, LeaseFor: time.Minute, Stamp: docs[0].Stamp}})
	f.must(err)
	if len(grants[0].Jobs) != 1 {
		f.Fatalf("%s: no job to finish: %v", ns, grants[0].Err)
	}
	l := grants[0].Jobs[0]
	_, _, err = f.store.Turn(f.Context(), []store.Settlement{{Namespace: ns, JobID: l.Job.ID, Lease: l.Lease, Outcome: as, Error: "boom"}}, nil)
	f.must(err)
	return l.Job.ID
}

func newID() string { return uuid.Must(uuid.NewV7()).String() }
