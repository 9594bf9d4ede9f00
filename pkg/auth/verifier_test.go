package auth_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	"flexiq/pkg/auth"
	"flexiq/pkg/fault"
	"flexiq/pkg/store"
)

// tokens is a source of tokens in memory, and a cache of it.
type tokens struct {
	byID map[string]*store.Token
	err  error
	cold bool // as a cache: knows nothing without waiting
}

func (s *tokens) Token(_ context.Context, id string) (*store.Token, error) {
	if s.err != nil {
		return nil, s.err
	}
	if t := s.byID[id]; t != nil {
		return t, nil
	}
	return nil, fault.Missing("token")
}

func (s *tokens) Get(_ context.Context, id string) (*store.Token, error) { return s.byID[id], s.err }
func (s *tokens) Peek(id string) (*store.Token, bool)                    { return s.byID[id], !s.cold }

type fixture struct {
	source *tokens
	now    time.Time
	v      *auth.Verifier
}

func newFixture() *fixture {
	f := &fixture{source: &tokens{byID: map[string]*store.Token{}}, now: now}
	f.v = auth.NewVerifier(f.source, func() time.Time { return f.now })
	return f
}

func (f *fixture) mint(t *testing.T, ns string, scopes ...auth.Scope) (string, *store.Token) {
	t.Helper()
	text, tok, err := auth.Mint(ns, scopes, "", time.Hour, "", now)
	if err != nil {
		t.Fatal(err)
	}
	f.source.byID[tok.ID] = &tok
	return text, &tok
}

func TestVerify(t *testing.T) {
	f := newFixture()
	text, tok := f.mint(t, "lark", auth.Produce, auth.Work)
	tok.ActingAs = "boss"
	id, err := f.v.Verify(t.Context(), text, "192.0.2.1:1234")
	if err != nil {
		t.Fatal(err)
	}
	if id.Namespace != "lark" || id.TokenID != tok.ID || id.Via != "boss" || !slices.Equal(id.Scopes, []auth.Scope{auth.Produce, auth.Work}) {
		t.Errorf("identity %+v", id)
	}
	if id.AuditTokenID() != "boss" || id.AuditActingAs() != "lark" {
		t.Errorf("audit names %q acting as %q", id.AuditTokenID(), id.AuditActingAs())
	}
	id.Via = ""
	if id.AuditTokenID() != tok.ID || id.AuditActingAs() != "" {
		t.Errorf("audit names %q acting as %q", id.AuditTokenID(), id.AuditActingAs())
	}
}

// Whatever is wrong, the answer is the same, to the letter.
func TestVerifyFailsInOneWay(t *testing.T) {
	f := newFixture()
	text, tok := f.mint(t, "lark", auth.Produce)
	parts, _ := auth.Parse(text)
	revoked, rt := f.mint(t, "lark", auth.Produce)
	rt.RevokedAt = now
	expired, et := f.mint(t, "lark", auth.Produce)
	et.ExpiresAt = now
	texts := map[string]string{
		"none":              "",
		"not a token":       "Bearer",
		"unknown id":        "fqt.lark.aaaaaaaaaaaaaaaa." + parts.Secret,
		"wrong secret":      "fqt.lark." + parts.ID + ".aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
		"short secret":      "fqt.lark." + parts.ID + "." + parts.Secret[1:],
		"other's namespace": "fqt.wren." + parts.ID + "." + parts.Secret,
		"as platform":       "fqt.=." + parts.ID + "." + parts.Secret,
		"revoked":           revoked,
		"expired":           expired,
	}
	want := fault.New(fault.Unauthenticated, "the token is not valid")
	for name, text := range texts {
		id, err := f.v.Verify(t.Context(), text, "192.0.2.1:1234")
		got := fault.Of(err)
		if got == nil || got.Reason != want.Reason || got.Message != want.Message || len(got.Details) != 0 || id.TokenID != "" {
			t.Errorf("%s: %+v, %v", name, id, err)
		}
	}
	for _, at := range []struct{ ns, id string }{{"wren", tok.ID}, {"=", tok.ID}, {"lark", "aaaaaaaaaaaaaaaa"}, {"lark", rt.ID}, {"lark", et.ID}} {
		if _, _, err := f.v.Identify(t.Context(), at.ns, at.id); !fault.Is(err, fault.Unauthenticated) || fault.Of(err).Message != want.Message {
			t.Errorf("Identify(%v) = %v", at, err)
		}
	}
}

