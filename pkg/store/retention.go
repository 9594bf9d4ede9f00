package store

import (
	"context"
	"time"
)

// Retention deletes history.
type Retention interface {
	// NewTerm issues a leader's term, higher than any before. Every Trim with a
	// lower term does nothing from then on.
	NewTerm(ctx context.Context, holder string) (int64, error)
	// Trim deletes at most Limit of the oldest rows of one table of one
	// namespace, by (finished time, id): those beyond Keep, or those finished
	// before Before. It never deletes a row among the newest Keep. An old term is
	// refused with Superseded and deletes nothing. With a stamp that is not in
	// force it is ErrStale.
	Trim(ctx context.Context, t Trim) (Trimmed, error)
	// TrimAudit deletes at most limit audit records older than before, under a term.
	TrimAudit(ctx context.Context, term int64, before time.Time, limit int) (Trimmed, error)
}

// Table is a table of history.
type Table string

// The tables of history.
const (
	Archive     Table = "archive"
	DeadLetters Table = "dead_letters"
)

// Trim asks for one batch of deletes. Exactly one of Keep and Before is set.
type Trim struct {
	Term      int64
	Namespace string
	Table     Table
	Keep      *int64
	Before    time.Time
	Limit     int    // 1…500
	Stamp     *Stamp // of the quota that Keep comes from; nil for age windows
}

// Trimmed tells what a batch deleted.
type Trimmed struct {
	Superseded bool // the term is not the newest; nothing was deleted
	Completed  int64
	Cancelled  int64
	Dead       int64
	Shed       int64
	Audit      int64
	More       bool // rows are left that another batch would delete
}
