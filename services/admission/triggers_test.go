package admission

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/auth"
	"flexiq/pkg/bus"
	"flexiq/pkg/fault"
	"flexiq/pkg/job"
	"flexiq/pkg/store"
	"flexiq/pkg/testkit"
	"flexiq/pkg/wire"
)

const secret = "a secret of a trigger"

// trigger stores a trigger.
func (f *fixture) trigger(t store.Trigger, change ...func(*flexiqv1.JobSpec)) {
	f.Helper()
	p := &flexiqv1.JobSpec{Task: "t"}
	for _, c := range change {
		c(p)
	}
	var err error
	t.Job, err = wire.EncodeTemplate(p, job.DefaultMaxPayload)
	f.must(err)
	t.UpdatedBy = "adm1"
	f.must(f.store.PutTrigger(f.Context(), t, store.Record{Namespace: t.Namespace}))
}

// triggerDoor serves the door of triggers.
func (f *fixture) triggerDoor() string {
	f.Helper()
	f.svc.triggers.store = f.store
	mux := http.NewServeMux()
	mux.Handle("POST /v1/triggers/{namespace}/{name}", f.svc.Triggers(auth.NewVerifier(f.store, time.Now).Attempts()))
	door := httptest.NewServer(mux)
	f.Cleanup(door.Close)
	return door.URL
}

// ask posts to a trigger and returns status, headers and body.
func (f *fixture) ask(url, body string, headers ...string) (int, http.Header, map[string]any) {
	f.Helper()
	req, err := http.NewRequestWithContext(f.Context(), "POST", url, strings.NewReader(body))
	f.must(err)
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	f.must(err)
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	f.must(err)
	var out map[string]any
	f.must(json.Unmarshal(text, &out))
	return res.StatusCode, res.Header, out
}

func signature(at time.Time, secret, body string) string {
	return fmt.Sprintf("t=%d,v1=%s", at.Unix(), hex.EncodeToString(sign([]byte(secret), at.Unix(), []byte(body))))
}

func TestSignedTrigger(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(c *Config) { c.MaxPayload = 1000 })
	const ns, name = "a.b", "näme"
	f.trigger(store.Trigger{Namespace: ns, Name: name, Secret: []byte(secret)})
	f.trigger(store.Trigger{Namespace: ns, Name: "nats"})
	base := f.triggerDoor()
	url := base + wire.TriggerPath(ns, name)
	now := time.Now()

	good := signature(now, secret, `{"n":1}`)
	status, _, body := f.ask(url, `{"n":1}`, "Fq-Signature", good)
	if status != http.StatusAccepted || body["status"] != "pending" {
		t.Fatalf("a signed request: %d %v", status, body)
	}
	id := body["ids"].([]any)[0].(string)
	j, err := f.store.Job(t.Context(), ns, id)
	f.must(err)
	if string(j.Payload) != `{"n":1}` || j.Origin != "trigger:näme" || j.EnqueuedBy != "adm1" {
		t.Errorf("the job is %+v", j)
	}
	for name, c := range map[string]struct {
		url, body string
		headers   []string
		status    int
	}{
		"the same signature":         {url, `{"n":1}`, []string{"Fq-Signature", good}, 401},
		"another body":               {url, `{"n":2}`, []string{"Fq-Signature", signature(now, secret, `{"n":1}`)}, 401},
		"another secret":             {url, "x", []string{"Fq-Signature", signature(now, "another", "x")}, 401},
		"too old":                    {url, "x", []string{"Fq-Signature", signature(now.Add(-6*time.Minute), secret, "x")}, 401},
		"from the future":            {url, "x", []string{"Fq-Signature", signature(now.Add(6*time.Minute), secret, "x")}, 401},
		"no signature":               {url, "x", nil, 401},
		"no hex":                     {url, "x", []string{"Fq-Signature", "t=1,v1=zz"}, 401},
		"a wrong secret":             {url, "x", []string{"Fq-Secret", secret + "x"}, 401},
		"an unknown trigger":         {base + wire.TriggerPath(ns, "other"), "x", []string{"Fq-Secret", secret}, 404},
		"of another namespace":       {base + wire.TriggerPath("other", name), "x", []string{"Fq-Secret", secret}, 404},
		"a trigger of messages":      {base + wire.TriggerPath(ns, "nats"), "x", []string{"Fq-Secret", ""}, 404},
		"a name that is not escaped": {base + "/v1/triggers/A/b", "x", []string{"Fq-Secret", secret}, 404},
		"too long":                   {url, strings.Repeat("x", 1001), []string{"Fq-Secret", secret}, 413},
	} {
		if status, _, body := f.ask(c.url, c.body, c.headers...); status != c.status {
			t.Errorf("%s: %d %v, want %d", name, status, body, c.status)
		}
	}
	f.wantPending(ns, 1)
	if status, _, body := f.ask(url, strings.Repeat("x", 1000), "Fq-Secret", secret); status != http.StatusAccepted {
		t.Errorf("with the secret: %d %v", status, body)
	}
	f.wantPending(ns, 2)
}

