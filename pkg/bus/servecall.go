package bus

import (
	"context"
	"fmt"
	"runtime/debug"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"

	"flexiq/pkg/auth"
	"flexiq/pkg/fault"
	"flexiq/pkg/rpc"
)

// call is one request on its way through a service.
type call struct {
	*endpoint
	msg     *nats.Msg
	nsToken string
	tokenID string
	start   time.Time
	entered bool // it holds its place in the bounds
	ended   atomic.Bool

	codec  rpc.Codec
	id     auth.Identity
	req    proto.Message
	cancel context.CancelFunc
}

func (c *call) bounds() *rpc.Bounds {
	if c.method.LongPoll {
		return c.polls
	}
	return c.calls
}

// identifyAndRun is run for callers that are not known without waiting.
func (c *call) identifyAndRun() {
	ctx, cancel := context.WithTimeout(c.base, identifyTimeout)
	id, _, err := c.ids.Identify(ctx, c.nsToken, c.tokenID)
	cancel()
	c.run(id, err)
}

// run carries out the call. It blocks only when the method does.
func (c *call) run(id auth.Identity, err error) {
	defer func() {
		if p := recover(); p != nil {
			c.finish(nil, fault.Wrap(fmt.Errorf("panic: %v\n%s", p, debug.Stack()), fault.Internal, "internal error"))
		}
	}()
	if err != nil {
		c.finish(nil, err)
		return
	}
	c.id = id
	ctx := auth.WithCaller(c.base, id, auth.DoorNATS)
	if c.codec, err = rpc.CodecOf(c.msg.Header.Get(headerContentType)); err != nil {
		c.finish(nil, err)
		return
	}
	limit, err := timeout(c.msg.Header)
	if err != nil {
		c.finish(nil, err)
		return
	}
	ctx, c.cancel = c.method.Context(ctx, limit)
	if c.method.LongPoll {
		ctx = c.keep(ctx)
	}
	if c.req, err = c.method.Open(ctx, c.codec, c.msg.Data); err != nil {
		c.finish(nil, err)
		return
	}
	c.method.Invoke(ctx, c.req, c.finish)
}

// keep answers a call that waits as soon as its token stops being valid. The
// server closes the caller's connection then, but an outside one only when it
// is told to.
func (c *call) keep(ctx context.Context) context.Context {
	ctx, release := c.vigil.Keep(ctx, c.id)
	end := c.cancel
	c.cancel = func() {
		release()
		end()
	}
	context.AfterFunc(ctx, func() {
		if cause := context.Cause(ctx); fault.Is(cause, fault.Unauthenticated) {
			c.finish(nil, cause)
		}
	})
	return ctx
}

// finish answers the call and gives its place back. An answer that comes after
// the call's end is undelivered.
func (c *call) finish(res proto.Message, err error) {
	if !c.ended.CompareAndSwap(false, true) {
		if err == nil {
			c.undelivered(res)
		}
		return
	}
	if c.cancel != nil {
		c.cancel()
	}
	c.answer(res, err)
	if c.entered {
		c.bounds().Leave(c.nsToken, int64(len(c.msg.Data)))
		c.flying.Done()
	}
}

// answer sends the reply, if the caller wants one.
func (c *call) answer(res proto.Message, err error) {
	f := fault.Of(err)
	if f == nil && c.msg.Reply != "" {
		f = c.deliver(res)
	}
	code := ""
	if f != nil {
		code = string(f.Reason.Code())
		c.conn.faults.Write(c.method.Name, auth.DoorNATS, f)
		if c.msg.Reply != "" {
			c.fail(f)
		}
	}
	c.conn.opts.Metrics.Observe(c.method.Name, auth.DoorNATS, code, time.Since(c.start))
}

// deliver sends a successful reply. A fault is what the caller is to hear
// instead.
func (c *call) deliver(res proto.Message) *fault.Error {
	body, err := c.codec.Marshal(res)
	if err != nil {
		c.undelivered(res)
		return fault.Wrap(err, fault.Internal, "internal error")
	}
	nc := c.conn.nc
	if limit := nc.MaxPayload(); int64(len(body)) > limit {
		c.undelivered(res)
		return fault.New(fault.PayloadTooLarge, "the answer of %d bytes is larger than the limit of %d: ask for less", len(body), limit).
			With("limit", strconv.FormatInt(limit, 10))
	}
	out := &nats.Msg{Subject: c.msg.Reply, Data: body}
	if c.method.HearsUndelivered() {
		out.Reply = c.dead.expect(func() { c.undelivered(res) })
	}
	if err := nc.PublishMsg(out); err != nil {
		c.dead.forget(out.Reply)
		c.undelivered(res)
		return fault.Wrap(err, fault.Overloaded, "the answer could not be sent")
	}
	return nil
}

// fail sends an error. Nobody is to be told when that fails: the caller's
// deadline will.
func (c *call) fail(f *fault.Error) {
	out := encodeError(f)
	out.Subject = c.msg.Reply
	_ = c.conn.nc.PublishMsg(out)
}

func (c *call) undelivered(res proto.Message) {
	c.conn.metrics.undelivered.Inc()
	c.method.Undelivered(c.id, c.req, res)
}
