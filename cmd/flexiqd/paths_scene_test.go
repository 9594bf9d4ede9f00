package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/nats-io/nats.go"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/dynamicpb"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/auth"
	"flexiq/pkg/client"
	"flexiq/pkg/events"
	"flexiq/pkg/job"
	"flexiq/pkg/quota"
	"flexiq/pkg/store"
	"flexiq/pkg/testkit"
)

// scene is a namespace in which a situation is played.
type scene struct {
	t   *testing.T
	d   *daemon
	log *lockedBuffer
	sit situation
	ns  string

	token    string
	nc       *nats.Conn
	http     *http.Client // HTTP/2 without TLS too, for gRPC
	clients  map[string]*client.Client
	events   *heardEvents
	most     int64 // max_pending, where that is what refuses
	revision string
	leases   map[string]string // of running jobs by the path that they are for
	kept     map[string][]string
}

func newScene(t *testing.T, d *daemon, log *lockedBuffer, sit situation, ns string) *scene {
	t.Helper()
	made, err := dial(t, d.opts.DataDir, "platform", "").Admin().CreateToken(t.Context(), &flexiqv1.CreateTokenRequest{
		Namespace: ns, Scopes: []string{"produce", "work", "inspect", "admin"},
	})
	if err != nil {
		t.Fatal(err)
	}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: protocols}
	t.Cleanup(transport.CloseIdleConnections)
	s := &scene{
		t: t, d: d, log: log, sit: sit, ns: ns, token: made.GetToken(), http: &http.Client{Transport: transport},
		clients: map[string]*client.Client{}, leases: map[string]string{}, kept: map[string][]string{},
	}
	s.nc = bare(t, d.natsURL, s.token)
	s.events = &heardEvents{t: t}
	_, err = s.nc.Subscribe(events.Subject(ns, ">"), s.events.hear)
	s.must(err, "subscribe to events")
	s.must(s.nc.Flush(), "subscribe to events")
	for name, url := range map[string]string{"NATS": d.natsURL, "HTTP": d.httpURL} {
		c, err := client.Dial(t.Context(), client.Options{Server: url, Token: s.token})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close(context.Background()) })
		s.clients[name] = c
	}
	return s
}

// heardEvents are the events of a scene's namespace so far.
type heardEvents struct {
	t    *testing.T
	mu   sync.Mutex
	list []*flexiqv1.Event
}

func (h *heardEvents) hear(m *nats.Msg) {
	e, err := events.Decode(m.Data)
	if err != nil {
		h.t.Errorf("an event: %v in %s", err, m.Data)
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.list = append(h.list, e)
}

func (h *heardEvents) has(like func(*flexiqv1.Event) bool) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.ContainsFunc(h.list, like)
}

// must fails the test with what was being done.
func (s *scene) must(err error, what string) {
	s.t.Helper()
	if err != nil {
		s.t.Fatalf("%s: %v", what, err)
	}
}

// admin calls a method that must succeed.
func (s *scene) admin(method, body string) map[string]any {
	s.t.Helper()
	got := overHTTP(s, method, body)
	if got.reason != "" {
		s.t.Fatalf("%s %s: %s", method, body, got)
	}
	return got.body
}

// close leaves no room.
func (s *scene) close() {
	s.t.Helper()
	if s.sit.limit == "enqueue_rate" {
		s.setQuota(s.sit.document(0))
	}
	fill := make([]string, rateCount)
	for i := range fill {
		fill[i] = `{"task":"fill","queue":"fill","delay":"7200s"}`
	}
	s.admin("EnqueueBatch", `{"jobs":[`+strings.Join(fill, ",")+`]}`)
	if s.sit.limit != "enqueue_rate" {
		s.most = s.look().counts.pending
		s.setQuota(s.sit.document(s.most))
	}
	for _, id := range s.kept["letters"] {
		s.settle(id, `"outcome":"dead","error":"boom"`)
	}
}

// setQuota writes a document that the door would refuse too, and tells this
// process of it as a hint would.
func (s *scene) setQuota(document string) {
	s.t.Helper()
	c := store.QuotaChange{Namespace: s.ns, Raw: []byte(document)}
	if q, err := quota.Read(c.Raw); err == nil {
		c.Rate = q.EnqueueRate
	}
	doc, err := s.d.store.PutQuota(s.t.Context(), c)
	s.must(err, "put quota")
	s.revision = fmt.Sprint(doc.Stamp.Revision)
	s.d.hinted(store.KindQuota, s.ns, doc.Stamp.Revision)
}

