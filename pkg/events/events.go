// Package events tells tenants what happens in their namespaces: an event is a
// message on fqe.v1.<namespace>.<type>, published when what it tells of is done.
//
// Events are best effort, and telling them costs the work that they tell of
// next to nothing: [Publisher.Tell] puts an event into a bounded buffer and
// never blocks; what does not fit is dropped and counted. Nothing is even put
// there while nobody listens. The store is the truth; whoever must not miss
// anything reads it.
//
// An event carries ids, names and numbers. It has no field for a payload, a
// result, an error text or a key, so that none can slip in.
package events

import (
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/types/known/timestamppb"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/auth"
	"flexiq/pkg/fault"
	"flexiq/pkg/namespace"
	"flexiq/pkg/rpc"
)

// Type says what happened. It is the end of the event's subject.
type Type string

// The types. Their texts are an interface.
const (
	JobEnqueued    Type = "job.enqueued"  // it is pending
	JobStarted     Type = "job.started"   // a worker holds its lease
	JobComplete    Type = "job.complete"  // its worker is done
	JobRetried     Type = "job.retried"   // an attempt failed or was lost, and it is pending again
	JobDead        Type = "job.dead"      // it is a dead letter
	JobShed        Type = "job.shed"      // it became a dead letter in place of being enqueued
	JobRejected    Type = "job.rejected"  // an enqueue call was refused
	JobCancelled   Type = "job.cancelled" // it was ended by request
	QuotaChanged   Type = "quota.changed"
	QuotaThreshold Type = "quota.threshold" // a limit is used to a certain share, or no longer
)

// Types lists every type.
var Types = []Type{
	JobEnqueued, JobStarted, JobComplete, JobRetried, JobDead, JobShed, JobRejected, JobCancelled, QuotaChanged, QuotaThreshold,
}

// Keys of details.
const (
	KeyOperation = "operation"
	KeyRevision  = "revision"
	KeyLimit     = "limit"
	KeyCap       = "cap"
	KeyCurrent   = "current"
	KeyThreshold = "threshold"
	KeyDirection = "direction"
)

// Event is something that happened. Fields that do not apply are zero.
type Event struct {
	Namespace string
	Type      Type
	JobID     string
	Queue     string
	Task      string
	Origin    string
	Attempt   int32
	Reason    fault.Reason
	Count     int64 // 0: 1
	Details   map[string]string

	at time.Time
}

// Subject is where events of a type of a namespace are published.
func Subject(ns string, t Type) string {
	return auth.EventPrefix + namespace.Encode(ns) + "." + string(t)
}

// encode writes an event as listeners get it.
func (e *Event) encode() ([]byte, error) {
	return rpc.JSON.Marshal(&flexiqv1.Event{
		Type: string(e.Type), Time: timestamppb.New(e.at), JobId: e.JobID, Queue: e.Queue, Task: e.Task, Origin: e.Origin,
		Attempt: e.Attempt, Reason: string(e.Reason), Count: max(1, e.Count), Details: e.Details,
	})
}

// Decode reads an event. Fields of a newer version are ignored.
func Decode(body []byte) (*flexiqv1.Event, error) {
	e := new(flexiqv1.Event)
	return e, lenient.Unmarshal(body, e)
}

// Filter says which events of a namespace somebody wants to hear.
type Filter struct {
	types       []string
	queue, task string
}

// NewFilter reads a request. INVALID_REQUEST names a type that does not exist.
func NewFilter(req *flexiqv1.WatchEventsRequest) (Filter, error) {
	f := Filter{queue: req.GetQueue(), task: req.GetTask()}
	for _, field := range []struct{ name, value string }{{"queue", f.queue}, {"task", f.task}} {
		if field.value == "" {
			continue
		}
		if err := namespace.Check(field.value); err != nil {
			return f, fault.Invalid(field.name, "%v", err)
		}
	}
	for _, text := range req.GetTypes() {
		if text != "job" && text != "quota" && !slices.Contains(Types, Type(text)) {
			return f, fault.Invalid("types", "must be job, quota or one of %s, got %q", names(Types), clip(text))
		}
		if !slices.Contains(f.types, text) {
			f.types = append(f.types, text)
		}
	}
	// A kind as a whole takes its types in, or they would be heard twice.
	f.types = slices.DeleteFunc(f.types, func(t string) bool {
		kind, _, one := strings.Cut(t, ".")
		return one && slices.Contains(f.types, kind)
	})
	return f, nil
}

// names lists types for people.
func names(types []Type) string {
	texts := make([]string, len(types))
	for i, t := range types {
		texts[i] = string(t)
	}
	return strings.Join(texts, ", ")
}

func clip(text string) string { return text[:min(len(text), 40)] }

// Subjects are what to subscribe to in a namespace, given as a token of a
// subject. No event stands under two of them.
func (f Filter) Subjects(nsToken string) []string {
	prefix := auth.EventPrefix + nsToken + "."
	if len(f.types) == 0 {
		return []string{prefix + ">"}
	}
	out := make([]string, len(f.types))
	for i, t := range f.types {
		if out[i] = prefix + t; !strings.Contains(t, ".") {
			out[i] += ".*"
		}
	}
	return out
}

// Matches reports whether an event that was heard under the subjects is wanted.
func (f Filter) Matches(e *flexiqv1.Event) bool {
	return (f.queue == "" || f.queue == e.GetQueue()) && (f.task == "" || f.task == e.GetTask())
}

// Listener brings the events of some subjects, undecoded. It must be stopped.
type Listener struct {
	C    <-chan *nats.Msg
	Late func() bool // events did not fit into C any more: some are missing
	Stop func()
}

// Room is how many events may wait for one who listens.
const Room = 1024

// TooLate is the error of one who listens and does not keep up.
func TooLate() error {
	return fault.New(fault.Overloaded, "events came faster than they were read, and more than %d waited: some are missing; watch again", Room)
}
