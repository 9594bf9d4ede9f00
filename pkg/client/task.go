package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/job"
)

// Handler runs one attempt of one job. A nil error completes the job; any
// other fails the attempt, which is retried by the job's own policy unless the
// error is made by [Dead] or [RetryAfter], or is [ErrRelease]. A panic is a
// failure.
//
// The context ends when the job's cancellation was requested, its lease was
// lost, its attempt's time is over, or the worker stops and its grace is over;
// context.Cause tells which.
type Handler func(ctx context.Context, t *Task) error

// What ended a handler's context, beside the attempt's time
// (context.DeadlineExceeded).
var (
	ErrJobCancelled = errors.New("the job's cancellation was requested")
	ErrLeaseLost    = errors.New("the lease was lost: another worker may have the job")
	ErrStopping     = errors.New("the worker is stopping")
)

// ErrRelease gives the job back, to its place in the order, with no attempt spent.
var ErrRelease = errors.New("release the job")

// Dead wraps a handler's error so that the job is not tried again.
func Dead(err error) error { return &verdictError{err: err, outcome: job.GivenUp} }

// RetryAfter wraps a handler's error so that the job is tried again after d,
// instead of by its policy. Attempts are counted as always.
func RetryAfter(d time.Duration, err error) error {
	return &verdictError{err: err, outcome: job.Failed, after: &d}
}

// verdictError is a handler's error that also says what to do.
type verdictError struct {
	err     error
	outcome job.Outcome
	after   *time.Duration
}

func (e *verdictError) Error() string {
	if e.err == nil {
		return "no reason was given"
	}
	return e.err.Error()
}

func (e *verdictError) Unwrap() error { return e.err }

// Task is a job in a worker's hands.
type Task struct {
	job *flexiqv1.Job

	mu     sync.Mutex
	result []byte // nil: none
}

// ID is the job's id.
func (t *Task) ID() string { return t.job.GetId() }

// Name says what is to be done: the job's task.
func (t *Task) Name() string { return t.job.GetTask() }

// Queue is the queue that the job waited in.
func (t *Task) Queue() string { return t.job.GetQueue() }

// Attempt is 1 for the first one.
func (t *Task) Attempt() int { return int(t.job.GetAttempt()) }

// Metadata are the labels given at enqueue; not to be changed.
func (t *Task) Metadata() map[string]string { return t.job.GetMetadata() }

// Job is everything that the server tells of the job; not to be changed.
func (t *Task) Job() *flexiqv1.Job { return t.job }

// Input is the payload, or the args as compact JSON; nil when the job has neither.
func (t *Task) Input() []byte {
	if v := t.job.GetArgs(); v != nil {
		var text bytes.Buffer
		enc := json.NewEncoder(&text)
		enc.SetEscapeHTML(false)
		if err := enc.Encode(v.AsInterface()); err != nil {
			return nil // a protobuf value with NaN, which no door lets in
		}
		return bytes.TrimSuffix(text.Bytes(), []byte{'\n'})
	}
	return t.job.GetPayload()
}

// Args reads the input, args or a payload of JSON, into what v points to.
func (t *Task) Args(v any) error {
	input := t.Input()
	if input == nil {
		return errors.New("the job has no args")
	}
	if err := json.Unmarshal(input, v); err != nil {
		return fmt.Errorf("args of job %s: %w", t.ID(), err)
	}
	return nil
}

// SetResult keeps what came out of the job, to be stored when it completes. A
// later call replaces it. More than 64 KiB is an error and changes nothing.
func (t *Task) SetResult(result []byte) error {
	if len(result) > job.MaxResult {
		return fmt.Errorf("result: must be at most %d bytes, got %d", job.MaxResult, len(result))
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.result = append([]byte{}, result...)
	return nil
}

func (t *Task) takeResult() []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.result
}
