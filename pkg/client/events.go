package client

import (
	"context"
	"iter"
	"time"

	"connectrpc.com/connect"
	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/events"
	"flexiq/pkg/fault"
)

// WatchEvents hears what happens in the namespace. It returns when events are
// heard, and the sequence, which can be ranged over once, ends without an error
// when ctx does. An error ends it too: OVERLOADED when events came faster than
// they were taken, [Unreachable] when the connection broke. Events between two
// watches are lost; the store is the truth.
func (a Admin) WatchEvents(ctx context.Context, req *flexiqv1.WatchEventsRequest) (iter.Seq2[*flexiqv1.Event, error], error) {
	ctx, cancel := context.WithCancel(ctx)
	next, err := a.c.wire.watch(ctx, req)
	if err != nil {
		cancel()
		return nil, fault.Of(err)
	}
	return func(yield func(*flexiqv1.Event, error) bool) {
		defer cancel()
		for {
			e, err := next()
			switch {
			case ctx.Err() != nil:
				return
			case err != nil:
				yield(nil, fault.Of(err))
				return
			case e != nil && !yield(e, nil):
				return
			}
		}
	}, nil
}

// lateEvery is how often one who hears nothing looks whether something was missed.
const lateEvery = time.Second

// watch subscribes to the namespace's events. The server notices a listener
// within a moment, so the first events may be missed where it runs outside of
// flexiqd.
func (t *natsTransport) watch(ctx context.Context, req *flexiqv1.WatchEventsRequest) (func() (*flexiqv1.Event, error), error) {
	filter, err := events.NewFilter(req)
	if err != nil {
		return nil, err
	}
	subjects := filter.Subjects(t.nsToken)
	denied, stop := t.conn.Denied(subjects...)
	broken := t.conn.Raw().StatusChanged(nats.RECONNECTING, nats.CLOSED)
	end := func() {
		stop()
		t.conn.Raw().RemoveStatusListener(broken)
	}
	heard, err := t.conn.ListenEvents(t.nsToken, filter)
	if err != nil {
		end()
		return nil, t.fault(err)
	}
	context.AfterFunc(ctx, func() {
		heard.Stop()
		end()
	})
	return func() (*flexiqv1.Event, error) { return nextEvent(ctx, heard, filter, denied, broken) }, nil
}

// nextEvent waits for an event. Nil is none yet.
func nextEvent(
	ctx context.Context, heard *events.Listener, filter events.Filter, denied <-chan error, broken <-chan nats.Status,
) (*flexiqv1.Event, error) {
	look := time.NewTimer(lateEvery)
	defer look.Stop()
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case err := <-denied:
		return nil, err
	case <-broken:
		return nil, fault.New(Unreachable, "the connection to NATS broke, and events may have been missed")
	case <-look.C:
		if heard.Late() {
			return nil, events.TooLate()
		}
		return nil, nil
	case msg := <-heard.C:
		if heard.Late() {
			return nil, events.TooLate()
		}
		e, err := events.Decode(msg.Data)
		if err != nil || !filter.Matches(e) {
			return nil, nil // one that cannot be read is of a newer version
		}
		return e, nil
	}
}

// watch reads the stream of the method. Its first message says that it has begun.
func (t *httpTransport) watch(ctx context.Context, req *flexiqv1.WatchEventsRequest) (func() (*flexiqv1.Event, error), error) {
	text, err := proto.Marshal(req)
	if err != nil {
		return nil, err
	}
	call := connect.NewRequest(&body{bytes: text})
	call.Header().Set("Authorization", "Bearer "+t.token)
	stream, err := t.methods["WatchEvents"].CallServerStream(ctx, call)
	if err != nil {
		return nil, httpFault(ctx, t.server, err)
	}
	next := func() (*flexiqv1.Event, error) {
		if !stream.Receive() {
			if err := stream.Err(); err != nil {
				return nil, httpFault(ctx, t.server, err)
			}
			return nil, fault.New(Unreachable, "the server ended the stream, and events may have been missed")
		}
		res := new(flexiqv1.WatchEventsResponse)
		if err := proto.Unmarshal(stream.Msg().bytes, res); err != nil {
			return nil, err
		}
		return res.GetEvent(), nil
	}
	if _, err := next(); err != nil {
		_ = stream.Close() // it has failed already
		return nil, err
	}
	t.reached.Store(true)
	return next, nil // it ends with ctx
}
