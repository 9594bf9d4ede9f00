package bus

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"flexiq/pkg/auth"
	"flexiq/pkg/fault"
	"flexiq/pkg/rpc"
)

const (
	// maxInline is the largest body, in bytes, that is decoded in the
	// subscription's own goroutine: longer ones would hold up the calls behind.
	maxInline = 64 << 10

	identifyTimeout = 2 * time.Second

	// lastMoment is what calls get to notice that their contexts have ended.
	lastMoment = time.Second

	// What a subscription may hold before nats.go drops. It is far beyond what
	// is ever held, for what is over the bounds is refused at once.
	pendingMsgs  = 1 << 18
	pendingBytes = 256 << 20
)

// Endpoints are the methods of one service, served. They are stopped by
// [Endpoints.Stop], or when the connection closes.
type Endpoints struct {
	conn    *Conn
	service string
	ids     *auth.Verifier
	vigil   *auth.Vigil
	calls   *rpc.Bounds
	polls   *rpc.Bounds
	pool    *pool
	dead    *deadLetters
	base    context.Context // of all calls; ended when a stop runs out of time
	cancel  context.CancelFunc

	subs    []*nats.Subscription
	drained sync.WaitGroup // one for each subscription
	flying  sync.WaitGroup // one for each call taken

	stopOnce sync.Once
	stopped  chan struct{}
}

// Serve answers requests for methods, together with every other process that
// serves the same service. It returns when the server knows the subscriptions.
func (c *Conn) Serve(service string, methods []rpc.Method, ids *auth.Verifier) (*Endpoints, error) {
	o := c.opts
	if o.MaxCalls == 0 {
		o.MaxCalls = rpc.MaxCalls
	}
	if o.MaxBytes == 0 {
		o.MaxBytes = rpc.MaxBytes
	}
	if o.Workers == 0 {
		o.Workers = defaultWorkers
	}
	e := &Endpoints{
		conn:    c,
		service: service,
		ids:     ids,
		vigil:   auth.NewVigil(ids),
		calls:   rpc.NewBounds(o.MaxCalls, o.MaxBytes),
		polls:   rpc.NewBounds(rpc.MaxPolls, o.MaxBytes),
		stopped: make(chan struct{}),
	}
	e.base, e.cancel = context.WithCancel(context.Background())
	e.pool = newPool(o.Workers, o.Log)
	if err := e.subscribe(methods); err != nil {
		e.abandon()
		return nil, c.connFault(err)
	}
	c.mu.Lock()
	c.served = append(c.served, e)
	c.mu.Unlock()
	return e, nil
}

func (e *Endpoints) subscribe(methods []rpc.Method) error {
	nc := e.conn.nc
	var err error
	if e.dead, err = listenForDead(e.conn, e.pool); err != nil {
		return err
	}
	for _, m := range methods {
		if m.Stream {
			continue // over NATS its subjects are subscribed to
		}
		in := &endpoint{Endpoints: e, method: m, prefix: len(auth.RequestPrefix + m.Verb + ".")}
		sub, err := nc.QueueSubscribe(Subject(m.Verb, "*", "*"), e.service, in.receive)
		if err != nil {
			return err
		}
		e.drained.Add(1)
		sub.SetClosedHandler(func(string) { e.drained.Done() })
		e.subs = append(e.subs, sub)
		if err := sub.SetPendingLimits(pendingMsgs, pendingBytes); err != nil {
			return err
		}
	}
	return flush(context.Background(), nc)
}

// abandon undoes a Serve that failed half-way.
func (e *Endpoints) abandon() {
	for _, s := range e.subs {
		_ = s.Unsubscribe() // fails when closed, and then it is unsubscribed
	}
	e.drained.Wait()
	e.flying.Wait()
	e.close()
}

func (e *Endpoints) close() {
	e.cancel()
	if e.dead != nil {
		e.dead.close()
	}
	e.pool.close()
}

