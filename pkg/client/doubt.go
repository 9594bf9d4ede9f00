package client

import (
	"errors"

	"flexiq/pkg/fault"
)

// doubtful is the error of an enqueue that may have been carried out.
type doubtful struct{ error }

func (e doubtful) Unwrap() error { return e.error }

// MayHaveEnqueued reports whether an enqueue that ended with err may have been
// carried out all the same: it was sent, and no answer said what became of it.
// False when err is nil, when the server refused the call, and when it never
// left the client.
func MayHaveEnqueued(err error) bool {
	var d doubtful
	return errors.As(err, &d)
}

// doubt reports whether a try that was sent and ended with err may have been
// carried out.
func doubt(err error) bool {
	switch f := fault.Of(err); f.Reason {
	case Unreachable:
		var u unsent
		return !errors.As(err, &u)
	case fault.DeadlineExceeded, fault.Cancelled, fault.StorageUnavailable, fault.Internal:
		return true
	default:
		return false
	}
}
