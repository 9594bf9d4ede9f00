package client

import (
	"context"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/bus"
	"flexiq/pkg/fault"
)

// withdrawTimeout bounds how long the server may take to confirm that a poll's
// inbox is gone.
const withdrawTimeout = 2 * time.Second

// inbox receives the answer of one poll at a time.
type inbox struct {
	subject string
	sub     *nats.Subscription
	answers chan *nats.Msg // room for one: a poll has one answer
	denied  <-chan error
	unwatch func()
}

// inboxes are those of polls that were answered, for the next ones: telling the
// server of each anew would cost it more than the poll.
type inboxes struct {
	mu   sync.Mutex
	free []*inbox
}

func (t *natsTransport) takeInbox() (*inbox, error) {
	t.inboxes.mu.Lock()
	if n := len(t.inboxes.free); n > 0 {
		in := t.inboxes.free[n-1]
		t.inboxes.free = t.inboxes.free[:n-1]
		t.inboxes.mu.Unlock()
		select {
		case <-in.denied: // of an earlier poll
		default:
		}
		return in, nil
	}
	t.inboxes.mu.Unlock()
	in := &inbox{subject: t.conn.NewInbox(), answers: make(chan *nats.Msg, 1)}
	var err error
	if in.sub, err = t.conn.Raw().ChanSubscribe(in.subject, in.answers); err != nil {
		return nil, t.unsent(err)
	}
	in.denied, in.unwatch = t.conn.Denied(t.subjects["Claim"])
	return in, nil
}

func (t *natsTransport) keepInbox(in *inbox) {
	t.inboxes.mu.Lock()
	defer t.inboxes.mu.Unlock()
	t.inboxes.free = append(t.inboxes.free, in)
}

// drop forgets an inbox for which nothing can be on its way any more, or
// whose poll was never sent.
func (in *inbox) drop() {
	in.unwatch()
	_ = in.sub.Unsubscribe() // fails only when the connection is closed
}

// poll has an inbox to itself. NATS has no way to take a request back, but the
// gate undoes a claim whose answer finds no inbox. So a poll is withdrawn by
// removing its inbox, and once the server has confirmed that, an answer has
// either arrived here or never will.
func (t *natsTransport) poll(ctx context.Context, req *flexiqv1.ClaimRequest) (*flexiqv1.ClaimResponse, error) {
	msg, err := bus.Encode(ctx, req)
	if err != nil {
		return nil, err
	}
	in, err := t.takeInbox()
	if err != nil {
		return nil, err
	}
	broken := t.conn.Broken()
	msg.Subject, msg.Reply = t.subjects["Claim"], in.subject
	if err := t.conn.Raw().PublishMsg(msg); err != nil {
		in.drop()
		return nil, t.unsent(err)
	}
	select {
	case answer := <-in.answers:
		t.keepInbox(in)
		return t.claimed(answer)
	case <-ctx.Done():
		err = ctx.Err()
	case err = <-in.denied:
	case <-broken:
		err = fault.New(Unreachable, "the connection to NATS broke before the answer came")
	}
	t.withdraw(ctx, in)
	select {
	case answer := <-in.answers:
		return t.claimed(answer)
	default:
		return nil, fault.Of(err)
	}
}

// unsent tells why a poll could not be sent.
func (t *natsTransport) unsent(err error) error {
	if t.conn.Refused() {
		return fault.Wrap(err, fault.Unauthenticated, "the token is not valid")
	}
	return unreachable(t.server, unsent{err})
}

// withdraw removes an inbox at the server while messages for it still arrive.
// When the connection is down the server has removed it already.
func (t *natsTransport) withdraw(ctx context.Context, in *inbox) {
	nc := t.conn.Raw()
	if nc.IsConnected() && in.sub.Drain() == nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), withdrawTimeout)
		defer cancel()
		// When it fails the connection has broken, and the inbox with it.
		_ = nc.FlushWithContext(ctx)
	}
	in.drop()
}

func (t *natsTransport) claimed(answer *nats.Msg) (*flexiqv1.ClaimResponse, error) {
	res := new(flexiqv1.ClaimResponse)
	if err := bus.Decode(answer, res); err != nil {
		return nil, t.fault(err)
	}
	return res, nil
}