// running makes a running job that a path needs, and returns its id.
func (s *scene) running(queue, lease string) string {
	s.t.Helper()
	s.admin("Enqueue", fmt.Sprintf(`{"job":{"task":"t","queue":%q,"payload":"AAEC"}}`, queue))
	claimed := s.admin("Claim", fmt.Sprintf(`{"queues":[%q],"max_jobs":1,"wait":"10s","lease_for":%q}`, queue, lease))
	id, _ := testkit.Dig(claimed, "jobs", 0, "job", "id").(string)
	s.leases[id], _ = testkit.Dig(claimed, "jobs", 0, "lease").(string)
	if id == "" {
		s.t.Fatalf("claimed from %s: %v", queue, claimed)
	}
	return id
}

// settle ends an attempt.
func (s *scene) settle(id, outcome string) map[string]any {
	s.t.Helper()
	done := s.admin("Settle", fmt.Sprintf(`{"settlements":[{"job_id":%q,"lease":%q,%s}]}`, id, s.leases[id], outcome))
	if accepted, _ := testkit.Dig(done, "results", 0, "accepted").(bool); !accepted {
		s.t.Fatalf("settle %s: %v", outcome, done)
	}
	return done
}

// counts are what a namespace holds.
type counts struct{ pending, running, archived, dead, shed int64 }

// looked is all that an attempt could have left behind.
type looked struct {
	counts counts
	bucket quota.Bucket
	jobs   map[string]string // state by id; "shed" with the error of a shed one
}

func (s *scene) look() looked {
	s.t.Helper()
	u, err := s.d.store.Usage(s.t.Context(), []string{s.ns})
	s.must(err, "usage")
	l := looked{
		counts: counts{u[0].Pending, u[0].Running, u[0].Archived, u[0].Dead, u[0].Shed},
		bucket: u[0].Bucket, jobs: map[string]string{},
	}
	for after := ""; ; {
		page, err := s.d.store.ListJobs(s.t.Context(), s.ns, store.Filter{}, after, 500)
		s.must(err, "list jobs")
		for i := range page.Items {
			l.jobs[page.Items[i].ID] = s.stateOf(&page.Items[i])
		}
		if after = page.Next; after == "" {
			return l
		}
	}
}

func (s *scene) stateOf(j *job.Job) string {
	if j.State != job.Dead || !strings.HasPrefix(j.Error, "quota:") {
		return string(j.State)
	}
	if !strings.Contains(j.Error, s.ns) || !strings.Contains(j.Error, s.sit.limit) || !maps.Equal(j.DeadMetadata, job.ShedMetadata()) ||
		j.UniqueKey != "" || j.Debounce.Key != "" {
		s.t.Errorf("a shed job: %+v", j)
	}
	return "shed " + j.Origin
}

// refusals reads how many calls admission has refused for the situation's reason.
func (s *scene) refusals() float64 {
	return testkit.Metric(s.t, s.d.reg, "flexiq_admission_refused_calls_total", "reason", s.sit.reason)
}

// records are the audit records of an operation and a target.
func (s *scene) records(operation, target string) (outcomes []string) {
	s.t.Helper()
	page, err := s.d.store.ListAudit(s.t.Context(), s.ns, store.AuditFilter{}, "", 500)
	s.must(err, "list audit")
	for _, r := range page.Items {
		if r.Operation == operation && (target == "" || r.Target == target) {
			outcomes = append(outcomes, r.Outcome)
		}
	}
	return outcomes
}

// door calls a method with a JSON body.
type door func(s *scene, method, body string) reply

func overHTTP(s *scene, name, body string) reply {
	s.t.Helper()
	a := testkit.Post(s.t, s.http, s.d.httpURL+method(s.t, name).Procedure(), s.token, body)
	code, _ := a.Body["code"].(string)
	return reply{
		status: a.Status, code: strings.ToUpper(code), reason: a.Reason, message: a.Message, details: a.Details,
		retry: a.Header.Get("Retry-After") != "", body: a.Body,
	}.read()
}

