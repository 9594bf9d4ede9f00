// Package wire carries the domain over the interface: protobuf
// messages to jobs and back, page tokens, and the report that admission
// publishes for usage.
//
// What comes in is checked here and in [job.Spec.Normalize], with errors that
// name the request's field. Presence matters: an absent field takes its
// default, an explicit zero where zero has no meaning is refused, so that
// nobody's zero is silently taken for "not set".
package wire

import (
	"math"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/fault"
	"flexiq/pkg/job"
)

// Spec reads a job as a producer asks for it and normalizes it. prefix is where
// it stands in the request ("job", "jobs[3]"); maxPayload is in bytes. Errors
// are INVALID_REQUEST or PAYLOAD_TOO_LARGE and name the field.
func Spec(prefix string, p *flexiqv1.JobSpec, maxPayload int) (job.Spec, error) {
	if p == nil {
		return job.Spec{}, fault.Invalid(prefix, "must be given")
	}
	s := job.Spec{
		ID: p.GetId(), Queue: p.GetQueue(), Task: p.GetTask(), Priority: p.GetPriority(),
		UniqueKey: p.GetUniqueKey(), Metadata: p.GetMetadata(),
	}
	if p.Priority == nil {
		s.Open = job.OptionPriority
	}
	in := reader{prefix: prefix, maxPayload: maxPayload}
	in.payload(&s, p)
	in.times(&s, p)
	in.debounce(&s, p)
	if in.err != nil {
		return job.Spec{}, in.err
	}
	if err := s.Normalize(prefix, maxPayload); err != nil {
		return job.Spec{}, err
	}
	return s, nil
}

// reader keeps the first error.
type reader struct {
	prefix     string
	maxPayload int
	err        error
}

func (r *reader) at(field string) string { return r.prefix + "." + field }

func (r *reader) fail(err error) {
	if r.err == nil {
		r.err = err
	}
}

func (r *reader) payload(s *job.Spec, p *flexiqv1.JobSpec) {
	switch {
	case p.Payload != nil && p.Args != nil:
		r.fail(fault.Invalid(r.at("args"), "must not be given together with payload"))
	case p.Payload != nil:
		s.Payload, s.Form = p.Payload, job.Bytes
	case p.Args != nil:
		text, err := encodeArgs(p.Args)
		if err != nil {
			r.fail(fault.Invalid(r.at("args"), "%v", err))
			return
		}
		// As protobuf a value takes up to six times its JSON, and a job that
		// can be enqueued must fit into the reply of a claim.
		if n := len(text); n > job.LargestMaxPayload/6 {
			if n = proto.Size(p.Args); n > job.LargestMaxPayload {
				r.fail(fault.New(fault.PayloadTooLarge, "%s: must be at most %d bytes as protobuf, got %d; send it as payload",
					r.at("args"), job.LargestMaxPayload, n).With(fault.KeyField, r.at("args")))
				return
			}
		}
		s.Payload, s.Form = text, job.Args
	}
}

func (r *reader) times(s *job.Spec, p *flexiqv1.JobSpec) {
	if p.RunAt != nil {
		s.RunAt = r.time("run_at", p.RunAt)
	}
	if p.Delay != nil {
		if p.RunAt != nil {
			r.fail(fault.Invalid(r.at("delay"), "must not be given together with run_at"))
		}
		s.Delay = r.duration("delay", p.Delay)
	}
	if p.MaxAttempts != nil {
		if s.MaxAttempts = p.GetMaxAttempts(); s.MaxAttempts == 0 {
			r.fail(fault.Invalid(r.at("max_attempts"), "must be from 1 to %d, got 0", job.MaxMaxAttempts))
		}
	}
	if p.Timeout != nil {
		s.Timeout = r.nonzero("timeout", p.Timeout)
	}
	if b := p.GetBackoff(); b != nil {
		if b.Base != nil {
			s.BackoffBase = r.nonzero("backoff.base", b.Base)
		}
		if b.Max != nil {
			s.BackoffMax = r.nonzero("backoff.max", b.Max)
		}
	}
}

func (r *reader) debounce(s *job.Spec, p *flexiqv1.JobSpec) {
	d := p.GetDebounce()
	if d == nil {
		return
	}
	if p.Delay != nil || p.RunAt != nil { // a delay of zero is one, too
		r.fail(fault.Invalid(r.at("debounce"), "must not be given together with delay or run_at"))
	}
	s.Debounce.Key = d.GetKey()
	switch {
	case s.Debounce.Key == "":
		r.fail(fault.Invalid(r.at("debounce.key"), "must not be empty"))
	case d.Window == nil:
		r.fail(fault.Invalid(r.at("debounce.window"), "must be given"))
	default:
		s.Debounce.Window = r.nonzero("debounce.window", d.Window)
	}
	if d.MaxWait != nil {
		s.Debounce.MaxWait = r.nonzero("debounce.max_wait", d.MaxWait)
	}
}

func (r *reader) time(field string, t *timestamppb.Timestamp) time.Time {
	at, err := Time(r.at(field), t)
	if err != nil {
		r.fail(err)
	}
	return at
}

func (r *reader) duration(field string, d *durationpb.Duration) time.Duration {
	v, err := Duration(r.at(field), d)
	if err != nil {
		r.fail(err)
	}
	return v
}

// nonzero reads a duration for which zero has no meaning.
func (r *reader) nonzero(field string, d *durationpb.Duration) time.Duration {
	v := r.duration(field, d)
	if v <= 0 {
		r.fail(fault.Invalid(r.at(field), "must be longer than 0s"))
	}
	return v
}

// Duration reads a duration to the microsecond, as stores keep it. The error is
// an INVALID_REQUEST for the field.
func Duration(field string, d *durationpb.Duration) (time.Duration, error) {
	if err := d.CheckValid(); err != nil {
		return 0, fault.Invalid(field, "must be a duration")
	}
	v := d.AsDuration()
	if v == math.MaxInt64 || v == math.MinInt64 {
		return 0, fault.Invalid(field, "must be within %s", time.Duration(math.MaxInt64).Truncate(time.Hour))
	}
	return v.Truncate(time.Microsecond), nil
}

// Time reads an instant to the microsecond, from 1970 on. The error is an
// INVALID_REQUEST for the field.
func Time(field string, t *timestamppb.Timestamp) (time.Time, error) {
	if err := t.CheckValid(); err != nil {
		return time.Time{}, fault.Invalid(field, "must be a time from 1970 to 9999")
	}
	at := t.AsTime()
	if at.Year() < 1970 { // year 1 would read as "no time"
		return time.Time{}, fault.Invalid(field, "must be a time from 1970 to 9999, got year %d", at.Year())
	}
	return at.Truncate(time.Microsecond), nil
}