func TestRefusedTrigger(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const ns = "ns"
	f.trigger(store.Trigger{Namespace: ns, Name: "t", Secret: []byte(secret)})
	url := f.triggerDoor() + wire.TriggerPath(ns, "t")
	reload := func(document string) {
		f.quota(ns, document)
		f.quotas.Invalidate(ns, 0)
	}
	once := signature(time.Now(), secret, "x")
	reload(`{"max_pending":0}`)
	status, head, body := f.ask(url, "x", "Fq-Signature", once)
	if status != 429 || head.Get("Fq-Reason") != "QUEUE_FULL" || head.Get("Retry-After") != "" {
		t.Errorf("at max_pending 0: %d %v %v", status, head, body)
	}
	reload(`{"max_pending":1}`)
	if status, _, body = f.ask(url, "x", "Fq-Signature", once); status != 202 {
		t.Errorf("the signature of a refused request, once there is room: %d %v", status, body)
	}
	status, head, body = f.ask(url, "x", "Fq-Secret", secret)
	if after, _ := strconv.Atoi(head.Get("Retry-After")); status != 429 || after != 1 {
		t.Errorf("full: %d %v %v", status, head, body)
	}
	reload(`{"max_pending":"many"}`)
	if status, head, _ = f.ask(url, "x", "Fq-Secret", secret); status != 503 || head.Get("Fq-Reason") != "QUOTA_UNREADABLE" {
		t.Errorf("unreadable: %d %v", status, head)
	}
	f.wantPending(ns, 1)
	reload(`{"max_pending":0,"on_excess":"drop"}`)
	status, _, body = f.ask(url, "x", "Fq-Secret", secret)
	if status != 202 || body["status"] != "dead" || len(body["ids"].([]any)) != 1 {
		t.Errorf("with drop: %d %v", status, body)
	}
	if u := f.usage(ns); u.Pending != 1 || u.Shed != 1 {
		t.Errorf("usage %+v", u)
	}
}

// hearing runs the service's messages on a server with JetStream.
func (f *fixture) hearing() (*bus.Conn, jetstream.JetStream) {
	f.Helper()
	server := testkit.NATS(f)
	ctx, cancel := context.WithTimeout(f.Context(), testkit.Patience)
	defer cancel()
	conn, err := bus.Connect(ctx, bus.Options{InProcess: server})
	f.must(err)
	js, err := jetstream.New(conn.Raw())
	f.must(err)
	f.svc.triggers.store, f.svc.messages = f.store, conn
	running, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f.svc.Run(running) }()
	f.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			f.Error(err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
		defer cancel()
		conn.Close(ctx)
	})
	return conn, js
}

