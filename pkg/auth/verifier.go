package auth

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"sync"
	"sync/atomic"
	"time"

	"flexiq/pkg/fault"
	"flexiq/pkg/store"
)

// Source finds stored tokens: a store, or a cache before it.
type Source interface {
	// Token finds a token by id, revoked and expired ones included; NOT_FOUND.
	Token(ctx context.Context, id string) (*store.Token, error)
}

// Peeker is a [Source] that can often answer without waiting.
type Peeker interface {
	// PeekToken returns the token under an id, nil when there is none, and
	// whether it could tell without waiting.
	PeekToken(id string) (*store.Token, bool)
}

// Cache is what a cache of tokens by id offers; an absent token is nil.
type Cache interface {
	Get(ctx context.Context, id string) (*store.Token, error)
	Peek(id string) (*store.Token, bool)
}

// Cached makes a [Source], which is a [Peeker] too, of a cache.
func Cached(c Cache) Source { return cached{c} }

type cached struct{ Cache }

func (c cached) Token(ctx context.Context, id string) (*store.Token, error) {
	t, err := c.Get(ctx, id)
	if err == nil && t == nil {
		return nil, fault.Missing("token")
	}
	return t, err
}

func (c cached) PeekToken(id string) (*store.Token, bool) { return c.Peek(id) }

// Verifier checks tokens against a [Source]. It is safe for concurrent use.
type Verifier struct {
	source Source
	peeker Peeker // nil: every look-up may wait
	now    func() time.Time
	used   sync.Map // token id → *atomic.Int64, unix nanoseconds of the last use; 0: taken

	attempts *Attempts
}

// NewVerifier makes a verifier.
func NewVerifier(s Source, now func() time.Time) *Verifier {
	peeker, _ := s.(Peeker)
	return &Verifier{source: s, peeker: peeker, now: now, attempts: NewAttempts(now)}
}

// Attempts counts and limits the failures of [Verifier.Verify] by address.
func (v *Verifier) Attempts() *Attempts { return v.attempts }

func errDenied() error { return fault.TokenDenied() }

// Verify authenticates a token by its text. from is the address that shows it,
// whose failures are limited (see [Attempts]). It fails with UNAUTHENTICATED,
// whatever is wrong with the token, and with STORAGE_UNAVAILABLE when the
// tokens cannot be read.
func (v *Verifier) Verify(ctx context.Context, text, from string) (Identity, error) {
	id, _, err := v.VerifyUntil(ctx, text, from)
	return id, err
}

// VerifyUntil is [Verifier.Verify] and tells when the token expires.
func (v *Verifier) VerifyUntil(ctx context.Context, text, from string) (Identity, time.Time, error) {
	if v.attempts.Over(from) {
		return v.check(ctx, text, v.findKnown)
	}
	id, expires, err := v.check(ctx, text, v.find)
	if fault.Is(err, fault.Unauthenticated) {
		v.attempts.Fail(from)
	}
	return id, expires, err
}

func (v *Verifier) check(
	ctx context.Context, text string, find func(context.Context, string) (*store.Token, error),
) (Identity, time.Time, error) {
	parts, err := Parse(text)
	if err != nil {
		return Identity{}, time.Time{}, errDenied()
	}
	hash := sha256.Sum256([]byte(parts.Secret))
	t, err := find(ctx, parts.ID)
	if err != nil {
		return Identity{}, time.Time{}, err
	}
	if subtle.ConstantTimeCompare(hash[:], t.Hash[:]) != 1 {
		return Identity{}, time.Time{}, errDenied()
	}
	return v.admit(t, parts.NSToken)
}

// findKnown finds a token only if that needs no look-up, or if the token was
// let in before: its owner may share an address with whoever fails.
func (v *Verifier) findKnown(ctx context.Context, id string) (*store.Token, error) {
	if v.peeker != nil {
		if t, known := v.peeker.PeekToken(id); known && t != nil {
			return t, nil
		}
	}
	if _, passed := v.used.Load(id); passed {
		return v.find(ctx, id)
	}
	return nil, errDenied()
}

// Identify is for requests over NATS, where the server has checked the secret
// when the connection was made, and permits only the token's own subjects:
// it checks that the token still lives and belongs to the subject's namespace.
// It fails as [Verifier.Verify] does.
func (v *Verifier) Identify(ctx context.Context, nsToken, tokenID string) (Identity, time.Time, error) {
	t, err := v.find(ctx, tokenID)
	if err != nil {
		return Identity{}, time.Time{}, err
	}
	return v.admit(t, nsToken)
}

// IdentifyNow is [Verifier.Identify] without waiting. known is false when only
// Identify can tell.
func (v *Verifier) IdentifyNow(nsToken, tokenID string) (id Identity, known bool, err error) {
	if v.peeker == nil {
		return Identity{}, false, nil
	}
	t, known := v.peeker.PeekToken(tokenID)
	if !known {
		return Identity{}, false, nil
	}
	if t == nil {
		return Identity{}, true, errDenied()
	}
	id, _, err = v.admit(t, nsToken)
	return id, true, err
}

func (v *Verifier) find(ctx context.Context, id string) (*store.Token, error) {
	t, err := v.source.Token(ctx, id)
	switch {
	case err == nil && t != nil:
		return t, nil
	case err == nil, fault.Is(err, fault.NotFound):
		return nil, errDenied()
	case fault.Is(err, fault.StorageUnavailable):
		return nil, err
	}
	return nil, fault.Wrap(err, fault.StorageUnavailable, "the tokens cannot be read now")
}

func (v *Verifier) admit(t *store.Token, nsToken string) (Identity, time.Time, error) {
	id := Identity{Namespace: t.Namespace, TokenID: t.ID, Via: t.ActingAs}
	now := v.now()
	if id.NSToken() != nsToken || !t.RevokedAt.IsZero() || !now.Before(t.ExpiresAt) {
		return Identity{}, time.Time{}, errDenied()
	}
	id.Scopes = make([]Scope, len(t.Scopes))
	for i, s := range t.Scopes {
		id.Scopes[i] = Scope(s)
	}
	v.touch(t.ID, now)
	return id, t.ExpiresAt, nil
}

func (v *Verifier) touch(id string, now time.Time) {
	at, ok := v.used.Load(id)
	if !ok {
		at, _ = v.used.LoadOrStore(id, new(atomic.Int64))
	}
	at.(*atomic.Int64).Store(now.UnixNano())
}

// TakeUsed returns when tokens were last used, each since the last call of
// TakeUsed, for [store.Tokens.TouchTokens].
func (v *Verifier) TakeUsed() map[string]time.Time {
	used := make(map[string]time.Time)
	v.used.Range(func(id, at any) bool {
		if n := at.(*atomic.Int64).Swap(0); n != 0 {
			used[id.(string)] = time.Unix(0, n)
		} else {
			v.used.Delete(id) // idle for a whole round; a use in this instant is recorded by the next one
		}
		return true
	})
	return used
}
