package store

import (
	"context"
	"errors"
	"time"
)

// Triggers keeps what turns requests from outside into enqueues.
type Triggers interface {
	// PutTrigger creates or replaces a trigger and writes the audit record, in one step.
	PutTrigger(ctx context.Context, t Trigger, audit Record) error
	// DeleteTrigger removes one and writes the audit record; NOT_FOUND.
	DeleteTrigger(ctx context.Context, ns, name string, audit Record) error
	// Trigger reads one with its secret; NOT_FOUND.
	Trigger(ctx context.Context, ns, name string) (*Trigger, error)
	// ListTriggers lists a namespace's triggers by name, with their secrets.
	ListTriggers(ctx context.Context, ns, after string, limit int) (Page[Trigger], error)
	// StreamTriggers lists the triggers of all namespaces that read a stream. The
	// order is the store's own; a page may be short while Next is set.
	StreamTriggers(ctx context.Context, after string, limit int) (Page[Trigger], error)
}

// ErrSignature is the outcome of a call whose signature was used before. Nothing
// was written.
var ErrSignature = errors.New("the signature was used before")

// Signature makes a call the only one of its namespace with it: the step that
// admits or sheds the call also remembers the signature, and of many such calls
// at once one is the first. A refused call leaves it unused.
type Signature struct {
	Sum   [32]byte
	Until time.Time // it is remembered so long, by the store's clock
}

// Trigger turns a request or a message into an enqueue.
type Trigger struct {
	Namespace string
	Name      string
	Secret    []byte // of an HTTP trigger; nil: messages on its subject
	Stream    string // of a durable one: the JetStream stream it reads
	Job       []byte // as the caller encodes it
	UpdatedAt time.Time
	UpdatedBy string // token id
}