func TestMessagesOfTriggers(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const ns = "a.b"
	f.trigger(store.Trigger{Namespace: ns, Name: "plain"})
	f.trigger(store.Trigger{Namespace: ns, Name: "durable", Stream: "S"})
	f.trigger(store.Trigger{Namespace: ns, Name: "http", Secret: []byte(secret)})
	conn, js := f.hearing()
	for _, c := range []struct {
		stream   string
		subjects []string
		ok       bool
	}{
		{"S", []string{"fqx.v1.a=2eb.durable"}, true},
		{"WIDE", []string{"fqx.v1.a=2eb.other", "fqx.v1.wren.x"}, false},
		{"FOREIGN", []string{"fqx.v1.wren.y"}, false},
		{"MISSING", nil, false},
		{"a.b", nil, false},
	} {
		if c.subjects != nil {
			_, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: c.stream, Subjects: c.subjects})
			f.must(err)
		}
		err := conn.CheckTriggerStream(t.Context(), c.stream, ns)
		if c.ok && err != nil || !c.ok && !fault.Is(err, fault.InvalidRequest) {
			t.Errorf("stream %s: %v", c.stream, err)
		}
	}
	f.quota(ns, `{"max_pending":1}`)
	// The plain message is heard once the service listens; until then it is lost, as documented.
	testkit.Eventually(t, "a plain message becomes a job", func() bool {
		f.must(conn.Raw().Publish("fqx.v1.a=2eb.plain", []byte("p")))
		f.must(conn.Raw().Publish("fqx.v1.a=2eb.http", []byte("no")))
		return f.usage(ns).Pending == 1
	})
	// Refused messages of a stream are kept and tried again.
	for range 3 {
		_, err := js.Publish(t.Context(), "fqx.v1.a=2eb.durable", []byte("d"))
		f.must(err)
	}
	testkit.Eventually(t, "the stream's messages are refused", func() bool { return f.count(metricRefused, "reason", "QUEUE_FULL") >= 4 })
	f.wantPending(ns, 1)
	f.quota(ns, `{"max_pending":4}`)
	testkit.Eventually(t, "they become jobs", func() bool { return f.usage(ns).Pending == 4 })
	s, err := js.Stream(t.Context(), "S")
	f.must(err)
	settled := func() bool {
		for info := range s.ListConsumers(t.Context()).Info() {
			return info.NumAckPending == 0 && info.NumPending == 0
		}
		return false
	}
	testkit.Eventually(t, "all are acknowledged", settled)

	// A message that is given out again makes no second job.
	m := bus.TriggerMessage{Namespace: ns, Name: "durable", Stream: "S", Sequence: 7, Time: time.Unix(1_800_000_000, 5), Data: []byte("x"), Delivered: 1}
	f.quota(ns, "")
	f.quotas.Invalidate(ns, 0)
	for range 3 {
		f.must(f.svc.pullDurable(t.Context(), m))
	}
	f.wantPending(ns, 5)
}

// A request that never reached the store, or of which nothing was written,
// leaves its signature unused, whenever the process ended: there is no step
// before the job's own that could use it up.
func TestSignatureOfALostRequest(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const ns = "ns"
	f.trigger(store.Trigger{Namespace: ns, Name: "t", Secret: []byte(secret)})
	url := f.triggerDoor() + wire.TriggerPath(ns, "t")
	once := signature(time.Now(), secret, "x")
	var signed []*store.Signature
	f.way.instead(func(_ context.Context, calls []store.Call) ([]store.Outcome, error) {
		signed = append(signed, calls[0].Signature)
		return nil, fault.New(fault.StorageUnavailable, "gone")
	})
	if status, head, body := f.ask(url, "x", "Fq-Signature", once); status != 503 || head.Get("Fq-Reason") != "STORAGE_UNAVAILABLE" {
		t.Errorf("without a store: %d %v", status, body)
	}
	if len(signed) != 1 || signed[0] == nil {
		t.Fatalf("the call carries the signature %v", signed)
	}
	f.way.instead(nil)
	if status, _, body := f.ask(url, "x", "Fq-Signature", once); status != 202 {
		t.Errorf("again: %d %v", status, body)
	}
	if status, _, body := f.ask(url, "x", "Fq-Signature", once); status != 401 {
		t.Errorf("once more: %d %v", status, body)
	}
	f.wantPending(ns, 1)
}
