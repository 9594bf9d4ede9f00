package store

import (
	"context"
	"encoding/json"
	"time"
)

// Overrides keeps what an operator sets for a queue or a task of a namespace.
type Overrides interface {
	// Overrides reads all overrides of namespaces, in order, those of each by
	// kind and name.
	Overrides(ctx context.Context, namespaces []string) ([][]Override, error)

	// PutOverride replaces one override and writes the audit record, in one step.
	// Every Turn that starts after the answer obeys it; jobs that run stay as they
	// are. A task that gets or loses a cap or a pause has its pending jobs moved
	// between lanes in bounded steps, here or by later calls of Expire and Turn:
	// caps and order hold meanwhile.
	PutOverride(ctx context.Context, o Override, audit Record) error

	// ClearOverride removes one override and writes the audit record; NOT_FOUND.
	ClearOverride(ctx context.Context, ns string, kind OverrideKind, name string, audit Record) error
}

// OverrideKind is what an override is about.
type OverrideKind string

// The kinds of an [Override].
const (
	OverrideQueue OverrideKind = "queue"
	OverrideTask  OverrideKind = "task"
)

// Override is what is set for one queue or task. A nil field sets nothing.
type Override struct {
	Namespace string
	Kind      OverrideKind
	Name      string

	// Turn obeys these two. A MaxConcurrent of 0 lets nothing start.
	MaxConcurrent *int64
	Paused        *bool

	// Defaults for jobs that are enqueued; a store only keeps them.
	MaxAttempts *int32
	Timeout     *time.Duration
	Priority    *int32

	UpdatedAt time.Time // set by the store
	UpdatedBy string
}

// Holds reports whether Turn has anything to obey in it.
func (o *Override) Holds() bool { return o.MaxConcurrent != nil || o.IsPaused() }

// IsPaused reports whether nothing may start for now.
func (o *Override) IsPaused() bool { return o.Paused != nil && *o.Paused }

// JSON is the override as the audit trail shows it: what is set, and nothing else.
func (o *Override) JSON() string {
	text, _ := json.Marshal(struct { // it always marshals
		MaxConcurrent *int64         `json:"max_concurrent,omitempty"`
		Paused        *bool          `json:"paused,omitempty"`
		MaxAttempts   *int32         `json:"max_attempts,omitempty"`
		Timeout       *time.Duration `json:"timeout_ns,omitempty"`
		Priority      *int32         `json:"priority,omitempty"`
	}{o.MaxConcurrent, o.Paused, o.MaxAttempts, o.Timeout, o.Priority})
	return string(text)
}

// HoldKind is what keeps due jobs from starting.
type HoldKind string

// The kinds of a [Hold].
const (
	HoldMaxRunning  HoldKind = "max_running"  // of the namespace; without a name
	HoldQueue       HoldKind = "queue"        // max_concurrent of a queue
	HoldTask        HoldKind = "task"         // max_concurrent of a task
	HoldPausedQueue HoldKind = "paused_queue" // a pause goes before a cap
	HoldPausedTask  HoldKind = "paused_task"
)

// Hold is one cap or pause.
type Hold struct {
	What HoldKind
	Name string // of the queue or task
}
