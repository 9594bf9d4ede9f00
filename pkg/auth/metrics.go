package auth

import "github.com/prometheus/client_golang/prometheus"

// The names of this package's metrics. None tells an address.
const (
	metricFailures = "flexiq_auth_failures_total"
	metricRefused  = "flexiq_auth_refused_total"
)

var (
	failuresDesc = prometheus.NewDesc(metricFailures, "Attempts to authenticate that failed.", nil, nil)
	refusedDesc  = prometheus.NewDesc(metricRefused, "Attempts to authenticate from addresses that had failed too often.", nil, nil)
)

// Describe implements prometheus.Collector.
func (a *Attempts) Describe(out chan<- *prometheus.Desc) {
	out <- failuresDesc
	out <- refusedDesc
}

// Collect implements prometheus.Collector.
func (a *Attempts) Collect(out chan<- prometheus.Metric) {
	out <- prometheus.MustNewConstMetric(failuresDesc, prometheus.CounterValue, float64(a.failed.Load()))
	out <- prometheus.MustNewConstMetric(refusedDesc, prometheus.CounterValue, float64(a.refused.Load()))
}
