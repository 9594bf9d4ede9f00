package client_test

import (
	"context"
	"sync"
	"testing"

	"google.golang.org/protobuf/proto"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/auth"
	"flexiq/pkg/client"
	"flexiq/pkg/fault"
	"flexiq/pkg/rpc"
)

// desk is a small admission service in memory. It knows a repeated job by its
// id, and fails as it is told.
type desk struct {
	mu     sync.Mutex
	jobs   map[string]*flexiqv1.JobSpec
	calls  []string // the methods, in order
	sizes  []int    // jobs in each message
	err    error    // the answer to every call, if any
	fail   int      // messages to answer UNAVAILABLE before anything is written
	lose   int      // messages to carry out and answer UNAVAILABLE
	hold   chan struct{}
	came   chan struct{} // takes a value for each message; nil: nobody listens
	refuse func(*flexiqv1.JobSpec) error
}

func newDesk() *desk { return &desk{jobs: map[string]*flexiqv1.JobSpec{}} }

func (d *desk) methods() []rpc.Method {
	return []rpc.Method{
		rpc.Unary("Enqueue", func(_ context.Context, req *flexiqv1.EnqueueRequest) (*flexiqv1.EnqueueResponse, error) {
			out, err := d.message("Enqueue", [][]*flexiqv1.JobSpec{{req.GetJob()}})
			if err == nil {
				err = out[0].err
			}
			if err != nil {
				return nil, err
			}
			return &flexiqv1.EnqueueResponse{Result: out[0].results[0]}, nil
		}),
		rpc.Unary("EnqueueBatch", func(_ context.Context, req *flexiqv1.EnqueueBatchRequest) (*flexiqv1.EnqueueBatchResponse, error) {
			out, err := d.message("EnqueueBatch", [][]*flexiqv1.JobSpec{req.GetJobs()})
			if err == nil {
				err = out[0].err
			}
			if err != nil {
				return nil, err
			}
			return &flexiqv1.EnqueueBatchResponse{Results: out[0].results}, nil
		}),
		rpc.Unary("EnqueueCalls", func(_ context.Context, req *flexiqv1.EnqueueCallsRequest) (*flexiqv1.EnqueueCallsResponse, error) {
			var calls [][]*flexiqv1.JobSpec
			for _, c := range req.GetCalls() {
				calls = append(calls, c.GetJobs())
			}
			out, err := d.message("EnqueueCalls", calls)
			if err != nil {
				return nil, err
			}
			res := &flexiqv1.EnqueueCallsResponse{}
			for _, o := range out {
				if o.err == nil {
					res.Outcomes = append(res.Outcomes, &flexiqv1.EnqueueOutcome{Results: o.results})
					continue
				}
				f := fault.Of(o.err)
				res.Outcomes = append(res.Outcomes, &flexiqv1.EnqueueOutcome{Error: &flexiqv1.CallError{
					Code: string(f.Reason.Code()), Reason: string(f.Reason), Message: f.Message, Details: f.Details,
				}})
			}
			return res, nil
		}),
		rpc.Unary("ListJobs", d.list),
	}
}

type verdict struct {
	results []*flexiqv1.EnqueueResult
	err     error
}

func (d *desk) message(method string, calls [][]*flexiqv1.JobSpec) ([]verdict, error) {
	d.mu.Lock()
	hold := d.hold
	d.calls = append(d.calls, method)
	n := 0
	for _, c := range calls {
		n += len(c)
	}
	d.sizes = append(d.sizes, n)
	d.mu.Unlock()
	if d.came != nil {
		d.came <- struct{}{}
	}
	if hold != nil {
		<-hold
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.err != nil {
		return nil, d.err
	}
	if d.fail > 0 {
		d.fail--
		return nil, fault.New(fault.StorageUnavailable, "the database is away")
	}
	var out []verdict
	for _, c := range calls {
		out = append(out, d.decide(c))
	}
	if d.lose > 0 {
		d.lose--
		return nil, fault.New(fault.StorageUnavailable, "the database went away after it had written")
	}
	return out, nil
}

func (d *desk) decide(specs []*flexiqv1.JobSpec) verdict {
	for _, s := range specs {
		if d.refuse != nil {
			if err := d.refuse(s); err != nil {
				return verdict{err: err}
			}
		}
	}
	var v verdict
	for _, s := range specs {
		if old, ok := d.jobs[s.GetId()]; ok && !proto.Equal(old, s) {
			return verdict{err: fault.New(fault.IDConflict, "the id stands for another job")}
		}
		d.jobs[s.GetId()] = s
		v.results = append(v.results, &flexiqv1.EnqueueResult{Job: &flexiqv1.Job{Id: s.GetId(), Task: s.GetTask(), Status: "pending"}})
	}
	return v
}

// list answers pages of two, an empty one among them.
func (d *desk) list(_ context.Context, req *flexiqv1.ListJobsRequest) (*flexiqv1.ListJobsResponse, error) {
	pages := map[string]*flexiqv1.ListJobsResponse{
		"":  {Jobs: []*flexiqv1.Job{{Id: "1"}, {Id: "2"}}, NextPageToken: "a"},
		"a": {NextPageToken: "b"},
		"b": {Jobs: []*flexiqv1.Job{{Id: "3", Queue: req.GetQueue()}}},
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.err != nil && req.GetPageToken() == "b" {
		return nil, d.err
	}
	return pages[req.GetPageToken()], nil
}

// open installs the desk and a client of the namespace "acme" on one door.
func (d *desk) open(t testing.TB, door string, o client.Options) *client.Client {
	t.Helper()
	in := install(t, d.methods()...)
	o.Server, o.Token = in.doors()[door], in.token("acme", auth.Produce)
	return in.dial(o)
}
