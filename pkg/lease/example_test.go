package lease_test

import (
	"context"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"flexiq/pkg/lease"
)

// A leader asks the guard right before each act, and the act carries the term,
// which the store compares with the newest one.
func Example() {
	var (
		js      jetstream.JetStream
		newTerm func(ctx context.Context) (int64, error)
		act     func(ctx context.Context, term int64) error
	)
	elector := lease.New(js, lease.Options{Key: "retention", Holder: "host-17", Term: newTerm})

	run := func(ctx context.Context) error {
		return elector.Run(ctx, func(ctx context.Context, term int64) error {
			for tick := time.Tick(time.Minute); ; {
				if err := lease.Guard(ctx); err != nil {
					return err
				}
				if err := act(ctx, term); err != nil {
					return err
				}
				select {
				case <-ctx.Done():
					return ctx.Err()
				case <-tick:
				}
			}
		})
	}
	_ = run
}