func overNATS(s *scene, name, body string) reply {
	s.t.Helper()
	parts, err := auth.Parse(s.token)
	s.must(err, "the token")
	msg, err := s.nc.Request(auth.Subject(method(s.t, name).Verb, parts.NSToken, parts.ID), []byte(body), testkit.Patience)
	s.must(err, name)
	var r reply
	s.must(json.Unmarshal(msg.Data, &r.body), name)
	return s.natsError(r, msg).read()
}

// natsError reads the error of an answer, body and headers.
func (s *scene) natsError(r reply, msg *nats.Msg) reply {
	s.t.Helper()
	e, _ := r.body["error"].(map[string]any)
	if e == nil {
		return r
	}
	r.errorIn(e)
	if msg.Header.Get("Fq-Reason") != r.reason || msg.Header.Get("Nats-Service-Error") != r.message {
		s.t.Errorf("the headers %v differ from the body %v", msg.Header, e)
	}
	_, err := fmt.Sscan(msg.Header.Get("Nats-Service-Error-Code"), &r.status)
	s.must(err, "the header of the code")
	return r
}

// errorIn reads an error as JSON bodies have it.
func (r *reply) errorIn(e map[string]any) {
	r.code, _ = e["code"].(string)
	r.reason, _ = e["reason"].(string)
	r.message, _ = e["message"].(string)
	r.details = map[string]string{}
	details, _ := e["details"].(map[string]any)
	for k, v := range details {
		r.details[k] = fmt.Sprint(v)
	}
	r.retry = r.details["retry_after_ms"] != ""
}

func overGRPC(s *scene, name, body string) reply {
	s.t.Helper()
	m := method(s.t, name)
	in := dynamicpb.NewMessage(describe(s.t, m).Input())
	s.must(protojson.Unmarshal([]byte(body), in), name)
	text, err := proto.Marshal(in)
	s.must(err, name)
	call := connect.NewRequest(&raw{text})
	call.Header().Set("Authorization", "Bearer "+s.token)
	ctx, cancel := context.WithTimeout(s.t.Context(), testkit.Patience)
	defer cancel()
	cl := connect.NewClient[raw, raw](s.http2(), s.d.httpURL+m.Procedure(), connect.WithGRPC(), connect.WithCodec(rawCodec{"proto"}))
	res, err := cl.CallUnary(ctx, call)
	if err != nil {
		return s.grpcError(err)
	}
	out := dynamicpb.NewMessage(describe(s.t, m).Output())
	s.must(proto.Unmarshal(res.Msg.bytes, out), name)
	text, err = protojson.MarshalOptions{UseProtoNames: true}.Marshal(out)
	s.must(err, name)
	var r reply
	s.must(json.Unmarshal(text, &r.body), name)
	return r.read()
}

// http2 speaks HTTP/2 alone, as gRPC does.
func (s *scene) http2() *http.Client {
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: protocols}
	s.t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

func (s *scene) grpcError(err error) reply {
	s.t.Helper()
	e := new(connect.Error)
	if !errors.As(err, &e) {
		s.t.Fatal(err)
	}
	r := reply{code: strings.ToUpper(e.Code().String()), message: e.Message(), details: map[string]string{}}
	for _, detail := range e.Details() {
		v, err := detail.Value()
		s.must(err, "a detail")
		switch v := v.(type) {
		case *errdetails.ErrorInfo:
			r.reason, r.details = v.GetReason(), v.GetMetadata()
		case *errdetails.RetryInfo:
			r.retry = v.GetRetryDelay().AsDuration() > 0
		}
	}
	return r
}

// read finds the jobs in the body of an answer.
func (r reply) read() reply {
	results, _ := r.body["results"].([]any)
	if one := r.body["result"]; one != nil {
		results = []any{one}
	}
	for _, one := range results {
		state, _ := testkit.Dig(one, "job", "status").(string)
		dup, _ := testkit.Dig(one, "deduplicated").(bool)
		moved, _ := testkit.Dig(one, "debounced").(bool)
		r.states, r.merged = append(r.states, state), r.merged || dup || moved
	}
	return r
}

// waitFor waits for what a scene tells of only when it is looked at.
func (s *scene) waitFor(what string, so func() bool) {
	s.t.Helper()
	testkit.Eventually(s.t, what, func() bool {
		if so() {
			return true
		}
		time.Sleep(50 * time.Millisecond) // looks are dear, and three scenes share the machine
		return false
	})
}
