package rpc

import (
	"context"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	"github.com/rs/zerolog"
	"google.golang.org/protobuf/proto"

	"flexiq/pkg/auth"
	"flexiq/pkg/fault"
)

// DefaultMaxBytes bounds a request's body, compressed or not.
const DefaultMaxBytes = 8 << 20

// HandlerOptions configure [Handler]. The zero value serves with defaults and
// logs and counts nothing.
type HandlerOptions struct {
	Log      zerolog.Logger
	Metrics  *Metrics
	MaxBytes int // of a request's body; 0: DefaultMaxBytes
	MaxCalls int // being worked on at once, long polls apart; 0: the constant MaxCalls

	// TransferTimeout bounds how long a client may take to send a request's
	// body, and to read the answer. 0: a minute.
	TransferTimeout time.Duration
}

// Handler serves methods over gRPC, gRPC-Web and HTTP with JSON, below
// "/flexiq.v1.", and gRPC reflection of their services, below
// "/grpc.reflection.". Every request needs a token. A method that is not among
// the given ones, because its service runs elsewhere, answers UNIMPLEMENTED.
func Handler(methods []Method, ids *auth.Verifier, o HandlerOptions) http.Handler {
	if o.MaxBytes == 0 {
		o.MaxBytes = DefaultMaxBytes
	}
	if o.MaxCalls == 0 {
		o.MaxCalls = MaxCalls
	}
	if o.TransferTimeout == 0 {
		o.TransferTimeout = time.Minute
	}
	d := &door{
		ids:     ids,
		vigil:   auth.NewVigil(ids),
		opts:    o,
		errors:  connect.NewErrorWriter(),
		log:     NewFaultLog(o.Log),
		calls:   NewBounds(o.MaxCalls, MaxBytes*4),
		polls:   NewBounds(MaxPolls, MaxBytes*4),
		streams: NewBounds(MaxStreams, MaxBytes),
		served:  make(map[string]*route, len(methods)),
	}
	for _, m := range methods {
		r := &route{method: m}
		if m.Stream {
			r.handler = d.newStream(r)
		} else {
			r.handler = connect.NewUnaryHandler(m.Procedure(), r.call, d.options(m)...)
		}
		d.served[m.Procedure()] = r
	}
	d.reflection = reflection(methods)
	return d
}

// door is the HTTP door.
type door struct {
	ids     *auth.Verifier
	vigil   *auth.Vigil
	opts    HandlerOptions
	errors  *connect.ErrorWriter
	log     *FaultLog
	calls   *Bounds
	polls   *Bounds
	streams *Bounds
	served  map[string]*route

	reflection http.Handler
}

// route is one method behind the door.
type route struct {
	method  Method
	handler http.Handler
}

// visit is one request on its way through the door.
type visit struct {
	conn     *http.ResponseController
	transfer time.Duration
	id       auth.Identity
	req, res proto.Message // res: the answer to be written
	fault    *fault.Error
	reached  bool // the method's route has answered; else connect could not read the message
	head     head
	status   int // of a refusal, 0: the fault's own
}

type visitKey struct{}

// within gives the client a time for its part of the transfer; 0 takes the
// limit away. A client that sends or reads a byte a second would otherwise hold
// its place for ever. The time in which the method works is not limited here.
func (v *visit) within(d time.Duration) {
	var deadline time.Time
	if d > 0 {
		deadline = time.Now().Add(d)
	}
	// Only a ResponseWriter that has no connection lacks these.
	_ = v.conn.SetReadDeadline(deadline)
	_ = v.conn.SetWriteDeadline(deadline)
}

// ServeHTTP implements http.Handler.
func (d *door) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if isReflection(r) {
		d.reflect(w, r)
		return
	}
	start := time.Now()
	doorName := doorOf(r)
	if doorName == auth.DoorHTTP {
		w = &errorText{ResponseWriter: w}
	}
	route := d.served[r.URL.Path]
	name := "unknown" // a path is the caller's text, not a label
	if route != nil {
		name = route.method.Name
	}
	v := &visit{transfer: d.opts.TransferTimeout}
	f := d.admit(w, r, v, route, doorName)
	if f != nil {
		if v.status != 0 {
			w = withStatus{w, v.status}
		}
		d.refuse(w, r, f)
	} else if f = v.fault; !v.reached {
		f = fault.New(fault.InvalidRequest, "the message could not be read")
	}
	code := ""
	if f != nil {
		code = string(f.Reason.Code())
		d.log.Write(name, doorName, f)
	}
	if route != nil && route.method.Stream {
		d.opts.Metrics.Count(name, doorName, code) // it lasts as long as its client wants
		return
	}
	d.opts.Metrics.Observe(name, doorName, code, time.Since(start))
}

