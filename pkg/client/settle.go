package client

import (
	"context"
	"errors"
	"time"

	"github.com/rs/zerolog"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/batch"
	"flexiq/pkg/fault"
	"flexiq/pkg/job"
)

const (
	// settlePatience is how long one try waits: short, because the repeat must
	// arrive while the lease lives.
	settlePatience = 3 * time.Second
	// longOver is how long after the end of its lease a settlement is still
	// sent: the server may have been away for that time, and then nobody else
	// has the job yet.
	longOver = time.Minute
)

// settlement says what an attempt came to.
func settlement(a *attempt, t *Task, err, cause error) *flexiqv1.Settlement {
	st := &flexiqv1.Settlement{JobId: a.job.GetId(), Lease: a.lease}
	if err == nil {
		st.Outcome, st.Result = string(job.Completed), t.takeResult()
		return st
	}
	if errors.Is(err, ErrRelease) || errors.Is(cause, ErrStopping) {
		return release(a)
	}
	st.Outcome, st.Error = string(job.Failed), new(job.CleanError(err.Error()))
	var v *verdictError
	if errors.As(err, &v) {
		st.Outcome = string(v.outcome)
		if v.after != nil {
			st.RetryAfter = durationpb.New(*v.after)
		}
	}
	return st
}

func release(a *attempt) *flexiqv1.Settlement {
	return &flexiqv1.Settlement{JobId: a.job.GetId(), Lease: a.lease, Outcome: string(job.Released)}
}

// newSettles makes what gathers the settlements of one source into messages.
func (s *shift) newSettles(src *source) *batch.Group[*flexiqv1.Settlement, *flexiqv1.SettleResult] {
	return batch.New("client-settle", 1, batch.Options[*flexiqv1.Settlement]{
		MaxCalls:     2 * max(batch.DefaultMaxCalls, s.w.opts.Slots),
		MaxItems:     job.MaxBatch,
		FlushTimeout: settlePatience,
		MaxTails:     1, // the next message is on its way while the server works on one
		MinShare:     64,
		Log:          s.w.opts.Log,
	}, func(ctx context.Context, in []*flexiqv1.Settlement) ([]*flexiqv1.SettleResult, error) {
		batch.Decided(ctx)
		var out []*flexiqv1.SettleResult
		for _, part := range parts(in, src.c.messageLimit()) {
			res := new(flexiqv1.SettleResponse)
			err := src.c.wire.call(ctx, "Settle", &flexiqv1.SettleRequest{Settlements: part}, res)
			if err != nil {
				return nil, err
			}
			if len(res.GetResults()) != len(part) {
				return nil, fault.New(fault.Internal, "the server answered %d results for %d settlements", len(res.GetResults()), len(part))
			}
			out = append(out, res.GetResults()...)
		}
		return out, nil
	})
}

// parts cuts a list of messages into runs of at most limit bytes, and at least one message.
func parts[M proto.Message](in []M, limit int) [][]M {
	var out [][]M
	for from := 0; from < len(in); {
		to, bytes := from, 0
		for to < len(in) {
			size := proto.Size(in[to]) + messageOverhead
			if to > from && bytes+size > limit {
				break
			}
			bytes += size
			to++
		}
		out = append(out, in[from:to])
		from = to
	}
	return out
}

// settle tells an outcome again and again, with the same lease, until the
// server has accepted or refused it or the lease is long over.
func (s *shift) settle(a *attempt, st *flexiqv1.Settlement) {
	about := func(e *zerolog.Event) *zerolog.Event {
		return e.Str("job", st.GetJobId()).Str("outcome", st.GetOutcome())
	}
	log := &s.w.opts.Log
	wait := pause{first: 50 * time.Millisecond, longest: time.Second}
	for {
		res, err := a.src.settles.Do(s.talk, "", proto.Size(st), st)
		if err == nil && !res.GetAccepted() {
			err = failedAlone(res)
		}
		if err == nil {
			if res.GetAccepted() {
				s.count(st, res)
			} else {
				s.w.lost.Add(1)
				about(log.Warn()).Str("reason", res.GetReason()).Msg("the settlement was refused")
			}
			return
		}
		if f := fault.Of(err); !unknown(f) && f.Reason != fault.Internal {
			s.w.lost.Add(1)
			about(log.Error()).Err(f).Msg("the settlement cannot be sent; the job will run again")
			return
		}
		if s.leaseOver(a) || !sleep(s.talk, wait.length()) {
			s.w.lost.Add(1)
			about(log.Error()).Err(err).Msg("the settlement was not answered; the job will run again")
			return
		}
	}
}

// failedAlone is the error of a settlement that was not judged, while others in
// its message were; nil for a refusal.
func failedAlone(res *flexiqv1.SettleResult) error {
	f := fault.New(fault.Reason(res.GetReason()), "the settlement was not judged")
	if unknown(f) || f.Reason == fault.Internal {
		return f
	}
	return nil
}

func (s *shift) leaseOver(a *attempt) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Now().After(a.deadline.Add(longOver))
}

// count counts an outcome. A failure that was the last is a death.
func (s *shift) count(st *flexiqv1.Settlement, res *flexiqv1.SettleResult) {
	outcome := job.Outcome(st.GetOutcome())
	if outcome == job.Failed && res.GetStatus() == string(job.Dead) {
		outcome = job.GivenUp
	}
	switch outcome {
	case job.Completed:
		s.w.completed.Add(1)
	case job.Failed:
		s.w.failed.Add(1)
	case job.GivenUp:
		s.w.dead.Add(1)
	case job.Released:
		s.w.released.Add(1)
	}
}
