// Package quota holds a namespace's quota: the document, how it is read and
// checked, and the verdict that it gives on an enqueue call.
//
// Everything here is pure. The stores feed it what they read under their locks
// and write what it decides, so every backend and every producer path gets the
// same answer.
//
// In a [Quota], nil is "unlimited" and zero is a real limit, in every layer.
package quota

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"flexiq/pkg/fault"
)

// Names of the document's fields, as users write them and as refusals name them.
const (
	MaxPending      = "max_pending"
	OnExcess        = "on_excess"
	EnqueueRate     = "enqueue_rate"
	MaxRunning      = "max_running"
	MaxArchivedRows = "max_archived_rows"
	MaxDeadRows     = "max_dead_rows"
)

// Fields lists the document's fields in the order in which they are shown.
var Fields = []string{MaxPending, OnExcess, EnqueueRate, MaxRunning, MaxArchivedRows, MaxDeadRows}

// Excess is what a call over max_pending or enqueue_rate gets.
type Excess string

// The two ways. The zero value of Excess means Reject.
const (
	Reject Excess = "reject" // the call fails and nothing of it is written
	Drop   Excess = "drop"   // the call succeeds and its jobs become dead letters at once
)

// Quota is one namespace's limits. The zero value limits nothing.
type Quota struct {
	MaxPending      *int64 // jobs waiting, delayed ones included
	OnExcess        Excess
	EnqueueRate     *Rate
	MaxRunning      *int64 // jobs running at once
	MaxArchivedRows *int64 // completed and cancelled jobs kept
	MaxDeadRows     *int64 // dead letters kept, shed ones included
}

// Limits reports whether any limit is set. A quota without one is no quota.
func (q Quota) Limits() bool {
	return q.MaxPending != nil || q.EnqueueRate != nil || q.MaxRunning != nil ||
		q.MaxArchivedRows != nil || q.MaxDeadRows != nil
}

// Excess returns on_excess with its default.
func (q Quota) Excess() Excess {
	if q.OnExcess == Drop {
		return Drop
	}
	return Reject
}

// integer returns where the integer field of the given name is kept, nil for
// another name.
func (q *Quota) integer(field string) **int64 {
	switch field {
	case MaxPending:
		return &q.MaxPending
	case MaxRunning:
		return &q.MaxRunning
	case MaxArchivedRows:
		return &q.MaxArchivedRows
	case MaxDeadRows:
		return &q.MaxDeadRows
	}
	return nil
}

// Int returns an integer limit by its field name; nil is unlimited or no such field.
func (q Quota) Int(field string) *int64 {
	if p := q.integer(field); p != nil {
		return *p
	}
	return nil
}

// Check validates a quota that did not come from JSON text. The error names
// the field.
func (q Quota) Check() error {
	for _, f := range Fields {
		if n := q.Int(f); n != nil && *n < 0 {
			return fault.Invalid(f, "must be a whole number from 0 to %d, got %d", int64(math.MaxInt64), *n)
		}
	}
	switch q.OnExcess {
	case "", Reject, Drop:
	default:
		return badExcess(string(q.OnExcess))
	}
	if q.EnqueueRate != nil {
		if _, err := ParseRate(q.EnqueueRate.String()); err != nil {
			return err
		}
	}
	return nil
}

func badExcess(got string) error {
	return fault.Invalid(OnExcess, "must be %q or %q, got %q", Reject, Drop, got)
}

// Unit is the time in which a rate's count arrives.
type Unit byte

// The units of a rate.
const (
	PerSecond Unit = 's'
	PerMinute Unit = 'm'
	PerHour   Unit = 'h'
)

// micros is the unit's length.
func (u Unit) micros() int64 {
	switch u {
	case PerMinute:
		return 60_000_000
	case PerHour:
		return 3_600_000_000
	}
	return 1_000_000
}

// MaxRateCount bounds the count of a rate. With it a bucket's level, kept in
// token-microseconds, always fits 63 bits.
const MaxRateCount = 1_000_000_000

// Rate is jobs per unit. It is also the size of the burst.
type Rate struct {
	Count int64
	Unit  Unit
}

// ParseRate reads "<count>/<unit>": a plain decimal from 1 to 1000000000
// without sign or leading zero, and s, m or h.
func ParseRate(s string) (Rate, error) {
	count, unit, ok := strings.Cut(s, "/")
	n, err := strconv.ParseInt(count, 10, 64)
	if !ok || err != nil || n < 1 || n > MaxRateCount || strconv.FormatInt(n, 10) != count ||
		(unit != "s" && unit != "m" && unit != "h") {
		return Rate{}, fault.Invalid(EnqueueRate,
			"must be <count>/<unit> with a count from 1 to %d and a unit s, m or h, such as 500/s; got %s", MaxRateCount, quote(s))
	}
	return Rate{Count: n, Unit: Unit(unit[0])}, nil
}

// quote shows a caller's text in an error, cut to a sane length.
func quote(s string) string {
	const most = 64
	if len(s) > most {
		s = s[:most] + "…"
	}
	return strconv.Quote(s)
}

// String writes the rate as users do. Parsing is strict, so this is the text
// that was stored.
func (r Rate) String() string { return fmt.Sprintf("%d/%c", r.Count, r.Unit) }
