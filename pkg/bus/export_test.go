package bus

import (
	"github.com/nats-io/nats.go"

	"flexiq/pkg/rpc"
)

// Receiver is what a subscription of the method calls, without a subscription.
func (e *Endpoints) Receiver(m rpc.Method) func(*nats.Msg) {
	in := &endpoint{Endpoints: e, method: m, prefix: len("fq.v1." + m.Verb + ".")}
	return in.receive
}
