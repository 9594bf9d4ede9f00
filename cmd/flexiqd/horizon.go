package main

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"flexiq/pkg/fault"
	"flexiq/pkg/telemetry"
)

const (
	// horizonLimit is from when an open transaction is worth an operator's look:
	// no transaction of FlexiQ's own takes a tenth of it.
	horizonLimit   = 10 * time.Minute
	horizonTimeout = time.Second
)

// horizon is a store whose database keeps old row versions as long as some
// transaction may see them.
type horizon interface {
	Horizon(ctx context.Context) (time.Duration, error)
}

// watchHorizon shows in metrics and health how long the oldest transaction has
// been open.
func watchHorizon(h horizon, reg prometheus.Registerer, health *telemetry.Health) {
	reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "flexiq_store_oldest_transaction_seconds",
		Help: "How long the oldest open transaction of any session has held back vacuum, -1 when that cannot be told.",
	}, func() float64 {
		ctx, cancel := context.WithTimeout(context.Background(), horizonTimeout)
		defer cancel()
		age, err := h.Horizon(ctx)
		if err != nil {
			return -1
		}
		return age.Seconds()
	}))
	health.Add(telemetry.Check{Name: "vacuum", Run: func(ctx context.Context) error {
		age, err := h.Horizon(ctx)
		if err == nil && age >= horizonLimit {
			return fault.New(fault.Overloaded, "a transaction has been open for %s and keeps vacuum from its work", age.Round(time.Second))
		}
		return err
	}})
}
