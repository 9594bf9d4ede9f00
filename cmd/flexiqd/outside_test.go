package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/auth"
	"flexiq/pkg/client"
	"flexiq/pkg/fault"
	"flexiq/pkg/testkit"
)

// outsideNATS is a NATS server that `flexiqd nats init` configured.
type outsideNATS struct {
	t    *testing.T
	dir  string
	opts *server.Options
	srv  *server.Server
}

func newOutsideNATS(t *testing.T, flags ...string) *outsideNATS {
	t.Helper()
	n := &outsideNATS{t: t, dir: filepath.Join(t.TempDir(), "nats")}
	natsInit(t, append([]string{n.dir, "--nats-listen=127.0.0.1:" + testkit.FreePort(t)}, flags...)...)
	var err error
	if n.opts, err = server.ProcessConfigFile(filepath.Join(n.dir, natsConfigFile)); err != nil {
		t.Fatalf("the configuration that was written: %v", err)
	}
	n.opts.NoSigs, n.opts.NoLog = true, true
	n.start()
	return n
}

func natsInit(t *testing.T, args ...string) string {
	t.Helper()
	var out, errs bytes.Buffer
	if code := run(t.Context(), append([]string{"nats", "init"}, args...), &out, &errs); code != exitOK {
		t.Fatalf("nats init: exit code %d: %s", code, &errs)
	}
	return out.String()
}

func (n *outsideNATS) start() { n.srv = testkit.StartNATS(n.t, n.opts) }

func (n *outsideNATS) stop() {
	n.srv.Shutdown()
	n.srv.WaitForShutdown()
}

func (n *outsideNATS) url() string { return n.srv.ClientURL() }

// flags let a daemon use the server, for services and as authenticator.
func (n *outsideNATS) flags() []string {
	return []string{
		"--nats-url=" + n.url(),
		"--nats-creds=" + filepath.Join(n.dir, natsServicesFile),
		"--nats-auth=" + filepath.Join(n.dir, natsAuthFile),
	}
}

// daemon starts services on the server.
func (n *outsideNATS) daemon(services ...string) (*daemon, func()) {
	n.t.Helper()
	return inProcessLogging(n.t, io.Discard, append(n.flags(), services...)...)
}

// tokensOf reads the first tokens of the test's installation.
func tokensOf(t *testing.T, d *daemon) map[string]string {
	t.Helper()
	c, err := readCredentials(credentialsFile(d.opts.DataDir))
	if err != nil {
		t.Fatal(err)
	}
	return c.Tokens
}

// bare connects to NATS as a client of any language would.
func bare(t *testing.T, url, token string, opts ...nats.Option) *nats.Conn {
	t.Helper()
	parts, err := auth.Parse(token)
	if err != nil {
		t.Fatal(err)
	}
	opts = append([]nats.Option{nats.Token(token), nats.CustomInboxPrefix(auth.Inbox(parts.NSToken, parts.ID))}, opts...)
	nc, err := nats.Connect(url, opts...)
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	t.Cleanup(nc.Close)
	return nc
}

// A split installation on an outside server: two processes authenticate, and
// either may leave.
func TestOutsideNATSAuthenticatesByTokens(t *testing.T) {
	home(t)
	n := newOutsideNATS(t)
	front, stopFront := n.daemon("admission", "config")
	n.daemon("dispatchgate", "retention", "config")
	tokens := tokensOf(t, front)
	c := dial(t, front.opts.DataDir, "default", n.url())
	wholePath(t, c)

	for name, opts := range map[string][]nats.Option{
		"no token":              nil,
		"a wrong token":         {nats.Token(tokens["default"] + "x")},
		"no token but the user": {nats.UserInfo("flexiq-service", "")},
	} {
		if nc, err := nats.Connect(n.url(), opts...); !errors.Is(err, nats.ErrAuthorization) {
			t.Errorf("%s: %v, %v", name, nc, err)
		}
	}
	for name, opt := range map[string]nats.Option{
		"as a user name": nats.UserInfo(tokens["default"], ""), "as a password": nats.UserInfo("any", tokens["default"]),
	} {
		nc, err := nats.Connect(n.url(), opt)
		if err != nil {
			t.Errorf("a token %s: %v", name, err)
			continue
		}
		nc.Close()
	}
	stopFront()
	for range 4 { // a queue group would give the absent one its share
		bare(t, n.url(), tokens["default"]).Close()
	}
}

