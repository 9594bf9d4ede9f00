// Package store is the contract of storage: what a backend keeps and promises,
// in prose and small interfaces. The backends are its sub-packages; storetest
// is the suite that each of them passes.
//
// # What every operation promises
//
// Each operation is atomic: all of it happened or nothing did, also when the
// process is killed inside it. What it answered as done is durable. Each has a
// deadline of its own below the context's, and gives back STORAGE_UNAVAILABLE
// (see package fault) when the database cannot be reached, is full or too slow.
// Any other error is a bug and INTERNAL. Operations are safe for concurrent
// use, in one process and in many.
//
// The clock is the store's: a database server's own, or the host's for an
// embedded one. Times have microsecond precision. Namespaces, queues and keys
// are compared byte for byte. Ids and keys are unique per namespace, never
// across. An object of another namespace is simply not there.
//
// Counts are kept by the database itself in the step that changes the rows, so
// they cannot drift and a limit is compared with the truth. Every step that
// writes jobs locks its namespaces in byte order first.
//
// # Group operations
//
// Admit and Turn take many units of many namespaces in one call, because a
// commit's cost is shared that way. Units are decided in the order given.
// They do not affect each other: one unit's error or refusal is its own
// outcome, and a failure of the database that only one unit provokes is that
// unit's error alone.
package store

import (
	"context"
	"errors"
	"time"

	"flexiq/pkg/quota"
)

// ErrStale is a unit's outcome when the caller decided by a quota that is no
// longer in force. Nothing was written; load the quota again and repeat.
var ErrStale = errors.New("the quota changed: load it again")

// Store is everything a backend does.
type Store interface {
	Admission
	Dispatch
	Jobs
	Letters
	Insight
	Quotas
	Settings
	Overrides
	Tokens
	Schedules
	Triggers
	Trail
	Retention
	Upkeep
}

// Page is one page of a listing. Next is where the following one starts, empty
// at the end.
type Page[T any] struct {
	Items []T
	Next  string
}

// Usage is what a namespace holds.
type Usage struct {
	Namespace string
	Pending   int64
	Running   int64
	Archived  int64
	Dead      int64 // shed ones included
	Shed      int64
	Bucket    quota.Bucket // as last written
	Stamp     Stamp
	Now       time.Time // the store's clock at the reading
}

// Erased is what one step of an erasure came to.
type Erased struct {
	Any  bool // something was there
	More bool // something is left
}

// Upkeep is for health and repair.
type Upkeep interface {
	// Ping checks that the store answers and can write.
	Ping(ctx context.Context) error
	// Recount counts the rows of a namespace, ignoring kept counts.
	Recount(ctx context.Context, ns string) (Usage, error)
	// Examine tells what is kept about the jobs of a namespace and is not so:
	// counts, lanes, indexes, payloads without a job. Jobs themselves are
	// believed. It finds nothing in a sound store, however busy, and so in one
	// that was never used. With repair it also makes it so, under the locks of
	// every other writer, and returns what it found then; all of it is mended but
	// what is [Broken]. It deletes no job. It reads every job of the namespace,
	// which may take minutes: its deadline is long.
	Examine(ctx context.Context, ns string, repair bool) ([]Finding, error)
	// EraseNamespace deletes at most limit rows of a namespace: its tokens first,
	// then what makes jobs, jobs, history, settings, quota and audit trail. When
	// nothing is left the namespace is as if it had never been used, its revisions
	// included. It may be repeated at any time, so that what a crash interrupted is
	// taken up again. Whoever erases first revokes the tokens and waits until no
	// process believes them; and repeats it until nothing was erased, because what
	// was let in before may write until then.
	EraseNamespace(ctx context.Context, ns string, limit int) (Erased, error)
	// Close releases everything. No operation may follow or be running.
	Close() error
}
