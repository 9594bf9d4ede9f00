package admission

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"
	"google.golang.org/protobuf/types/known/structpb"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/auth"
	"flexiq/pkg/auth/embedded"
	"flexiq/pkg/bus"
	"flexiq/pkg/testkit"
)

// overNATS serves the fixture's service on a secured server and returns how to
// connect to it with a token.
func (f *fixture) overNATS() (connect func(token string) *bus.Conn) {
	f.Helper()
	ids := auth.NewVerifier(f.store, time.Now)
	server := testkit.SecureNATS(f, embedded.New(ids, "service", "password", zerolog.Nop()))
	open := func(o bus.Options) *bus.Conn {
		f.Helper()
		c, err := bus.Connect(f.Context(), o)
		f.must(err)
		f.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
			defer cancel()
			c.Close(ctx)
		})
		return c
	}
	conn := open(bus.Options{InProcess: server, User: "service", Password: "password"})
	_, err := conn.Serve("admission", f.svc.Methods(), ids)
	f.must(err)
	return func(token string) *bus.Conn { return open(bus.Options{URL: server.ClientURL(), Token: token}) }
}

// subject is where a token sends requests of a verb.
func subject(f *fixture, token, verb string) string {
	f.Helper()
	parts, err := auth.Parse(token)
	f.must(err)
	return bus.Subject(verb, parts.NSToken, parts.ID)
}

func TestOverNATS(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.quota("a.b", `{"max_pending":2}`)
	connect := f.overNATS()
	token := f.producer("a.b")
	c := connect(token)
	if want := "fq.v1.enqueue.a=2eb."; !strings.HasPrefix(subject(f, token, "enqueue"), want) {
		t.Fatalf("subject %s", subject(f, token, "enqueue"))
	}
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()

	args, _ := structpb.NewValue(map[string]any{"n": 1})
	var res flexiqv1.EnqueueResponse
	f.must(c.Call(ctx, subject(f, token, "enqueue"), &flexiqv1.EnqueueRequest{Job: &flexiqv1.JobSpec{Task: "t", Args: args}}, &res))
	var got flexiqv1.GetJobResponse
	f.must(c.Call(ctx, subject(f, token, "get-job"), &flexiqv1.GetJobRequest{Id: res.GetResult().GetJob().GetId()}, &got))
	if got.GetJob().GetArgs().GetStructValue().GetFields()["n"].GetNumberValue() != 1 || got.GetJob().GetNamespace() != "a.b" {
		t.Errorf("got %v", got.GetJob())
	}

	// The same in JSON, as any NATS client speaks it, and its refusal.
	ask := func(verb, body string) *nats.Msg {
		t.Helper()
		m, err := c.Raw().RequestWithContext(ctx, subject(f, token, verb), []byte(body))
		f.must(err)
		return m
	}
	if m := ask("enqueue-batch", `{"jobs":[{"task":"t"}]}`); m.Header.Get("Nats-Service-Error-Code") != "" || !strings.HasPrefix(string(m.Data), `{"results":[{"job":{"id":"`) {
		t.Errorf("%v %s", m.Header, m.Data)
	}
	m := ask("enqueue", `{"job":{"task":"t","queue":"mail"}}`)
	text := "queue 'mail' is full: 2 pending >= max_pending 2"
	if m.Header.Get("Nats-Service-Error-Code") != "429" || m.Header.Get("Nats-Service-Error") != text || m.Header.Get("Fq-Reason") != "QUEUE_FULL" {
		t.Errorf("headers %v", m.Header)
	}
	var body any
	f.must(json.Unmarshal(m.Data, &body))
	want := map[string]any{"error": map[string]any{
		"code": "RESOURCE_EXHAUSTED", "reason": "QUEUE_FULL", "message": text,
		"details": map[string]any{
			"namespace": "a.b", "limit": "max_pending", "cap": "2", "current": "2", "asked": "1", "fits": "0",
			"revision": "1", "retry_after_ms": "1000", "estimate": "true",
		},
	}}
	if d := cmp.Diff(want, body); d != "" {
		t.Errorf("error body (-want +got):\n%s", d)
	}
	m = ask("enqueue-calls", `{"calls":[{"jobs":[{"task":"t"}]},{"jobs":[{"task":7}]}]}`)
	if m.Header.Get("Fq-Reason") != "INVALID_REQUEST" {
		t.Errorf("a body that cannot be read: %v %s", m.Header, m.Data)
	}
	f.wantPending("a.b", 2)
}

// A plain publish is carried out like a call; only counters tell how it went.
func TestPlainPublish(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.quota("a", `{"max_pending":2}`)
	token := f.producer("a")
	c := f.overNATS()(token)
	send := func(verb, body string) {
		t.Helper()
		f.must(c.Raw().Publish(subject(f, token, verb), []byte(body)))
		f.must(c.Raw().FlushTimeout(testkit.Patience))
	}
	wait := func(name, label, value string, n float64) {
		t.Helper()
		testkit.Eventually(t, fmt.Sprintf("%s{%s} is %v", name, value, n), func() bool { return f.count(name, label, value) == n })
	}
	send("enqueue", `{"job":{"task":"t"}}`)
	wait(metricJobs, "outcome", "admitted", 1)
	send("enqueue-batch", batchOf(2))
	wait(metricRefused, "reason", "QUEUE_FULL", 1)
	send("enqueue", `{"job":{}}`)
	wait(metricRefused, "reason", "INVALID_REQUEST", 1)
	send("enqueue", `{`)
	wait(metricRefused, "reason", "INVALID_REQUEST", 2)
	f.quota("a", `{"max_pending":true}`)
	send("enqueue", `{"job":{"task":"t"}}`)
	wait(metricRefused, "reason", "QUOTA_UNREADABLE", 1)
	f.wantPending("a", 1)
}

// A flood over NATS is decided in a few flushes, each call exactly once.
func TestFloodOverNATS(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const calls, places = 400, 250
	f.quota("a", `{"max_pending":`+strconv.Itoa(places)+`}`)
	token := f.producer("a")
	c := f.overNATS()(token)
	inbox, err := c.Raw().SubscribeSync(c.Raw().NewInbox())
	f.must(err)
	for range calls {
		f.must(c.Raw().PublishRequest(subject(f, token, "enqueue"), inbox.Subject, []byte(`{"job":{"task":"t"}}`)))
	}
	reasons := map[string]int{}
	for range calls {
		m, err := inbox.NextMsg(testkit.Patience)
		f.must(err)
		reasons[m.Header.Get("Fq-Reason")]++
	}
	if d := cmp.Diff(map[string]int{"": places, "QUEUE_FULL": calls - places}, reasons); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	f.wantPending("a", places)
}
