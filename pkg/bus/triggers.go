package bus

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"flexiq/pkg/auth"
	"flexiq/pkg/fault"
	"flexiq/pkg/namespace"
)

const (
	// triggerGroup is the queue group in which processes share plain messages.
	triggerGroup = "flexiq"
	// triggerAckWait is when a message that nobody acknowledged is given out again.
	triggerAckWait = 30 * time.Second
	// triggerAhead bounds the messages of a durable that one process works on.
	triggerAhead = 256
)

// TriggerMessage is a message on the subject of a trigger.
type TriggerMessage struct {
	Namespace string
	Name      string
	Data      []byte

	// Of a message of a stream: where it stands there, and how it is settled.
	Stream    string
	Sequence  uint64
	Time      time.Time
	Delivered uint64 // how often it was given out, this time included
	Ack       func(ctx context.Context) error
	Retry     func(after time.Duration) error
}

// OnTriggers hears plain messages on the subjects of triggers; of all processes
// one gets each. What a stream stores is heard here too. fn must not block.
func (c *Conn) OnTriggers(fn func(TriggerMessage)) (stop func(), err error) {
	sub, err := c.nc.QueueSubscribe(auth.TriggerPrefix+"*.*", triggerGroup, func(m *nats.Msg) {
		if t, ok := triggerOf(m.Subject); ok {
			t.Data = m.Data
			fn(t)
		}
	})
	if err != nil {
		return nil, err
	}
	return func() { _ = sub.Unsubscribe() }, nil // the connection may be closed already
}

// triggerOf reads the subject of a trigger.
func triggerOf(subject string) (t TriggerMessage, ok bool) {
	ns, name, ok := strings.Cut(strings.TrimPrefix(subject, auth.TriggerPrefix), ".")
	if !ok {
		return t, false
	}
	var err1, err2 error
	t.Namespace, err1 = namespace.Decode(ns)
	t.Name, err2 = namespace.Decode(name)
	return t, err1 == nil && err2 == nil
}

// CheckTriggerStream makes sure that a stream holds nothing but messages of a
// namespace's triggers: INVALID_REQUEST otherwise, also when there is none.
func (c *Conn) CheckTriggerStream(ctx context.Context, stream, ns string) error {
	_, err := c.triggerStream(ctx, stream, ns)
	return err
}

func (c *Conn) triggerStream(ctx context.Context, stream, ns string) (jetstream.Stream, error) {
	refuse := func(format string, args ...any) error { return fault.Invalid("nats.durable_stream", format, args...) }
	js, err := jetstream.New(c.nc)
	if err != nil {
		return nil, err
	}
	s, err := js.Stream(ctx, stream)
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound), errors.Is(err, jetstream.ErrInvalidStreamName), errors.Is(err, jetstream.ErrStreamNameRequired):
		return nil, refuse("there is no such stream whose subjects all lie under %s", auth.TriggerPrefix+namespace.Encode(ns)+".")
	case err != nil:
		return nil, fault.Wrap(err, fault.Overloaded, "JetStream does not answer")
	}
	cfg := s.CachedInfo().Config
	own := len(cfg.Subjects) > 0 && cfg.Mirror == nil && len(cfg.Sources) == 0 && cfg.SubjectTransform == nil
	for _, subject := range cfg.Subjects {
		own = own && strings.HasPrefix(subject, auth.TriggerPrefix+namespace.Encode(ns)+".")
	}
	if !own { // said as if it were not there: it may be another tenant's
		return nil, refuse("there is no such stream whose subjects all lie under %s", auth.TriggerPrefix+namespace.Encode(ns)+".")
	}
	return s, nil
}

// ReadTrigger reads a trigger's messages from a stream, each until it is
// acknowledged. It shares them with other processes by a durable consumer, which
// it creates when it is missing. fn may block. stop waits for those being worked on.
func (c *Conn) ReadTrigger(ctx context.Context, stream, ns, name string, fn func(TriggerMessage)) (stop func(), err error) {
	s, err := c.triggerStream(ctx, stream, ns)
	if err != nil {
		return nil, err
	}
	subject := auth.TriggerSubject(ns, name)
	consumer, err := s.CreateOrUpdateConsumer(ctx, jetstream.ConsumerConfig{
		Durable: durableName(ns, name), FilterSubject: subject, AckPolicy: jetstream.AckExplicitPolicy,
		AckWait: triggerAckWait, MaxDeliver: -1, MaxAckPending: triggerAhead, DeliverPolicy: jetstream.DeliverAllPolicy,
	})
	if err != nil {
		return nil, fault.Wrap(err, fault.Overloaded, "the stream's consumer cannot be made")
	}
	reading, err := consumer.Consume(func(m jetstream.Msg) {
		meta, err := m.Metadata()
		if err != nil {
			return
		}
		fn(TriggerMessage{
			Namespace: ns, Name: name, Data: m.Data(), Stream: meta.Stream, Sequence: meta.Sequence.Stream, Time: meta.Timestamp,
			Delivered: meta.NumDelivered, Ack: m.DoubleAck, Retry: m.NakWithDelay,
		})
	}, jetstream.PullMaxMessages(triggerAhead))
	if err != nil {
		return nil, fault.Wrap(err, fault.Overloaded, "the stream cannot be read")
	}
	return func() {
		reading.Stop()
		<-reading.Closed()
	}, nil
}

// DropTrigger removes the durable consumer of a trigger that is gone.
func (c *Conn) DropTrigger(ctx context.Context, stream, ns, name string) error {
	js, err := jetstream.New(c.nc)
	if err != nil {
		return err
	}
	err = js.DeleteConsumer(ctx, stream, durableName(ns, name))
	if errors.Is(err, jetstream.ErrConsumerNotFound) || errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil
	}
	return err
}

// durableName is the name of a trigger's consumer: names may be longer, and have
// other letters, than JetStream takes.
func durableName(ns, name string) string {
	sum := sha256.Sum256([]byte(auth.TriggerSubject(ns, name)))
	return "flexiq-" + hex.EncodeToString(sum[:16])
}
