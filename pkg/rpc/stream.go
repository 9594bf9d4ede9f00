package rpc

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"flexiq/pkg/fault"
)

// MaxStreams bounds the streams that a door keeps open.
const MaxStreams = 4096

// typeLines is how a stream is answered to a plain request in JSON: a message a
// line, so that any HTTP client can read it.
const typeLines = "application/x-ndjson"

// connectStreams are the types of connect's own streams.
var connectStreams = []string{"application/connect+json", "application/connect+proto"}

// Stream makes a method that answers many messages. send blocks while the
// client does not read, and fails when it has gone or does not read for too
// long. The context ends when the client goes, at a deadline that it named,
// and when its token stops being valid.
func Stream[Req, Res any, PReq protoPtr[Req], PRes protoPtr[Res]](
	name string, fn func(ctx context.Context, req *Req, send func(*Res) error) error, opts ...Option,
) Method {
	m := newMethod(name, func() proto.Message { return PReq(new(Req)) }, opts)
	m.follow = func(ctx context.Context, req proto.Message, send func(proto.Message) error) error {
		return fn(ctx, (*Req)(req.(PReq)), func(res *Res) error { return send(PRes(res)) })
	}
	return m
}

// newStream is the handler of a stream, in each of its forms.
func (d *door) newStream(r *route) http.Handler {
	framed := connect.NewServerStreamHandler(r.method.Procedure(),
		func(ctx context.Context, in *connect.Request[wire], out *connect.ServerStream[wire]) error {
			return asConnect(r.stream(ctx, in.Msg.msg, in.Msg.err, func(res proto.Message) error { return out.Send(&wire{msg: res}) }))
		}, d.options(r.method)...)
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.Header.Get("Content-Type") != TypeJSON {
			framed.ServeHTTP(w, req)
			return
		}
		d.lines(r, w, req)
	})
}

func asConnect(f *fault.Error) error {
	if f == nil {
		return nil
	}
	return connectError(f)
}

// stream opens the call of a stream and follows it to its end.
func (r *route) stream(ctx context.Context, req proto.Message, undecodable error, send func(proto.Message) error) (f *fault.Error) {
	v := ctx.Value(visitKey{}).(*visit)
	v.reached = true
	v.within(0)
	defer func() {
		if p := recover(); p != nil {
			f = fault.Wrap(fmt.Errorf("panic: %v\n%s", p, debug.Stack()), fault.Internal, "internal error")
		}
		v.fault = f
		v.within(v.transfer) // for the end of the stream
	}()
	if !v.head.deadline.IsZero() {
		var end context.CancelFunc
		ctx, end = context.WithDeadline(ctx, v.head.deadline)
		defer end()
	}
	req, err := r.method.open(ctx, req, undecodable)
	if err == nil {
		err = r.method.follow(ctx, req, func(res proto.Message) error {
			_ = v.conn.SetWriteDeadline(time.Now().Add(v.transfer)) // as in within
			return send(res)
		})
	}
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause // whatever it led to
	}
	return fault.Of(err)
}

// lines answers a stream as lines of JSON. An error before the first line is
// answered as that of any call, a later one is the last line.
func (d *door) lines(r *route, w http.ResponseWriter, req *http.Request) {
	v := req.Context().Value(visitKey{}).(*visit)
	body, err := io.ReadAll(req.Body)
	if err != nil {
		v.reached, v.fault = true, FromConnectError(err)
		d.refuse(w, req, v.fault)
		return
	}
	msg, begun := r.method.newRequest(), false
	write := func(text []byte) error {
		if !begun {
			w.Header().Set("Content-Type", typeLines)
			w.Header().Set("Cache-Control", "no-store")
			w.Header().Set("X-Accel-Buffering", "no") // proxies are to pass each line on
			begun = true
		}
		if _, err := w.Write(append(text, '\n')); err != nil {
			return err
		}
		return v.conn.Flush()
	}
	f := r.stream(req.Context(), msg, JSON.decode(body, msg), func(res proto.Message) error {
		text, err := JSON.Marshal(res)
		if err != nil {
			return err
		}
		return write(text)
	})
	switch {
	case f == nil:
	case !begun:
		d.refuse(w, req, f)
	default:
		text, err := json.Marshal(map[string]any{"error": map[string]any{
			"code": f.Reason.Code(), "reason": f.Reason, "message": f.Message, "details": f.Details,
		}})
		if err == nil { // texts always marshal
			_ = write(text) // the client may be what failed
		}
	}
}

// streamHead reads the type of a request for a stream over HTTP. It is what the
// handler chooses by.
func streamHead(r *http.Request) *fault.Error {
	base := mediaType(r.Header.Get("Content-Type"))
	switch {
	case r.Header.Get("Content-Type") == "", base == TypeJSON:
		r.Header.Set("Content-Type", TypeJSON)
	case slices.Contains(connectStreams, base):
		r.Header.Set("Content-Type", base)
	default:
		return fault.Invalid("Content-Type", "must be %s, or %s", TypeJSON, strings.Join(connectStreams, " or "))
	}
	return nil
}

// framedByConnect reports whether a request is one of connect's own streams.
func framedByConnect(r *http.Request) bool {
	return slices.Contains(connectStreams, r.Header.Get("Content-Type"))
}
