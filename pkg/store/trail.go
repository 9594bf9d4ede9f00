package store

import (
	"context"
	"strconv"
	"time"
)

// Trail keeps the audit trail.
type Trail interface {
	// Audit writes a record on its own, of a write that was refused.
	Audit(ctx context.Context, r Record) error
	// ListAudit lists a namespace's records, oldest first.
	ListAudit(ctx context.Context, ns string, f AuditFilter, after string, limit int) (Page[Record], error)
}

// Record is one line of the audit trail.
type Record struct {
	Time       time.Time // set by the store
	Namespace  string    // whose trail; empty: the installation's
	TokenID    string
	ActingAs   string // the namespace a platform token acts for, else empty
	Door       string // nats, http, grpc
	Operation  string
	TargetKind string
	Target     string
	Outcome    string // ok, or the reason of the refusal
	Old        string // JSON, empty: none
	New        string
	Revision   int64
}

// AuditFilter narrows the trail down. Zero fields match everything.
type AuditFilter struct {
	Kind  string
	Since time.Time
}

// Counted is a record of something that was done to n objects.
func (r Record) Counted(what string, n int64) *Record {
	r.Outcome, r.New = "ok", `{"`+what+`":`+strconv.FormatInt(n, 10)+`}`
	return &r
}
