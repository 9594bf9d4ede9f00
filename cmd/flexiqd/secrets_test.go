package main

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/auth"
	"flexiq/pkg/client"
	"flexiq/pkg/fault"
	"flexiq/pkg/testkit"
)

// TestNoSecretOrPayloadIsTold takes a daemon at debug level through every
// method, well and badly, over every door, and looks for secrets and payloads in
// its log, its metrics, the audit trail and the errors.
func TestNoSecretOrPayloadIsTold(t *testing.T) {
	home(t)
	n := newOutsideNATS(t)
	var log lockedBuffer
	d, stop := inProcessLogging(t, &log, append(n.flags(), "--log-level=debug")...)
	in := newIsolation(t, d)
	const payload, result = "pAyLoAdMaRkEr", "rEsUlTmArKeR"
	token := in.token("default", tenantScopes...)
	c, err := client.Dial(t.Context(), client.Options{Server: d.natsURL, Token: token})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(t.Context())
	var told []string // what callers heard of errors
	hear := func(err error) {
		if err != nil {
			told = append(told, err.Error())
		}
	}
	_, err = c.Enqueue(t.Context(), client.Job{Task: "t", Payload: []byte(payload)})
	hear(err)
	_, err = c.EnqueueBatch(t.Context(), []client.Job{{Task: "t", Args: payload}, {Task: "", Args: payload}})
	hear(err)
	claim := in.call(auth.DoorHTTP, token, method(t, "Claim"), &flexiqv1.ClaimRequest{MaxJobs: 1})
	var claimed flexiqv1.ClaimResponse
	decode(t, claim.body, &claimed)
	for range 2 { // the second is a repetition, then a stale one
		for _, lease := range []string{claimed.GetJobs()[0].GetLease(), "stale"} {
			in.call(auth.DoorHTTP, token, method(t, "Settle"), &flexiqv1.SettleRequest{Settlements: []*flexiqv1.Settlement{{
				JobId: claimed.GetJobs()[0].GetJob().GetId(), Lease: lease, Outcome: "complete", Result: []byte(result),
			}}})
		}
	}
	nc := bare(t, d.natsURL, token)
	for _, m := range auth.Methods {
		for _, body := range []string{`{"job":{"task":"t","args":"` + payload + `"}`, `{"nonsense":"` + payload + `"}`, `{"job":{"task":"","args":"` + payload + `"}}`} {
			res, _ := post(t, d, token, strings.TrimPrefix(m.Service, "flexiq.v1.")+"/"+m.Name, body)
			told = append(told, res.Header.Get("Fq-Reason"))
			if m.Service != auth.ProducerService {
				continue
			}
			if _, err := nc.Request(auth.Subject(m.Verb, "default", idOf(t, token)), []byte(body), testkit.Patience); err != nil {
				t.Errorf("%s: %v", m.Name, err)
			}
		}
		told = append(told, in.call(auth.DoorGRPC, token+"x", m, in.request(m, nil)).message)
	}
	for _, wrong := range []nats.Option{nats.Token(token + "x"), nats.UserInfo("u", token+"x")} {
		if nc, err := nats.Connect(d.natsURL, wrong); err == nil {
			nc.Close()
			t.Error("a wrong token connected")
		} else {
			hear(err)
		}
	}
	revoked := in.token("default", auth.Produce)
	in.must(in.call(auth.DoorHTTP, token, method(t, "RevokeToken"), in.named("RevokeToken", map[string]string{"id": idOf(t, revoked)})))
	seen := map[string]string{"the errors": strings.Join(told, "\n")}
	for name, whose := range map[string]string{"the trail of default": token, "the trail of the installation": in.platform} {
		a := in.call(auth.DoorHTTP, whose, method(t, "ListAudit"), &flexiqv1.ListAuditRequest{PageSize: 500})
		in.must(a)
		seen[name] = a.body
	}
	seen["the metrics"] = metricsText(t, d)
	stop()
	seen["the log"] = log.String()
	secrets := []string{payload, result}
	for _, s := range []string{token, in.platform, revoked, tokensOf(t, d)["default"]} {
		parts, err := auth.Parse(s)
		if err != nil {
			t.Fatal(err)
		}
		secrets = append(secrets, parts.Secret)
	}
	secrets = append(secrets, seedsOf(t, n.dir)...)
	for where, text := range seen {
		if text == "" {
			t.Errorf("%s are empty: the test shows nothing", where)
		}
		for _, s := range secrets {
			if strings.Contains(text, s) {
				i := strings.Index(text, s)
				t.Errorf("%s hold %q: …%s…", where, s, text[max(0, i-300):min(len(text), i+100)])
			}
		}
	}
}

func decode(t *testing.T, body string, into proto.Message) {
	t.Helper()
	if err := protojson.Unmarshal([]byte(body), into); err != nil {
		t.Fatalf("%v in %s", err, body)
	}
}

