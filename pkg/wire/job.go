package wire

import (
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/fault"
	"flexiq/pkg/job"
	"flexiq/pkg/store"
)

// Bare writes a job without its payload, as results and listings show it.
func Bare(j *job.Job) *flexiqv1.Job {
	return &flexiqv1.Job{
		Id: j.ID, Namespace: j.Namespace, Queue: j.Queue, Task: j.Task,
		Status: string(j.State), Priority: j.Priority, Attempt: j.Attempt, MaxAttempts: j.MaxAttempts,
		RunAt: Stamp(j.RunAt), CreatedAt: Stamp(j.CreatedAt), StartedAt: Stamp(j.StartedAt), FinishedAt: Stamp(j.FinishedAt),
		Error: j.Error, Result: j.Result, Metadata: j.Metadata, UniqueKey: j.UniqueKey,
		Origin: j.Origin, EnqueuedBy: j.EnqueuedBy, DeadMetadata: j.DeadMetadata, AutoRetries: some(j.AutoRetries),
	}
}

// some is nil for nothing.
func some(n int32) *int32 {
	if n == 0 {
		return nil
	}
	return &n
}

// Job writes a job with its payload, in the form in which it was given.
func Job(j *job.Job) *flexiqv1.Job {
	p := Bare(j)
	switch j.Form {
	case job.Args:
		if v, err := decodeArgs(j.Payload); err == nil {
			p.Args = v
			break
		}
		// Not what this program writes; the worker still gets every byte.
		fallthrough
	case job.Bytes:
		if p.Payload = j.Payload; p.Payload == nil {
			p.Payload = []byte{}
		}
	}
	return p
}

// Stamp writes a time; the zero time is absent.
func Stamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

// Results writes what became of a call's jobs.
func Results(results []store.Result) []*flexiqv1.EnqueueResult {
	out := make([]*flexiqv1.EnqueueResult, len(results))
	for i, r := range results {
		out[i] = &flexiqv1.EnqueueResult{Deduplicated: r.Deduplicated, Debounced: r.Debounced}
		if r.Job != nil {
			out[i].Job = Bare(r.Job)
		}
	}
	return out
}

// CallError writes why one unit of a call failed.
func CallError(err error) *flexiqv1.CallError {
	f := fault.Of(err)
	return &flexiqv1.CallError{
		Code: string(f.Reason.Code()), Reason: string(f.Reason), Message: f.Message, Details: f.Details,
	}
}

// Size is at least the bytes that a job takes in a reply, as protobuf or as
// JSON: p is j as [Job] wrote it.
func Size(j *job.Job, p *flexiqv1.Job) int {
	const frame = 1 << 10 // JSON's field names, times and punctuation, a lease
	n := frame + len(p.Payload)*4/3 + len(p.Result)*4/3
	for _, s := range []string{p.Namespace, p.Queue, p.Task, p.UniqueKey, p.Error, p.Origin} {
		n += escaped(s)
	}
	for k, v := range p.Metadata {
		n += escaped(k) + escaped(v) + 8
	}
	if p.Args != nil {
		n += max(len(j.Payload), proto.Size(p.Args))
	}
	return n
}

// escaped is the length of a string in JSON, without its quotes.
func escaped(s string) int {
	n := len(s)
	for i := range len(s) {
		switch c := s[i]; {
		case c < 0x20 || c == 0x7f:
			n += 5
		case c == '"' || c == '\\':
			n++
		}
	}
	return n
}
