package client

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/fault"
)

// Job is work to be enqueued. Only Task must be set; a zero field leaves the
// choice to the server.
type Job struct {
	// ID is a UUIDv7 by which a repeated call is recognised. Empty: the client
	// makes one. Set it to make a call safe to repeat across restarts of the
	// caller.
	ID string

	Queue string // empty: "default"
	Task  string // what the worker is to do

	// Payload is the input as bytes; nil is none, which differs from empty. Args
	// is the input as any JSON value, json.RawMessage included: nil is none, and
	// an integer beyond ±2⁵³ is refused. At most one of them is set.
	Payload []byte
	Args    any

	Priority    *int32        // −128…127, higher first; nil: the server's default, 0
	RunAt       time.Time     // earliest start; zero: now
	Delay       time.Duration // earliest start, counted from the admission; not with RunAt
	MaxAttempts int32         // 0: the server's default, 25
	Timeout     time.Duration // of one attempt; 0: the server's default, 30 minutes
	Backoff     Backoff

	// UniqueKey: while a job of the namespace with this key is pending or
	// running, an enqueue returns that job and adds none. Empty: none.
	UniqueKey string
	// Debounce joins enqueues with one key into one pending job. Not together
	// with UniqueKey, Delay or a batch.
	Debounce Debounce

	Metadata map[string]string // 16 KiB in all
}

// Backoff shapes the growing delay between the attempts of a job. A zero field
// is the server's default.
type Backoff struct {
	Base time.Duration // before the first retry
	Max  time.Duration // never longer
}

// Debounce replaces the payload of a pending job with the same key and moves
// its start to now + Window, but never beyond the first enqueue + MaxWait.
type Debounce struct {
	Key     string // empty: no debounce
	Window  time.Duration
	MaxWait time.Duration // 0: 10 × Window
}

// Result is what became of one job of a call that succeeded.
type Result struct {
	// ID of the job that stands for the one asked for: its own, or the one that
	// holds its unique or debounce key. Empty when a repeated call's duplicate
	// has no holder any more.
	ID           string
	Status       string // "pending", or "dead" when the quota shed it
	Deduplicated bool   // an earlier live job holds the unique key; none was added
	Debounced    bool   // an earlier pending job took over the payload
	Shed         bool   // the quota dead-lettered it at once

	// Job as the server stores it, without its payload; nil when ID is empty.
	Job *flexiqv1.Job
}

func newResult(r *flexiqv1.EnqueueResult) Result {
	j := r.GetJob()
	return Result{
		ID:           j.GetId(),
		Status:       j.GetStatus(),
		Deduplicated: r.GetDeduplicated(),
		Debounced:    r.GetDebounced(),
		Shed:         j.GetDeadMetadata()["shed"] == "quota",
		Job:          j,
	}
}

// spec writes the job as a message, with an id.
func (j Job) spec(prefix string) (*flexiqv1.JobSpec, error) {
	s := &flexiqv1.JobSpec{
		Id:        strings.ToLower(j.ID),
		Queue:     j.Queue,
		Task:      j.Task,
		Priority:  j.Priority,
		Delay:     duration(j.Delay),
		Timeout:   duration(j.Timeout),
		UniqueKey: j.UniqueKey,
		Metadata:  maps.Clone(j.Metadata),
	}
	if s.Id == "" {
		id, err := uuid.NewV7()
		if err != nil {
			return nil, fault.Wrap(err, fault.Internal, "no random numbers for a job id")
		}
		s.Id = id.String()
	}
	if j.Payload != nil {
		// The caller may reuse its buffer once the call returns, and a call
		// returns before its message is gone when its context ends.
		s.Payload = append([]byte{}, j.Payload...)
	}
	if j.Args != nil {
		if j.Payload != nil {
			return nil, fault.Invalid(prefix+".args", "must not be given together with payload")
		}
		v, err := argsValue(j.Args)
		if err != nil {
			return nil, fault.Invalid(prefix+".args", "%v", err)
		}
		s.Args = v
	}
	if !j.RunAt.IsZero() {
		s.RunAt = timestamppb.New(j.RunAt)
	}
	if j.MaxAttempts != 0 {
		s.MaxAttempts = new(j.MaxAttempts)
	}
	if j.Backoff != (Backoff{}) {
		s.Backoff = &flexiqv1.Backoff{Base: duration(j.Backoff.Base), Max: duration(j.Backoff.Max)}
	}
	if d := j.Debounce; d != (Debounce{}) {
		s.Debounce = &flexiqv1.Debounce{Key: d.Key, Window: duration(d.Window), MaxWait: duration(d.MaxWait)}
	}
	return s, checkText(prefix, j)
}

// duration is absent for 0.
func duration(d time.Duration) *durationpb.Duration {
	if d == 0 {
		return nil
	}
	return durationpb.New(d)
}

// checkText refuses what does not fit into a protobuf string: one such job
// would make the whole message unreadable, other callers' jobs included.
func checkText(prefix string, j Job) error {
	for _, t := range []struct{ field, text string }{
		{"id", j.ID}, {"queue", j.Queue}, {"task", j.Task}, {"unique_key", j.UniqueKey}, {"debounce.key", j.Debounce.Key},
	} {
		if strings.ToValidUTF8(t.text, "") != t.text {
			return fault.Invalid(prefix+"."+t.field, "must be valid UTF-8")
		}
	}
	for k, v := range j.Metadata {
		if s := []string{k, v}; slices.ContainsFunc(s, func(t string) bool { return strings.ToValidUTF8(t, "") != t }) {
			return fault.Invalid(prefix+".metadata", "keys and values must be valid UTF-8")
		}
	}
	return nil
}

// Template is the job as schedules and triggers keep it, without an id and a
// start time.
func (j Job) Template() (*flexiqv1.JobSpec, error) {
	s, err := j.spec("job")
	if s != nil && j.ID == "" {
		s.Id = ""
	}
	return s, err
}
