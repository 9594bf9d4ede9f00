package main

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"flexiq/pkg/telemetry"
	"flexiq/pkg/testkit"
)

type oldest struct {
	age time.Duration
	err error
}

func (o oldest) Horizon(context.Context) (time.Duration, error) { return o.age, o.err }

func TestOpenTransactionsAreTold(t *testing.T) {
	for name, tc := range map[string]struct {
		oldest
		gauge  float64
		status telemetry.Status
		says   string
	}{
		"none":    {oldest{}, 0, telemetry.Ready, ""},
		"young":   {oldest{age: time.Minute}, 60, telemetry.Ready, ""},
		"old":     {oldest{age: time.Hour}, 3600, telemetry.Degraded, "open for 1h0m0s"},
		"unknown": {oldest{err: errors.New("gone")}, -1, telemetry.Degraded, "internal error"},
	} {
		t.Run(name, func(t *testing.T) {
			reg, health := prometheus.NewRegistry(), telemetry.NewHealth(zerolog.Nop())
			defer health.Stop()
			watchHorizon(tc.oldest, reg, health)
			if got := testkit.Metric(t, reg, "flexiq_store_oldest_transaction_seconds"); got != tc.gauge {
				t.Errorf("the gauge is %g, want %g", got, tc.gauge)
			}
			r := health.Report()
			if r.Status != tc.status || len(r.Checks) != 1 || !strings.Contains(r.Checks[0].Error, tc.says) {
				t.Errorf("health %+v, want %s and %q", r, tc.status, tc.says)
			}
		})
	}
}
