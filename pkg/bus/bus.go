// Package bus is NATS as FlexiQ uses it: how to connect, how to serve methods
// and call them, and the hints that services give each other.
//
// Requests, replies and hints may all be lost; the store is the truth. What
// this package promises is that nothing is lost in silence: a request is
// answered, or refused at once, or the caller's deadline tells; and that
// nothing runs which nobody waits for any more. So nothing is buffered while
// disconnected, a full service says OVERLOADED, a reply that reaches nobody is
// told to its method, and a permission violation, which NATS reports apart
// from the request, fails the request.
//
// NATS checks what a client publishes to, and not where it asks for the reply.
// A service therefore works only for replies below the caller's own inbox.
//
// The package has four parts that share a connection and little else: calls
// (call.go), serving (serve.go and what it names), hints (hints.go) and events
// (events.go).
package bus

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"flexiq/pkg/auth"
	"flexiq/pkg/fault"
	"flexiq/pkg/rpc"
)

// Subject is where a token sends the requests of one verb.
func Subject(verb, nsToken, tokenID string) string { return auth.Subject(verb, nsToken, tokenID) }

// Inbox is the prefix, without a closing dot, below which a token receives replies.
func Inbox(nsToken, tokenID string) string { return auth.Inbox(nsToken, tokenID) }

// Options configure [Connect]. The zero value connects to a server without
// authentication on this host.
type Options struct {
	URL       string                     // servers, comma-separated; empty: nats://127.0.0.1:4222
	InProcess nats.InProcessConnProvider // connect to a server in this process instead of URL
	Name      string                     // of the connection, as the server's operators see it

	User, Password string
	Token          string // FlexiQ token; also decides the inbox when InboxPrefix is empty
	CredsFile      string // credentials with a JWT, or the seed of a user's NKey
	Seed           string // of a user's NKey, instead of a file
	CAFile         string // CA certificates (PEM) that the server must be known by; empty: TLS is the server's choice, and the system's CAs count

	// InboxPrefix is where replies come, without a closing dot. Empty: the
	// token's inbox, or without a token that of services.
	InboxPrefix string

	Log        zerolog.Logger
	Metrics    *rpc.Metrics          // counts served calls; nil: none
	Registerer prometheus.Registerer // of this package's own metrics; nil: none

	// Interest reports whether anybody subscribes to a subject. Nil: what the
	// server tells of messages that reach nobody has to do.
	Interest func(subject string) bool

	// MaxCalls and MaxBytes bound what one [Conn.Serve] has in flight, long
	// polls apart. 0: rpc.MaxCalls and rpc.MaxBytes.
	MaxCalls int
	MaxBytes int64
	// Workers bounds how many calls of methods that block run at once, for each
	// [Conn.Serve]. 0: 32.
	Workers int
}

const (
	pingInterval   = 5 * time.Second
	maxPingsOut    = 2
	connectTimeout = 5 * time.Second
	flushTimeout   = 2 * time.Second
	defaultWorkers = 32
)

// Conn is a connection to NATS. It reconnects for ever, until [Conn.Close]. It
// is safe for concurrent use.
type Conn struct {
	nc      *nats.Conn
	opts    Options
	prefix  string // of inboxes, without a closing dot
	metrics *metrics
	faults  *rpc.FaultLog
	calls   mux

	refusals refusals
	deafness deafness

	mu          sync.Mutex
	reconnected []func()
	served      []*Endpoints
	broken      chan struct{} // closed and replaced whenever the connection breaks
}

// Connect opens a connection. It waits until the connection stands or fails,
// at most as long as ctx allows: UNAUTHENTICATED when the server refuses the
// credentials, OVERLOADED when no server answers.
func Connect(ctx context.Context, o Options) (*Conn, error) {
	c := &Conn{
		opts: o, prefix: o.InboxPrefix, metrics: newMetrics(o.Registerer), faults: rpc.NewFaultLog(o.Log), broken: make(chan struct{}),
	}
	if c.prefix == "" {
		c.prefix = auth.ServiceInbox
		if o.Token != "" {
			parts, err := auth.Parse(o.Token)
			if err != nil {
				return nil, fault.Wrap(err, fault.Unauthenticated, "the token is not valid")
			}
			c.prefix = Inbox(parts.NSToken, parts.ID)
		}
	}
	timeout := connectTimeout
	if deadline, ok := ctx.Deadline(); ok {
		timeout = min(timeout, time.Until(deadline))
	}
	if err := ctx.Err(); err != nil {
		return nil, fault.Of(err)
	}
	if timeout <= 0 {
		return nil, fault.Of(context.DeadlineExceeded)
	}
	creds, err := o.creds()
	if err != nil {
		return nil, err
	}
	c.calls.init(c)
	nc, err := nats.Connect(o.url(), append(c.natsOptions(timeout), creds)...)
	switch {
	case errors.Is(err, nats.ErrAuthorization) && c.refusals.slow():
		return nil, fault.Wrap(err, fault.Overloaded, "nobody could check the token in time")
	case errors.Is(err, nats.ErrAuthorization), errors.Is(err, nats.ErrAuthExpired), errors.Is(err, nats.ErrAuthRevoked):
		return nil, fault.Wrap(err, fault.Unauthenticated, "the token is not valid")
	case err != nil:
		return nil, fault.Wrap(err, fault.Overloaded, "cannot connect to NATS")
	}
	c.nc = nc
	return c, nil
}

