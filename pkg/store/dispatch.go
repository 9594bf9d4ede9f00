package store

import (
	"context"
	"time"

	"flexiq/pkg/job"
)

// Dispatch hands out jobs and takes them back.
type Dispatch interface {
	// Turn first applies settlements, then serves wants, in one step.
	//
	// A settlement is accepted when it shows the job's current lease and the
	// lease has not been taken away; [job.Job.After] says where the job goes.
	// The same settlement twice is accepted twice and acts once. Anything else
	// is refused without effect.
	//
	// A want gets up to Max jobs of its queues, in the order priority (highest
	// first), run_at, id, that are due now, as many as the least room of its
	// caps allows: the number of running jobs of the namespace never passes
	// MaxRunning through it, nor that of a queue or task the MaxConcurrent of its
	// override, and nothing of what is paused starts. What one cap holds back never
	// keeps others from running. A granted job is running, its attempt counted, its
	// lease set. The payloads of one grant are at most MaxBytes together, but
	// one job is given whatever its size. No work is an empty grant.
	Turn(ctx context.Context, settlements []Settlement, wants []Want) ([]Settled, []Grant, error)

	// Heartbeat extends leases to now + Extend, never beyond the attempt's
	// timeout and never to earlier than they were. A lease that is not current
	// is Lost.
	Heartbeat(ctx context.Context, beats []Beat) ([]Pulse, error)

	// Expire ends at most limit attempts whose lease has ended, oldest first:
	// as timed out when the attempt's timeout is reached, else as lost. It
	// returns what it ended; fewer than limit means none is left.
	Expire(ctx context.Context, limit int) ([]Ended, error)

	// Ready tells which of the interests have a job that is due now, and when
	// the next one will be. It writes nothing and looks at no caps.
	Ready(ctx context.Context, interests []Interest) ([]Readiness, error)
}

// Want asks for jobs of one namespace.
type Want struct {
	Namespace  string
	Queues     []string // empty: all
	Max        int      // 1…1000
	MaxBytes   int64    // 0: no bound
	LeaseFor   time.Duration
	Worker     string
	MaxRunning *int64 // of the quota in force as far as the caller knows; nil is unlimited
	Stamp      Stamp
}

// Grant answers a want.
type Grant struct {
	Err  error // ErrStale, what the database refused of this want alone, or nil
	Jobs []Leased
	// Held names what kept due jobs of the queues back, each once, by What and
	// Name: what is paused or at its cap now, and MaxRunning where nothing else
	// did. It is set when fewer than Max were given and MaxBytes did not stop it.
	Held []Hold
	// NextAt is when the next job of the queues becomes due that no pause and no
	// cap of a queue or task holds, zero when none waits for its time. It is set
	// when Jobs is empty.
	NextAt time.Time
}

// Leased is a running job and the lease on it.
type Leased struct {
	Job       job.Job
	Lease     string // unguessable, new for each claim
	ExpiresAt time.Time
}

// Settlement ends an attempt. The error text is cleaned by the store's use of
// [job.Job.After]; the result is at most [job.MaxResult] bytes.
type Settlement struct {
	Namespace  string
	JobID      string
	Lease      string
	Outcome    job.Outcome
	Error      string
	Result     []byte
	RetryAfter *time.Duration
}

// Settled answers a settlement.
type Settled struct {
	Err      error     // the database refused this settlement alone; try again. Else nil
	Accepted bool      // false: the lease is not current
	Repeat   bool      // accepted before
	State    job.State // of the job now; empty when it does not exist
	Queue    string    // of the job, for wake-ups
	Task     string
	Attempt  int32
}

// Beat is one heartbeat.
type Beat struct {
	Namespace string
	JobID     string
	Lease     string
	Extend    time.Duration
}

// Pulse answers a heartbeat.
type Pulse struct {
	Err       error // the database refused this beat alone; try again. Else nil
	Alive     bool  // false: lost
	Cancelled bool  // alive, and its cancellation was requested
	ExpiresAt time.Time
}

// Ended is an attempt that Expire ended, or a job that Cancel did.
type Ended struct {
	Namespace string
	Queue     string
	Task      string
	JobID     string
	State     job.State // pending, dead or cancelled
	Attempt   int32     // attempts that counted
}

// Interest is what somebody waits for.
type Interest struct {
	Namespace string
	Queues    []string // empty: all
}

// Readiness answers an interest.
type Readiness struct {
	Ready  bool
	NextAt time.Time // the next run_at in the future, zero when there is none
}
