package telemetry

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"flexiq/pkg/fault"
)

func TestLoggerLevels(t *testing.T) {
	tests := map[string]string{ // level: the messages that pass
		"trace": "trace debug info warn error",
		"debug": "debug info warn error",
		"info":  "info warn error",
		"":      "info warn error",
		"WARN":  "warn error",
		"error": "error",
		"off":   "",
	}
	for level, want := range tests {
		t.Run(level, func(t *testing.T) {
			var out bytes.Buffer
			log, err := Logger(&out, level)
			if err != nil {
				t.Fatal(err)
			}
			log.Trace().Msg("trace")
			log.Debug().Msg("debug")
			log.Info().Msg("info")
			log.Warn().Msg("warn")
			log.Error().Msg("error")
			var got []string
			for line := range strings.Lines(out.String()) {
				var event struct{ Message, Level, Time string }
				if err := json.Unmarshal([]byte(line), &event); err != nil {
					t.Fatalf("%v in %s", err, line)
				}
				if event.Message != event.Level {
					t.Errorf("level %q of %s", event.Level, line)
				}
				if !regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z$`).MatchString(event.Time) {
					t.Errorf("time %q is not RFC 3339 in UTC with microseconds", event.Time)
				}
				got = append(got, event.Message)
			}
			if strings.Join(got, " ") != want {
				t.Errorf("passed %v, want %s", got, want)
			}
		})
	}
}

func TestLoggerRefusesStrangeLevels(t *testing.T) {
	for _, level := range []string{"loud", "fatal", "3", " info"} {
		_, err := Logger(&bytes.Buffer{}, level)
		if !fault.Is(err, fault.InvalidRequest) || !strings.Contains(err.Error(), "log_level") {
			t.Errorf("Logger(%q) = %v, want INVALID_REQUEST of log_level", level, err)
		}
	}
}

// broken is a collector that fails.
type broken struct{ desc *prometheus.Desc }

func (b broken) Describe(ch chan<- *prometheus.Desc) { ch <- b.desc }

func (b broken) Collect(ch chan<- prometheus.Metric) {
	ch <- prometheus.NewInvalidMetric(b.desc, fault.New(fault.Internal, "broken"))
}

func TestMetricsAreServed(t *testing.T) {
	reg := NewRegistry()
	reg.MustRegister(broken{prometheus.NewDesc("broken", "Fails.", nil, nil)})
	rec := httptest.NewRecorder()
	MetricsHandler(reg).ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if rec.Code != http.StatusOK {
		t.Fatalf("status %d", rec.Code)
	}
	for _, name := range []string{"flexiq_build_info{", "go_goroutines ", "process_start_time_seconds "} {
		if !strings.Contains(rec.Body.String(), "\n"+name) {
			t.Errorf("%s is missing in\n%s", name, rec.Body)
		}
	}
}
