package auth

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"slices"
	"strings"
	"time"

	"flexiq/pkg/fault"
	"flexiq/pkg/namespace"
	"flexiq/pkg/store"
)

// Lives of tokens.
const (
	DefaultTTL = 90 * 24 * time.Hour
	MaxTTL     = 365 * 24 * time.Hour
)

const (
	tokenPrefix = "fqt."
	idBytes     = 10 // 16 characters
	secretBytes = 20 // 32 characters
	maxToken    = 4 + 3*namespace.MaxBytes + 1 + 64 + 1 + 128
)

// text32 writes ids and secrets: [a-z2-7], safe in subjects, shells and URLs.
var text32 = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

var errForm = errors.New("not a token of the form fqt.<namespace>.<id>.<secret>")

// Parts are the parts of a token's text. They are what the text claims: only
// the stored token under the id can be believed.
type Parts struct {
	NSToken string // namespace as a subject token, "=" for a platform token
	ID      string
	Secret  string
}

// Parse takes a token's text apart. It checks the form alone, and its error
// does not repeat the text.
func Parse(text string) (Parts, error) {
	rest, ok := strings.CutPrefix(text, tokenPrefix)
	if !ok || len(text) > maxToken {
		return Parts{}, errForm
	}
	ns, rest, _ := strings.Cut(rest, ".")
	id, secret, _ := strings.Cut(rest, ".")
	if ns != namespace.PlatformToken {
		if _, err := namespace.Decode(ns); err != nil {
			return Parts{}, errForm
		}
	}
	if !alphanumeric(id) || !alphanumeric(secret) {
		return Parts{}, errForm
	}
	return Parts{NSToken: ns, ID: id, Secret: secret}, nil
}

func alphanumeric(s string) bool {
	for i := range len(s) {
		if b := s[i]; (b < 'a' || b > 'z') && (b < '0' || b > '9') {
			return false
		}
	}
	return s != ""
}

// Mint makes a new token: its text, which is shown once, and what is stored of
// it. An empty namespace makes a platform token, with the scope platform and
// no other. A ttl of 0 is [DefaultTTL]. by is the id of the token that asks.
func Mint(ns string, scopes []Scope, name string, ttl time.Duration, by string, now time.Time) (string, store.Token, error) {
	if err := checkMint(ns, scopes, name, ttl); err != nil {
		return "", store.Token{}, err
	}
	if ttl == 0 {
		ttl = DefaultTTL
	}
	random := make([]byte, idBytes+secretBytes)
	rand.Read(random) // never fails: see crypto/rand
	id, secret := text32.EncodeToString(random[:idBytes]), text32.EncodeToString(random[idBytes:])
	t := store.Token{
		ID:        id,
		Namespace: ns,
		Name:      name,
		Hash:      sha256.Sum256([]byte(secret)),
		CreatedAt: now,
		CreatedBy: by,
		ExpiresAt: now.Add(ttl),
	}
	for _, s := range Scopes { // in their own order, each once
		if slices.Contains(scopes, s) {
			t.Scopes = append(t.Scopes, string(s))
		}
	}
	text := tokenPrefix + Identity{Namespace: ns}.NSToken() + "." + id + "." + secret
	return text, t, nil
}

func checkMint(ns string, scopes []Scope, name string, ttl time.Duration) error {
	if ns != "" {
		if err := namespace.Check(ns); err != nil {
			return fault.Invalid("namespace", "%v", err)
		}
	}
	if len(scopes) == 0 {
		return fault.Invalid("scopes", "must name at least one of %s", scopeList())
	}
	for _, s := range scopes {
		switch {
		case !s.Valid():
			return fault.Invalid("scopes", "must be of %s, got %q", scopeList(), s)
		case s == Platform && ns != "":
			return fault.Invalid("scopes", "platform does not go with a namespace")
		case s != Platform && ns == "":
			return fault.Invalid("scopes", "%s needs a namespace", s)
		}
	}
	if name != "" {
		if err := namespace.Check(name); err != nil {
			return fault.Invalid("name", "%v", err)
		}
	}
	if ttl < 0 || ttl > MaxTTL {
		return fault.Invalid("ttl", "must be at most 365 days, got %s", ttl)
	}
	return nil
}

func scopeList() string {
	names := make([]string, len(Scopes))
	for i, s := range Scopes {
		names[i] = string(s)
	}
	return strings.Join(names, ", ")
}
