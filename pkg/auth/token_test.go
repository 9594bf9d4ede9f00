package auth_test

import (
	"crypto/sha256"
	"slices"
	"strings"
	"testing"
	"time"

	"flexiq/pkg/auth"
	"flexiq/pkg/fault"
)

var now = time.Date(2026, 3, 8, 12, 0, 0, 0, time.UTC)

func TestMint(t *testing.T) {
	text, tok, err := auth.Mint("Acme", []auth.Scope{auth.Work, auth.Produce, auth.Work}, "ci", 0, "boss", now)
	if err != nil {
		t.Fatal(err)
	}
	parts, err := auth.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	if parts.NSToken != "=41cme" || parts.ID != tok.ID || len(tok.ID) != 16 {
		t.Errorf("parts %+v of token %+v", parts, tok)
	}
	if tok.Hash != sha256.Sum256([]byte(parts.Secret)) {
		t.Error("the hash is not that of the secret")
	}
	if !slices.Equal(tok.Scopes, []string{"produce", "work"}) {
		t.Errorf("scopes %v: want each once, in order", tok.Scopes)
	}
	if tok.Namespace != "Acme" || tok.Name != "ci" || tok.CreatedBy != "boss" || !tok.CreatedAt.Equal(now) {
		t.Errorf("token %+v", tok)
	}
	if want := now.Add(90 * 24 * time.Hour); !tok.ExpiresAt.Equal(want) {
		t.Errorf("expires %v, want %v", tok.ExpiresAt, want)
	}
	other, _, err := auth.Mint("Acme", []auth.Scope{auth.Work}, "", time.Hour, "", now)
	if err != nil || other == text {
		t.Errorf("second token %v, %v", other == text, err)
	}
}

func TestMintPlatform(t *testing.T) {
	text, tok, err := auth.Mint("", []auth.Scope{auth.Platform}, "", auth.MaxTTL, "", now)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(text, "fqt.=.") || tok.Namespace != "" {
		t.Errorf("token %+v", tok)
	}
}

func TestMintRefuses(t *testing.T) {
	tests := []struct {
		name   string
		ns     string
		scopes []auth.Scope
		label  string
		ttl    time.Duration
		field  string
	}{
		{"no scope", "a", nil, "", 0, "scopes"},
		{"unknown scope", "a", []auth.Scope{"root"}, "", 0, "scopes"},
		{"platform in a namespace", "a", []auth.Scope{auth.Produce, auth.Platform}, "", 0, "scopes"},
		{"tenant scope without a namespace", "", []auth.Scope{auth.Platform, auth.Admin}, "", 0, "scopes"},
		{"bad namespace", " a", []auth.Scope{auth.Work}, "", 0, "namespace"},
		{"bad name", "a", []auth.Scope{auth.Work}, "x\x00", 0, "name"},
		{"too long a life", "a", []auth.Scope{auth.Work}, "", auth.MaxTTL + 1, "ttl"},
		{"negative life", "a", []auth.Scope{auth.Work}, "", -1, "ttl"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, _, err := auth.Mint(tt.ns, tt.scopes, tt.label, tt.ttl, "", now)
			if !fault.Is(err, fault.InvalidRequest) || fault.Of(err).Details[fault.KeyField] != tt.field {
				t.Errorf("got %v, want INVALID_REQUEST of %s", err, tt.field)
			}
		})
	}
}

func TestParseRefuses(t *testing.T) {
	for _, text := range []string{
		"", "fqt", "fqt.", "fqt.a", "fqt.a.b", "fqt.a.b.", "fqt.a..c", "fqt..b.c", "xqt.a.b.c", "fqt.A.b.c", "fqt.a.B.c",
		"fqt.a.b.c.d", "fqt.a.b.c ", "fqt.a.*.c", "fqt.a.>.c", "fqt.*.b.c", "fqt.=zz.b.c", "fqt.=61.b.c", "fqt.==.b.c",
		"fqt.a.b." + strings.Repeat("c", 2000),
	} {
		if parts, err := auth.Parse(text); err == nil {
			t.Errorf("Parse(%q) = %+v", text, parts)
		} else if strings.Contains(err.Error(), text) && text != "" && text != "fqt" && text != "fqt." {
			t.Errorf("the error repeats the text: %v", err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("fqt.default.abcdefghijklmnop.abcdefghijklmnopabcdefghijklmnop")
	f.Add("fqt.=.a.b")
	f.Add("fqt.=41cme.a.b")
	f.Fuzz(func(t *testing.T, text string) {
		parts, err := auth.Parse(text)
		if err != nil {
			return
		}
		if back := "fqt." + parts.NSToken + "." + parts.ID + "." + parts.Secret; back != text {
			t.Errorf("%q reads back as %q", text, back)
		}
		if strings.ContainsAny(parts.NSToken+parts.ID, ".*> \t\r\n") {
			t.Errorf("%+v does not fit into a subject", parts)
		}
	})
}
