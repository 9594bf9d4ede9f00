package rpc

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// The names of this package's metrics. None has a tenant's name in it.
const (
	metricRequests = "flexiq_rpc_requests_total"
	metricDuration = "flexiq_rpc_duration_seconds"
)

// codeOK is the code label of a call without an error.
const codeOK = "OK"

// Metrics counts calls at the doors. A nil one counts nothing.
type Metrics struct {
	requests *prometheus.CounterVec
	duration *prometheus.HistogramVec
}

// NewMetrics makes the metrics and registers them. One is enough for a
// process: all its doors share it.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: metricRequests,
			Help: "Calls by method, door (nats, http, grpc) and code.",
		}, []string{"method", "door", "code"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    metricDuration,
			Help:    "Time from a call's arrival at its door to its answer.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 18),
		}, []string{"method", "door"}),
	}
	reg.MustRegister(m.requests, m.duration)
	return m
}

// Observe counts one call. code is empty for a call without an error.
func (m *Metrics) Observe(method, door, code string, took time.Duration) {
	if m == nil {
		return
	}
	m.Count(method, door, code)
	m.duration.WithLabelValues(method, door).Observe(took.Seconds())
}

// Count counts one call whose duration says nothing.
func (m *Metrics) Count(method, door, code string) {
	if m == nil {
		return
	}
	if code == "" {
		code = codeOK
	}
	m.requests.WithLabelValues(method, door, code).Inc()
}
