package client

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"

	"google.golang.org/protobuf/proto"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/batch"
	"flexiq/pkg/fault"
	"flexiq/pkg/job"
)

// Bounds of what waits in the client and of one message.
const (
	maxUnits        = 1 << 16 // one key may hold half of it, and there is one
	maxUnitBytes    = 256 << 20
	minShare        = 8
	maxMessage      = 1 << 20 // of several units together; a lone unit may be larger
	messageOverhead = 16      // bytes around one unit, at most
)

// unit is one enqueue call on its way.
type unit struct {
	ctx   context.Context // of the caller; a unit that nobody waits for is not sent
	call  *flexiqv1.EnqueueCall
	bytes int
	fate  atomic.Int32 // waiting, then sent or abandoned
}

const (
	waiting int32 = iota
	sent
	abandoned
)

// abandon takes back a unit whose caller has gone, and reports whether it had
// not been sent.
func (u *unit) abandon() bool { return u.fate.CompareAndSwap(waiting, abandoned) }

// answer is what became of a unit.
type answer struct {
	results []*flexiqv1.EnqueueResult
	err     error
}

// Enqueue enqueues one job. A refusal by the quota is an error: see
// [AsRefusal]. When the quota sheds instead, the result says so.
func (c *Client) Enqueue(ctx context.Context, j Job) (Result, error) {
	s, err := j.spec("job")
	if err != nil {
		return Result{}, err
	}
	results, err := c.enqueue(ctx, []*flexiqv1.JobSpec{s})
	if err != nil {
		return Result{}, err
	}
	return results[0], nil
}

// EnqueueBatch enqueues 1 to 1 000 jobs as one unit: all of them are admitted,
// or all shed, or none is written. Results are in the order of the jobs.
func (c *Client) EnqueueBatch(ctx context.Context, jobs []Job) ([]Result, error) {
	if len(jobs) == 0 || len(jobs) > job.MaxBatch {
		return nil, fault.Invalid("jobs", "must be 1 to %d, got %d", job.MaxBatch, len(jobs))
	}
	specs := make([]*flexiqv1.JobSpec, len(jobs))
	for i, j := range jobs {
		var err error
		if specs[i], err = j.spec(fmt.Sprintf("jobs[%d]", i)); err != nil {
			return nil, err
		}
	}
	return c.enqueue(ctx, specs)
}

func (c *Client) enqueue(ctx context.Context, specs []*flexiqv1.JobSpec) ([]Result, error) {
	call := &flexiqv1.EnqueueCall{Jobs: specs}
	size := proto.Size(call)
	if limit := c.wire.maxMessage(); limit > 0 && size+messageOverhead > limit {
		return nil, fault.New(fault.PayloadTooLarge, "the call has %d bytes, more than the %d that the server takes in one message", size, limit)
	}
	ctx, cancel := c.bound(ctx)
	defer cancel()
	var out *answer
	inDoubt := false // a try was sent whose outcome nobody knows
	err := c.repeat(ctx, func(ctx context.Context) error {
		u := &unit{ctx: ctx, call: call, bytes: size}
		var err error
		out, err = c.units.Do(ctx, "", size, u)
		if err == nil {
			err = out.err
		}
		if err != nil && !u.abandon() && doubt(err) {
			inDoubt = true
		}
		return err
	})
	switch {
	case err != nil && inDoubt:
		return nil, doubtful{err}
	case err != nil:
		return nil, err
	case len(out.results) != len(specs):
		return nil, fault.New(fault.Internal, "the server answered %d results for %d jobs", len(out.results), len(specs))
	}
	results := make([]Result, len(specs))
	for i, r := range out.results {
		results[i] = newResult(r)
	}
	return results, nil
}

// newGroup makes what gathers the units of concurrent calls into messages. Two
// may be on their way, each with half of the callers if these are many, so that
// one is there while the server works on the other. Two lanes, of which a unit
// gets one by chance, made the messages a third smaller.
func (c *Client) newGroup() *batch.Group[*unit, *answer] {
	return batch.New("client-enqueue", 1, batch.Options[*unit]{
		MaxCalls:     maxUnits,
		MaxBytes:     maxUnitBytes,
		MaxItems:     job.MaxBatch,
		Weight:       func(u *unit) int { return len(u.call.GetJobs()) },
		FlushTimeout: patience,
		MaxTails:     1,
		MinShare:     minShare,
		Log:          c.opts.Log,
	}, c.flush)
}

