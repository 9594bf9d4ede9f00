package client

import (
	"context"
	"os"
	"path/filepath"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/auth"
	"flexiq/pkg/bus"
	"flexiq/pkg/fault"
)

// withdrawTimeout bounds how long the server may take to confirm that a poll's
// inbox is gone.
const withdrawTimeout = 2 * time.Second

// natsTransport speaks protobuf over NATS.
type natsTransport struct {
	conn     *bus.Conn
	server   string
	subjects map[string]string // of each method, for the token
}

func dialNATS(ctx context.Context, opts Options, parts auth.Parts) (*natsTransport, error) {
	name := opts.Name
	if name == "" {
		name = filepath.Base(os.Args[0])
	}
	if opts.CAFile != "" {
		if _, err := readCAs(opts.CAFile); err != nil {
			return nil, err
		}
	}
	conn, err := bus.Connect(ctx, bus.Options{URL: opts.Server, Name: name, Token: opts.Token, CAFile: opts.CAFile, Log: opts.Log})
	if err != nil {
		return nil, dialFault(ctx, opts.Server, err)
	}
	t := &natsTransport{conn: conn, server: opts.Server, subjects: make(map[string]string, len(auth.Methods))}
	for _, m := range auth.Methods {
		t.subjects[m.Name] = bus.Subject(m.Verb, parts.NSToken, parts.ID)
	}
	return t, nil
}

func (t *natsTransport) call(ctx context.Context, method string, req, res proto.Message) error {
	return t.fault(t.conn.Call(ctx, t.subjects[method], req, res))
}

// poll has an inbox of its own. NATS has no way to take a request back, but the
// gate undoes a claim whose answer finds no inbox. So a poll is withdrawn by
// removing its inbox, and once the server has confirmed that, an answer has
// either arrived here or never will.
func (t *natsTransport) poll(ctx context.Context, req *flexiqv1.ClaimRequest) (*flexiqv1.ClaimResponse, error) {
	msg, err := bus.Encode(ctx, req)
	if err != nil {
		return nil, err
	}
	nc := t.conn.Raw()
	answers := make(chan *nats.Msg, 1)
	msg.Subject, msg.Reply = t.subjects["Claim"], t.conn.NewInbox()
	sub, err := nc.ChanSubscribe(msg.Reply, answers)
	if err != nil {
		return nil, t.unsent(err)
	}
	denied, stop := t.conn.Denied(msg.Subject)
	defer stop()
	broken := nc.StatusChanged(nats.RECONNECTING, nats.CLOSED)
	defer nc.RemoveStatusListener(broken)
	if err := nc.PublishMsg(msg); err != nil {
		_ = sub.Unsubscribe() // fails only when the connection is closed
		return nil, t.unsent(err)
	}
	select {
	case answer := <-answers:
		_ = sub.Unsubscribe()
		return claimed(answer)
	case <-ctx.Done():
		err = ctx.Err()
	case err = <-denied:
	case <-broken:
		err = fault.New(Unreachable, "the connection to NATS broke before the answer came")
	}
	t.withdraw(ctx, sub)
	select {
	case answer := <-answers:
		return claimed(answer)
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
func (t *natsTransport) withdraw(ctx context.Context, sub *nats.Subscription) {
	nc := t.conn.Raw()
	if nc.IsConnected() && sub.Drain() == nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), withdrawTimeout)
		defer cancel()
		// When it fails the connection has broken, and the inbox with it.
		_ = nc.FlushWithContext(ctx)
	}
	_ = sub.Unsubscribe()
}

func claimed(answer *nats.Msg) (*flexiqv1.ClaimResponse, error) {
	res := new(flexiqv1.ClaimResponse)
	if err := bus.Decode(answer, res); err != nil {
		return nil, err
	}
	return res, nil
}

// met: there was a connection, or there would be no transport.
func (t *natsTransport) met() bool { return true }

func (t *natsTransport) maxMessage() int { return int(t.conn.Raw().MaxPayload()) }

func (t *natsTransport) close(ctx context.Context) error {
	t.conn.Close(ctx)
	return nil
}
