package main

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"

	"flexiq/pkg/client"
	"flexiq/pkg/namespace"
	"flexiq/pkg/store"
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
	if _, err := firstTokens(t.Context(), s, dir, credentials{}); err != nil {
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
	if _, err := firstTokens(t.Context(), s, dir, credentials{}); err != nil {
		t.Fatal(err)
	}
	kept, err := readCredentials(credentialsFile(dir))
	if diff := cmp.Diff(adopted, kept); err != nil || diff != "" {
		t.Errorf("a torn file beside a store with tokens changed the credentials: %v\n%s", err, diff)
	}
}

// accepted tells whether a token is let in.
func accepted(t *testing.T, d *daemon, token string) bool {
	t.Helper()
	res, _ := post(t, d, token, "AdminService/ListTokens", `{}`)
	return res.StatusCode == http.StatusOK
}

func readFile(t *testing.T, dir string) credentials {
	t.Helper()
	c, err := readCredentials(credentialsFile(dir))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestRotateReplacesTheFirstTokens beside a running daemon: the new tokens are let
// in, the old ones and the connections that they opened are not.
func TestRotateReplacesTheFirstTokens(t *testing.T) {
	eachStore(t, func(t *testing.T, s kept) {
		d, stop := inProcessLogging(t, io.Discard, s.args...)
		dir := d.opts.DataDir
		before := readFile(t, dir)
		tenants := tenant(t, dir, "", "wren")
		closed := make(chan struct{})
		open, err := nats.Connect(d.natsURL, nats.Token(before.Tokens["platform"]), nats.NoReconnect(), nats.ClosedHandler(func(*nats.Conn) { close(closed) }))
		if err != nil {
			t.Fatal(err)
		}
		defer open.Close()

		status, stdout, stderr := command(t, append([]string{"init", "--rotate"}, s.args...)...)
		if status != exitOK || !strings.Contains(stdout, credentialsFile(dir)) {
			t.Fatalf("init --rotate: %d, %s, %s", status, stdout, stderr)
		}
		after := readFile(t, dir)
		if after.NATSURL != before.NATSURL || after.HTTPURL != before.HTTPURL {
			t.Errorf("the addresses became %s and %s", after.NATSURL, after.HTTPURL)
		}
		for name := range before.Tokens {
			if after.Tokens[name] == before.Tokens[name] {
				t.Errorf("the %s token is the old one", name)
			}
			if !accepted(t, d, after.Tokens[name]) {
				t.Errorf("the new %s token is not let in", name)
			}
			testkit.Eventually(t, "the old token ends", func() bool { return !accepted(t, d, before.Tokens[name]) })
		}
		<-closed
		if _, err := tenants.Admin().GetUsage(t.Context()); err != nil {
			t.Errorf("a tenant's own token: %v", err)
		}
		c, err := client.FromEnvironment(t.Context())
		if err != nil {
			t.Fatalf("the saved context: %v", err)
		}
		if _, err := c.Admin().GetUsage(t.Context()); err != nil {
			t.Errorf("usage through the saved context: %v", err)
		}
		_ = c.Close(t.Context())
		if err := d.checkCredentials(t.Context()); err != nil {
			t.Errorf("the running daemon's check: %v", err)
		}
		stop()

		d, _ = inProcessLogging(t, io.Discard, s.args...)
		if !accepted(t, d, after.Tokens["platform"]) || accepted(t, d, before.Tokens["platform"]) {
			t.Error("after a restart the tokens are not the new ones")
		}
	})
}

// interrupted is a store whose writes of tokens fail after some.
type interrupted struct {
	store.Tokens
	left int
}

var errCrash = errors.New("the process was killed")

func (i *interrupted) PutToken(ctx context.Context, k store.Token, by string, audit store.Record) error {
	if i.left--; i.left < 0 {
		return errCrash
	}
	return i.Tokens.PutToken(ctx, k, by, audit)
}

func (i *interrupted) RevokeToken(ctx context.Context, ns, id string, audit store.Record) error {
	if i.left--; i.left < 0 {
		return errCrash
	}
	return i.Tokens.RevokeToken(ctx, ns, id, audit)
}

// TestACrashWhileTokensAreReplaced: after each step the file's tokens are let in,
// and what comes next, a start or another rotation, leaves exactly those.
func TestACrashWhileTokensAreReplaced(t *testing.T) {
	for steps := range 5 {
		for _, next := range []string{"a start", "a rotation"} {
			home(t)
			d, stop := inProcessLogging(t, io.Discard)
			dir, opts := d.opts.DataDir, d.opts.storeOptions()
			stop()
			s := open(t, opts)
			err := rotateTokens(t.Context(), &interrupted{s, steps}, dir, readFile(t, dir))
			if (err == nil) != (steps == 4) {
				t.Fatalf("after %d steps: %v", steps, err)
			}
			live := func() (ids []string) {
				for _, ns := range []string{"", namespace.Default} {
					page, err := s.ListTokens(t.Context(), ns, "", 100)
					if err != nil {
						t.Fatal(err)
					}
					for _, k := range page.Items {
						if k.RevokedAt.IsZero() {
							ids = append(ids, k.ID)
						}
					}
				}
				return ids
			}
			held := func() (ids []string) {
				c := readFile(t, dir)
				for _, name := range []string{"platform", "default"} {
					id, err := tokenID(c.Tokens[name])
					if err != nil {
						t.Fatal(err)
					}
					ids = append(ids, id)
				}
				return ids
			}
			for _, id := range held() {
				if !slices.Contains(live(), id) {
					t.Errorf("after %d steps the file has the token %s, which has ended", steps, id)
				}
			}
			if next == "a start" {
				_, err = firstTokens(t.Context(), s, dir, credentials{})
			} else {
				err = rotateTokens(t.Context(), s, dir, readFile(t, dir))
			}
			if err != nil {
				t.Fatal(err)
			}
			if got, want := live(), held(); !slices.Equal(got, want) {
				t.Errorf("after %d steps and %s these are live: %v, want %v", steps, next, got, want)
			}
		}
	}
}

func TestInitWithoutTheFile(t *testing.T) {
	home(t)
	for _, tc := range []struct {
		args   []string
		status int
		says   string
	}{
		{nil, exitOK, "The first tokens are in"},
		{nil, exitOK, "The first tokens are in"},
		{[]string{"lose"}, exitError, "--rotate replaces them"},
		{[]string{"--rotate"}, exitOK, "The old tokens are revoked"},
	} {
		args := append([]string{"init"}, tc.args...)
		if len(tc.args) > 0 && tc.args[0] == "lose" {
			c := parse(t)
			if err := os.Remove(credentialsFile(c.DataDir)); err != nil {
				t.Fatal(err)
			}
			args = args[:1]
		}
		if status, stdout, stderr := command(t, args...); status != tc.status || !strings.Contains(stdout+stderr, tc.says) {
			t.Errorf("%v: %d %s%s", tc.args, status, stdout, stderr)
		}
	}
	c := parse(t)
	if c := readFile(t, c.DataDir); c.NATSURL != "nats://127.0.0.1:4222" || c.HTTPURL != "http://127.0.0.1:8080" {
		t.Errorf("the addresses are %s and %s", c.NATSURL, c.HTTPURL)
	}
}