// flush sends units, in as many messages as their size asks for.
func (c *Client) flush(ctx context.Context, units []*unit) ([]*answer, error) {
	batch.Decided(ctx) // the order of independent calls does not matter
	answers := make([]*answer, len(units))
	for from := 0; from < len(units); {
		to, bytes := from, 0
		for to < len(units) && (to == from || bytes+units[to].bytes+messageOverhead <= c.messageLimit()) {
			bytes += units[to].bytes + messageOverhead
			to++
		}
		c.send(ctx, units[from:to], answers[from:to])
		from = to
	}
	return answers, nil
}

func (c *Client) messageLimit() int {
	if limit := c.wire.maxMessage(); limit > 0 {
		return min(limit, maxMessage)
	}
	return maxMessage
}

// send sends the units that still have a caller as one message.
func (c *Client) send(ctx context.Context, units []*unit, answers []*answer) {
	req := &flexiqv1.EnqueueCallsRequest{Calls: make([]*flexiqv1.EnqueueCall, 0, len(units))}
	at := make([]int, 0, len(units)) // where each call's answer belongs
	for i, u := range units {
		if u.ctx.Err() != nil || !u.fate.CompareAndSwap(waiting, sent) {
			answers[i] = &answer{err: fault.Of(u.ctx.Err())}
			continue
		}
		req.Calls, at = append(req.Calls, u.call), append(at, i)
	}
	switch len(at) {
	case 0:
	case 1:
		answers[at[0]] = c.sendOne(ctx, req.GetCalls()[0])
	default:
		res := new(flexiqv1.EnqueueCallsResponse)
		err := c.wire.call(ctx, "EnqueueCalls", req, res)
		if err == nil && len(res.GetOutcomes()) != len(at) {
			err = fault.New(fault.Internal, "the server answered %d outcomes for %d calls", len(res.GetOutcomes()), len(at))
		}
		for k, i := range at {
			if err != nil {
				answers[i] = &answer{err: err}
				continue
			}
			answers[i] = outcome(k, len(req.GetCalls()[k].GetJobs()), res.GetOutcomes()[k])
		}
	}
}

// sendOne sends a lone unit as the call that it is.
func (c *Client) sendOne(ctx context.Context, call *flexiqv1.EnqueueCall) *answer {
	if jobs := call.GetJobs(); len(jobs) > 1 {
		res := new(flexiqv1.EnqueueBatchResponse)
		err := c.wire.call(ctx, "EnqueueBatch", &flexiqv1.EnqueueBatchRequest{Jobs: jobs}, res)
		return &answer{results: res.GetResults(), err: err}
	}
	res := new(flexiqv1.EnqueueResponse)
	err := c.wire.call(ctx, "Enqueue", &flexiqv1.EnqueueRequest{Job: call.GetJobs()[0]}, res)
	return &answer{results: []*flexiqv1.EnqueueResult{res.GetResult()}, err: err}
}

// outcome reads one unit's part of an answer. The caller knows nothing of the
// message that its call travelled in, so its errors name fields as if it had
// come alone.
func outcome(position, jobs int, o *flexiqv1.EnqueueOutcome) *answer {
	e := o.GetError()
	if e == nil {
		return &answer{results: o.GetResults()}
	}
	alone := func(s string) string {
		s = strings.TrimPrefix(s, fmt.Sprintf("calls[%d].", position))
		if rest, ok := strings.CutPrefix(s, "jobs[0]"); ok && jobs == 1 {
			s = "job" + rest
		}
		return s
	}
	f := fault.New(fault.Reason(e.GetReason()), "%s", alone(e.GetMessage())).WithAll(e.GetDetails())
	if field, ok := f.Details[fault.KeyField]; ok {
		f.With(fault.KeyField, alone(field))
	}
	return &answer{err: f}
}