func TestVerifyExpiresByTheClock(t *testing.T) {
	f := newFixture()
	text, tok := f.mint(t, "lark", auth.Produce)
	f.now = tok.ExpiresAt.Add(-1)
	if _, until, err := f.v.VerifyUntil(t.Context(), text, "192.0.2.1:1234"); err != nil || !until.Equal(tok.ExpiresAt) {
		t.Errorf("just before the expiry: %v, %v", until, err)
	}
	f.now = tok.ExpiresAt
	if _, err := f.v.Verify(t.Context(), text, "192.0.2.1:1234"); !fault.Is(err, fault.Unauthenticated) {
		t.Errorf("at the expiry: %v", err)
	}
}

func TestVerifyWithoutStorage(t *testing.T) {
	f := newFixture()
	text, tok := f.mint(t, "lark", auth.Produce)
	for _, err := range []error{errors.New("disk on fire"), context.DeadlineExceeded, fault.New(fault.StorageUnavailable, "down")} {
		f.source.err = err
		if _, got := f.v.Verify(t.Context(), text, "192.0.2.1:1234"); !fault.Is(got, fault.StorageUnavailable) || !errors.Is(got, err) {
			t.Errorf("%v: Verify = %v", err, got)
		}
		if _, _, got := f.v.Identify(t.Context(), "lark", tok.ID); !fault.Is(got, fault.StorageUnavailable) {
			t.Errorf("%v: Identify = %v", err, got)
		}
	}
}

func TestIdentifyNow(t *testing.T) {
	f := newFixture()
	_, tok := f.mint(t, "lark", auth.Produce)
	if _, known, err := f.v.IdentifyNow("lark", tok.ID); known || err != nil {
		t.Errorf("a source that may wait was asked: %v, %v", known, err)
	}
	v := auth.NewVerifier(auth.Cached(f.source), func() time.Time { return f.now })
	if id, known, err := v.IdentifyNow("lark", tok.ID); !known || err != nil || id.TokenID != tok.ID {
		t.Errorf("known token: %+v, %v, %v", id, known, err)
	}
	if _, known, err := v.IdentifyNow("lark", "nobody"); !known || !fault.Is(err, fault.Unauthenticated) {
		t.Errorf("absent token: %v, %v", known, err)
	}
	if _, _, err := v.Identify(t.Context(), "lark", "nobody"); !fault.Is(err, fault.Unauthenticated) {
		t.Errorf("absent token: %v", err)
	}
	f.source.cold = true
	if _, known, err := v.IdentifyNow("lark", tok.ID); known || err != nil {
		t.Errorf("cold cache: %v, %v", known, err)
	}
}

func TestTakeUsed(t *testing.T) {
	f := newFixture()
	text, tok := f.mint(t, "lark", auth.Produce)
	f.mint(t, "wren", auth.Produce)
	if _, err := f.v.Verify(t.Context(), text, "192.0.2.1:1234"); err != nil {
		t.Fatal(err)
	}
	f.now = now.Add(time.Minute)
	if _, _, err := f.v.Identify(t.Context(), "lark", tok.ID); err != nil {
		t.Fatal(err)
	}
	want := map[string]time.Time{tok.ID: now.Add(time.Minute)}
	if got := f.v.TakeUsed(); !maps.EqualFunc(got, want, time.Time.Equal) {
		t.Errorf("used %v, want %v", got, want)
	}
	for range 2 {
		if got := f.v.TakeUsed(); len(got) != 0 {
			t.Errorf("taken again: %v", got)
		}
	}
}

func TestContext(t *testing.T) {
	ctx := t.Context()
	if id := auth.From(ctx); id.TokenID != "" || id.Has(auth.Scopes...) || auth.Door(ctx) != "" {
		t.Errorf("an empty context names %+v", id)
	}
	id := auth.Identity{Namespace: "lark", TokenID: "x", Scopes: []auth.Scope{auth.Work}}
	ctx = auth.WithDoor(auth.WithIdentity(ctx, id), auth.DoorNATS)
	if got := auth.From(ctx); got.TokenID != "x" || auth.Door(ctx) != "nats" {
		t.Errorf("got %+v through %q", got, auth.Door(ctx))
	}
	if id.Has(auth.Produce, auth.Admin) || !id.Has(auth.Produce, auth.Work) || id.Has() {
		t.Error("Has")
	}
}
