package configcache

import (
	"context"

	"flexiq/pkg/store"
)

// Source tells what changed; see [store.Quotas].
type Source interface {
	Changes(ctx context.Context, since int64, limit int) (store.Changes, error)
}

// Poller asks once a second what changed in the store.
type Poller struct{}

// NewPoller makes a poller. handle gets the changes, or nil when anything may
// have changed and everything must be dropped.
func NewPoller(src Source, handle func([]store.Change)) *Poller { return &Poller{} }

// Run polls until the context ends.
func (p *Poller) Run(ctx context.Context) error { return nil }

// Fresh reports whether the last good poll started less than two seconds ago.
func (p *Poller) Fresh() bool { return false }

// Position is the change number up to which the changes have been handled.
func (p *Poller) Position() int64 { return 0 }

// Check is for health: an error while not [Poller.Fresh].
func (p *Poller) Check(context.Context) error { return nil }
