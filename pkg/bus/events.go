package bus

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nuid"

	"flexiq/pkg/auth"
	"flexiq/pkg/events"
)

// deafFor is how long a subject that nobody listened on is taken to be so. It
// bounds how long one who begins to listen misses events, and how often an
// event is sent to nobody.
const deafFor = 250 * time.Millisecond

// mostDeaf bounds the subjects that are remembered.
const mostDeaf = 1 << 16

// deafness knows on which subjects nobody listens. A server in this process is
// asked; an outside one says of each event that it reached nobody, and those
// that follow are not sent for a moment.
type deafness struct {
	once  sync.Once
	inbox string // of the one who publishes, with a closing dot; empty: the server does not tell

	mu   sync.RWMutex
	deaf map[string]time.Time // since when
}

// EventHeard implements [events.Bus].
func (c *Conn) EventHeard(subject string) bool {
	if c.opts.Interest != nil {
		return c.opts.Interest(subject)
	}
	d := &c.deafness
	d.mu.RLock()
	since, deaf := d.deaf[subject]
	d.mu.RUnlock()
	return !deaf || time.Since(since) >= deafFor
}

// PublishEvent implements [events.Bus].
func (c *Conn) PublishEvent(subject string, body []byte) error {
	if c.opts.Interest != nil {
		return c.nc.Publish(subject, body)
	}
	c.deafness.once.Do(c.hearDeafness)
	msg := &nats.Msg{Subject: subject, Data: body}
	if inbox := c.deafness.inbox; inbox != "" {
		msg.Reply = inbox + subject
	}
	return c.nc.PublishMsg(msg)
}

// hearDeafness subscribes to the server's word that an event reached nobody,
// and to the hint that somebody began to listen.
func (c *Conn) hearDeafness() {
	d := &c.deafness
	inbox := c.prefix + "." + nuid.Next() + "."
	_, err := c.nc.Subscribe(inbox+">", func(m *nats.Msg) {
		if isNoResponders(m) {
			d.add(strings.TrimPrefix(m.Subject, inbox))
		}
	})
	if err == nil {
		_, err = c.nc.Subscribe(subjectListening, func(m *nats.Msg) { d.forget(string(m.Data)) })
	}
	if err != nil {
		c.opts.Log.Debug().Err(err).Msg("events are published whether they are heard or not")
		return
	}
	d.inbox = inbox
}

func (d *deafness) add(subject string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.deaf == nil || len(d.deaf) >= mostDeaf {
		d.deaf = make(map[string]time.Time)
	}
	d.deaf[subject] = time.Now()
}

// forget takes the subjects below a prefix for heard again.
func (d *deafness) forget(prefix string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, t := range events.Types {
		delete(d.deaf, prefix+string(t))
	}
}

// ListenEvents subscribes to events of a namespace, given as a token of a
// subject, and tells those who publish them. It returns when the server knows it.
func (c *Conn) ListenEvents(nsToken string, f events.Filter) (*events.Listener, error) {
	msgs := make(chan *nats.Msg, events.Room)
	var subs []*nats.Subscription
	stop := func() {
		for _, s := range subs {
			_ = s.Unsubscribe() // fails when closed, and then it is unsubscribed
		}
	}
	for _, subject := range f.Subjects(nsToken) {
		sub, err := c.nc.ChanSubscribe(subject, msgs)
		if err != nil {
			stop()
			return nil, c.connFault(err)
		}
		subs = append(subs, sub)
	}
	if c.prefix == auth.ServiceInbox { // a tenant may not, and is noticed a moment later
		c.hint(subjectListening, []byte(auth.EventPrefix+nsToken+"."))
	}
	if err := flush(context.Background(), c.nc); err != nil {
		stop()
		return nil, c.connFault(err)
	}
	late := func() bool {
		for _, s := range subs {
			if n, err := s.Dropped(); err == nil && n > 0 {
				return true
			}
		}
		return false
	}
	return &events.Listener{C: msgs, Late: late, Stop: stop}, nil
}
