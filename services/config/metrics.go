package config

import "github.com/prometheus/client_golang/prometheus"

// metrics is everything that config counts.
type metrics struct {
	writes        *prometheus.CounterVec // by operation and outcome
	auditFailures prometheus.Counter
	badReports    prometheus.Counter
	letters       *prometheus.CounterVec // by what became of them
}

func newMetrics(r prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		writes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "flexiq_config_writes_total", Help: "Writes of the operators' door, by operation and outcome."},
			[]string{"operation", "outcome"}),
		auditFailures: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "flexiq_config_audit_failures_total", Help: "Refused writes that could not be recorded."}),
		badReports: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "flexiq_config_bad_reports_total", Help: "Reports of other processes that could not be read."}),
		letters: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "flexiq_config_dead_letters_total", Help: "Dead letters that operators took away, by what became of them: moved or deleted."},
			[]string{"outcome"}),
	}
	if r == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.writes, m.auditFailures, m.badReports, m.letters} {
		if err := r.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}