func metricsText(t *testing.T, d *daemon) string {
	t.Helper()
	req, err := http.NewRequest(http.MethodGet, d.httpURL+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	res, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// seedsOf are the secrets of NATS in a folder of `flexiqd nats init`.
func seedsOf(t *testing.T, dir string) []string {
	t.Helper()
	var seeds []string
	for _, name := range []string{natsServicesFile, natsAuthFile} {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		for word := range strings.FieldsFuncSeq(string(b), func(r rune) bool { return (r < 'A' || r > 'Z') && (r < '0' || r > '9') }) {
			if len(word) > 50 {
				seeds = append(seeds, word)
			}
		}
	}
	if len(seeds) != 5 {
		t.Fatalf("%d seeds, want 5", len(seeds))
	}
	return seeds
}

// TestARequestThatTimedOutIsNotExecutedLater lets calls time out while the
// client has no connection: nothing of them runs when it is back.
func TestARequestThatTimedOutIsNotExecutedLater(t *testing.T) {
	home(t)
	n := newOutsideNATS(t)
	d, _ := n.daemon()
	c, err := client.Dial(t.Context(), client.Options{Server: n.url(), Token: tokensOf(t, d)["default"], RetryFor: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(t.Context())
	n.stop()
	for range 20 {
		if _, err := c.Enqueue(t.Context(), client.Job{Task: "ghost"}); err == nil {
			t.Fatal("an enqueue without a server succeeded")
		}
		if _, err := c.Admin().ClearQuota(t.Context(), &flexiqv1.ClearQuotaRequest{}); err == nil {
			t.Fatal("a write without a server succeeded")
		}
	}
	n.start()
	testkit.Eventually(t, "the client is back", func() bool {
		_, err := c.Enqueue(t.Context(), client.Job{Task: "real"})
		return err == nil
	})
	u, err := c.Admin().GetUsage(t.Context())
	if err != nil || u.GetPending() != 1 {
		t.Errorf("usage %v, %v, want the one job that was enqueued with a connection", u, err)
	}
	audit, err := c.Admin().ListAudit(t.Context(), &flexiqv1.ListAuditRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range audit.GetRecords() {
		if r.GetOperation() == "clear-quota" {
			t.Errorf("a write that timed out was carried out: %v", r)
		}
	}
}

// TestIDsAndKeysBelongToANamespace uses another's job id and unique key, and
// names another's namespace: the caller gets its own, the audit trail names the
// caller, and a token that has expired or names no namespace gets nothing.
func TestIDsAndKeysBelongToANamespace(t *testing.T) {
	home(t)
	in := newIsolation(t, inProcess(t))
	lark, wren := in.token("lark", tenantScopes...), in.victims["wren"]
	c, err := client.Dial(t.Context(), client.Options{Server: in.d.natsURL, Token: lark})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(t.Context())
	short := in.call(auth.DoorHTTP, lark, method(t, "CreateToken"), &flexiqv1.CreateTokenRequest{Scopes: []string{"inspect"}, Ttl: durationpb.New(time.Second)})
	in.must(short)
	var expiring flexiqv1.CreateTokenResponse
	decode(t, short.body, &expiring)
	in.untouched(func() {
		for kind, id := range wren.objects {
			if kind == "token" {
				continue
			}
			res, err := c.Enqueue(t.Context(), client.Job{ID: id, Task: "mine", UniqueKey: "theirs" + kind})
			if err != nil || res.Job.GetNamespace() != "lark" || res.Deduplicated {
				t.Errorf("with the id of another's %s job: %+v, %v", kind, res, err)
			}
		}
		res, err := c.Enqueue(t.Context(), client.Job{Task: "mine", UniqueKey: "theirs"})
		if err != nil || res.Deduplicated {
			t.Errorf("with another's unique key: %+v, %v", res, err)
		}
		for _, ns := range []string{"wren", "nobody"} {
			_, err := c.Admin().CreateToken(t.Context(), &flexiqv1.CreateTokenRequest{Namespace: ns, Scopes: []string{"inspect"}})
			if !fault.Is(err, fault.PermissionDenied) {
				t.Errorf("a token of %s: %v", ns, err)
			}
		}
		for _, m := range auth.Methods { // no settings call reaches a quota document
			if !strings.Contains(m.Name, "Setting") || describe(t, m).Input().Fields().ByName("key") == nil {
				continue
			}
			for _, key := range []string{"quota:default", "QUOTA:default", "quota%3Adefault", "quota:ns:4:wren", "installation:quota"} {
				a := in.call(auth.DoorHTTP, lark, m, in.named(m.Name, map[string]string{"key": key}))
				if want := "not_found"; a.code != want && (a.code != "invalid_argument" || !strings.HasPrefix(m.Name, "Put")) {
					t.Errorf("%s of %s: %+v, want %s", m.Name, key, a, want)
				}
			}
		}
	})
	refused := 0
	audit, err := c.Admin().ListAudit(t.Context(), &flexiqv1.ListAuditRequest{PageSize: 500})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range audit.GetRecords() {
		if r.GetOperation() == "create-token" && r.GetOutcome() == "PERMISSION_DENIED" && r.GetTokenId() == idOf(t, lark) {
			refused++
		}
	}
	if refused != 2 {
		t.Errorf("the trail of lark names its token for %d refused attempts, want 2", refused)
	}
	testkit.Eventually(t, "the token expires", func() bool {
		return in.call(auth.DoorHTTP, expiring.GetToken(), method(t, "GetUsage"), &flexiqv1.GetUsageRequest{}).code == "unauthenticated"
	})
}
