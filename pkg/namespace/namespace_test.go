package namespace_test

import (
	"strings"
	"testing"

	"flexiq/pkg/namespace"
)

func TestCheck(t *testing.T) {
	t.Parallel()
	good := []string{
		"default", "a", strings.Repeat("x", 255), "a.b", "a:b", "*", ">", "=", "a b", "日本語", "🐳", "A", "\u00e9", "e\u0301",
		"quota:default", "%41", "_", "''", "a\u200bb", "\u202ex",
	}
	for _, name := range good {
		if err := namespace.Check(name); err != nil {
			t.Errorf("%q is refused: it %v", name, err)
		}
	}
	bad := []struct{ name, want string }{
		{"", "must not be empty"},
		{strings.Repeat("x", 256), "must be at most 255 bytes, got 256"},
		{strings.Repeat("é", 128), "must be at most 255 bytes, got 256"},
		{"a\xff", "must be valid UTF-8"},
		{"\xed\xa0\x80", "must be valid UTF-8"},
		{"a\x00b", "must not contain control characters, found U+0000"},
		{"a\nb", "must not contain control characters, found U+000A"},
		{"a\x7f", "must not contain control characters, found U+007F"},
		{"a\u0085b", "must not contain control characters, found U+0085"},
		{" a", "must not start or end with white space"},
		{"a ", "must not start or end with white space"},
		{"a\u00a0", "must not start or end with white space"},
		{"\u3000a", "must not start or end with white space"},
		{" ", "must not start or end with white space"},
	}
	for _, tt := range bad {
		if err := namespace.Check(tt.name); err == nil || err.Error() != tt.want {
			t.Errorf("%q: got %v, want %q", tt.name, err, tt.want)
		}
	}
}

// TestEncode fixes the wire form, which clients rely on.
func TestEncode(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, token string }{
		{"default", "default"},
		{"Acme", "=41cme"},
		{"a.b", "a=2eb"},
		{"*", "=2a"},
		{">", "=3e"},
		{"=", "=3d"},
		{"é", "=c3=a9"},
		{"a_b-9", "a_b-9"},
		{"a b", "a=20b"},
		{"x:y", "x=3ay"},
	}
	for _, tt := range tests {
		if got := namespace.Encode(tt.name); got != tt.token {
			t.Errorf("Encode(%q) = %q, want %q", tt.name, got, tt.token)
		}
		if got, err := namespace.Decode(tt.token); err != nil || got != tt.name {
			t.Errorf("Decode(%q) = %q, %v; want %q", tt.token, got, err, tt.name)
		}
	}
}

func TestDecodeIsStrict(t *testing.T) {
	t.Parallel()
	for _, token := range []string{
		"", namespace.PlatformToken, "Acme", "a.b", "*", "=4", "=2A", "=2g", "=61", "=30", "=5f", "a=", "=20", "a=20", "=00", "=ff", "=0a",
		strings.Repeat("x", 256), "a%2eb", "é",
	} {
		if name, err := namespace.Decode(token); err == nil {
			t.Errorf("Decode(%q) = %q, want an error", token, name)
		}
	}
}

// TestQuotaKey fixes the settings keys, which stores keep.
func TestQuotaKey(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, key string }{
		{"default", "quota:default"},
		{"billing", "quota:ns:7:billing"},
		{"a:b", "quota:ns:3:a:b"},
		{"é", "quota:ns:2:é"},
		{"ns:3:a", "quota:ns:6:ns:3:a"},
		{"Default", "quota:ns:7:Default"},
	}
	for _, tt := range tests {
		if got := namespace.QuotaKey(tt.name); got != tt.key {
			t.Errorf("QuotaKey(%q) = %q, want %q", tt.name, got, tt.key)
		}
		if got, err := namespace.ParseQuotaKey(tt.key); err != nil || got != tt.name {
			t.Errorf("ParseQuotaKey(%q) = %q, %v; want %q", tt.key, got, err, tt.name)
		}
	}
	for _, key := range []string{
		"", "quota:", "quota:ns:", "quota:ns:7:default", "quota:ns:3:billing", "quota:ns:07:billing", "quota:ns:+7:billing", "quota:7:billing",
		"quota:billing", "QUOTA:default", "quota:ns:0:", "quota:ns:2:\n\n", "quota:ns:2: a", "installation:quota", " quota:default",
	} {
		if name, err := namespace.ParseQuotaKey(key); err == nil {
			t.Errorf("ParseQuotaKey(%q) = %q, want an error", key, name)
		}
	}
}

func FuzzEncode(f *testing.F) {
	for _, s := range []string{"default", "Acme", "a.b", "é", "", " a", "=", "a\x00", "\xff"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, name string) {
		token := namespace.Encode(name)
		if i := strings.IndexFunc(token, func(r rune) bool {
			return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyz0123456789_-=", r)
		}); i >= 0 {
			t.Fatalf("Encode(%q) = %q has a byte that a subject token must not have", name, token)
		}
		back, err := namespace.Decode(token)
		if valid := namespace.Check(name) == nil; valid != (err == nil) || valid && back != name {
			t.Fatalf("%q is valid: %t, but Decode(%q) = %q, %v", name, valid, token, back, err)
		}
	})
}

// FuzzDecode: every token that decodes is the one that its name encodes to, so
// two tokens never mean one name.
func FuzzDecode(f *testing.F) {
	for _, s := range []string{"default", "=41cme", "a=2eb", "=", "==3d", "=c3=a9", "=2A"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, token string) {
		name, err := namespace.Decode(token)
		if err == nil && (namespace.Encode(name) != token || namespace.Check(name) != nil) {
			t.Fatalf("Decode(%q) = %q, which encodes to %q", token, name, namespace.Encode(name))
		}
	})
}

func FuzzQuotaKey(f *testing.F) {
	for _, s := range []string{"quota:default", "quota:ns:7:billing", "quota:ns:3:a:b", "quota:ns:7:default", "quota:ns:07:billing"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if name, err := namespace.ParseQuotaKey(s); err == nil && namespace.QuotaKey(name) != s {
			t.Fatalf("ParseQuotaKey(%q) = %q, whose key is %q", s, name, namespace.QuotaKey(name))
		}
		if namespace.Check(s) != nil {
			return
		}
		if back, err := namespace.ParseQuotaKey(namespace.QuotaKey(s)); err != nil || back != s {
			t.Fatalf("%q came back as %q, %v", s, back, err)
		}
	})
}
