package rpc

import (
	"time"

	"github.com/rs/zerolog"

	"flexiq/pkg/fault"
)

// perSecond bounds the lines of one kind in a second. When a database is away
// every call fails for the same cause; the counters tell how many.
const perSecond = 20

// FaultLog writes what went wrong with calls, once, at their door: what callers
// can bring about at debug, what operators must see with its cause, but no more
// than they can read. It is safe for concurrent use.
type FaultLog struct {
	refusals zerolog.Logger
	troubles zerolog.Logger // of storage and documents
	bugs     zerolog.Logger
}

// NewFaultLog makes a log.
func NewFaultLog(log zerolog.Logger) *FaultLog {
	return &FaultLog{
		refusals: log,
		troubles: log.Sample(&zerolog.BurstSampler{Burst: perSecond, Period: time.Second}),
		bugs:     log.Sample(&zerolog.BurstSampler{Burst: perSecond, Period: time.Second}),
	}
}

// Write logs the error of one call.
func (l *FaultLog) Write(method, door string, f *fault.Error) {
	event := l.refusals.Debug()
	switch f.Reason {
	case fault.Internal:
		event = l.bugs.Error()
	case fault.StorageUnavailable, fault.QuotaUnreadable:
		event = l.troubles.Warn()
	}
	event.Str("method", method).Str("door", door).Str("reason", string(f.Reason)).Err(f).Msg("call failed")
}
