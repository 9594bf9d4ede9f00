package client_test

import (
	"context"
	"testing"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/auth"
	"flexiq/pkg/client"
	"flexiq/pkg/rpc"
)

// BenchmarkEnqueue measures what an enqueue costs the client, and the bus, when
// the service has nothing to do: many goroutines share a client's messages.
func BenchmarkEnqueue(b *testing.B) {
	in := install(b,
		rpc.Async("EnqueueCalls", func(_ context.Context, req *flexiqv1.EnqueueCallsRequest, done func(*flexiqv1.EnqueueCallsResponse, error)) {
			res := &flexiqv1.EnqueueCallsResponse{}
			for _, c := range req.GetCalls() {
				o := &flexiqv1.EnqueueOutcome{}
				for _, s := range c.GetJobs() {
					o.Results = append(o.Results, &flexiqv1.EnqueueResult{Job: &flexiqv1.Job{Id: s.GetId(), Task: s.GetTask(), Status: "pending"}})
				}
				res.Outcomes = append(res.Outcomes, o)
			}
			done(res, nil)
		}),
		rpc.Async("Enqueue", func(_ context.Context, req *flexiqv1.EnqueueRequest, done func(*flexiqv1.EnqueueResponse, error)) {
			done(&flexiqv1.EnqueueResponse{Result: &flexiqv1.EnqueueResult{Job: &flexiqv1.Job{Id: req.GetJob().GetId()}}}, nil)
		}))
	c := in.dial(client.Options{Token: in.token("acme", auth.Produce)})
	payload := []byte(`{"to":"somebody@example.com","n":1}`)
	b.ReportAllocs()
	b.SetParallelism(256)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := c.Enqueue(context.Background(), client.Job{Task: "demo", Payload: payload}); err != nil {
				b.Error(err)
				return
			}
		}
	})
}
