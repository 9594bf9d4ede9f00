// Package auth says who calls and what they may do: tokens, scopes, the
// catalogue of methods with the scopes that open them, and a token's
// permissions as NATS subjects.
//
// The namespace is always the token's. Nothing in a request, a subject or a
// header may choose another one; a subject only repeats what the token says,
// and is compared with what is stored. Every failure to authenticate gives one
// and the same answer, so that nothing can be learnt by trying.
//
// The doors (packages rpc and bus) authenticate a call and put an [Identity]
// into its context; handlers read it with [From]. Package auth/embedded checks
// the connections of an embedded NATS server by the same rules.
package auth

import (
	"context"
	"slices"
)

// Scope is one thing that a token allows. None implies another.
type Scope string

// The scopes.
const (
	Produce  Scope = "produce"  // enqueue, read and cancel jobs
	Work     Scope = "work"     // claim, heartbeat and settle jobs
	Inspect  Scope = "inspect"  // read everything of the namespace
	Admin    Scope = "admin"    // write quotas and tokens of the namespace
	Platform Scope = "platform" // run the installation; only without a namespace
)

// Scopes lists every scope, those of namespaces first.
var Scopes = []Scope{Produce, Work, Inspect, Admin, Platform}

// Valid reports whether s is one of the scopes.
func (s Scope) Valid() bool { return slices.Contains(Scopes, s) }

// Identity is who calls. The zero value is nobody and has no scope.
type Identity struct {
	Namespace string // empty: a platform token
	TokenID   string
	Scopes    []Scope
	Via       string // the platform token that exchanged itself for this one; else empty
}

// Has reports whether the identity holds any of the scopes.
func (id Identity) Has(anyOf ...Scope) bool {
	for _, s := range anyOf {
		if slices.Contains(id.Scopes, s) {
			return true
		}
	}
	return false
}

// AuditTokenID is the token that the audit trail names: the platform token
// behind an exchanged one, else the token itself.
func (id Identity) AuditTokenID() string {
	if id.Via != "" {
		return id.Via
	}
	return id.TokenID
}

// AuditActingAs is the namespace that a platform token acts for, empty when
// the token acts for itself.
func (id Identity) AuditActingAs() string {
	if id.Via != "" {
		return id.Namespace
	}
	return ""
}

// The doors through which a call comes, as the audit trail and metrics name them.
const (
	DoorNATS = "nats"
	DoorHTTP = "http"
	DoorGRPC = "grpc"
)

type callerKey struct{}

// caller is one context value for both facts, because the way in is hot.
type caller struct {
	id   Identity
	door string
}

// WithCaller returns a context that carries an identity and the door it came through.
func WithCaller(ctx context.Context, id Identity, door string) context.Context {
	return context.WithValue(ctx, callerKey{}, &caller{id: id, door: door})
}

// WithIdentity returns a context that carries an identity and keeps the door.
func WithIdentity(ctx context.Context, id Identity) context.Context {
	return WithCaller(ctx, id, Door(ctx))
}

// WithDoor returns a context that carries a door and keeps the identity.
func WithDoor(ctx context.Context, door string) context.Context {
	return WithCaller(ctx, From(ctx), door)
}

// From returns who calls, nobody when the context does not say.
func From(ctx context.Context) Identity {
	if c, ok := ctx.Value(callerKey{}).(*caller); ok {
		return c.id
	}
	return Identity{}
}

// Door returns the door that the call came through, empty when the context does not say.
func Door(ctx context.Context) string {
	if c, ok := ctx.Value(callerKey{}).(*caller); ok {
		return c.door
	}
	return ""
}