func (o Options) url() string {
	if o.URL == "" {
		return nats.DefaultURL
	}
	return o.URL
}

func (c *Conn) natsOptions(timeout time.Duration) []nats.Option {
	o := c.opts
	opts := []nats.Option{
		nats.Name(o.Name),
		nats.Timeout(timeout),
		nats.ReconnectBufSize(-1), // a request must not run after its caller gave up
		nats.MaxReconnects(-1),
		nats.ReconnectWait(250 * time.Millisecond),
		nats.ReconnectJitter(250*time.Millisecond, 500*time.Millisecond),
		nats.IgnoreAuthErrorAbort(),
		nats.PingInterval(pingInterval),
		nats.MaxPingsOutstanding(maxPingsOut),
		nats.CustomInboxPrefix(c.prefix),
		nats.ErrorHandler(c.asyncError),
		nats.DisconnectErrHandler(c.disconnected),
		nats.ReconnectHandler(c.onReconnected),
		nats.ClosedHandler(func(*nats.Conn) { c.breaks(); c.calls.failAll(errClosed()) }),
	}
	if o.InProcess != nil {
		opts = append(opts, nats.InProcessServer(o.InProcess))
	} else {
		c.refusals.Timeout = timeout
		opts = append(opts, nats.SetCustomDialer(&c.refusals))
	}
	if o.Token != "" {
		opts = append(opts, nats.Token(o.Token))
	}
	if o.User != "" {
		opts = append(opts, nats.UserInfo(o.User, o.Password))
	}
	if o.CAFile != "" {
		opts = append(opts, nats.RootCAs(o.CAFile))
	}
	return opts
}

// Raw is the connection of nats.go.
func (c *Conn) Raw() *nats.Conn { return c.nc }

// NewInbox makes a subject under which replies of one's own can be received.
func (c *Conn) NewInbox() string { return c.nc.NewInbox() }

// OnReconnect calls fn after each reconnection, when all subscriptions are
// known to the server again. It must not block for long.
func (c *Conn) OnReconnect(fn func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reconnected = append(c.reconnected, fn)
}

func (c *Conn) onReconnected(nc *nats.Conn) {
	c.refusals.sure.Store(false)
	c.opts.Log.Info().Msg("reconnected to NATS")
	if err := nc.FlushTimeout(flushTimeout); err != nil {
		return // disconnected again; the next reconnection calls
	}
	c.mu.Lock()
	hooks := c.reconnected
	c.mu.Unlock()
	for _, fn := range hooks {
		fn()
	}
}

func (c *Conn) disconnected(_ *nats.Conn, err error) {
	if err != nil {
		c.opts.Log.Warn().Err(err).Msg("disconnected from NATS")
	}
	c.breaks()
	c.calls.failAll(fault.Wrap(err, fault.Overloaded, "the connection to NATS broke before the answer came"))
}

// Broken returns a channel that is closed when the connection breaks or closes
// after the call. One that was broken a moment before may close it, too.
func (c *Conn) Broken() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.broken
}

func (c *Conn) breaks() {
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.broken)
	c.broken = make(chan struct{})
}

func (c *Conn) asyncError(_ *nats.Conn, sub *nats.Subscription, err error) {
	switch {
	case errors.Is(err, nats.ErrAuthorization):
		c.refusals.sure.Store(!c.refusals.slow())
	case errors.Is(err, nats.ErrPermissionViolation):
		if c.calls.denied(err) {
			return
		}
	case errors.Is(err, nats.ErrSlowConsumer) && sub != nil:
		c.metrics.drop(dropSlow)
	}
	event := c.opts.Log.Warn().Err(err)
	if sub != nil && strings.HasPrefix(sub.Subject, auth.EventPrefix) {
		event = c.opts.Log.Debug().Err(err) // a tenant that reads slowly must not fill the log
	}
	if sub != nil {
		event = event.Str("subject", sub.Subject)
	}
	event.Msg("NATS reports an error")
}

// Close ends the connection in order: endpoints stop, what is in flight is
// answered, everything is flushed. When ctx ends it closes at once. Closing
// twice is safe.
func (c *Conn) Close(ctx context.Context) {
	c.mu.Lock()
	served := c.served
	c.served = nil
	c.mu.Unlock()
	for _, e := range served {
		if err := e.Stop(ctx); err != nil {
			c.opts.Log.Warn().Err(err).Str("service", e.service).Msg("stopped before all calls were answered")
		}
	}
	if c.nc.IsConnected() {
		flush(ctx, c.nc)
	}
	c.nc.Close()
}

// flush waits until the server has everything, as long as ctx allows.
func flush(ctx context.Context, nc *nats.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, flushTimeout)
	defer cancel()
	return nc.FlushWithContext(ctx)
}

func errClosed() error { return fault.New(fault.Overloaded, "the connection to NATS is closed") }
