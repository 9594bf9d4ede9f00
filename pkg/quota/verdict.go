package quota

import (
	"fmt"
	"strconv"
	"time"

	"flexiq/pkg/fault"
)

// Keys of a refusal's details.
const (
	KeyNamespace = "namespace"
	KeyLimit     = "limit"    // the field that refused
	KeyCap       = "cap"      // its value; for a rate the count
	KeyCurrent   = "current"  // what counted against it; for a rate the whole tokens left
	KeyAsked     = "asked"    // jobs in the call
	KeyFits      = "fits"     // jobs that would pass now
	KeyRevision  = "revision" // of the quota that refused
	KeyEstimate  = "estimate" // "true" when retry_after_ms is a guess
)

// depthRetry is the delay advised when the queue is full: nobody can know when
// workers will make room.
const depthRetry = time.Second

// Usage is what a namespace has taken of its limits, as read under the lock.
type Usage struct {
	Pending int64
	Bucket  Bucket
}

// Ask is one enqueue call.
type Ask struct {
	Namespace string
	Queue     string // of the call's first job
	Jobs      int64  // at least 1
	Revision  int64  // of the quota, for the refusal's details
}

// Decision is what becomes of a call.
type Decision uint8

// The three verdicts on a call, which is one unit.
const (
	Admit  Decision = iota // all its jobs become pending
	Refuse                 // it fails and nothing is written
	Shed                   // it succeeds and all its jobs become dead letters
)

// Verdict is a decision with what follows from it.
type Verdict struct {
	Decision Decision
	Fault    *fault.Error // for Refuse: the error of the call
	Error    string       // for Shed: the error text of its dead letters
	Bucket   Bucket       // the bucket afterwards; unchanged in value unless Admit under a rate
}

// Decide judges one call: depth first, then rate. Only an admitted call spends
// tokens.
func (q Quota) Decide(u Usage, a Ask, now time.Time) Verdict {
	bucket := u.Bucket
	if q.EnqueueRate != nil {
		bucket = bucket.Refill(*q.EnqueueRate, now)
	}
	switch {
	case q.MaxPending != nil && u.Pending+a.Jobs > *q.MaxPending:
		return q.over(MaxPending, u.Pending, bucket, a)
	case q.EnqueueRate != nil && a.Jobs > bucket.Tokens():
		return q.over(EnqueueRate, u.Pending, bucket, a)
	case q.EnqueueRate != nil:
		bucket = bucket.Take(a.Jobs)
	}
	return Verdict{Decision: Admit, Bucket: bucket}
}

// over builds the verdict on a call that limit stops.
func (q Quota) over(limit string, pending int64, b Bucket, a Ask) Verdict {
	if q.Excess() == Drop {
		v := Verdict{Decision: Shed, Bucket: b, Error: q.ShedOverRate(a.Namespace)}
		if limit == MaxPending {
			before, after := q.ShedOverDepth(a.Namespace)
			v.Error = before + itoa(pending) + after
		}
		return v
	}
	var f *fault.Error
	if limit == MaxPending {
		f = fault.New(fault.QueueFull, "queue '%s' is full: %d pending >= max_pending %d", a.Queue, pending, *q.MaxPending).
			With(KeyCap, itoa(*q.MaxPending)).With(KeyCurrent, itoa(pending))
	} else {
		f = fault.New(fault.RateLimited, "rate limit exceeded for: namespace '%s' enqueue_rate %s", a.Namespace, q.EnqueueRate).
			With(KeyCap, itoa(q.EnqueueRate.Count)).With(KeyCurrent, itoa(b.Tokens()))
	}
	f.With(KeyNamespace, a.Namespace).With(KeyLimit, limit).With(KeyAsked, itoa(a.Jobs)).
		With(KeyFits, itoa(q.fits(pending, b))).With(KeyRevision, itoa(a.Revision))
	switch {
	case q.MaxPending != nil && a.Jobs > *q.MaxPending, q.EnqueueRate != nil && a.Jobs > q.EnqueueRate.Count:
		f.With(fault.KeyRetry, "never")
	case limit == MaxPending:
		f.With(fault.KeyRetryAfterMS, itoa(depthRetry.Milliseconds())).With(KeyEstimate, "true")
	default:
		wait := b.wait(a.Jobs)
		f.With(fault.KeyRetryAfterMS, itoa((wait + time.Millisecond - 1).Milliseconds()))
	}
	return Verdict{Decision: Refuse, Fault: f, Bucket: b}
}

// ShedOverDepth is the error text of a job shed over max_pending, cut where the
// number of pending jobs stands: for a store that decides inside the database,
// where only it knows the number. Both are empty without the limit.
func (q Quota) ShedOverDepth(ns string) (before, after string) {
	if q.MaxPending == nil {
		return "", ""
	}
	return fmt.Sprintf("quota: namespace '%s' is over max_pending %d with ", ns, *q.MaxPending), " pending"
}

// ShedOverRate is the error text of a job shed over enqueue_rate, empty without
// the limit.
func (q Quota) ShedOverRate(ns string) string {
	if q.EnqueueRate == nil {
		return ""
	}
	return fmt.Sprintf("quota: namespace '%s' is over enqueue_rate %s", ns, q.EnqueueRate)
}

// fits is how many jobs would pass now: the smaller room of both limits.
func (q Quota) fits(pending int64, b Bucket) int64 {
	room := int64(-1)
	if q.MaxPending != nil {
		room = max(0, *q.MaxPending-pending)
	}
	if q.EnqueueRate != nil && (room < 0 || b.Tokens() < room) {
		room = b.Tokens()
	}
	return room
}

func itoa(n int64) string { return strconv.FormatInt(n, 10) }
