package client

import (
	"context"
	"net/http"
	"net/url"
	"time"

	"github.com/rs/zerolog"
	"google.golang.org/protobuf/proto"

	"flexiq/pkg/auth"
	"flexiq/pkg/batch"
	"flexiq/pkg/fault"
)

// DefaultServer is where a client looks for FlexiQ when nothing says otherwise.
const DefaultServer = "nats://127.0.0.1:4222"

// Defaults of [Options].
const (
	DefaultTimeout  = 30 * time.Second
	DefaultRetryFor = 15 * time.Second
)

// Options say where the server is and how to behave towards it. Only Token
// must be set.
type Options struct {
	// Server is the address: nats:// or tls:// for NATS, several separated by
	// commas, or http:// or https:// for HTTP. Empty: [DefaultServer].
	Server string

	// Token is the caller's token, fqt.<namespace>.<id>.<secret>.
	Token string

	// CAFile is a file with the CA certificates (PEM) by which the server is
	// known; with one, the connection is made with TLS or not at all. Empty: the
	// system's. It does not concern an HTTP client of one's own.
	CAFile string

	// Name is what the connection is called in the NATS server's lists. Empty:
	// the name of the program.
	Name string

	// Timeout bounds calls whose context has no deadline. 0: [DefaultTimeout].
	Timeout time.Duration

	// RetryFor is how long a call goes on being repeated while the server is
	// unavailable or its outcome is unknown, within the call's deadline. 0:
	// [DefaultRetryFor]; negative: nothing is repeated.
	RetryFor time.Duration

	// RetryRefusals makes an enqueue that a quota refused wait as long as the
	// refusal advises and try again, until its deadline. One that can never
	// pass is not tried again.
	RetryRefusals bool

	// HTTP carries the requests to an http:// server. Nil: a client of its own
	// that keeps connections for many concurrent calls.
	HTTP *http.Client

	// Log tells of what no call returns, such as reconnects. The zero value is
	// silent.
	Log zerolog.Logger
}

// Client speaks to one server with one token. Make one with [Dial].
type Client struct {
	opts  Options
	parts auth.Parts
	wire  transport
	units *batch.Group[*unit, *answer]
}

// Dial connects with a token. Over NATS it waits for the connection, and fails
// with UNAUTHENTICATED when the token is not accepted and with [Unreachable]
// when there is no server. Over HTTP the first call is the first contact and
// fails so; what has answered once is waited for from then on.
func Dial(ctx context.Context, opts Options) (*Client, error) {
	opts = opts.withDefaults()
	parts, err := auth.Parse(opts.Token)
	if err != nil {
		return nil, fault.Invalid("token", "%v", err)
	}
	wire, err := dialTransport(ctx, opts, parts)
	if err != nil {
		return nil, err
	}
	return newClient(opts, parts, wire), nil
}

func (o Options) withDefaults() Options {
	if o.Server == "" {
		o.Server = DefaultServer
	}
	if o.Timeout == 0 {
		o.Timeout = DefaultTimeout
	}
	if o.RetryFor == 0 {
		o.RetryFor = DefaultRetryFor
	}
	return o
}

// dialTransport chooses the transport by the address.
func dialTransport(ctx context.Context, opts Options, parts auth.Parts) (transport, error) {
	u, err := url.Parse(opts.Server)
	if err != nil {
		return nil, fault.Invalid("server", "must be an address such as %s or http://127.0.0.1:8080", DefaultServer)
	}
	switch u.Scheme {
	case "nats", "tls":
		return dialNATS(ctx, opts, parts)
	case "http", "https":
		return dialHTTP(opts)
	}
	return nil, fault.Invalid("server", "must start with nats://, tls://, http:// or https://")
}

func newClient(opts Options, parts auth.Parts, wire transport) *Client {
	c := &Client{opts: opts, parts: parts, wire: wire}
	c.units = c.newGroup()
	return c
}

// TokenID is the id of the client's token, as the audit trail names it.
func (c *Client) TokenID() string { return c.parts.ID }

// Close sends what was handed in, waits for its answers until ctx ends, and
// closes the connection. No call may follow.
func (c *Client) Close(ctx context.Context) error {
	err := c.units.Close(ctx)
	if werr := c.wire.close(ctx); err == nil {
		err = werr
	}
	return err
}

// bound gives a context a deadline when it has none.
func (c *Client) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, c.opts.Timeout)
}

// message is a pointer to the generated type Of.
type message[Of any] interface {
	*Of
	proto.Message
}

// read makes a call that changes nothing, or the same thing when it is
// repeated, and repeats it while the server is unavailable.
func read[Res any, P message[Res]](ctx context.Context, c *Client, method string, req proto.Message) (*Res, error) {
	ctx, cancel := c.bound(ctx)
	defer cancel()
	var res *Res
	err := c.repeat(ctx, func(ctx context.Context) error {
		res = new(Res)
		return patiently(ctx, func(ctx context.Context) error { return c.wire.call(ctx, method, req, P(res)) })
	})
	if err != nil {
		return nil, err
	}
	return res, nil
}

// write makes a call once.
func write[Res any, P message[Res]](ctx context.Context, c *Client, method string, req proto.Message) (*Res, error) {
	ctx, cancel := c.bound(ctx)
	defer cancel()
	res := new(Res)
	if err := c.wire.call(ctx, method, req, P(res)); err != nil {
		return nil, fault.Of(err)
	}
	return res, nil
}
