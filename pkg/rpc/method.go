// Package rpc turns a service's methods into something that every door can
// serve in the same way, and is the HTTP door itself.
//
// A [Method] is made of a plain Go function by [Unary], [Async] or [Stream]. Package bus
// serves it over NATS; [Handler] serves it over gRPC, gRPC-Web and HTTP with
// JSON, all three through package connect. Both doors take the same three
// steps in the same order: they authenticate the caller, [Method.Open] checks
// its scope and decodes the body, and [Method.Invoke] runs the function. So an
// outcome cannot differ between doors.
//
// Functions return errors of package fault; anything else is shown as an
// internal error. What caused an error is logged once, at the door, and never
// shown.
//
// The package is larger than most because it holds everything that the doors
// share and that must not differ between them: the forms of a body with their
// strictness, the form of an error, the bounds.
package rpc

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	"flexiq/pkg/auth"
	"flexiq/pkg/fault"
)

// Deadlines of calls.
const (
	DefaultDeadline = 30 * time.Second // when the caller names none
	PollDeadline    = 75 * time.Second // when the caller names none and the call waits, at most 60 s
	MaxDeadline     = 10 * time.Minute // whatever the caller names
)

// Method is one served method. Make it with [Unary], [Async] or [Stream].
type Method struct {
	auth.Method
	deadline    time.Duration
	async       bool
	newRequest  func() proto.Message
	start       func(ctx context.Context, req proto.Message, done func(proto.Message, error))
	follow      func(ctx context.Context, req proto.Message, send func(proto.Message) error) error // of a stream, in place of start
	undelivered func(id auth.Identity, req, res proto.Message)
	refused     func(ctx context.Context, method string, req proto.Message, err error)
}

// protoPtr says that a pointer to T is a protobuf message.
type protoPtr[T any] interface {
	*T
	proto.Message
}

// Option adds to a method.
type Option func(*Method)

// Unary makes a method of a function that may block. name is the method's in
// [auth.Methods]; one that is not there is a mistake of the program and panics.
func Unary[Req, Res any, PReq protoPtr[Req], PRes protoPtr[Res]](
	name string, fn func(context.Context, *Req) (*Res, error), opts ...Option,
) Method {
	m := newMethod(name, func() proto.Message { return PReq(new(Req)) }, opts)
	m.start = func(ctx context.Context, req proto.Message, done func(proto.Message, error)) {
		res, err := fn(ctx, (*Req)(req.(PReq)))
		done(result[Res, PRes](res, err))
	}
	return m
}

// Async makes a method of a function that must not block. It calls done
// exactly once, from any goroutine, before or after it returns. The context
// ends when done is called.
func Async[Req, Res any, PReq protoPtr[Req], PRes protoPtr[Res]](
	name string, start func(ctx context.Context, req *Req, done func(*Res, error)), opts ...Option,
) Method {
	m := newMethod(name, func() proto.Message { return PReq(new(Req)) }, opts)
	m.async = true
	m.start = func(ctx context.Context, req proto.Message, done func(proto.Message, error)) {
		start(ctx, (*Req)(req.(PReq)), func(res *Res, err error) { done(result[Res, PRes](res, err)) })
	}
	return m
}

func newMethod(name string, newRequest func() proto.Message, opts []Option) Method {
	entry, ok := auth.MethodNamed(name)
	if !ok {
		panic(fmt.Sprintf("rpc: %q is not a method of the catalogue", name))
	}
	deadline := DefaultDeadline
	if entry.LongPoll {
		deadline = PollDeadline
	}
	m := Method{Method: entry, deadline: deadline, newRequest: newRequest}
	for _, o := range opts {
		o(&m)
	}
	return m
}

// result keeps a nil *Res from becoming a message that is not nil.
func result[Res any, PRes protoPtr[Res]](res *Res, err error) (proto.Message, error) {
	switch {
	case err != nil:
		return nil, err
	case res == nil:
		return nil, fault.Wrap(errors.New("the method answered neither a result nor an error"), fault.Internal, "internal error")
	}
	return PRes(res), nil
}

// OnUndelivered is called when a successful reply reached nobody: over NATS
// its inbox was dead, over HTTP the request ended before the reply was
// written. It must not block for long.
func OnUndelivered[Req, Res any](fn func(id auth.Identity, req *Req, res *Res)) Option {
	return func(m *Method) {
		m.undelivered = func(id auth.Identity, req, res proto.Message) {
			fn(id, any(req).(*Req), any(res).(*Res))
		}
	}
}

// OnRefused is called when the door refuses a caller that it knows, for its
// scopes or for a body that cannot be read; req is nil when the body was not
// decoded. The caller is in the context.
func OnRefused(fn func(ctx context.Context, method string, req proto.Message, err error)) Option {
	return func(m *Method) { m.refused = fn }
}

// IsAsync reports whether the method was made by [Async]: it does not block.
func (m Method) IsAsync() bool { return m.async }

// HearsUndelivered reports whether somebody listens for replies that reach nobody.
func (m Method) HearsUndelivered() bool { return m.undelivered != nil }

// Context gives a call its deadline: timeout when it is positive, else ctx's
// own, else the method's default; never more than [MaxDeadline] from now.
func (m Method) Context(ctx context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	if timeout <= 0 {
		timeout = MaxDeadline
		if _, ok := ctx.Deadline(); !ok {
			timeout = m.deadline
		}
	}
	return context.WithTimeout(ctx, min(timeout, MaxDeadline))
}

// Open checks the caller's scopes and decodes the request. Its error is what
// the caller gets.
func (m Method) Open(ctx context.Context, codec Codec, body []byte) (req proto.Message, err error) {
	req = m.newRequest()
	return m.open(ctx, req, codec.decode(body, req))
}

// open is Open for a body that has been decoded, or not.
func (m Method) open(ctx context.Context, req proto.Message, undecodable error) (proto.Message, error) {
	err := undecodable
	if !auth.From(ctx).Has(m.Scopes...) {
		err = fault.New(fault.PermissionDenied, "%s needs the scope %s", m.Name, anyOf(m.Scopes))
	}
	if err == nil {
		return req, nil
	}
	if undecodable != nil {
		req = nil
	}
	if m.refused != nil {
		m.refused(ctx, m.Name, req, err)
	}
	return nil, err
}

func anyOf(scopes []auth.Scope) string {
	text := ""
	for i, s := range scopes {
		switch {
		case i == 0:
		case i == len(scopes)-1:
			text += " or "
		default:
			text += ", "
		}
		text += string(s)
	}
	return text
}

// Invoke runs the method. done is called once, whatever the method does: a
// panic becomes an internal error that carries the stack as its cause.
func (m Method) Invoke(ctx context.Context, req proto.Message, done func(proto.Message, error)) {
	var called atomic.Bool
	once := func(res proto.Message, err error) {
		if called.CompareAndSwap(false, true) {
			done(res, err)
		}
	}
	defer func() {
		if p := recover(); p != nil {
			once(nil, fault.Wrap(fmt.Errorf("panic: %v\n%s", p, debug.Stack()), fault.Internal, "internal error"))
		}
	}()
	m.start(ctx, req, once)
}

// Undelivered tells the method that a reply reached nobody.
func (m Method) Undelivered(id auth.Identity, req, res proto.Message) {
	if m.undelivered != nil && res != nil {
		m.undelivered(id, req, res)
	}
}
