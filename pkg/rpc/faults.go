package rpc

import (
	"errors"
	"strconv"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"flexiq/pkg/fault"
)

// Headers and names of errors, fixed by the interface.
const (
	HeaderReason     = "Fq-Reason"
	HeaderRetryAfter = "Retry-After"
	errorDomain      = "flexiq"
)

var connectCodes = map[fault.Code]connect.Code{
	"CANCELED":           connect.CodeCanceled,
	"INVALID_ARGUMENT":   connect.CodeInvalidArgument,
	"DEADLINE_EXCEEDED":  connect.CodeDeadlineExceeded,
	"NOT_FOUND":          connect.CodeNotFound,
	"PERMISSION_DENIED":  connect.CodePermissionDenied,
	"RESOURCE_EXHAUSTED": connect.CodeResourceExhausted,
	"ABORTED":            connect.CodeAborted,
	"UNIMPLEMENTED":      connect.CodeUnimplemented,
	"INTERNAL":           connect.CodeInternal,
	"UNAVAILABLE":        connect.CodeUnavailable,
	"UNAUTHENTICATED":    connect.CodeUnauthenticated,
}

// connectError shows a fault to gRPC and HTTP callers: ErrorInfo, RetryInfo
// where there is a delay, and the same in headers.
func connectError(f *fault.Error) *connect.Error {
	e := connect.NewError(connectCodes[f.Reason.Code()], errors.New(f.Message))
	addDetail(e, &errdetails.ErrorInfo{Reason: string(f.Reason), Domain: errorDomain, Metadata: f.Details})
	e.Meta().Set(HeaderReason, string(f.Reason))
	if after, ok := f.RetryAfter(); ok {
		addDetail(e, &errdetails.RetryInfo{RetryDelay: durationpb.New(after)})
		e.Meta().Set(HeaderRetryAfter, strconv.FormatInt(wholeSeconds(after), 10))
	}
	return e
}

func addDetail(e *connect.Error, m proto.Message) {
	// A detail fails to marshal only when a text is not UTF-8; the error goes
	// out without it.
	if d, err := connect.NewErrorDetail(m); err == nil {
		e.AddDetail(d)
	}
}

// wholeSeconds rounds up: a client that waits this long does not come too early.
func wholeSeconds(d time.Duration) int64 {
	return int64((d + time.Second - 1) / time.Second)
}

// reasons are the reasons of errors that do not carry one: those that connect
// or something between us makes itself.
var reasons = map[connect.Code]fault.Reason{
	connect.CodeCanceled:           fault.Cancelled,
	connect.CodeInvalidArgument:    fault.InvalidRequest,
	connect.CodeOutOfRange:         fault.InvalidRequest,
	connect.CodeFailedPrecondition: fault.InvalidRequest,
	connect.CodeDeadlineExceeded:   fault.DeadlineExceeded,
	connect.CodeNotFound:           fault.NotFound,
	connect.CodePermissionDenied:   fault.PermissionDenied,
	connect.CodeUnauthenticated:    fault.Unauthenticated,
	connect.CodeUnimplemented:      fault.Unimplemented,
	connect.CodeResourceExhausted:  fault.Overloaded,
	connect.CodeUnavailable:        fault.Overloaded,
}

// FromConnectError is the client's way back: the fault that a server sent over
// gRPC or HTTP, or the nearest one to what went wrong on the way. A nil error
// gives nil.
func FromConnectError(err error) *fault.Error {
	if err == nil {
		return nil
	}
	var e *connect.Error
	if !errors.As(err, &e) {
		return fault.Of(err)
	}
	var f *fault.Error
	for _, d := range e.Details() {
		v, err := d.Value()
		if err != nil {
			continue
		}
		switch v := v.(type) {
		case *errdetails.ErrorInfo:
			if v.GetDomain() == errorDomain {
				f = fault.New(fault.Reason(v.GetReason()), "%s", e.Message()).WithAll(v.GetMetadata())
			}
		case *errdetails.RetryInfo:
			if f != nil && f.Details[fault.KeyRetryAfterMS] == "" {
				f.With(fault.KeyRetryAfterMS, strconv.FormatInt(v.GetRetryDelay().AsDuration().Milliseconds(), 10))
			}
		}
	}
	if f != nil {
		return f
	}
	if reason, ok := reasons[e.Code()]; ok {
		return fault.Wrap(err, reason, "%s", e.Message())
	}
	return fault.Wrap(err, fault.Internal, "%s", e.Message())
}
