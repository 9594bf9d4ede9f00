package main

import (
	"io"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"flexiq/pkg/client"
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
