package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/auth"
	"flexiq/pkg/client"
	"flexiq/pkg/fault"
	"flexiq/pkg/testkit"
)

func TestFirstStartWritesCredentialsForItsOwner(t *testing.T) {
	home(t)
	d, stop := inProcessLogging(t, io.Discard)
	path := credentialsFile(d.opts.DataDir)
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o600 {
		t.Errorf("the credentials file has mode %v, want 0600", info.Mode().Perm())
	}
	first, err := readCredentials(path)
	if err != nil {
		t.Fatal(err)
	}
	if first.NATSURL != d.natsURL || first.HTTPURL != d.httpURL || first.Tokens["platform"] == "" || first.Tokens["default"] == "" {
		t.Errorf("the credentials file holds %v and %v, tokens %d", first.NATSURL, first.HTTPURL, len(first.Tokens))
	}
	c, err := client.FromEnvironment(t.Context())
	if err != nil {
		t.Fatalf("the saved context: %v", err)
	}
	if _, err := c.Admin().GetUsage(t.Context()); err != nil {
		t.Errorf("usage through the saved context: %v", err)
	}
	_ = c.Close(t.Context())
	stop()

	again := inProcess(t)
	second, err := readCredentials(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(first.Tokens, second.Tokens); diff != "" {
		t.Errorf("a second start changed the tokens:\n%s", diff)
	}
	if second.NATSURL != again.natsURL {
		t.Errorf("a second start left the old address %s", second.NATSURL)
	}
}

func TestALostOrOpenCredentialsFileIsTold(t *testing.T) {
	home(t)
	d, stop := inProcessLogging(t, io.Discard)
	path := credentialsFile(d.opts.DataDir)
	stop()
	for _, tc := range []struct {
		name  string
		spoil func() error
	}{
		{"readable by others", func() error { return os.Chmod(path, 0o644) }},
		{"damaged", func() error { return os.WriteFile(path, []byte("{"), 0o600) }},
		{"lost", func() error { return os.Remove(path) }},
	} {
		if err := tc.spoil(); err != nil {
			t.Fatal(err)
		}
		var log lockedBuffer
		d, stop := inProcessLogging(t, &log)
		req, err := http.NewRequest(http.MethodGet, d.httpURL+"/readyz", nil)
		if err != nil {
			t.Fatal(err)
		}
		if res, body := do(t, req); res.StatusCode != http.StatusOK || body["status"] != "degraded" {
			t.Errorf("%s: /readyz answers %d %v, want degraded", tc.name, res.StatusCode, body)
		}
		if !strings.Contains(log.String(), "the credentials file cannot be used") {
			t.Errorf("%s: the log does not tell:\n%s", tc.name, log.String())
		}
		stop()
	}
}

func TestACrashBetweenFileAndStoreLocksNobodyOut(t *testing.T) {
	home(t)
	d, stop := inProcessLogging(t, io.Discard)
	dir, opts := d.opts.DataDir, d.opts.storeOptions()
	stop()
	// As a crash leaves it that came after the store knew the tokens.
	if err := os.Rename(credentialsFile(dir), credentialsFile(dir)+".new"); err != nil {
		t.Fatal(err)
	}
	s := open(t, opts)
	if err := firstTokens(t.Context(), s, dir, credentials{}); err != nil {
		t.Fatal(err)
	}
	adopted, err := readCredentials(credentialsFile(dir))
	if err != nil || adopted.Tokens["default"] == "" {
		t.Fatalf("the file is adopted: %v", err)
	}
	// As one leaves it that came before.
	if err := os.WriteFile(credentialsFile(dir)+".new", []byte("{\"tokens\":"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := firstTokens(t.Context(), s, dir, credentials{}); err != nil {
		t.Fatal(err)
	}
	kept, err := readCredentials(credentialsFile(dir))
	if diff := cmp.Diff(adopted, kept); err != nil || diff != "" {
		t.Errorf("a torn file beside a store with tokens changed the credentials: %v\n%s", err, diff)
	}
}

func TestWhatIsTakenIsNamed(t *testing.T) {
	home(t)
	d := inProcess(t)
	busy := d.listener.Addr().String()
	natsBusy := strings.TrimPrefix(d.natsURL, "nats://")
	for name, tc := range map[string]struct {
		args []string
		want []string
	}{
		"data folder": {nil, []string{"the data folder " + d.opts.DataDir + " is in use by another flexiqd (process ", "--data-dir"}},
		"http port":   {[]string{"--data-dir=" + t.TempDir(), "--http-listen=" + busy}, []string{"cannot listen for HTTP on " + busy, "address already in use", "--http-listen"}},
		"nats port":   {[]string{"--data-dir=" + t.TempDir(), "--nats-listen=" + natsBusy}, []string{"cannot listen for NATS on " + natsBusy, "address already in use", "--nats-listen"}},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			args := append([]string{"--nats-listen=127.0.0.1:0", "--http-listen=127.0.0.1:0", "--log-level=error"}, tc.args...)
			if code := run(t.Context(), args, io.Discard, &out); code != exitError {
				t.Errorf("exit code %d, want %d", code, exitError)
			}
			for _, w := range tc.want {
				if !strings.Contains(out.String(), w) {
					t.Errorf("the message lacks %q:\n%s", w, &out)
				}
			}
		})
	}
}

func TestUsageErrorsNameTheFlag(t *testing.T) {
	home(t)
	for _, tc := range []struct{ args, want string }{
		{"serve admission", "--nats-url: is required when fewer than four services run"},
		{"serve admision", `unknown service "admision"`},
		{"--store=mysql://root:secret@db/x", `--store: must be sqlite:PATH, postgres://… or redis://…, got the scheme "mysql"`},
		{"--store=sqlite:x --store-file=/dev/null", "--store-file: must not be given together with --store"},
		{"--store-file=/dev/null", "--store-file: the first line of /dev/null is empty"},
		{"--http-listen=0.0.0.0:8080", "--http-listen: 0.0.0.0:8080 is reachable from other hosts"},
		{"--nats-listen=:4222", "--nats-listen: :4222 is reachable from other hosts"},
		{"--http-listen=127.0.0.1:http", "--http-listen: the port must be from 0 to 65535"},
		{"--claim-lease=10ms", "--claim-lease: must be from 1s to 1h0m0s"},
		{"--max-payload=0", "--max-payload: must be from 1 to 4194304 bytes"},
		{"--maintenance=maybe", `--maintenance must be one of "on","off"`},
		{"--archive-age=-3h", "--archive-age"},
		{"--archive-age=soon", "--archive-age"},
		{"--nonsense", "--nonsense"},
	} {
		t.Run(tc.args, func(t *testing.T) {
			var out bytes.Buffer
			if code := run(t.Context(), strings.Fields(tc.args), io.Discard, &out); code != exitUsage {
				t.Errorf("exit code %d, want %d", code, exitUsage)
			}
			if !strings.Contains(out.String(), tc.want) || strings.Contains(out.String(), "secret") {
				t.Errorf("the message is %q, want %q in it", &out, tc.want)
			}
		})
	}
}

// natsPost calls a method as `nats req` would: the token's own subject and inbox, a JSON body.
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

// TestBothDoorsTellTheSame makes the same calls with curl's means and with
// those of `nats req`, and compares results, refusals and texts.
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

// shape replaces what must differ between two calls.
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

// TestFloodMeetsTheRate sends far more than the rate admits: every job is
// admitted or shed, no more is admitted than the rate lets through, and usage,
// the list of dead letters and a recount agree.
func TestFloodMeetsTheRate(t *testing.T) {
	const jobs, rate = 2000, 200
	home(t)
	d, stop := inProcessLogging(t, io.Discard)
	c := dial(t, d.opts.DataDir, "default", "")
	ctx := t.Context()
	if _, err := c.Admin().SetQuota(ctx, &flexiqv1.SetQuotaRequest{Quota: &flexiqv1.NamespaceQuota{
		OnExcess: proto.String("drop"), EnqueueRate: proto.String(fmt.Sprintf("%d/s", rate)),
	}}); err != nil {
		t.Fatal(err)
	}
	var admitted, shed, other int
	var mu sync.Mutex
	var wg sync.WaitGroup
	began := time.Now()
	for range 50 {
		wg.Go(func() {
			for range jobs / 50 {
				res, err := c.Enqueue(ctx, client.Job{Task: "flood"})
				mu.Lock()
				switch {
				case err != nil:
					other++
				case res.Job.GetStatus() == "dead":
					shed++
				default:
					admitted++
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	seconds := time.Since(began).Seconds()
	if admitted+shed != jobs || other != 0 {
		t.Errorf("admitted %d + shed %d, other %d, want %d in all", admitted, shed, other, jobs)
	}
	if most := rate + int(rate*seconds) + 1; admitted > most {
		t.Errorf("admitted %d in %.2f s, at most %d may pass", admitted, seconds, most)
	}
	u, err := c.Admin().GetUsage(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if u.GetPending() != int64(admitted) || u.GetDead() != int64(shed) || u.GetShed() != int64(shed) {
		t.Errorf("usage %v, want %d pending and %d dead, all of them shed", u, admitted, shed)
	}
	listed := 0
	for l, err := range c.Admin().DeadLetters(ctx, &flexiqv1.ListDeadLettersRequest{PageSize: 500}) {
		if err != nil {
			t.Fatal(err)
		}
		if listed++; !strings.HasPrefix(l.GetError(), "quota: ") || l.GetDeadMetadata()["shed"] != "quota" {
			t.Fatalf("a shed dead letter: %v", l)
		}
	}
	if listed != shed {
		t.Errorf("%d dead letters are listed, want %d", listed, shed)
	}
	opts := d.opts.storeOptions()
	stop()
	checkCounts(t, opts)
}

// TestSplitInstallation runs the services in two processes on an outside NATS
// server and one store.
func TestSplitInstallation(t *testing.T) {
	dir := filepath.Join(home(t), "data", "flexiq")
	natsURL := testkit.NATS(t).ClientURL()
	front := spawn(t, "serve", "admission", "config", "--nats-url="+natsURL, "--http-listen=127.0.0.1:0", "--data-dir="+dir)
	back := spawn(t, "serve", "dispatchgate", "retention", "--nats-url="+natsURL, "--http-listen=127.0.0.1:0", "--data-dir="+dir)
	c := dial(t, dir, "default", natsURL)
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	ran := make(chan string, 1)
	w, err := client.NewWorker(client.WorkerOptions{Slots: 1}, c)
	if err != nil {
		t.Fatal(err)
	}
	w.Handle("split", func(_ context.Context, task *client.Task) error {
		ran <- task.ID()
		return nil
	})
	running, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- w.Run(running) }()
	res, err := c.Enqueue(ctx, client.Job{Task: "split"})
	if err != nil {
		t.Fatal(err)
	}
	select {
	case id := <-ran:
		if id != res.Job.GetId() {
			t.Errorf("job %s ran, want %s", id, res.Job.GetId())
		}
	case <-ctx.Done():
		t.Fatal("the job did not run")
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	front.terminate(t)
	back.terminate(t)
}

func TestAPayloadLargerThanAMessageIsRefusedAtTheStart(t *testing.T) {
	dir := home(t)
	o := testkit.NATSOptions(t)
	o.MaxPayload = 256 << 10
	natsURL := testkit.StartNATS(t, o).ClientURL()
	var out bytes.Buffer
	code := run(t.Context(), []string{"--nats-url=" + natsURL, "--http-listen=127.0.0.1:0", "--data-dir=" + dir}, io.Discard, &out)
	if want := "--max-payload: 262144 bytes do not fit into a message of the NATS server, whose max_payload is 262144"; code != exitUsage || !strings.Contains(out.String(), want) {
		t.Errorf("exit code %d, want %d; the message is %q, want %q in it", code, exitUsage, &out, want)
	}
}

// TestNoSecretIsLogged runs calls good and bad at debug level and looks for
// tokens and payloads in the log.
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

// lockedBuffer collects what several goroutines write.
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

func TestHealthOverHTTP(t *testing.T) {
	home(t)
	d := inProcess(t)
	for path, want := range map[string]int{"/healthz": 200, "/readyz": 200, "/metrics": 200, "/nothing": 401} {
		req, err := http.NewRequest(http.MethodGet, d.httpURL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		res, body := do(t, req)
		if res.StatusCode != want {
			t.Errorf("GET %s without a token: %d %v, want %d", path, res.StatusCode, body, want)
		}
	}
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

// TestARevokedTokenEndsItsParkedPolls parks a poll and revokes its token: the
// poll ends, and the job that comes then stays for somebody else.
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

// parked reads the gauge of parked claims.
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
