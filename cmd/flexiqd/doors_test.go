package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/auth"
	"flexiq/pkg/client"
	"flexiq/pkg/fault"
	"flexiq/pkg/testkit"
)

func natsPost(t *testing.T, d *daemon, token, verb, body string) (*nats.Msg, map[string]any) {
	t.Helper()
	parts, err := auth.Parse(token)
	if err != nil {
		t.Fatal(err)
	}
	nc, err := nats.Connect(d.natsURL, nats.Token(token), nats.CustomInboxPrefix("_INBOX."+parts.NSToken+"."+parts.ID))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	msg, err := nc.Request(fmt.Sprintf("fq.v1.%s.%s.%s", verb, parts.NSToken, parts.ID), []byte(body), testkit.Patience)
	if err != nil {
		t.Fatal(err)
	}
	var out map[string]any
	if err := json.Unmarshal(msg.Data, &out); err != nil {
		t.Fatalf("%v in %s", err, msg.Data)
	}
	return msg, out
}

func TestBothDoorsTellTheSame(t *testing.T) {
	home(t)
	d := inProcess(t)
	c, err := readCredentials(credentialsFile(d.opts.DataDir))
	if err != nil {
		t.Fatal(err)
	}
	token := c.Tokens["default"]
	if _, err := dial(t, d.opts.DataDir, "default", "").Admin().SetQuota(t.Context(), &flexiqv1.SetQuotaRequest{
		Quota: &flexiqv1.NamespaceQuota{MaxPending: proto.Int64(2), EnqueueRate: proto.String("1000/h")},
	}); err != nil {
		t.Fatal(err)
	}

	_, viaHTTP := post(t, d, token, "ProducerService/Enqueue", `{"job":{"task":"t","args":{"n":1}}}`)
	_, viaNATS := natsPost(t, d, token, "enqueue", `{"job":{"task":"t","args":{"n":1}}}`)
	if diff := cmp.Diff(shape(viaHTTP), shape(viaNATS)); diff != "" {
		t.Errorf("a result over HTTP and over NATS:\n%s", diff)
	}

	const full = "queue 'default' is full: 2 pending >= max_pending 2"
	res, refusedHTTP := post(t, d, token, "ProducerService/Enqueue", `{"job":{"task":"t"}}`)
	if res.StatusCode != http.StatusTooManyRequests || res.Header.Get("Fq-Reason") != "QUEUE_FULL" || res.Header.Get("Retry-After") != "1" ||
		refusedHTTP["message"] != full || refusedHTTP["code"] != "resource_exhausted" {
		t.Errorf("refused over HTTP: %s %v %v", res.Status, res.Header, refusedHTTP)
	}
	msg, refusedNATS := natsPost(t, d, token, "enqueue", `{"job":{"task":"t"}}`)
	if msg.Header.Get("Nats-Service-Error-Code") != "429" || msg.Header.Get("Nats-Service-Error") != full || msg.Header.Get("Fq-Reason") != "QUEUE_FULL" {
		t.Errorf("refused over NATS: %v", msg.Header)
	}
	details := map[string]any{
		"namespace": "default", "limit": "max_pending", "cap": "2", "current": "2", "asked": "1", "fits": "0",
		"revision": "1", "retry_after_ms": "1000", "estimate": "true",
	}
	want := map[string]any{"error": map[string]any{"code": "RESOURCE_EXHAUSTED", "reason": "QUEUE_FULL", "message": full, "details": details}}
	if diff := cmp.Diff(want, refusedNATS); diff != "" {
		t.Errorf("the body of a refusal over NATS (-want +got):\n%s", diff)
	}
	debug := refusedHTTP["details"].([]any)[0].(map[string]any)["debug"].(map[string]any)
	if diff := cmp.Diff(any(details), debug["metadata"]); diff != "" {
		t.Errorf("the details of a refusal over HTTP (-want +got):\n%s", diff)
	}

	_, badHTTP := post(t, d, token, "ProducerService/Enqueue", `{"job":{"task":"t","priority":200}}`)
	_, badNATS := natsPost(t, d, token, "enqueue", `{"job":{"task":"t","priority":200}}`)
	text := badNATS["error"].(map[string]any)["message"]
	if badHTTP["message"] != text || !strings.Contains(text.(string), "job.priority") {
		t.Errorf("a bad priority: %q over HTTP, %q over NATS", badHTTP["message"], text)
	}
}

func shape(result map[string]any) map[string]any {
	job := result["result"].(map[string]any)["job"].(map[string]any)
	for _, k := range []string{"id", "created_at", "run_at"} {
		if s, _ := job[k].(string); s == "" {
			job[k] = "missing"
		} else {
			job[k] = "present"
		}
	}
	return result
}

