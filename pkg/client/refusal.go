package client

import (
	"errors"
	"strconv"
	"time"

	"flexiq/pkg/fault"
	"flexiq/pkg/quota"
)

// Refusal is what a quota said when it refused an enqueue: QUEUE_FULL or
// RATE_LIMITED. Nothing of the call was written.
type Refusal struct {
	Reason    fault.Reason
	Namespace string
	Limit     string // the field of the quota that refused: max_pending or enqueue_rate
	Cap       int64  // its value; of a rate the count
	Current   int64  // what counted against it; of a rate the whole tokens left
	Asked     int64  // jobs in the call
	Fits      int64  // jobs that would have passed
	Revision  int64  // of the quota

	// Never tells that the call is larger than the limit itself: no waiting
	// helps, but smaller calls may pass.
	Never bool
	// RetryAfter is the earliest time after which the call may pass; for a full
	// queue an estimate. 0 when Never.
	RetryAfter time.Duration
	// Estimate tells that RetryAfter is a guess.
	Estimate bool
}

// AsRefusal reads a quota's refusal out of an error, and reports whether it is one.
func AsRefusal(err error) (Refusal, bool) {
	var f *fault.Error
	if !errors.As(err, &f) || f.Reason != fault.QueueFull && f.Reason != fault.RateLimited {
		return Refusal{}, false
	}
	number := func(key string) int64 {
		n, _ := strconv.ParseInt(f.Details[key], 10, 64) // absent from an older server: 0
		return n
	}
	r := Refusal{
		Reason:    f.Reason,
		Namespace: f.Details[quota.KeyNamespace],
		Limit:     f.Details[quota.KeyLimit],
		Cap:       number(quota.KeyCap),
		Current:   number(quota.KeyCurrent),
		Asked:     number(quota.KeyAsked),
		Fits:      number(quota.KeyFits),
		Revision:  number(quota.KeyRevision),
		Never:     f.Details[fault.KeyRetry] == "never",
		Estimate:  f.Details[quota.KeyEstimate] == "true",
	}
	r.RetryAfter, _ = f.RetryAfter()
	return r, true
}
