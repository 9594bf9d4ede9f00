// Package job holds what a job is: its options, its states, the moves between
// them, and the delays between its attempts. Everything here is pure.
package job

import (
	"time"
)

// State is where a job stands.
type State string

// The states. A pending or running job is live, a complete or cancelled one
// lies in the archive, a dead one among the dead letters.
const (
	Pending   State = "pending"   // waits: ready, delayed, or for a retry
	Running   State = "running"   // a worker holds its lease
	Complete  State = "complete"  // done
	Dead      State = "dead"      // out of attempts, given up by its worker, or shed
	Cancelled State = "cancelled" // ended by request
)

// States lists every state.
var States = []State{Pending, Running, Complete, Dead, Cancelled}

// Valid reports whether s is one of the states.
func (s State) Valid() bool {
	for _, v := range States {
		if s == v {
			return true
		}
	}
	return false
}

// Form says how a job's payload was given, so that it is shown the same way.
type Form uint8

// The forms of a payload. The values are stored.
const (
	NoPayload Form = 0 // none was given
	Bytes     Form = 1 // any bytes
	Args      Form = 2 // a JSON value, kept as compact JSON
)

// Options of a new job, with their defaults and bounds.
const (
	DefaultQueue       = "default"
	DefaultMaxAttempts = 25
	MaxMaxAttempts     = 1_000_000
	DefaultTimeout     = 30 * time.Minute
	MinTimeout         = time.Second
	MaxTimeout         = 30 * 24 * time.Hour
	DefaultBackoffBase = time.Second
	DefaultBackoffMax  = time.Hour
	MinPriority        = -128
	MaxPriority        = 127
	MaxDelay           = 10 * 365 * 24 * time.Hour
	DefaultMaxPayload  = 256 << 10
	LargestMaxPayload  = 4 << 20
	MaxMetadata        = 16 << 10 // bytes of all keys and values together
	MaxResult          = 64 << 10
	MaxError           = 16 << 10
	MaxBatch           = 1000 // jobs in one call
	DefaultLease       = 30 * time.Second
	MinLease           = time.Second
	MaxLease           = time.Hour
	MaxArgsDepth       = 1000
)

// Spec is a job to be enqueued, checked and with its defaults filled in: see
// [Spec.Normalize]. Times have microsecond precision, as stores keep them.
type Spec struct {
	ID          string // UUIDv7, lower case
	Queue       string
	Task        string
	Payload     []byte
	Form        Form
	Priority    int32         // −128…127, higher first
	RunAt       time.Time     // zero: at once, or after Delay
	Delay       time.Duration // counted from the store's clock
	MaxAttempts int32
	Timeout     time.Duration // per attempt
	BackoffBase time.Duration
	BackoffMax  time.Duration
	UniqueKey   string // empty: none
	Debounce    Debounce
	Metadata    map[string]string
	Open        Option // what the caller left to the defaults; see [Spec.Default]
	// Fingerprint identifies the content of the spec as it was sent, so that a
	// repeated call is told apart from another call with the same id.
	Fingerprint [16]byte
}

// Debounce joins enqueues with one key into one pending job. A zero Key means none.
type Debounce struct {
	Key     string
	Window  time.Duration // each enqueue moves run_at to now + Window
	MaxWait time.Duration // but never beyond the first enqueue + MaxWait
}

// Job is a job as a store keeps it. Times are zero when they do not apply.
type Job struct {
	ID          string
	Namespace   string
	Queue       string
	Task        string
	Payload     []byte
	Form        Form
	State       State
	Priority    int32
	Attempt     int32 // claims that counted; 0 before the first
	MaxAttempts int32
	Timeout     time.Duration
	BackoffBase time.Duration
	BackoffMax  time.Duration
	RunAt       time.Time
	CreatedAt   time.Time
	StartedAt   time.Time // of the last attempt
	FinishedAt  time.Time
	Error       string // of the last failed attempt
	Result      []byte // nil: none
	Metadata    map[string]string
	UniqueKey   string
	Debounce    Debounce
	Origin      string // enqueue, trigger:<name>, schedule:<name>, replay:<dead id>
	EnqueuedBy  string // token id
	Worker      string // of the running attempt
	AutoRetries int32  // times that it left the dead letters by the automatic retry; not kept once it is archived
	// DeadMetadata says more about a dead letter; a shed one has ShedMetadata.
	DeadMetadata map[string]string
}

// OriginEnqueue is the origin of a job that a producer enqueued.
const OriginEnqueue = "enqueue"

// OriginReplay is the origin of a job that was a dead letter.
func OriginReplay(dead string) string { return "replay:" + dead }

// Shed reports whether the job is a dead letter that never was live.
func (j *Job) Shed() bool { return j.DeadMetadata["shed"] == "quota" }

// ShedMetadata is the dead-letter metadata of a shed job.
func ShedMetadata() map[string]string { return map[string]string{"shed": "quota"} }