func TestNoSecretIsLogged(t *testing.T) {
	home(t)
	var log lockedBuffer
	d, stop := inProcessLogging(t, &log, "--log-level=debug")
	c, err := readCredentials(credentialsFile(d.opts.DataDir))
	if err != nil {
		t.Fatal(err)
	}
	token := c.Tokens["default"]
	const payload = "pAyLoAdMaRkEr"
	post(t, d, token, "ProducerService/Enqueue", `{"job":{"task":"t","args":"`+payload+`"}}`)
	post(t, d, token, "ProducerService/Enqueue", `{"job":{"task":"","args":"`+payload+`"}}`)
	post(t, d, token, "ProducerService/Enqueue", `{"job":{"task":"t","args":"`+payload+`"`)
	post(t, d, token+"x", "ProducerService/Enqueue", `{}`)
	_, made := post(t, d, token, "AdminService/CreateToken", `{"scopes":["work"],"name":"n"}`)
	if _, err := nats.Connect(d.natsURL, nats.Token(token+"x")); err == nil {
		t.Error("a wrong token connected")
	}
	natsPost(t, d, token, "enqueue", `{"job":{"task":"t","args":"`+payload+`"}}`)
	stop()
	text := log.String()
	if text == "" {
		t.Fatal("nothing was logged: the test shows nothing")
	}
	secrets := []string{payload}
	for _, s := range []string{token, c.Tokens["platform"], fmt.Sprint(made["token"])} {
		parts, err := auth.Parse(s)
		if err != nil {
			t.Fatal(err)
		}
		secrets = append(secrets, parts.Secret)
	}
	for _, s := range secrets {
		if strings.Contains(text, s) {
			t.Errorf("the log holds %q", s)
		}
	}
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func TestAnOrderlyStopAnswersParkedPolls(t *testing.T) {
	home(t)
	d, stop := inProcessLogging(t, io.Discard)
	c, err := readCredentials(credentialsFile(d.opts.DataDir))
	if err != nil {
		t.Fatal(err)
	}
	answered := make(chan int, 1)
	go func() {
		res, body := post(t, d, c.Tokens["default"], "WorkerService/Claim", `{"max_jobs":1,"wait":"60s"}`)
		if jobs, _ := body["jobs"].([]any); len(jobs) != 0 {
			t.Errorf("a poll that the stop answered holds %v", body)
		}
		answered <- res.StatusCode
	}()
	testkit.Eventually(t, "the poll is parked", func() bool { return parked(t, d) == 1 })
	stop()
	if code := <-answered; code != http.StatusOK {
		t.Errorf("the parked poll was answered with %d", code)
	}
	if _, err := net.Dial("tcp", d.listener.Addr().String()); err == nil {
		t.Error("the stopped daemon still listens")
	}
}

func TestARevokedTokenEndsItsParkedPolls(t *testing.T) {
	home(t)
	d := inProcess(t)
	c := dial(t, d.opts.DataDir, "default", "")
	made, err := c.Admin().CreateToken(t.Context(), &flexiqv1.CreateTokenRequest{Scopes: []string{"work"}, Name: "short"})
	if err != nil {
		t.Fatal(err)
	}
	type answer struct {
		code int
		body map[string]any
	}
	answered := make(chan answer, 1)
	go func() {
		res, body := post(t, d, made.GetToken(), "WorkerService/Claim", `{"max_jobs":1,"wait":"60s"}`)
		answered <- answer{res.StatusCode, body}
	}()
	testkit.Eventually(t, "the poll is parked", func() bool { return parked(t, d) == 1 })
	if _, err := c.Admin().RevokeToken(t.Context(), &flexiqv1.RevokeTokenRequest{Id: made.GetId()}); err != nil {
		t.Fatal(err)
	}
	if a := <-answered; a.code != http.StatusUnauthorized {
		t.Errorf("the poll of a revoked token was answered with %d %v", a.code, a.body)
	}
	testkit.Eventually(t, "nobody waits any more", func() bool { return parked(t, d) == 0 })
	res, err := c.Enqueue(t.Context(), client.Job{Task: "t"})
	if err != nil || res.Job.GetStatus() != "pending" {
		t.Errorf("a job enqueued afterwards: %v, %v", res.Job, err)
	}
}

func parked(t *testing.T, d *daemon) float64 {
	t.Helper()
	families, err := d.reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if strings.HasSuffix(f.GetName(), "gate_waiting_claims") {
			return f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	t.Fatal("no gauge of waiters")
	return 0
}

func TestAnotherTenantsTokenSeesNothing(t *testing.T) {
	home(t)
	d := inProcess(t)
	platform := dial(t, d.opts.DataDir, "platform", "")
	lark := dial(t, d.opts.DataDir, "default", "")
	res, err := lark.Enqueue(t.Context(), client.Job{Task: "t"})
	if err != nil {
		t.Fatal(err)
	}
	other, err := platform.Admin().ExchangeToken(t.Context(), "wren")
	if err != nil {
		t.Fatal(err)
	}
	wren, err := client.Dial(t.Context(), client.Options{Server: d.natsURL, Token: other.GetToken()})
	if err != nil {
		t.Fatal(err)
	}
	defer wren.Close(context.Background())
	_, foreign := wren.Job(t.Context(), res.Job.GetId())
	_, missing := wren.Job(t.Context(), "01890a5d-ac96-774b-bcce-b302099a8057")
	if !fault.Is(foreign, fault.NotFound) || fault.Of(foreign).Message != fault.Of(missing).Message {
		t.Errorf("another tenant's job: %v; a missing one: %v", foreign, missing)
	}
}
