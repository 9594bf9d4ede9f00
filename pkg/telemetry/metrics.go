package telemetry

import (
	"net/http"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

const (
	// scrapes and scrapeTimeout bound what unauthenticated callers of /metrics
	// can make the process do.
	scrapes       = 4
	scrapeTimeout = 10 * time.Second
)

// NewRegistry makes a metrics registry with the collectors of the Go runtime
// and the process, and flexiq_build_info.
func NewRegistry() *prometheus.Registry {
	reg := prometheus.NewRegistry()
	reg.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		buildInfo(),
	)
	return reg
}

// buildInfo is a constant 1 whose labels say what program this is.
func buildInfo() prometheus.Collector {
	labels := prometheus.Labels{"go": runtime.Version(), "version": "unknown", "revision": "unknown"}
	if info, ok := debug.ReadBuildInfo(); ok {
		if info.Main.Version != "" {
			labels["version"] = info.Main.Version
		}
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				labels["revision"] = s.Value
			}
		}
	}
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name:        "flexiq_build_info",
		Help:        "The program that runs; always 1.",
		ConstLabels: labels,
	}, func() float64 { return 1 })
}

// MetricsHandler serves /metrics. A collector that fails does not hide the
// others; promhttp_metric_handler_errors_total counts such failures.
func MetricsHandler(reg *prometheus.Registry) http.Handler {
	return promhttp.HandlerFor(reg, promhttp.HandlerOpts{
		ErrorHandling:       promhttp.ContinueOnError,
		Registry:            reg,
		MaxRequestsInFlight: scrapes,
		Timeout:             scrapeTimeout,
	})
}
