package bus_test

import (
	"context"
	"testing"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/auth"
	"flexiq/pkg/bus"
)

// BenchmarkInline is one small call from its arrival in the subscription's
// callback until its reply is handed to the connection, without the network.
func BenchmarkInline(b *testing.B) {
	r := newRig(b, func(o *bus.Options) { o.Metrics, o.Registerer = nil, nil })
	answer := &flexiqv1.EnqueueResponse{Result: &flexiqv1.EnqueueResult{Job: &flexiqv1.Job{Id: "01890a5d-ac96-774b-bcce-b302099a8057", Queue: "default", Task: "t"}}}
	r.enqueue = func(_ context.Context, _ *flexiqv1.EnqueueRequest, done func(*flexiqv1.EnqueueResponse, error)) {
		done(answer, nil)
	}
	endpoints := r.serve(b)
	c := r.tenant(b, "lark", auth.Produce)
	req := &flexiqv1.EnqueueRequest{Job: &flexiqv1.JobSpec{Task: "t", Queue: "mail", Payload: make([]byte, 256)}}
	binary, err := proto.Marshal(req)
	if err != nil {
		b.Fatal(err)
	}
	json := []byte(`{"job":{"task":"t","queue":"mail","args":{"to":"a@example.org","n":12}}}`)
	receive := endpoints.Receiver(r.methods()[0])
	for _, form := range []struct {
		name   string
		body   []byte
		header nats.Header
	}{{"protobuf", binary, nats.Header{"Content-Type": {"application/protobuf"}}}, {"json", json, nil}} {
		b.Run(form.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				receive(&nats.Msg{Subject: c.subject("enqueue"), Reply: bus.Inbox(c.nsToken, c.id) + ".x", Data: form.body, Header: form.header})
			}
		})
	}
}

// BenchmarkCall is whole calls, many at once, over TCP to a service in the
// server's process.
func BenchmarkCall(b *testing.B) {
	r := newRig(b)
	r.enqueue = withJob
	service := *r
	service.conn = dial(b, bus.Options{InProcess: r.server, User: serviceUser, Password: servicePassword})
	service.serve(b)
	c := r.tenant(b, "lark", auth.Produce)
	req := &flexiqv1.EnqueueRequest{Job: &flexiqv1.JobSpec{Task: "t", Payload: make([]byte, 256)}}
	b.SetParallelism(64)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if err := c.Call(context.Background(), c.subject("enqueue"), req, &flexiqv1.EnqueueResponse{}); err != nil {
				b.Error(err)
				return
			}
		}
	})
}
