package configcache

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are the metrics of all caches of a process, told apart by the label
// "cache". A nil *Metrics keeps none.
type Metrics struct {
	hits, misses, loads, keys, failures *prometheus.CounterVec
	entries                             *prometheus.GaugeVec
	effect                              *prometheus.HistogramVec
}

// NewMetrics makes metrics and registers them.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	label := []string{"cache"}
	counter := func(name, help string) *prometheus.CounterVec {
		v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, label)
		reg.MustRegister(v)
		return v
	}
	m := &Metrics{
		hits:     counter("flexiq_config_hits_total", "Look-ups answered by a valid entry."),
		misses:   counter("flexiq_config_misses_total", "Look-ups that waited for a load."),
		loads:    counter("flexiq_config_loads_total", "Loads, each one query of the store."),
		keys:     counter("flexiq_config_loaded_keys_total", "Keys that loads read."),
		failures: counter("flexiq_config_load_failures_total", "Loads that failed."),
		entries: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "flexiq_config_entries",
			Help: "Keys in the cache.",
		}, label),
		effect: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "flexiq_config_effect_seconds",
			Help:    "Time from the commit of a change, by the store's clock, until this process read it.",
			Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 1.5, 2, 2.5, 5, 10},
		}, label),
	}
	reg.MustRegister(m.entries, m.effect)
	return m
}

// meter is what one cache measures; the zero value measures nothing.
type meter struct {
	hits, misses, loads, keys, failures prometheus.Counter
	entries                             prometheus.Gauge
	effect                              prometheus.Observer
}

func (m *Metrics) of(cache string) meter {
	if m == nil {
		return meter{}
	}
	return meter{
		hits:     m.hits.WithLabelValues(cache),
		misses:   m.misses.WithLabelValues(cache),
		loads:    m.loads.WithLabelValues(cache),
		keys:     m.keys.WithLabelValues(cache),
		failures: m.failures.WithLabelValues(cache),
		entries:  m.entries.WithLabelValues(cache),
		effect:   m.effect.WithLabelValues(cache),
	}
}

func (m meter) hit() {
	if m.hits != nil {
		m.hits.Inc()
	}
}

func (m meter) miss() {
	if m.misses != nil {
		m.misses.Inc()
	}
}

func (m meter) loaded(keys int, err error) {
	if m.loads == nil {
		return
	}
	m.loads.Inc()
	m.keys.Add(float64(keys))
	if err != nil {
		m.failures.Inc()
	}
}

func (m meter) size(entries int) {
	if m.entries != nil {
		m.entries.Set(float64(entries))
	}
}

func (m meter) effective(after time.Duration) {
	if m.effect != nil {
		m.effect.Observe(max(0, after.Seconds()))
	}
}
