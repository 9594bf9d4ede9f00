package main

import (
	"context"

	"golang.org/x/sync/errgroup"
)

// inParallel calls do for 0 to n-1, a few at a time.
func inParallel(ctx context.Context, at, n int, do func(ctx context.Context, i int) error) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(at)
	for i := range n {
		if ctx.Err() != nil {
			break
		}
		g.Go(func() error { return do(ctx, i) })
	}
	return g.Wait()
}
