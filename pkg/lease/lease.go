// Package lease elects a leader through a JetStream key-value bucket.
package lease

import (
	"context"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"
)

// Options configure an [Elector]. Key, Holder and Term are required.
type Options struct {
	Bucket string        // "" is FQ_LEASE
	Key    string        // what is led, "retention" for example
	Holder string        // who this is, for people
	TTL    time.Duration // 0 is 15 s
	// Term issues the term of a leadership that was just won.
	Term func(ctx context.Context) (int64, error)
	// Ready is asked before campaigning: an error keeps out of the election. Nil: always ready.
	Ready func(ctx context.Context) error
	Log   zerolog.Logger
}

// Elector takes part in one election.
type Elector struct{}

// New makes an elector. It does not talk to the server before Run.
func New(js jetstream.JetStream, opts Options) *Elector { return &Elector{} }

// Run takes part in the election until the context ends and calls lead while
// this process leads.
func (e *Elector) Run(ctx context.Context, lead func(ctx context.Context, term int64) error) error {
	return nil
}

// State of an election as one elector sees it.
type State struct {
	Leading bool
	Term    int64     // of the own leadership; 0: not leading
	Leader  string    // the holder last seen; "": none
	Since   time.Time // of the own leadership
	Problem string    // why there can be no leadership now; "": none
}

// State tells how things stand, for health and metrics.
func (e *Elector) State() State { return State{} }

// Check is for health: an error that carries the Problem of [State].
func (e *Elector) Check(context.Context) error { return nil }

// Guard returns nil only while the lease of lead's context (or one made from
// it) holds, by the monotonic clock. A leader asks it right before each act.
func Guard(ctx context.Context) error { return nil }