// admit takes a request up to its answer. A fault is what still has to be
// answered.
func (d *door) admit(w http.ResponseWriter, r *http.Request, v *visit, route *route, doorName string) *fault.Error {
	id, err := d.ids.Verify(r.Context(), bearer(r), r.RemoteAddr)
	if err != nil {
		return fault.Of(err)
	}
	v.id = id
	v.conn = http.NewResponseController(w)
	v.within(v.transfer)
	defer v.within(0)
	body := limitBody(r, d.opts.MaxBytes)
	defer body.Close()
	if route == nil {
		return fault.New(fault.Unimplemented, "this process does not serve %s", quoted(r.URL.Path))
	}
	var f *fault.Error
	if v.head, v.status, f = readHead(r, doorName, route.method.Stream); f != nil {
		return f
	}
	if r.ContentLength > int64(d.opts.MaxBytes) {
		return tooLarge(d.opts.MaxBytes)
	}
	bounds := d.calls
	switch {
	case route.method.LongPoll:
		bounds = d.polls
	case route.method.Stream:
		bounds = d.streams
	}
	size := max(r.ContentLength, 0)
	if !bounds.Enter(id.Namespace, size) {
		return fault.New(fault.Overloaded, "too many calls are in flight")
	}
	defer bounds.Leave(id.Namespace, size)

	ctx := auth.WithCaller(context.WithValue(r.Context(), visitKey{}, v), id, doorName)
	r = r.WithContext(ctx)
	if r.Body = body; v.head.gzip {
		r.Body, r.ContentLength = inflated(body, d.opts.MaxBytes), -1
	}
	if route.method.LongPoll || route.method.Stream {
		var end context.CancelFunc
		ctx, end = d.vigil.Keep(ctx, id)
		defer end()
		r = r.WithContext(ctx)
	}
	route.handler.ServeHTTP(w, r)
	if v.res != nil && r.Context().Err() != nil {
		// The client left before its answer was out: nobody has it.
		route.method.Undelivered(id, v.req, v.res)
	}
	return nil
}

// refuse writes an error in the form of the request's protocol, which over HTTP
// is the one of a single answer but for a stream of connect's own.
func (d *door) refuse(w http.ResponseWriter, r *http.Request, f *fault.Error) {
	route := d.served[r.URL.Path]
	framed := route != nil && route.method.Stream && framedByConnect(r)
	if doorOf(r) == auth.DoorHTTP && !framed {
		r.Header.Set("Content-Type", TypeJSON)
	}
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
	}
	if f.Reason == fault.Unauthenticated {
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	_ = d.errors.Write(w, r, connectError(f)) // a write fails when the client is gone
}

func (d *door) options(m Method) []connect.HandlerOption {
	return []connect.HandlerOption{
		connect.WithCodec(wireCodec{JSON, "json"}),
		connect.WithCodec(wireCodec{Binary, "proto"}),
		connect.WithRequestInitializer(func(_ connect.Spec, msg any) error {
			msg.(*wire).msg = m.newRequest()
			return nil
		}),
		connect.WithCompressMinBytes(1024),
		limitedGzip(d.opts.MaxBytes),
	}
}

// call runs a method for connect.
func (r *route) call(ctx context.Context, in *connect.Request[wire]) (*connect.Response[wire], error) {
	v := ctx.Value(visitKey{}).(*visit)
	v.reached = true
	v.within(0)
	defer v.within(v.transfer)
	if !v.head.deadline.IsZero() {
		var end context.CancelFunc
		ctx, end = context.WithDeadline(ctx, v.head.deadline)
		defer end()
	}
	ctx, cancel := r.method.Context(ctx, 0)
	defer cancel()
	req, err := r.method.open(ctx, in.Msg.msg, in.Msg.err)
	if err == nil {
		err = context.Cause(ctx) // the body came too late
	}
	if err == nil {
		v.req = req
		v.res, err = r.method.await(ctx, v.id, req)
	}
	if err != nil {
		v.fault = fault.Of(err)
		return nil, connectError(v.fault)
	}
	return connect.NewResponse(&wire{msg: v.res}), nil
}

// await runs a method and waits for its answer. One that comes after the
// call's end is undelivered.
func (m Method) await(ctx context.Context, id auth.Identity, req proto.Message) (proto.Message, error) {
	type answer struct {
		res proto.Message
		err error
	}
	answers := make(chan answer, 1)
	var settled atomic.Bool // by whoever is first: the answer or the call's end
	m.Invoke(ctx, req, func(res proto.Message, err error) {
		if settled.CompareAndSwap(false, true) {
			answers <- answer{res, err}
		} else if err == nil {
			m.Undelivered(id, req, res)
		}
	})
	select {
	case a := <-answers:
		return a.res, a.err
	case <-ctx.Done():
		if settled.CompareAndSwap(false, true) {
			return nil, context.Cause(ctx)
		}
		a := <-answers
		return a.res, a.err
	}
}

func bearer(r *http.Request) string {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return strings.TrimSpace(token)
}

func doorOf(r *http.Request) string {
	if strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc") {
		return auth.DoorGRPC
	}
	return auth.DoorHTTP
}
