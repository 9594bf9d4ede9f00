// Package telemetry makes a process visible from outside: its log, its metrics
// and its health. Nothing here shows a tenant's name, a payload or a secret,
// because /metrics, /healthz and /readyz are served without a token.
package telemetry

import (
	"io"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"flexiq/pkg/fault"
)

// timeFormat is RFC 3339 in UTC with microseconds, the precision of the stores.
const timeFormat = "2006-01-02T15:04:05.000000Z07:00"

// levels are the names of [Logger]'s levels, the most talkative first.
var levels = []struct {
	name  string
	level zerolog.Level
}{
	{"trace", zerolog.TraceLevel},
	{"debug", zerolog.DebugLevel},
	{"info", zerolog.InfoLevel},
	{"warn", zerolog.WarnLevel},
	{"error", zerolog.ErrorLevel},
	{"off", zerolog.Disabled},
}

// Logger makes the process's log, one JSON object a line, written to w by one
// goroutine at a time. level is trace, debug, info, warn, error or off, in any
// case; empty is info. The error is an INVALID_REQUEST that names log_level.
func Logger(w io.Writer, level string) (zerolog.Logger, error) {
	if level == "" {
		level = "info"
	}
	names := make([]string, len(levels))
	for i, l := range levels {
		if strings.EqualFold(level, l.name) {
			return zerolog.New(zerolog.SyncWriter(w)).Level(l.level).Hook(stamp{}), nil
		}
		names[i] = l.name
	}
	return zerolog.Nop(), fault.Invalid("log_level", "must be one of %s, got %q", strings.Join(names, ", "), level)
}

// stamp gives every event its time. Zerolog's own timestamp has its format in
// a global variable, which a package may not set for everybody.
type stamp struct{}

// Run implements [zerolog.Hook].
func (stamp) Run(e *zerolog.Event, _ zerolog.Level, _ string) {
	e.Str("time", time.Now().UTC().Format(timeFormat))
}