// A revoked token's connections end at once, also those that another process
// authenticated; a new one is refused.
func TestRevokingEndsConnectionsOutside(t *testing.T) {
	home(t)
	n := newOutsideNATS(t)
	d, _ := n.daemon("admission", "dispatchgate", "config")
	n.daemon("retention", "config")
	admin := dial(t, d.opts.DataDir, "default", n.url()).Admin()
	made, err := admin.CreateToken(t.Context(), &flexiqv1.CreateTokenRequest{Scopes: []string{"inspect"}, Name: "short"})
	if err != nil {
		t.Fatal(err)
	}
	var conns []*nats.Conn
	for range 6 {
		conns = append(conns, bare(t, n.url(), made.GetToken(), nats.NoReconnect()))
	}
	kept := bare(t, n.url(), tokensOf(t, d)["default"], nats.NoReconnect())
	if _, err := admin.RevokeToken(t.Context(), &flexiqv1.RevokeTokenRequest{Id: made.GetId()}); err != nil {
		t.Fatal(err)
	}
	for _, nc := range conns {
		testkit.Eventually(t, "the connection of a revoked token ends", nc.IsClosed)
	}
	if _, err := nats.Connect(n.url(), nats.Token(made.GetToken())); !errors.Is(err, nats.ErrAuthorization) {
		t.Errorf("a new connection with the revoked token: %v", err)
	}
	if err := kept.Flush(); err != nil {
		t.Errorf("another token's connection: %v", err)
	}
}

// While nobody authenticates, clients that were cut off keep trying, and come
// back by themselves when somebody does again.
func TestClientsOutliveTheAuthenticator(t *testing.T) {
	home(t)
	n := newOutsideNATS(t)
	d, _ := n.daemon("admission", "dispatchgate", "retention")
	first, stopFirst := n.daemon("config")
	tokens := tokensOf(t, d)
	c := dial(t, first.opts.DataDir, "default", n.url())
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	if _, err := c.Enqueue(ctx, client.Job{Task: "before"}); err != nil {
		t.Fatal(err)
	}
	stopFirst()
	n.stop()
	n.start()
	_, err := client.Dial(ctx, client.Options{Server: n.url(), Token: tokens["default"]})
	if !fault.Is(err, client.Unreachable) || !strings.Contains(err.Error(), "nobody could check the token in time") {
		t.Errorf("a new client without an authenticator: %v, want no word about the token", err)
	}
	testkit.Eventually(t, "the services are back", func() bool { return d.conn.Raw().IsConnected() })
	n.daemon("config")
	testkit.Eventually(t, "the client is back", func() bool {
		_, err := c.Enqueue(ctx, client.Job{Task: "after"})
		if err != nil && fault.Is(err, fault.Unauthenticated) {
			t.Fatalf("the client gave its token up: %v", err)
		}
		return err == nil
	})
}

// The whole way with TLS: the server, the services, the tenants.
func TestOutsideNATSWithTLS(t *testing.T) {
	home(t)
	pair := newKeyPair(t, "127.0.0.1")
	n := newOutsideNATS(t, "--tls-cert="+pair.cert, "--tls-key="+pair.key)
	d, _ := inProcessLogging(t, io.Discard, append(n.flags(), "--tls-ca="+pair.authority.File)...)
	token := tokensOf(t, d)["default"]
	if !strings.HasPrefix(n.url(), "tls://") {
		t.Fatalf("the server is at %s", n.url())
	}
	if _, err := client.Dial(t.Context(), client.Options{Server: n.url(), Token: token}); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("without the authority: %v", err)
	}
	c, err := client.Dial(t.Context(), client.Options{Server: n.url(), Token: token, CAFile: pair.authority.File})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(context.Background())
	if _, err := c.Enqueue(t.Context(), client.Job{Task: "t"}); err != nil {
		t.Error(err)
	}
}

