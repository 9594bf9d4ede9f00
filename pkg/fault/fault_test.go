package fault_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"flexiq/pkg/fault"
)

// TestReasons fixes the reasons of the interface.
func TestReasons(t *testing.T) {
	t.Parallel()
	tests := []struct {
		reason fault.Reason
		text   string
		code   fault.Code
		status int
	}{
		{fault.QueueFull, "QUEUE_FULL", "RESOURCE_EXHAUSTED", 429},
		{fault.RateLimited, "RATE_LIMITED", "RESOURCE_EXHAUSTED", 429},
		{fault.QuotaUnreadable, "QUOTA_UNREADABLE", "INTERNAL", 500},
		{fault.StorageUnavailable, "STORAGE_UNAVAILABLE", "UNAVAILABLE", 503},
		{fault.Overloaded, "OVERLOADED", "UNAVAILABLE", 503},
		{fault.InvalidRequest, "INVALID_REQUEST", "INVALID_ARGUMENT", 400},
		{fault.PayloadTooLarge, "PAYLOAD_TOO_LARGE", "INVALID_ARGUMENT", 400},
		{fault.Unauthenticated, "UNAUTHENTICATED", "UNAUTHENTICATED", 401},
		{fault.PermissionDenied, "PERMISSION_DENIED", "PERMISSION_DENIED", 403},
		{fault.NotFound, "NOT_FOUND", "NOT_FOUND", 404},
		{fault.RevisionMismatch, "REVISION_MISMATCH", "ABORTED", 409},
		{fault.IDConflict, "ID_CONFLICT", "ABORTED", 409},
		{fault.DeadlineExceeded, "DEADLINE_EXCEEDED", "DEADLINE_EXCEEDED", 504},
		{fault.Unimplemented, "UNIMPLEMENTED", "UNIMPLEMENTED", 501},
		{fault.Internal, "INTERNAL", "INTERNAL", 500},
		{fault.Cancelled, "CANCELED", "CANCELED", 499},
		{fault.Reason("NEWER"), "NEWER", "INTERNAL", 500},
	}
	for _, tt := range tests {
		if string(tt.reason) != tt.text || tt.reason.Code() != tt.code || tt.reason.Status() != tt.status {
			t.Errorf("%s: text %q, code %s, status %d; want %q, %s, %d", tt.reason,
				string(tt.reason), tt.reason.Code(), tt.reason.Status(), tt.text, tt.code, tt.status)
		}
	}
}

func TestInvalidNamesTheField(t *testing.T) {
	t.Parallel()
	e := fault.Invalid("jobs[3].queue", "must be at most %d bytes", 255)
	want := &fault.Error{
		Reason: fault.InvalidRequest, Message: "jobs[3].queue: must be at most 255 bytes",
		Details: map[string]string{"field": "jobs[3].queue"},
	}
	if e.Reason != want.Reason || e.Message != want.Message || !cmp.Equal(e.Details, want.Details) {
		t.Errorf("got %+v, want %+v", e, want)
	}
}

// TestCauseIsHidden: what may hold a secret or another tenant's name is for
// logs, never for the caller.
func TestCauseIsHidden(t *testing.T) {
	t.Parallel()
	cause := errors.New("password=hunter2")
	e := fault.Wrap(cause, fault.StorageUnavailable, "the store does not answer")
	if e.Message != "the store does not answer" || len(e.Details) != 0 {
		t.Errorf("the cause shows: %+v", e)
	}
	if want := "STORAGE_UNAVAILABLE: the store does not answer: password=hunter2"; e.Error() != want {
		t.Errorf("for logs: got %q, want %q", e.Error(), want)
	}
	if !errors.Is(e, cause) {
		t.Error("the cause is not in the chain")
	}
}

func TestOf(t *testing.T) {
	t.Parallel()
	full := fault.New(fault.QueueFull, "full")
	tests := []struct {
		name string
		err  error
		want fault.Reason
	}{
		{"a fault", full, fault.QueueFull},
		{"a wrapped fault", fmt.Errorf("enqueue: %w", full), fault.QueueFull},
		{"a passed deadline", fmt.Errorf("read: %w", context.DeadlineExceeded), fault.DeadlineExceeded},
		{"an ended context", fmt.Errorf("read: %w", context.Canceled), fault.Cancelled},
		{"a fault about a deadline", fault.Wrap(context.DeadlineExceeded, fault.StorageUnavailable, "slow"), fault.StorageUnavailable},
		{"anything else", errors.New("disk on fire"), fault.Internal},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got := fault.Of(tt.err)
			if got.Reason != tt.want {
				t.Errorf("got %s, want %s", got.Reason, tt.want)
			}
			if got.Reason == fault.Internal && got.Message != "internal error" {
				t.Errorf("an unknown error shows: %q", got.Message)
			}
			if got.Reason == tt.want && !errors.Is(got, tt.err) && !errors.Is(tt.err, got) {
				t.Errorf("%v is neither in the chain of %v nor the other way round", tt.err, got)
			}
		})
	}
	if fault.Of(nil) != nil {
		t.Error("no error became one")
	}
}

func TestIs(t *testing.T) {
	t.Parallel()
	err := fmt.Errorf("settle: %w", fault.Missing("job"))
	if !fault.Is(err, fault.NotFound) || fault.Is(err, fault.Internal) || fault.Is(nil, fault.NotFound) || fault.Is(errors.New("NOT_FOUND"), fault.NotFound) {
		t.Error("Is does not decide by the fault's reason")
	}
	if got := fault.Missing("job").Message; got != "job not found" {
		t.Errorf("got %q", got)
	}
}

func TestRetryAfter(t *testing.T) {
	t.Parallel()
	tests := []struct {
		details map[string]string
		want    time.Duration
		ok      bool
	}{
		{nil, 0, false},
		{map[string]string{"retry": "never"}, 0, false},
		{map[string]string{"retry_after_ms": "0"}, 0, true},
		{map[string]string{"retry_after_ms": "1500"}, 1500 * time.Millisecond, true},
		{map[string]string{"retry_after_ms": "-1"}, 0, false},
		{map[string]string{"retry_after_ms": "soon"}, 0, false},
	}
	for _, tt := range tests {
		got, ok := fault.New(fault.RateLimited, "x").WithAll(tt.details).RetryAfter()
		if got != tt.want || ok != tt.ok {
			t.Errorf("%v: got %s, %t; want %s, %t", tt.details, got, ok, tt.want, tt.ok)
		}
	}
}

func TestWithAllKeepsWhatIsThere(t *testing.T) {
	t.Parallel()
	e := fault.New(fault.QueueFull, "x").With("cap", "5").WithAll(map[string]string{"current": "4", "cap": "6"})
	if want := map[string]string{"cap": "6", "current": "4"}; !cmp.Equal(e.Details, want) {
		t.Errorf("got %v, want %v", e.Details, want)
	}
}

func TestAFieldIsNamedOnce(t *testing.T) {
	for text, want := range map[string]string{
		"must be given":       "cron: must be given",
		"cron: no such day":   "cron: no such day",
		"cronut: is no field": "cron: cronut: is no field",
	} {
		if got := fault.Invalid("cron", "%s", text); got.Message != want || got.Details[fault.KeyField] != "cron" {
			t.Errorf("%q: %q of %q, want %q", text, got.Message, got.Details[fault.KeyField], want)
		}
	}
}
