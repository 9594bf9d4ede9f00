package store

import (
	"context"
	"time"
)

// PurgeTokens is how many expired tokens one PutToken deletes at most, and
// PurgeAfter how long they have been expired by then.
const (
	PurgeTokens = 100
	PurgeAfter  = time.Hour
)

// Tokens keeps tokens. None of it sees a secret, only its SHA-256.
type Tokens interface {
	// Bootstrap stores the first tokens of an installation. It does nothing and
	// returns false when any token was ever stored.
	Bootstrap(ctx context.Context, tokens []Token) (bool, error)
	// PutToken stores a new token and its audit record, when the token by, on
	// whose behalf that is, is stored and not revoked in that very step; else
	// UNAUTHENTICATED. So no token comes of one that ended. An empty by is nobody's.
	// With a token that another was exchanged for it also deletes the namespace's
	// tokens of that kind that expired more than an hour ago, up to [PurgeTokens]
	// of them, with their changes: they would pile up otherwise.
	PutToken(ctx context.Context, t Token, by string, audit Record) error
	// Token finds a token by id, revoked and expired ones included; NOT_FOUND.
	Token(ctx context.Context, id string) (*Token, error)
	// ListTokens lists a namespace's tokens by id; the namespace "" has the platform tokens.
	ListTokens(ctx context.Context, ns, after string, limit int) (Page[Token], error)
	// RevokeToken ends a token of the namespace and writes the audit record;
	// NOT_FOUND. Revoking twice changes nothing and is no error.
	RevokeToken(ctx context.Context, ns, id string, audit Record) error
	// TouchTokens records when tokens were last used; unknown ids are ignored.
	TouchTokens(ctx context.Context, used map[string]time.Time) error
}

// Token is a stored token.
type Token struct {
	ID        string
	Namespace string // empty: a platform token
	Scopes    []string
	Name      string
	Hash      [32]byte // SHA-256 of the secret
	CreatedAt time.Time
	CreatedBy string // token id
	ActingAs  string // the platform token that exchanged itself for this one
	ExpiresAt time.Time
	RevokedAt time.Time // zero: not revoked
	LastUsed  time.Time // zero: never
}
