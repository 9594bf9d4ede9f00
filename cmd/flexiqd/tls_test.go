package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/client"
	"flexiq/pkg/testkit"
)

// keyPair is a certificate of a test's own authority, in files.
type keyPair struct {
	authority *testkit.Authority
	cert, key string
}

func newKeyPair(t *testing.T, names ...string) keyPair {
	t.Helper()
	dir := t.TempDir()
	p := keyPair{testkit.NewAuthority(t), filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")}
	p.authority.Issue(p.cert, p.key, names...)
	return p
}

func (p keyPair) flags() []string {
	return []string{"--tls-cert=" + p.cert, "--tls-key=" + p.key, "--tls-ca=" + p.authority.File}
}

// roots is a client's configuration that knows the authority.
func (p keyPair) roots(t *testing.T) *tls.Config {
	t.Helper()
	text, err := os.ReadFile(p.authority.File)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(text)
	return &tls.Config{RootCAs: pool}
}

// With a certificate both doors speak TLS alone, to clients that find address,
// token and CA in the context that the daemon saved.
func TestBothDoorsWithTLS(t *testing.T) {
	home(t)
	pair := newKeyPair(t, "localhost", "127.0.0.1")
	d := inProcess(t, pair.flags()...)
	c, err := readCredentials(credentialsFile(d.opts.DataDir))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(c.NATSURL, "tls://127.0.0.1:") || !strings.HasPrefix(c.HTTPURL, "https://127.0.0.1:") {
		t.Errorf("the credentials file names %s and %s", c.NATSURL, c.HTTPURL)
	}
	local, err := client.FromEnvironment(t.Context())
	if err != nil {
		t.Fatalf("by the saved context: %v", err)
	}
	defer local.Close(context.Background())
	for _, server := range []string{c.NATSURL, c.HTTPURL} {
		known, err := client.Dial(t.Context(), client.Options{Server: server, Token: c.Tokens["default"], CAFile: pair.authority.File})
		if err == nil {
			_, err = known.Enqueue(t.Context(), client.Job{Task: "t"})
			known.Close(t.Context())
		}
		if err != nil {
			t.Errorf("%s: %v", server, err)
		}
		stranger, err := client.Dial(t.Context(), client.Options{Server: server, Token: c.Tokens["default"], RetryFor: -1})
		if err == nil {
			_, err = stranger.Enqueue(t.Context(), client.Job{Task: "t"})
			stranger.Close(t.Context())
		}
		if err == nil || !strings.Contains(err.Error(), "certificate") {
			t.Errorf("%s, whose authority the client does not know: %v", server, err)
		}
	}
	if u, err := local.Admin().GetUsage(t.Context()); err != nil || u.GetPending() != 2 {
		t.Errorf("usage %v, %v, want 2 pending", u, err)
	}
	req, err := http.NewRequest(http.MethodGet, "http://"+strings.TrimPrefix(c.HTTPURL, "https://")+"/readyz", nil)
	if err != nil {
		t.Fatal(err)
	}
	if res, _ := do(t, req); res.StatusCode != http.StatusBadRequest {
		t.Errorf("HTTP without TLS: %s", res.Status)
	}
	conn, err := net.Dial("tcp", strings.TrimPrefix(c.NATSURL, "tls://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	// A client that ignores the wish for TLS: it hears no PONG.
	fmt.Fprintf(conn, "CONNECT {\"auth_token\":%q,\"verbose\":false}\r\nPING\r\n", c.Tokens["default"])
	if answer, _ := io.ReadAll(conn); strings.Contains(string(answer), "PONG") {
		t.Errorf("NATS without TLS answers %q", answer)
	}
}

// gRPC needs HTTP/2, which TLS negotiates.
func TestGRPCOverTLS(t *testing.T) {
	home(t)
	pair := newKeyPair(t, "127.0.0.1")
	d := inProcess(t, pair.flags()...)
	c, err := readCredentials(credentialsFile(d.opts.DataDir))
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{TLSClientConfig: pair.roots(t), ForceAttemptHTTP2: true}
	defer transport.CloseIdleConnections()
	usage := connect.NewClient[flexiqv1.GetUsageRequest, flexiqv1.GetUsageResponse](
		&http.Client{Transport: transport}, d.httpURL+"/flexiq.v1.AdminService/GetUsage", connect.WithGRPC())
	req := connect.NewRequest(&flexiqv1.GetUsageRequest{})
	req.Header().Set("Authorization", "Bearer "+c.Tokens["default"])
	if _, err := usage.CallUnary(t.Context(), req); err != nil {
		t.Error(err)
	}
}

// Where the certificate does not name the listener, clients are sent to a name
// that it does.
func TestAddressesThatTheCertificateNames(t *testing.T) {
	for _, tc := range []struct {
		names             []string
		listener, address string
	}{
		{[]string{"flexiq.example", "127.0.0.1"}, "127.0.0.1:8080", "https://127.0.0.1:8080"},
		{[]string{"flexiq.example"}, "0.0.0.0:8080", "https://flexiq.example:8080"},
		{[]string{"*.example", "flexiq.example"}, "[::]:8080", "https://flexiq.example:8080"},
		{[]string{"2001:db8::1"}, "[::]:8080", "https://[2001:db8::1]:8080"},
		{[]string{"*.example"}, "10.0.0.1:8080", "https://10.0.0.1:8080"},
	} {
		pair := newKeyPair(t, tc.names...)
		c, err := loadCertificate(pair.cert, pair.key, testLog())
		if err != nil {
			t.Fatal(err)
		}
		if got := c.address("http", tc.listener); got != tc.address {
			t.Errorf("%s with a certificate of %v: %s, want %s", tc.listener, tc.names, got, tc.address)
		}
	}
}

func TestARenewedCertificateIsTakenUp(t *testing.T) {
	pair := newKeyPair(t, "old.example")
	c, err := loadCertificate(pair.cert, pair.key, testLog())
	if err != nil {
		t.Fatal(err)
	}
	name := func() string {
		c.looked = time.Time{}
		got, err := c.get(nil)
		if err != nil {
			t.Fatal(err)
		}
		return got.Leaf.DNSNames[0]
	}
	if got := name(); got != "old.example" {
		t.Errorf("the certificate of %s", got)
	}
	if err := os.WriteFile(pair.cert, []byte("half a certific"), 0o600); err != nil {
		t.Fatal(err)
	}
	later := time.Now().Add(time.Minute)
	if err := os.Chtimes(pair.cert, later, later); err != nil {
		t.Fatal(err)
	}
	if got := name(); got != "old.example" {
		t.Errorf("in the middle of a renewal the certificate of %s", got)
	}
	pair.authority.Issue(pair.cert, pair.key, "new.example")
	if got := name(); got != "new.example" {
		t.Errorf("after the renewal the certificate of %s", got)
	}
}

func TestListenersBeyondLoopbackWantTLS(t *testing.T) {
	home(t)
	pair := newKeyPair(t, "localhost")
	for _, tc := range []struct {
		args []string
		want string // of the usage error; empty: none
	}{
		{[]string{"--http-listen=0.0.0.0:8080"}, "--http-listen: 0.0.0.0:8080 is reachable from other hosts"},
		{[]string{"--nats-listen=[::]:4222"}, "--nats-listen: [::]:4222 is reachable from other hosts"},
		{[]string{"--http-listen=0.0.0.0:8080", "--insecure"}, ""},
		{[]string{"--http-listen=0.0.0.0:8080", "--nats-listen=:4222", "--tls-cert=" + pair.cert, "--tls-key=" + pair.key}, ""},
		{[]string{"--tls-cert=" + pair.cert}, "--tls-key: is required with --tls-cert"},
		{[]string{"--tls-key=" + pair.key}, "--tls-cert: is required with --tls-key"},
	} {
		var cli commands
		p, err := newParser(&cli, os.Stdout, os.Stderr, func(int) {})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.Parse(append([]string{"serve"}, tc.args...)); err != nil {
			t.Fatal(err)
		}
		err = cli.Serve.complete()
		var usage *usageError
		if tc.want == "" && err != nil || tc.want != "" && (!errors.As(err, &usage) || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%v: %v, want %q", tc.args, err, tc.want)
		}
	}
	_, err := loadCertificate(pair.key, pair.cert, testLog())
	if err == nil || !strings.HasPrefix(err.Error(), "--tls-cert: ") {
		t.Errorf("files in the wrong places: %v", err)
	}
}
