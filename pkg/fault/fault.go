// Package fault holds FlexiQ's one error type: a reason that machines read, a
// message that is safe to show to any caller, structured details, and a cause
// that only logs see.
//
// The reason is the interface. Callers on every transport decide by it and
// never by the message. A fault is made once, where the fact is known, wrapped
// upwards with %w, and translated once at each door: to a connect error
// (gRPC, HTTP) by package rpc and to NATS headers by package bus.
package fault

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"
)

// Reason names why a call failed. The texts are fixed: programs outside depend
// on them.
type Reason string

// The reasons of the interface, each with one code (see [Reason.Code]).
const (
	QueueFull          Reason = "QUEUE_FULL"
	RateLimited        Reason = "RATE_LIMITED"
	QuotaUnreadable    Reason = "QUOTA_UNREADABLE"
	StorageUnavailable Reason = "STORAGE_UNAVAILABLE"
	Overloaded         Reason = "OVERLOADED"
	InvalidRequest     Reason = "INVALID_REQUEST"
	PayloadTooLarge    Reason = "PAYLOAD_TOO_LARGE"
	Unauthenticated    Reason = "UNAUTHENTICATED"
	PermissionDenied   Reason = "PERMISSION_DENIED"
	NotFound           Reason = "NOT_FOUND"
	RevisionMismatch   Reason = "REVISION_MISMATCH"
	IDConflict         Reason = "ID_CONFLICT"
	DeadlineExceeded   Reason = "DEADLINE_EXCEEDED"
	Unimplemented      Reason = "UNIMPLEMENTED"
	Internal           Reason = "INTERNAL"
	Cancelled          Reason = "CANCELED"

	// StaleLease is the reason of a refused settlement. It is answered per
	// settlement and is never the error of a call.
	StaleLease Reason = "STALE_LEASE"

	// UniqueKeyHeld and DebounceKeyHeld are reasons of dead letters that stay
	// when they are replayed, and never the error of a call.
	UniqueKeyHeld   Reason = "UNIQUE_KEY_HELD"
	DebounceKeyHeld Reason = "DEBOUNCE_KEY_HELD"
)

// Code is the gRPC name of a class of errors, in upper snake case.
type Code string

var codes = map[Reason]struct {
	code   Code
	status int
}{
	QueueFull:          {"RESOURCE_EXHAUSTED", 429},
	RateLimited:        {"RESOURCE_EXHAUSTED", 429},
	QuotaUnreadable:    {"INTERNAL", 500},
	StorageUnavailable: {"UNAVAILABLE", 503},
	Overloaded:         {"UNAVAILABLE", 503},
	InvalidRequest:     {"INVALID_ARGUMENT", 400},
	PayloadTooLarge:    {"INVALID_ARGUMENT", 400},
	Unauthenticated:    {"UNAUTHENTICATED", 401},
	PermissionDenied:   {"PERMISSION_DENIED", 403},
	NotFound:           {"NOT_FOUND", 404},
	RevisionMismatch:   {"ABORTED", 409},
	IDConflict:         {"ABORTED", 409},
	DeadlineExceeded:   {"DEADLINE_EXCEEDED", 504},
	Unimplemented:      {"UNIMPLEMENTED", 501},
	Internal:           {"INTERNAL", 500},
	Cancelled:          {"CANCELED", 499},
}

// Code returns the gRPC code of the reason, INTERNAL for an unknown one.
func (r Reason) Code() Code {
	if c, ok := codes[r]; ok {
		return c.code
	}
	return "INTERNAL"
}

// Status returns the number that NATS headers and HTTP show, 500 for an unknown reason.
func (r Reason) Status() int {
	if c, ok := codes[r]; ok {
		return c.status
	}
	return 500
}

// Keys of the details that more than one package writes or reads.
const (
	KeyField        = "field"          // the request field that is wrong
	KeyRetry        = "retry"          // "never" when waiting cannot help
	KeyRetryAfterMS = "retry_after_ms" // whole milliseconds until a retry may pass
)

// Error is a failure with everything a caller may know about it. The zero
// value is an internal error without a message; make one with [New].
type Error struct {
	Reason  Reason
	Message string            // safe to show to any caller
	Details map[string]string // safe to show, the same keys on every transport
	cause   error
}

// New makes an error with a message that is safe to show.
func New(r Reason, format string, args ...any) *Error {
	return &Error{Reason: r, Message: fmt.Sprintf(format, args...)}
}

// Invalid makes an INVALID_REQUEST for one request field, named in the message
// and in the details. A text that begins with the field's name does not get it twice.
func Invalid(field, format string, args ...any) *Error {
	text := strings.TrimPrefix(fmt.Sprintf(format, args...), field+": ")
	return New(InvalidRequest, "%s: %s", field, text).With(KeyField, field)
}

// Wrap makes an error whose cause is logged but never shown.
func Wrap(cause error, r Reason, format string, args ...any) *Error {
	e := New(r, format, args...)
	e.cause = cause
	return e
}

// With returns the error with one more detail. It changes e.
func (e *Error) With(key, value string) *Error {
	if e.Details == nil {
		e.Details = make(map[string]string)
	}
	e.Details[key] = value
	return e
}

// WithAll returns the error with more details. It changes e.
func (e *Error) WithAll(details map[string]string) *Error {
	if e.Details == nil {
		e.Details = make(map[string]string, len(details))
	}
	maps.Copy(e.Details, details)
	return e
}

// Error is the text for logs: reason, message and cause.
func (e *Error) Error() string {
	s := string(e.Reason) + ": " + e.Message
	if e.cause != nil {
		s += ": " + e.cause.Error()
	}
	return s
}

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.cause }

// RetryAfter returns the delay after which a retry may pass, and whether the
// error carries one.
func (e *Error) RetryAfter() (time.Duration, bool) {
	ms, err := strconv.ParseInt(e.Details[KeyRetryAfterMS], 10, 64)
	if err != nil || ms < 0 {
		return 0, false
	}
	return time.Duration(ms) * time.Millisecond, true
}

// Of returns the fault in err's chain. An ended context becomes
// DEADLINE_EXCEEDED or CANCELED; anything else becomes INTERNAL with err as
// its hidden cause. Of(nil) is nil.
func Of(err error) *Error {
	if err == nil {
		return nil
	}
	var e *Error
	switch {
	case errors.As(err, &e):
		return e
	case errors.Is(err, context.DeadlineExceeded):
		return Wrap(err, DeadlineExceeded, "the deadline passed before the call was done")
	case errors.Is(err, context.Canceled):
		return Wrap(err, Cancelled, "the caller went away")
	}
	return Wrap(err, Internal, "internal error")
}

// Is reports whether err is a fault with the given reason.
func Is(err error, r Reason) bool {
	var e *Error
	return errors.As(err, &e) && e.Reason == r
}

// TokenDenied is the one answer to every failure to authenticate, whatever is
// wrong with the token.
func TokenDenied() error { return New(Unauthenticated, "the token is not valid") }

// Missing is the one answer for an object that does not exist or belongs to
// another namespace: the two must not be told apart.
func Missing(kind string) *Error {
	return New(NotFound, "%s not found", kind)
}