func TestNATSInit(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "n")
	out := natsInit(t, dir, "--nats-listen=10.1.2.3:4222", "--tls-cert=/etc/c.pem", "--tls-key=/etc/k.pem")
	for _, want := range []string{"FLEXIQ_NATS_URL=tls://10.1.2.3:4222", "FLEXIQ_NATS_CREDS=" + dir, "FLEXIQ_NATS_AUTH=" + dir} {
		if !strings.Contains(out, want) {
			t.Errorf("the output lacks %q:\n%s", want, out)
		}
	}
	before := map[string]string{}
	for _, name := range []string{natsConfigFile, natsServicesFile, natsAuthFile} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		before[name] = string(text)
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if secret := name != natsConfigFile; secret && info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %o", name, info.Mode().Perm())
		}
	}
	conf := before[natsConfigFile]
	for _, seed := range []string{"SA", "SU", "SX"} {
		if strings.Contains(conf, `"`+seed) || strings.Contains(conf, " "+seed) {
			t.Errorf("a seed is in the configuration:\n%s", conf)
		}
	}
	for _, want := range []string{"max_payload: 8388608", "max_memory_store: ", "max_file_store: ", "cert_file: \"/etc/c.pem\"", "system_account: SYS"} {
		if !strings.Contains(conf, want) {
			t.Errorf("the configuration lacks %q", want)
		}
	}
	if strings.Contains(conf, "no_auth_user") || strings.Contains(conf, "http") {
		t.Error("the configuration lets somebody in, or monitors in the open")
	}
	if out := natsInit(t, dir, "--keep-keys", "--nats-listen=10.1.2.3:4222", "--tls-cert=/etc/c.pem", "--tls-key=/etc/k.pem"); out == "" {
		t.Error("nothing was said")
	}
	for name, text := range before {
		again, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || string(again) != text {
			t.Errorf("%s changed with --keep-keys: %v", name, err)
		}
	}
}

func TestNATSInitRefuses(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "n")
	natsInit(t, dir)
	for _, tc := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{dir}, exitError, "is there already: --keep-keys"},
		{[]string{t.TempDir(), "--nats-listen=0.0.0.0:4222"}, exitUsage, "--nats-listen: 0.0.0.0:4222 is reachable from other hosts"},
		{[]string{t.TempDir(), "--tls-cert=c.pem"}, exitUsage, "--tls-key: is required"},
		{[]string{t.TempDir(), "--keep-keys"}, exitError, "auth.json"},
	} {
		var errs bytes.Buffer
		code := run(t.Context(), append([]string{"nats", "init"}, tc.args...), io.Discard, &errs)
		if code != tc.code || !strings.Contains(errs.String(), tc.want) {
			t.Errorf("%v: exit code %d, want %d; the message is %q, want %q in it", tc.args, code, tc.code, &errs, tc.want)
		}
	}
}

func TestOutsideOptionsWantAnOutsideServer(t *testing.T) {
	home(t)
	n := filepath.Join(t.TempDir(), "n")
	natsInit(t, n)
	broken := filepath.Join(t.TempDir(), "broken.json")
	if err := os.WriteFile(broken, []byte(`{"account":"FLEXIQ","issuer":"SAABC"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, tc := range []struct{ args, want string }{
		{"--nats-creds=" + filepath.Join(n, natsServicesFile), "--nats-creds: is for an outside NATS server"},
		{"--nats-auth=" + filepath.Join(n, natsAuthFile), "--nats-auth: is for an outside NATS server"},
		{"--nats-url=nats://" + l.Addr().String() + " --nats-creds=" + broken, "neither a JWT with its seed nor the seed of a user"},
	} {
		var errs bytes.Buffer
		args := append([]string{"--http-listen=127.0.0.1:0", "--data-dir=" + t.TempDir()}, strings.Fields(tc.args)...)
		if code := run(t.Context(), args, io.Discard, &errs); code == exitOK || !strings.Contains(errs.String(), tc.want) || strings.Contains(errs.String(), "SAABC") {
			t.Errorf("%s: exit code %d, the message is %q, want %q in it", tc.args, code, &errs, tc.want)
		}
	}
}
