// Package telemetry makes a process visible: its log, its metrics and its health.
package telemetry

import (
	"context"
	"io"
	"net/http"

	"connectrpc.com/grpchealth"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
)

// Logger makes the process's log: JSON lines. level is trace, debug, info,
// warn, error or off.
func Logger(w io.Writer, level string) (zerolog.Logger, error) { return zerolog.Nop(), nil }

// NewRegistry makes a metrics registry with the collectors of the Go runtime,
// the process and the build.
func NewRegistry() *prometheus.Registry { return prometheus.NewRegistry() }

// MetricsHandler serves /metrics.
func MetricsHandler(reg *prometheus.Registry) http.Handler { return http.NotFoundHandler() }

// Check is one named question to a part of the process.
type Check struct {
	Name     string
	Critical bool // its failure makes the process unready, else degraded
	Run      func(ctx context.Context) error
}

// Health asks the checks.
type Health struct{}

// NewHealth makes a health without checks: ready.
func NewHealth(log zerolog.Logger, checks ...Check) *Health { return &Health{} }

// Add adds a check.
func (h *Health) Add(c Check) {}

// Stop makes the process unready for good: it is shutting down.
func (h *Health) Stop() {}

// Live serves /healthz: 200 while the process lives.
func (h *Health) Live() http.Handler { return http.NotFoundHandler() }

// Ready serves /readyz.
func (h *Health) Ready() http.Handler { return http.NotFoundHandler() }

// Checker answers grpc.health.v1 for the named services and for "".
func (h *Health) Checker(services ...string) grpchealth.Checker {
	return grpchealth.NewStaticChecker(services...)
}
