package batch

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are the metrics of all groups of a process, told apart by the label
// "group". A nil *Metrics keeps none.
type Metrics struct {
	size    *prometheus.HistogramVec
	seconds *prometheus.HistogramVec
	failed  *prometheus.CounterVec
	refused *prometheus.CounterVec
	calls   *prometheus.GaugeVec
}

// NewMetrics makes metrics and registers them.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	group := []string{"group"}
	m := &Metrics{
		size: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "flexiq_batch_flush_calls",
			Help:    "Calls that went into one flush.",
			Buckets: []float64{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000},
		}, group),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "flexiq_batch_flush_seconds",
			Help:    "Duration of one flush.",
			Buckets: []float64{.0005, .001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5},
		}, group),
		failed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "flexiq_batch_flush_failures_total",
			Help: "Flushes that failed as a whole.",
		}, group),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "flexiq_batch_refused_total",
			Help: "Calls refused as OVERLOADED, by the bound that was reached.",
		}, []string{"group", "bound"}),
		calls: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "flexiq_batch_calls",
			Help: "Calls that wait or are being flushed, as of the last flush.",
		}, group),
	}
	reg.MustRegister(m.size, m.seconds, m.failed, m.refused, m.calls)
	return m
}

// meter is what one group measures; the zero value measures nothing.
type meter struct {
	size, seconds prometheus.Observer
	failures      prometheus.Counter
	refusals      *prometheus.CounterVec
	calls         prometheus.Gauge
}

func (m *Metrics) of(group string) meter {
	if m == nil {
		return meter{}
	}
	return meter{
		size:     m.size.WithLabelValues(group),
		seconds:  m.seconds.WithLabelValues(group),
		failures: m.failed.WithLabelValues(group),
		refusals: m.refused.MustCurryWith(prometheus.Labels{"group": group}),
		calls:    m.calls.WithLabelValues(group),
	}
}

func (m meter) flushed(calls int, took time.Duration, err error) {
	if m.size == nil {
		return
	}
	m.size.Observe(float64(calls))
	m.seconds.Observe(took.Seconds())
	if err != nil {
		m.failures.Inc()
	}
}

func (m meter) refused(bound string) {
	if m.refusals != nil {
		m.refusals.WithLabelValues(bound).Inc()
	}
}

func (m meter) inFlight(calls int) {
	if m.calls != nil {
		m.calls.Set(float64(calls))
	}
}
