package retention

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Kinds of deleted rows, as the metrics and the log name them.
const (
	kindCompleted = "completed"
	kindCancelled = "cancelled"
	kindDead      = "dead"
	kindShed      = "shed"
	kindAudit     = "audit"
)

// metrics is everything that retention counts.
type metrics struct {
	deleted    *prometheus.CounterVec // rows, by kind
	sweeps     *prometheus.CounterVec // by outcome
	seconds    prometheus.Histogram
	failed     prometheus.Counter
	unreadable prometheus.Counter
	retried    *prometheus.CounterVec // dead letters to be retried, by outcome
	leading    prometheus.Gauge
}

// Outcomes of a sweep.
const (
	outcomeDone       = "done"       // nothing is left to delete
	outcomeLeft       = "left"       // a follow-up is due
	outcomeFailed     = "failed"     // the store could not be read
	outcomeSuperseded = "superseded" // a newer leader exists
)

func newMetrics(r prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		deleted: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "flexiq_retention_rows_deleted_total", Help: "Rows that retention deleted, by kind."}, []string{"kind"}),
		sweeps: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "flexiq_retention_sweeps_total", Help: "Sweeps of this process as leader, by outcome."}, []string{"outcome"}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "flexiq_retention_sweep_seconds", Help: "How long a sweep took.",
			Buckets: prometheus.ExponentialBuckets(0.01, 4, 8)}),
		failed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "flexiq_retention_namespace_failures_total", Help: "Namespaces that a sweep skipped because a delete failed."}),
		unreadable: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "flexiq_retention_unreadable_quotas_total", Help: "Namespaces whose ceilings a sweep skipped because the quota cannot be read."}),
		retried: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "flexiq_retention_dead_retries_total", Help: "Dead letters that were to be retried automatically: moved, or blocked by the quota or a held key."},
			[]string{"outcome"}),
		leading: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "flexiq_retention_leader", Help: "1 while this process is the leader."}),
	}
	for _, kind := range []string{kindCompleted, kindCancelled, kindDead, kindShed, kindAudit} {
		m.deleted.WithLabelValues(kind)
	}
	if r == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.deleted, m.sweeps, m.seconds, m.failed, m.unreadable, m.retried, m.leading} {
		if err := r.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// swept counts one sweep.
func (m *metrics) swept(r report, outcome string, took time.Duration) {
	m.sweeps.WithLabelValues(outcome).Inc()
	m.seconds.Observe(took.Seconds())
	m.failed.Add(float64(r.Failed))
	m.unreadable.Add(float64(r.Unreadable))
	m.retried.WithLabelValues("moved").Add(float64(r.Retried))
	m.retried.WithLabelValues("blocked").Add(float64(r.Blocked))
	for kind, n := range map[string]int64{
		kindCompleted: r.Completed, kindCancelled: r.Cancelled, kindDead: r.Dead, kindShed: r.Shed, kindAudit: r.Audit,
	} {
		m.deleted.WithLabelValues(kind).Add(float64(n))
	}
}
