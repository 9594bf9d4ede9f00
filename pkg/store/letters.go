package store

import (
	"context"
	"time"

	"flexiq/pkg/job"
	"flexiq/pkg/quota"
)

// LettersLimit is how many dead letters one call of [Letters] takes.
const LettersLimit = 1000

// Letters takes dead letters away, by their ids. A job that is not dead is as
// missing as one that does not exist.
type Letters interface {
	// Replay moves dead letters back to pending, each as a new job, and each a
	// unit that moves whole or stays as it is. They are decided in order by
	// package admit's rules as calls of one job that can only be refused: what is
	// over a limit stays and is never shed. So does one whose unique key a live
	// job holds, or whose debounce key a pending job does. One that stays spends
	// nothing. Payload and options are kept, attempts begin anew, and it is due
	// at once. When any moves, the audit record is written in the same step.
	Replay(ctx context.Context, r Replay) ([]Replayed, error)

	// DeleteDead deletes dead letters with their payloads and tells how many it
	// found. When it finds any, the audit record is written in the same step.
	DeleteDead(ctx context.Context, ns string, ids []string, audit Record) (int64, error)

	// Retryable lists the ids of dead letters that were not shed, died before an
	// instant and were retried automatically fewer than most times: the oldest
	// first, by (finished time, id), those after an earlier page's Next. It
	// examines a bounded number of rows: a page may be short, even empty, while
	// Next is set.
	Retryable(ctx context.Context, q Retryable) (Page[string], error)
}

// Replay asks for dead letters of one namespace to be moved.
type Replay struct {
	Namespace string
	Quota     quota.Quota // in force as far as the caller knows
	Stamp     Stamp       // of Quota
	Letters   []Letter    // 1…LettersLimit, each id once
	By        string      // token id; empty: the automatic retry
	Automatic bool        // counts in [job.Job.AutoRetries]
	Audit     *Record     // the store fills in outcome and new value; nil: none
}

// Letter is a dead letter and the id of the job that it becomes, which no job has.
type Letter struct{ ID, As string }

// Replayed is what became of one dead letter: it moved, was gone, or stays.
type Replayed struct {
	Job  *job.Job // the new job without its payload, when it moved
	Gone bool     // there is no dead letter of this id
	// Err is why it stays: QUEUE_FULL, RATE_LIMITED, UNIQUE_KEY_HELD or
	// DEBOUNCE_KEY_HELD, ErrStale, or what the database refused of it alone.
	Err error
}

// Retryable asks for dead letters that may be retried automatically.
type Retryable struct {
	Namespace string
	Before    time.Time // they died before
	Most      int32     // they were retried fewer times, 1…255
	After     string    // Next of the page before, empty for the first
	Limit     int
}
