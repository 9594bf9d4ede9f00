// Package batch turns many concurrent submissions into few store calls (group
// commit).
package batch

import (
	"context"
	"time"

	"github.com/rs/zerolog"

	"flexiq/pkg/fault"
)

// Options bound a [Group]. The zero value has the defaults.
type Options[In any] struct {
	// MaxCalls bounds the calls that wait or are being flushed, over all lanes;
	// 0 is 4096.
	MaxCalls int
	// MaxBytes bounds their bytes; 0 is 64 MiB.
	MaxBytes int
	// MaxItems bounds the weight of one flush; 0 is 1000.
	MaxItems int
	// Weight is what one call weighs, its number of jobs for example; nil: 1.
	Weight func(In) int
	// FlushTimeout is the deadline of one flush; 0 is 30 s.
	FlushTimeout time.Duration
	// Metrics may be nil.
	Metrics *Metrics
	// Log tells of panics in callbacks.
	Log zerolog.Logger
}

// Metrics of groups.
type Metrics struct{}

// Group gathers calls and flushes them together.
type Group[In, Out any] struct{}

// New makes a group.
func New[In, Out any](name string, lanes int, opts Options[In], flush func(ctx context.Context, in []In) ([]Out, error)) *Group[In, Out] {
	return &Group[In, Out]{}
}

// Submit hands in one call.
func (g *Group[In, Out]) Submit(key string, bytes int, in In, done func(Out, error)) error {
	return fault.New(fault.Overloaded, "the group is closed")
}

// Do submits and waits.
func (g *Group[In, Out]) Do(ctx context.Context, key string, bytes int, in In) (out Out, err error) {
	return out, fault.New(fault.Overloaded, "the group is closed")
}

// Close flushes what is in and waits.
func (g *Group[In, Out]) Close(ctx context.Context) error { return nil }
