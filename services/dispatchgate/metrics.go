package dispatchgate

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"flexiq/pkg/fault"
	"flexiq/pkg/job"
	"flexiq/pkg/store"
)

// Names of the metrics. None has a namespace in it.
const (
	metricClaims      = "flexiq_gate_claims_total"
	metricGranted     = "flexiq_gate_granted_jobs_total"
	metricUndelivered = "flexiq_gate_undelivered_jobs_total"
	metricSettlements = "flexiq_gate_settlements_total"
	metricHeartbeats  = "flexiq_gate_heartbeats_total"
	metricExpired     = "flexiq_gate_expired_leases_total"
	metricStale       = "flexiq_gate_stale_quota_total"
	metricTurn        = "flexiq_gate_turn_seconds"
	metricWaiting     = "flexiq_gate_waiting_claims"
)

type metrics struct {
	claims      *prometheus.CounterVec // by result: jobs, empty, or the reason of the error
	granted     prometheus.Counter
	undelivered prometheus.Counter
	settlements *prometheus.CounterVec // by outcome, and whether accepted
	heartbeats  *prometheus.CounterVec // by what is answered
	ended       *prometheus.CounterVec // by the state that followed
	stale       prometheus.Counter
	turn        prometheus.Histogram
}

func newMetrics(reg prometheus.Registerer, waiting func() float64) (*metrics, error) {
	m := &metrics{
		claims:      vector(metricClaims, "Claims answered: with jobs, empty, or failed with a reason.", "result"),
		granted:     prometheus.NewCounter(prometheus.CounterOpts{Name: metricGranted, Help: "Jobs handed to workers."}),
		undelivered: prometheus.NewCounter(prometheus.CounterOpts{Name: metricUndelivered, Help: "Jobs of claims whose reply reached nobody."}),
		settlements: vector(metricSettlements, "Settlements by outcome, and whether the lease was current; unknown when the database refused.", "outcome", "lease"),
		heartbeats:  vector(metricHeartbeats, "Heartbeats by answer.", "answer"),
		ended:       vector(metricExpired, "Leases that ended without a settlement, by the state that followed.", "state"),
		stale:       prometheus.NewCounter(prometheus.CounterOpts{Name: metricStale, Help: "Claims repeated because the quota had changed."}),
		turn: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: metricTurn, Help: "Time of the store calls that settle and claim.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 14),
		}),
	}
	if reg == nil {
		return m, nil
	}
	gauge := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: metricWaiting, Help: "Claims that wait for work."}, waiting)
	for _, c := range []prometheus.Collector{m.claims, m.granted, m.undelivered, m.settlements, m.heartbeats, m.ended, m.stale, m.turn, gauge} {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func vector(name, help string, labels ...string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
}

func (m *metrics) claimed(jobs int, err error) {
	switch {
	case err != nil:
		m.claims.WithLabelValues(string(fault.Of(err).Reason)).Inc()
	case jobs == 0:
		m.claims.WithLabelValues("empty").Inc()
	default:
		m.claims.WithLabelValues("jobs").Inc()
		m.granted.Add(float64(jobs))
	}
}

func (m *metrics) beats(alive, lost, cancelled int) {
	m.heartbeats.WithLabelValues("alive").Add(float64(alive))
	m.heartbeats.WithLabelValues("lost").Add(float64(lost))
	m.heartbeats.WithLabelValues("cancelled").Add(float64(cancelled))
}

func (m *metrics) expired(s job.State) { m.ended.WithLabelValues(string(s)).Inc() }

func (m *metrics) timeTurn(start time.Time) { m.turn.Observe(time.Since(start).Seconds()) }

func (s *Service) countSettled(items []store.Settlement, settled []store.Settled) {
	for i, r := range settled {
		current := "current"
		switch {
		case r.Err != nil:
			current = "unknown"
		case !r.Accepted:
			current = "stale"
		}
		s.metrics.settlements.WithLabelValues(string(items[i].Outcome), current).Inc()
	}
}
