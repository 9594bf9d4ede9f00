package store

import (
	"context"
	"time"

	"flexiq/pkg/job"
	"flexiq/pkg/quota"
)

// Admission makes pending jobs.
type Admission interface {
	// Admit decides enqueue calls by package admit's rules and writes what was
	// admitted or shed. It is the only operation that makes a pending job out
	// of nothing; [Letters.Replay], which makes one out of a dead letter,
	// decides by the same rules. Outcomes are in the order of the calls; the error
	// is of the database as a whole and then nothing was written.
	Admit(ctx context.Context, calls []Call) ([]Outcome, error)

	// Cancel ends pending jobs as cancelled and marks running ones so that
	// their next heartbeat says it. It examines at most limit jobs of a filter
	// selection, oldest id first; More then tells that some may be left. A job
	// that is already marked is not counted again by a filter.
	Cancel(ctx context.Context, ns string, sel Selection, limit int) (Cancelled, error)
}

// Stamp names the quota that a caller decides by. A store compares it with
// what is in force and answers ErrStale when they differ.
type Stamp struct {
	Revision int64 // of the namespace's own document, 0 before the first; clear raises it too
	Default  int64 // of the installation's default quota when the namespace has no document, else 0
}

// InForce is the revision that refusals show.
func (s Stamp) InForce() int64 { return max(s.Revision, s.Default) }

// Call is one enqueue call, one unit. Its jobs have passed [job.Spec.Normalize]
// and their ids differ.
type Call struct {
	Namespace string
	Quota     quota.Quota // in force as far as the caller knows
	Stamp     Stamp       // of Quota
	Jobs      []job.Spec  // 1…1000
	Origin    string      // see [job.Job]
	By        string      // token id
	Slot      *Slot       // of a schedule that this call fires, else nil
	Signature *Signature  // of a request that must not be carried out twice, else nil
}

// Outcome is what became of a call.
type Outcome struct {
	Err     error    // a refusal (*fault.Error), ErrStale, ErrSlot, ErrSignature, or nil
	Results []Result // one per job of the call, in order, when Err is nil
	Shed    bool     // the jobs are dead letters
	Repeat  bool     // the call was seen before; nothing was written
}

// Result is one enqueued job.
type Result struct {
	// Job is the job that now stands for the call's, without its payload: its
	// own, or the holder of its unique or debounce key. Nil when a repeated
	// call's duplicate has no holder any more.
	Job          *job.Job
	Deduplicated bool // a live job already had the unique key
	Debounced    bool // a pending job already had the debounce key; it was updated
}

// Selection picks jobs of one namespace: the ids, or else everything that
// matches the filter.
type Selection struct {
	IDs    []string
	Filter Filter
}

// Filter narrows jobs down. Zero fields match everything.
type Filter struct {
	State         job.State
	Queue         string
	Task          string
	CreatedBefore time.Time
	DiedBefore    time.Time // dead letters only
	Shed          *bool     // dead letters only
}

// Cancelled counts what Cancel did.
type Cancelled struct {
	Cancelled  int64 // ended now
	Cancelling int64 // running; their workers will be told
	NotFound   int64 // ids that are not live
	More       bool
	Ended      []Ended // those that ended now, each once
}
