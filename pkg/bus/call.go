package bus

import (
	"context"
	"errors"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nuid"
	"google.golang.org/protobuf/proto"

	"flexiq/pkg/auth"
	"flexiq/pkg/fault"
	"flexiq/pkg/rpc"
)

// Headers of requests and replies.
const (
	headerTimeout     = "Fq-Timeout" // milliseconds, relative: clients' clocks are wrong
	headerContentType = "Content-Type"
	headerReason      = rpc.HeaderReason
	headerErrorCode   = "Nats-Service-Error-Code"
	headerError       = "Nats-Service-Error"
	headerStatus      = "Status" // nats-server's own
	noResponders      = "503"
)

// Call sends a request and waits for its answer, which it decodes into res.
// Without a deadline in ctx it waits for rpc.DefaultDeadline. Its errors are
// faults: what the service answered; PERMISSION_DENIED when the token may not
// publish to the subject; PAYLOAD_TOO_LARGE when the server's limit forbids
// the message; OVERLOADED when no service answers or there is no connection;
// DEADLINE_EXCEEDED. A request that fails for want of a connection is not sent
// later.
func (c *Conn) Call(ctx context.Context, subject string, req, res proto.Message) error {
	msg, err := Encode(ctx, req)
	if err != nil {
		return err
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, rpc.DefaultDeadline)
		defer cancel()
	}
	msg.Subject = subject
	reply, err := c.calls.roundTrip(ctx, msg)
	if err != nil {
		return err
	}
	return Decode(reply, res)
}

// Encode makes a request of a message: its body in protobuf, and the time that
// is left of ctx's deadline. The subject is still to be set.
func Encode(ctx context.Context, req proto.Message) (*nats.Msg, error) {
	if err := ctx.Err(); err != nil {
		return nil, fault.Of(err)
	}
	body, err := proto.Marshal(req)
	if err != nil {
		return nil, fault.Wrap(err, fault.InvalidRequest, "the request cannot be encoded: %v", err)
	}
	msg := &nats.Msg{Data: body, Header: nats.Header{headerContentType: {rpc.TypeProtobuf}}}
	if deadline, ok := ctx.Deadline(); ok {
		left := max(1, time.Until(deadline).Milliseconds())
		msg.Header[headerTimeout] = []string{strconv.FormatInt(left, 10)}
	}
	return msg, nil
}

// Decode reads an answer into res. An error that the service answered, and the
// absence of any service, come back as faults.
func Decode(msg *nats.Msg, res proto.Message) error {
	if isNoResponders(msg) {
		return fault.Wrap(ErrNoService, fault.Overloaded, "no process of the service %s answers now", serviceOf(res))
	}
	if msg.Header.Get(headerErrorCode) != "" {
		return decodeError(msg)
	}
	if err := proto.Unmarshal(msg.Data, res); err != nil {
		return fault.Wrap(err, fault.Internal, "the answer cannot be decoded")
	}
	return nil
}

// ErrNoService is the cause of the error of a call that reached nobody.
var ErrNoService = errors.New("nobody listens for the request")

// serviceOf is the service, by the name of its processes, that gives an answer.
func serviceOf(res proto.Message) string {
	m, _ := auth.MethodNamed(strings.TrimSuffix(string(res.ProtoReflect().Descriptor().Name()), "Response"))
	switch m.Service {
	case auth.ProducerService:
		return "admission"
	case auth.WorkerService:
		return "dispatchgate"
	}
	return "config"
}

// isNoResponders reports whether a message is the server's word that nobody
// listens where a message was sent.
func isNoResponders(msg *nats.Msg) bool {
	return len(msg.Data) == 0 && msg.Header.Get(headerStatus) == noResponders
}

// connFault tells why nothing could be sent.
func (c *Conn) connFault(err error) error {
	nc := c.nc
	switch {
	case errors.Is(err, nats.ErrMaxPayload):
		limit := nc.MaxPayload()
		return fault.Wrap(err, fault.PayloadTooLarge, "the message is larger than the limit of %d bytes", limit).
			With("limit", strconv.FormatInt(limit, 10))
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return fault.Of(err)
	case c.Refused():
		return fault.Wrap(err, fault.Unauthenticated, "the token is not valid")
	}
	return fault.Wrap(err, fault.Overloaded, "there is no connection to NATS")
}

// mux carries all calls of a connection over one inbox.
type mux struct {
	conn *Conn

	mu      sync.Mutex
	inbox   string // with a closing dot
	sub     *nats.Subscription
	next    uint64
	pending map[string]*pending // by the last token of the reply subject
	watches map[*watch]struct{}
}

