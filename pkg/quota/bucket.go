package quota

import (
	"math/bits"
	"time"
)

// Bucket is the token bucket of a namespace: its tokens at an instant of the
// store's clock, under the rate that it was last used with. It lives in the
// store, so it survives restarts and belongs to no process. The zero value is
// a bucket that was never used; under its first rate it starts full.
type Bucket struct {
	Rate  Rate  // zero before first use
	Level int64 // tokens × the unit's length in microseconds, exact
	At    int64 // microseconds since 1970 at which Level held
}

// BucketOf makes a bucket of whole tokens and the part of one that has arrived,
// in microseconds of the rate's unit: for a store whose numbers are too short for
// a level.
func BucketOf(rate Rate, tokens, part, at int64) Bucket {
	if rate.Count == 0 {
		return Bucket{}
	}
	return Bucket{Rate: rate, Level: tokens*rate.Unit.micros() + part, At: at}
}

// Refill returns the bucket as it stands at now under rate. Tokens arrive
// continuously. A clock that stepped back re-anchors the bucket without a
// gain; one that stepped forward gains one capacity at most. A new rate
// adjusts the tokens once: a raise adds the difference of the capacities, a
// cut clamps.
func (b Bucket) Refill(rate Rate, now time.Time) Bucket {
	at := now.UnixMicro()
	if b.Rate.Count == 0 {
		return Bucket{Rate: rate, Level: rate.capacity(), At: at}
	}
	b.Level = min(b.Rate.capacity(), b.Level+b.Rate.Count*min(max(0, at-b.At), b.Rate.Unit.micros()))
	b.At = at
	if b.Rate == rate {
		return b
	}
	level := rescale(b.Level, rate.Unit.micros(), b.Rate.Unit.micros())
	if gain := rate.Count - b.Rate.Count; gain > 0 {
		level += gain * rate.Unit.micros()
	}
	return Bucket{Rate: rate, Level: min(level, rate.capacity()), At: at}
}

// rescale is level × to ÷ from without overflow. A level is at most
// MaxRateCount × from, so the quotient fits.
func rescale(level, to, from int64) int64 {
	hi, lo := bits.Mul64(uint64(level), uint64(to))
	q, _ := bits.Div64(hi, lo, uint64(from))
	return int64(q)
}

func (r Rate) capacity() int64 { return r.Count * r.Unit.micros() }

// Tokens is the number of whole tokens in the bucket.
func (b Bucket) Tokens() int64 {
	if b.Rate.Count == 0 {
		return 0
	}
	return b.Level / b.Rate.Unit.micros()
}

// Take returns the bucket with n tokens fewer. The caller has seen that they are there.
func (b Bucket) Take(n int64) Bucket {
	b.Level -= n * b.Rate.Unit.micros()
	return b
}

// wait is how long until the bucket holds n tokens, n at most its capacity.
func (b Bucket) wait(n int64) time.Duration {
	missing := n*b.Rate.Unit.micros() - b.Level
	if missing <= 0 {
		return 0
	}
	return time.Duration((missing+b.Rate.Count-1)/b.Rate.Count) * time.Microsecond
}
