package admission

import (
	"context"
	"crypto/sha256"
	"time"

	"github.com/google/uuid"

	"flexiq/pkg/job"
	"flexiq/pkg/store"
)

// decide makes one call of one job and waits for its outcome: what schedules and
// triggers do. It takes the way of every other call.
func (s *Service) decide(ctx context.Context, call store.Call) (store.Outcome, error) {
	done := make(chan store.Outcome, 1)
	s.enter(&parcel{ctx: ctx, ns: call.Namespace, calls: []store.Call{call}, done: func(out []store.Outcome) { done <- out[0] }})
	out := <-done // a parcel is always answered
	return out, out.Err
}

// derivedID is a job id made of what the job comes from, so that the same cause
// makes the same job.
func derivedID(at time.Time, parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		h.Write([]byte{byte(len(p) >> 24), byte(len(p) >> 16), byte(len(p) >> 8), byte(len(p))})
		h.Write([]byte(p))
	}
	id := uuid.UUID(h.Sum(nil)[:16])
	ms := at.UnixMilli()
	for i := range 6 {
		id[i] = byte(ms >> (40 - 8*i))
	}
	id[6], id[8] = id[6]&0x0f|0x70, id[8]&0x3f|0x80
	return id.String()
}

// innerCall is a call of one job that no producer made.
func innerCall(ns, origin, by string, spec job.Spec) store.Call {
	return store.Call{Namespace: ns, Origin: origin, By: by, Jobs: []job.Spec{spec}}
}