// pending is a call that waits.
type pending struct {
	subject string
	answer  chan answer // room for one
}

type answer struct {
	msg *nats.Msg
	err error
}

// watch waits for a permission violation.
type watch struct {
	subjects []string
	errs     chan error // room for one
}

func (m *mux) init(c *Conn) {
	m.conn = c
	m.pending = make(map[string]*pending)
	m.watches = make(map[*watch]struct{})
}

func (m *mux) roundTrip(ctx context.Context, msg *nats.Msg) (*nats.Msg, error) {
	p := &pending{subject: msg.Subject, answer: make(chan answer, 1)}
	token, err := m.add(p, msg)
	if err != nil {
		return nil, err
	}
	defer m.remove(token)
	if err := m.conn.nc.PublishMsg(msg); err != nil {
		return nil, m.conn.connFault(err)
	}
	select {
	case a := <-p.answer:
		return a.msg, a.err
	case <-ctx.Done():
		return nil, fault.Of(ctx.Err())
	}
}

// add gives a call its reply subject, and the connection its inbox.
func (m *mux) add(p *pending, msg *nats.Msg) (token string, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.sub == nil {
		m.inbox = m.conn.prefix + "." + nuid.Next() + "."
		if m.sub, err = m.conn.nc.Subscribe(m.inbox+"*", m.receive); err != nil {
			m.sub = nil
			return "", m.conn.connFault(err)
		}
	}
	m.next++
	token = strconv.FormatUint(m.next, 36)
	msg.Reply = m.inbox + token
	m.pending[token] = p
	return token, nil
}

func (m *mux) remove(token string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.pending, token)
}

func (m *mux) receive(msg *nats.Msg) {
	token := msg.Subject[strings.LastIndexByte(msg.Subject, '.')+1:]
	m.mu.Lock()
	p := m.pending[token]
	delete(m.pending, token)
	m.mu.Unlock()
	if p != nil {
		p.answer <- answer{msg: msg} // the only one, for p was in the map
	}
}

// failAll fails every call that waits.
func (m *mux) failAll(err error) { m.fail(err, func(string) bool { return true }) }

func (m *mux) fail(err error, matches func(subject string) bool) (failed int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for token, p := range m.pending {
		if matches(p.subject) {
			delete(m.pending, token)
			p.answer <- answer{err: err}
			failed++
		}
	}
	return failed
}

// denied takes a permission violation to the calls that it concerns, and
// reports whether there were any.
func (m *mux) denied(cause error) bool {
	action, subject := parseViolation(cause.Error())
	if action == "subscription" {
		err := fault.Wrap(cause, fault.PermissionDenied, "the token may not subscribe to %s", subject)
		return m.tell(err, subject) > 0 || m.inboxDenied(cause, subject)
	}
	err := fault.Wrap(cause, fault.PermissionDenied, "the token may not publish to %s", subject)
	failed := m.fail(err, func(s string) bool { return s == subject })
	return failed+m.tell(err, subject) > 0
}

// tell tells those who watch a subject.
func (m *mux) tell(err error, subject string) (told int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for w := range m.watches {
		if slices.Contains(w.subjects, subject) {
			select {
			case w.errs <- err:
			default:
			}
			told++
		}
	}
	return told
}

// inboxDenied handles a refused inbox: no answer can come.
func (m *mux) inboxDenied(cause error, subject string) bool {
	m.mu.Lock()
	ours := m.sub != nil && subject == m.inbox+"*"
	if ours {
		m.sub = nil
	}
	m.mu.Unlock()
	if ours {
		m.failAll(fault.Wrap(cause, fault.PermissionDenied, "the token may not receive replies at %s", subject))
	}
	return ours
}

var violation = regexp.MustCompile(`(?i)violation for (publish|subscription) to "([^"]*)"`)

// parseViolation reads the server's text, such as
// `Permissions Violation for Publish to "a.b"`.
func parseViolation(text string) (action, subject string) {
	m := violation.FindStringSubmatch(text)
	if m == nil {
		return "", ""
	}
	return strings.ToLower(m[1]), m[2]
}

// Denied tells when the server forbids a publish or a subscription to one of
// the subjects. stop ends the watch; the channel is not closed.
func (c *Conn) Denied(subjects ...string) (errs <-chan error, stop func()) {
	w := &watch{subjects: subjects, errs: make(chan error, 1)}
	c.calls.mu.Lock()
	c.calls.watches[w] = struct{}{}
	c.calls.mu.Unlock()
	return w.errs, func() {
		c.calls.mu.Lock()
		delete(c.calls.watches, w)
		c.calls.mu.Unlock()
	}
}
