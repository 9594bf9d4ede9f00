package store

import (
	"context"
	"time"

	"flexiq/pkg/quota"
)

// Quotas keeps quota documents.
type Quotas interface {
	// Quotas reads the quotas in force for namespaces, in order.
	Quotas(ctx context.Context, namespaces []string) ([]Document, error)

	// DefaultQuota reads the installation's default quota; an absent one has a
	// nil Raw.
	DefaultQuota(ctx context.Context) (Document, error)

	// PutQuota replaces or clears one document, raises its revision, adjusts the
	// bucket to a new rate and writes the audit record, in one step. It
	// returns the document as it now is. With IfRevision it first compares: 0
	// wants no document to exist, anything else the last revision, also that of
	// a cleared document. A mismatch changes nothing, writes the record as
	// refused, and returns the present document with REVISION_MISMATCH.
	PutQuota(ctx context.Context, c QuotaChange) (Document, error)

	// Changes tells what was written to quotas, overrides and tokens after the change
	// number since, oldest first, each object once, whoever wrote it; Latest is
	// the number to continue from.
	Changes(ctx context.Context, since int64, limit int) (Changes, error)
}

// Document is a stored quota document.
type Document struct {
	Raw       []byte // as stored; nil when there is none
	Stamp     Stamp
	Inherited bool // Raw is the installation's default quota
	UpdatedAt time.Time
	UpdatedBy string
}

// QuotaChange replaces or clears one document.
type QuotaChange struct {
	Namespace  string // ignored with Default
	Default    bool   // the installation's default quota instead
	Raw        []byte // nil clears
	Rate       *quota.Rate
	IfRevision *int64
	Audit      Record // old, new, outcome and revision are filled in by the store
}

// Kind of a changed object.
type Kind string

// The kinds of [Change].
const (
	KindQuota        Kind = "quota"         // Key is the namespace
	KindDefaultQuota Kind = "default_quota" // Key is empty
	KindToken        Kind = "token"         // Key is the token id
	KindOverride     Kind = "override"      // Key is the namespace
)

// Change names a changed object.
type Change struct {
	Kind Kind
	Key  string
}

// Changes is what was changed after a change number.
type Changes struct {
	Items  []Change
	Latest int64
}
