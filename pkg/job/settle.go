package job

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Outcome is what a worker says of an attempt.
type Outcome string

// The outcomes of a settlement.
const (
	Completed Outcome = "complete" // done
	Failed    Outcome = "fail"     // retry by policy
	GivenUp   Outcome = "dead"     // no retry
	Released  Outcome = "release"  // back to pending, no attempt spent
)

// Outcomes lists every outcome.
var Outcomes = []Outcome{Completed, Failed, GivenUp, Released}

// Valid reports whether o is one of the outcomes.
func (o Outcome) Valid() bool {
	for _, v := range Outcomes {
		if o == v {
			return true
		}
	}
	return false
}

// Ending is what ended an attempt: a worker's outcome, or the loss of the worker.
type Ending struct {
	Outcome    Outcome
	Error      string         // of Failed and GivenUp
	RetryAfter *time.Duration // of Failed: instead of the policy's delay; of Released: instead of at once
	Lost       bool           // the lease ended without a word; counts as an attempt
	TimedOut   bool           // the attempt ran into its timeout; a failure
}

// Move is where an ended attempt takes a job.
type Move struct {
	State     State
	Error     string        // the job's last error; empty keeps the present one
	Attempt   int32         // claims that counted afterwards
	Delay     time.Duration // for a retry: from now
	KeepsTurn bool          // to pending with the old run_at, and so its place in the order
}

// After decides where an ended attempt takes a running job. cancelled says
// that its cancellation was requested: then only completion wins over it.
// jitter is a random number in [0, 1).
func (j *Job) After(e Ending, cancelled bool, jitter float64) Move {
	m := Move{Attempt: j.Attempt, Error: CleanError(e.Error)}
	switch {
	case e.Lost:
		m.Error = fmt.Sprintf("worker lost: the lease of attempt %d ended without a heartbeat or a settlement", j.Attempt)
	case e.TimedOut:
		m.Error = fmt.Sprintf("timeout: attempt %d ran longer than %s", j.Attempt, j.Timeout)
	}
	switch {
	case e.Outcome == Completed && !e.Lost && !e.TimedOut:
		m.State, m.Error = Complete, ""
	case cancelled:
		m.State = Cancelled
	case e.Outcome == Released && !e.Lost && !e.TimedOut:
		m.State, m.Error, m.KeepsTurn = Pending, "", e.RetryAfter == nil
		m.Attempt = max(0, j.Attempt-1)
		if e.RetryAfter != nil {
			m.Delay = *e.RetryAfter
		}
	case e.Outcome == GivenUp && !e.Lost && !e.TimedOut, j.Attempt >= j.MaxAttempts:
		m.State = Dead
	case e.Lost:
		// The worker is gone, not the work: it goes back at once, to its place.
		m.State, m.KeepsTurn = Pending, true
	case e.RetryAfter != nil:
		m.State, m.Delay = Pending, *e.RetryAfter
	default:
		m.State, m.Delay = Pending, Backoff(j.BackoffBase, j.BackoffMax, j.Attempt, jitter)
	}
	return m
}

// Backoff is the delay after the given failed attempt (1 for the first): it
// doubles from base up to most, and the upper half of it is random, so that
// jobs which failed together do not come back together.
func Backoff(base, most time.Duration, attempt int32, jitter float64) time.Duration {
	d := base
	for i := int32(1); i < attempt && d < most; i++ {
		d *= 2
	}
	d = min(d, most)
	return d/2 + time.Duration(jitter*float64(d-d/2))
}

// Jitter is a random number in [0, 1) for [Job.After].
func Jitter() float64 { return rand.Float64() }

// CleanError makes an error text storable on every backend and safe in a
// terminal: control characters but line feed and tab become U+FFFD, as do bytes that are
// not UTF-8, and the text is cut at 16 KiB.
func CleanError(s string) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	s = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' && r != '\t' {
			return '\uFFFD'
		}
		return r
	}, s)
	if len(s) <= MaxError {
		return s
	}
	cut := MaxError
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut]
}
