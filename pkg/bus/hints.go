package bus

import (
	"context"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"

	"flexiq/pkg/auth"
	"flexiq/pkg/namespace"
	"flexiq/pkg/store"
)

// Subjects of hints. A hint carries no authority: a forged one costs one
// reload, a lost one costs time.
const (
	subjectReady    = auth.HintPrefix + "ready"
	subjectFreed    = auth.HintPrefix + "freed"
	subjectLeft     = auth.HintPrefix + "left"
	subjectConfig   = auth.HintPrefix + "config."
	subjectStats    = auth.HintPrefix + "stats.admission"
	subjectDispatch = auth.HintPrefix + "stats.dispatch"
	subjectSweep    = auth.HintPrefix + "stats.retention"
	subjectProgress = auth.HintPrefix + "progress"

	subjectListening = auth.HintPrefix + "listening"
	subjectMarks     = auth.HintPrefix + "marks"
)

// maxReady bounds one ready message, in bytes.
const maxReady = 64 << 10

// PublishReady tells dispatchers that namespaces have new work, in one message
// unless it would be very long.
func (c *Conn) PublishReady(namespaces []string) { c.hintNames(subjectReady, namespaces) }

// PublishFreed tells dispatchers that namespaces may have a free slot again.
func (c *Conn) PublishFreed(namespaces []string) { c.hintNames(subjectFreed, namespaces) }

func (c *Conn) hintNames(subject string, namespaces []string) {
	for len(namespaces) > 0 {
		n, size := 0, 0
		for n < len(namespaces) && (n == 0 || size+len(namespaces[n]) < maxReady) {
			size += len(namespaces[n]) + 1
			n++
		}
		// A name has no control characters, so a line each is unambiguous.
		c.hint(subject, []byte(strings.Join(namespaces[:n], "\n")))
		namespaces = namespaces[n:]
	}
}

// OnReady hears of namespaces with new work. fn must not block.
func (c *Conn) OnReady(fn func(namespaces []string)) (stop func(), err error) {
	return c.hearNames(subjectReady, fn)
}

// OnFreed hears of namespaces that may have a free slot. fn must not block.
func (c *Conn) OnFreed(fn func(namespaces []string)) (stop func(), err error) {
	return c.hearNames(subjectFreed, fn)
}

// PublishLeft tells dispatchers that a worker of a namespace has signed off.
func (c *Conn) PublishLeft(ns, worker string) { c.hint(subjectLeft, []byte(ns+"\n"+worker)) }

// OnLeft hears of workers that have signed off. fn must not block.
func (c *Conn) OnLeft(fn func(ns, worker string)) (stop func(), err error) {
	return c.hear(subjectLeft, func(m *nats.Msg) {
		if ns, worker, ok := strings.Cut(string(m.Data), "\n"); ok {
			fn(ns, worker)
		}
	})
}

func (c *Conn) hearNames(subject string, fn func(namespaces []string)) (stop func(), err error) {
	return c.hear(subject, func(m *nats.Msg) {
		if len(m.Data) > 0 {
			fn(strings.Split(string(m.Data), "\n"))
		}
	})
}

// PublishConfig tells every process that an object has changed, and waits
// until the server has the message.
func (c *Conn) PublishConfig(kind store.Kind, key string, revision int64) {
	token := namespace.PlatformToken // stands for the empty key, too
	if key != "" {
		token = namespace.Encode(key)
	}
	c.hint(subjectConfig+string(kind)+"."+token, strconv.AppendInt(nil, revision, 10))
	if err := flush(context.Background(), c.nc); err != nil {
		c.opts.Log.Warn().Err(err).Str("kind", string(kind)).Msg("a change was not announced; it is found by polling")
	}
}

// OnConfig hears of changed objects. A revision of 0 is unknown. fn must not
// block.
func (c *Conn) OnConfig(fn func(kind store.Kind, key string, revision int64)) (stop func(), err error) {
	return c.hear(subjectConfig+"*.*", func(m *nats.Msg) {
		kind, token, ok := strings.Cut(strings.TrimPrefix(m.Subject, subjectConfig), ".")
		if !ok {
			return
		}
		key := ""
		if token != namespace.PlatformToken {
			name, err := namespace.Decode(token)
			if err != nil {
				return
			}
			key = name
		}
		revision, err := strconv.ParseInt(string(m.Data), 10, 64)
		if err != nil {
			revision = 0
		}
		fn(store.Kind(kind), key, revision)
	})
}

// PublishStats tells what this process has admitted, rejected and shed.
func (c *Conn) PublishStats(report []byte) { c.hint(subjectStats, report) }

// OnStats hears what every process has admitted, rejected and shed. fn must
// not block.
func (c *Conn) OnStats(fn func(report []byte)) (stop func(), err error) {
	return c.hear(subjectStats, func(m *nats.Msg) { fn(m.Data) })
}

// PublishDispatch tells what this process has seen of workers and finished attempts.
func (c *Conn) PublishDispatch(report []byte) { c.hint(subjectDispatch, report) }

// OnDispatch hears what every gate has seen. fn must not block.
func (c *Conn) OnDispatch(fn func(report []byte)) (stop func(), err error) {
	return c.hear(subjectDispatch, func(m *nats.Msg) { fn(m.Data) })
}

// PublishSweep tells what a retention sweep did.
func (c *Conn) PublishSweep(report []byte) { c.hint(subjectSweep, report) }

// OnSweep hears what retention sweeps did. fn must not block.
func (c *Conn) OnSweep(fn func(report []byte)) (stop func(), err error) {
	return c.hear(subjectSweep, func(m *nats.Msg) { fn(m.Data) })
}

// PublishProgress tells how far this process has followed the changes.
func (c *Conn) PublishProgress(report []byte) { c.hint(subjectProgress, report) }

// OnProgress hears how far every process has followed the changes. fn must not
// block.
func (c *Conn) OnProgress(fn func(report []byte)) (stop func(), err error) {
	return c.hear(subjectProgress, func(m *nats.Msg) { fn(m.Data) })
}

// PublishMarks tells which shares of limits this process has seen in use.
func (c *Conn) PublishMarks(report []byte) { c.hint(subjectMarks, report) }

// OnMarks hears which shares of limits every process has seen in use. fn must
// not block.
func (c *Conn) OnMarks(fn func(report []byte)) (stop func(), err error) {
	return c.hear(subjectMarks, func(m *nats.Msg) { fn(m.Data) })
}

func (c *Conn) hint(subject string, body []byte) {
	if err := c.nc.Publish(subject, body); err != nil {
		c.opts.Log.Debug().Err(err).Str("subject", subject).Msg("hint not sent")
	}
}

// hear subscribes, and returns when the server knows it.
func (c *Conn) hear(subject string, fn nats.MsgHandler) (stop func(), err error) {
	sub, err := c.nc.Subscribe(subject, fn)
	if err != nil {
		return nil, c.connFault(err)
	}
	if err := flush(context.Background(), c.nc); err != nil {
		_ = sub.Unsubscribe() // the connection is down; there is nobody to tell
		return nil, c.connFault(err)
	}
	return func() { _ = sub.Unsubscribe() }, nil // fails when closed, and then it is unsubscribed
}