// Stop takes no more requests, waits until every call that was taken is
// answered, and flushes. When ctx ends first, the contexts of the remaining
// calls are ended, and ctx's error is returned after a last moment. Stopping
// twice is safe. A service that lets calls wait must release them.
func (e *Endpoints) Stop(ctx context.Context) error {
	e.stopOnce.Do(func() { go e.drain() })
	select {
	case <-e.stopped:
		return nil
	case <-ctx.Done():
	}
	e.cancel()
	for _, s := range e.subs {
		_ = s.Unsubscribe() // fails when the drain has ended, and then it is unsubscribed
	}
	select {
	case <-e.stopped:
	case <-time.After(lastMoment):
	}
	return ctx.Err()
}

// drain ends with the last call.
func (e *Endpoints) drain() {
	for _, s := range e.subs {
		if !e.conn.nc.IsConnected() || s.Drain() != nil {
			_ = s.Unsubscribe() // no connection: there is nothing to drain
		}
	}
	e.drained.Wait()
	e.flying.Wait()
	if err := flush(context.Background(), e.conn.nc); err != nil && !errors.Is(err, nats.ErrConnectionClosed) {
		e.conn.opts.Log.Warn().Err(err).Str("service", e.service).Msg("the last answers may be lost")
	}
	e.close()
	close(e.stopped)
}

// endpoint is one method's subscription.
type endpoint struct {
	*Endpoints
	method rpc.Method
	prefix int // length of "fq.v1.<verb>."
}

// receive takes one request, in the subscription's goroutine: it must be short.
func (e *endpoint) receive(msg *nats.Msg) {
	start := time.Now()
	nsToken, tokenID, ok := strings.Cut(msg.Subject[e.prefix:], ".")
	if !ok {
		e.conn.metrics.drop(dropSubject)
		return
	}
	if msg.Reply == "" {
		if !e.method.Plain {
			e.conn.metrics.drop(dropNoReply)
			return
		}
	} else if !ownReply(msg.Reply, nsToken, tokenID) {
		e.conn.metrics.drop(dropReply)
		return
	}
	c := &call{endpoint: e, msg: msg, nsToken: nsToken, tokenID: tokenID, start: start}
	bounds := c.bounds()
	if !bounds.Enter(nsToken, int64(len(msg.Data))) {
		e.conn.metrics.overloaded.Inc()
		c.answer(nil, fault.New(fault.Overloaded, "too many calls are in flight"))
		return
	}
	e.flying.Add(1)
	c.entered = true
	if e.method.IsAsync() && len(msg.Data) <= maxInline {
		if id, known, err := e.ids.IdentifyNow(nsToken, tokenID); known {
			c.run(id, err)
			return
		}
	}
	e.pool.submit(c.identifyAndRun)
}

// ownReply reports whether a reply subject lies below the caller's inbox.
func ownReply(reply, nsToken, tokenID string) bool {
	rest, ok := strings.CutPrefix(reply, auth.InboxPrefix)
	if ok {
		rest, ok = strings.CutPrefix(rest, nsToken)
	}
	if ok {
		rest, ok = strings.CutPrefix(rest, ".")
	}
	if ok {
		rest, ok = strings.CutPrefix(rest, tokenID)
	}
	if ok {
		rest, ok = strings.CutPrefix(rest, ".")
	}
	return ok && rest != "" && !strings.ContainsAny(rest, "*> \t\r\n")
}

// timeout reads the caller's deadline.
func timeout(h nats.Header) (time.Duration, error) {
	text := h.Get(headerTimeout)
	if text == "" {
		return 0, nil
	}
	ms, err := strconv.ParseInt(text, 10, 64)
	if err != nil || ms <= 0 {
		return 0, fault.Invalid(headerTimeout, "must be a whole number of milliseconds above 0")
	}
	return time.Duration(min(ms, rpc.MaxDeadline.Milliseconds())) * time.Millisecond, nil
}
