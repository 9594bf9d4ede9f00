// Package lease elects a leader through a JetStream key-value bucket.
//
// Who holds the election's key leads. The bucket lets a key lapse when it was
// not written for a lease's length, so a leader that dies is succeeded without
// anybody's doing. The leader writes its key anew every third of the lease, by
// revision, so that it can extend only what is still its own.
//
// Whether it leads the leader decides by its own monotonic clock alone: from
// the start (not the end) of its last good renewal, for the length of the
// lease less a margin. Then its context is cancelled, before the server lets
// go of the key, whether the server can be reached or not. Where the outcome of
// a write is unknown the key is read back, and what cannot be known counts as
// not renewed.
//
// A cancelled context stops whoever looks at it. A process that was frozen
// looks at nothing meanwhile, and may go on, thawed, before any timer of its
// own has fired: therefore a leader asks [Guard] right before each act, which
// compares with the clock itself. What remains is a freeze between the question
// and the act. For that each leadership has a term, issued by the store and
// higher than any before, which every act carries and the store compares.
//
// Without JetStream there is no leader; [Elector.State] says why. The clocks of
// different machines are never compared.
package lease

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"
	"github.com/rs/zerolog"

	"flexiq/pkg/fault"
)

const (
	// DefaultBucket is the bucket of all elections of an installation.
	DefaultBucket = "FQ_LEASE"
	// DefaultTTL is how long a lease lasts without a renewal.
	DefaultTTL = 15 * time.Second
	// MinTTL is the shortest lease: below it the calls would have no time.
	MinTTL = 500 * time.Millisecond

	// termTimeout is how long a new leader waits for its term.
	termTimeout = 10 * time.Second
)

// Options configure an [Elector]. Key and Term are required.
type Options struct {
	// Bucket is the key-value bucket; empty is FQ_LEASE. It is created when it
	// is missing.
	Bucket string
	// Key is what is led, "retention" for example: a key of NATS, of letters,
	// digits and -/_=.
	Key string
	// Holder is who this is, for people.
	Holder string
	// TTL is the length of the lease, at least 500 ms; 0 is 15 s. Where others
	// use another one in the same bucket, each leader gives the bucket its own.
	TTL time.Duration
	// Term issues the term of a leadership that was just won, higher than any
	// before. It has 10 s. Without a term there is no leadership.
	Term func(ctx context.Context) (int64, error)
	// Ready is asked before this process tries to win a free lease: an error
	// keeps it out of the election for now. Nil: always ready.
	Ready func(ctx context.Context) error
	// Log is told of leaderships and of problems as they come and go.
	Log zerolog.Logger
}

func (o Options) withDefaults() Options {
	if o.Bucket == "" {
		o.Bucket = DefaultBucket
	}
	if o.TTL == 0 {
		o.TTL = DefaultTTL
	}
	return o
}

func (o Options) check() error {
	switch {
	case o.Key == "":
		return errors.New("a lease needs a key")
	case o.Term == nil:
		return errors.New("a lease needs a source of terms")
	case o.TTL < MinTTL:
		return fmt.Errorf("a lease must last at least %s, got %s", MinTTL, o.TTL)
	}
	return nil
}

// Elector takes part in one election. Make it with [New].
type Elector struct {
	opts    Options
	venue   venue
	session string // tells this elector's writes from those of any other

	bucket  keyValue // nil: to be opened
	attempt uint64   // numbers the writes

	mu    sync.Mutex
	state State
}

// New makes an elector. It does not talk to the server before Run.
func New(js jetstream.JetStream, opts Options) *Elector {
	opts = opts.withDefaults()
	opts.Log = opts.Log.With().Str("lease", opts.Key).Logger()
	return &Elector{
		opts:    opts,
		venue:   natsServer{js: js, bucket: opts.Bucket, key: opts.Key, ttl: opts.TTL},
		session: nuid.Next(),
	}
}

// Run takes part in the election until the context ends, and calls lead while
// this process leads, with a context that ends before the lease does and with
// the leadership's term. It returns nil when the context ended and lead has
// returned, after at most a few seconds for giving the lease back, whether
// JetStream answers or not. The error is of the options only. One Run at a time.
//
// lead must return soon after its context has ended: the lease is kept until
// it does (unless it was lost), and no other lead is started before. When it
// returns earlier the leadership is given up and the others are let go first.
func (e *Elector) Run(ctx context.Context, lead func(ctx context.Context, term int64) error) error {
	if err := e.opts.check(); err != nil {
		return err
	}
	freed := make(chan struct{}, 1)
	stop := e.venue.listen(func() {
		select {
		case freed <- struct{}{}:
		default:
		}
	})
	defer stop()
	for {
		h := e.campaign(ctx, freed)
		if h == nil {
			return nil
		}
		err := e.reign(ctx, h, lead)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			e.opts.Log.Warn().Err(err).Msg("leadership ended")
		}
		if !rest(ctx, h.timing.poll) {
			return nil
		}
	}
}

// rest waits; false when the context ended first.
func rest(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// State of an election as one elector sees it.
type State struct {
	Leading bool
	Term    int64     // of the own leadership; 0: not leading
	Since   time.Time // of the own leadership
	Leader  string    // the holder last seen; empty: none
	Problem string    // why there can be no leadership here now; empty: none
}

// State tells how things stand.
func (e *Elector) State() State {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.state
}

// Check is for health: an error with the Problem of [State], if there is one.
func (e *Elector) Check(context.Context) error {
	if s := e.State(); s.Problem != "" {
		return fault.New(fault.StorageUnavailable, "%s", s.Problem)
	}
	return nil
}

// leads records the own leadership.
func (e *Elector) leads(term int64) {
	e.troubled("", nil)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.state = State{Leading: true, Term: term, Since: time.Now(), Leader: e.opts.Holder}
}

// follows records that somebody else leads, or nobody when holder is empty.
func (e *Elector) follows(holder string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.state = State{Leader: holder, Problem: e.state.Problem}
}

// troubled records a problem, and logs it when it is a new one; nil clears it.
func (e *Elector) troubled(what string, err error) {
	problem := ""
	if err != nil {
		problem = what
		if f := (*fault.Error)(nil); errors.As(err, &f) {
			problem += ": " + f.Message
		}
	}
	e.mu.Lock()
	before := e.state.Problem
	e.state.Problem = problem
	e.mu.Unlock()
	switch {
	case err != nil && before != problem:
		e.opts.Log.Warn().Err(err).Str("problem", problem).Msg("the election has a problem")
	case err == nil && before != "":
		e.opts.Log.Info().Msg("the election has no problem any more")
	}
}

// The problems.
const (
	noJetStream = "JetStream does not answer"
	noJS        = "JetStream is not enabled on the NATS server"
	notReady    = "this process is not ready to lead"
	noTerm      = "the store issues no term"
)
