package store

import "context"

type decidedKey struct{}

// OnDecided returns a context with which a group operation calls fn once it has
// decided everything and released its locks, and only waits for the disk. Until
// the operation returns nothing of it may be told; but another one that starts
// from then on finds what it wrote. A backend that is durable as soon as it has
// decided never calls fn.
func OnDecided(ctx context.Context, fn func()) context.Context {
	return context.WithValue(ctx, decidedKey{}, fn)
}

// Decided calls what [OnDecided] put into the context. Backends use it.
func Decided(ctx context.Context) {
	if fn, ok := ctx.Value(decidedKey{}).(func()); ok {
		fn()
	}
}
