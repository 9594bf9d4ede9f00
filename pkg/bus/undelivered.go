package bus

import (
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nuid"
)

const (
	// noticeAfter is how long, at least, a reply is remembered: the server says
	// within a round trip that nobody listens, or never.
	noticeAfter = 2 * time.Second
	// maxRemembered bounds the replies that are remembered.
	maxRemembered = 1 << 16
)

// deadLetters hears of replies that reached nobody. Such a reply is published
// with a throw-away reply subject of its own; where nobody listens, the server
// answers there that there are no responders.
type deadLetters struct {
	sub   *nats.Subscription
	inbox string // with a closing dot
	pool  *pool

	mu    sync.Mutex
	next  uint64
	young map[string]func() // hooks by the last token of the throw-away subject
	old   map[string]func()
	timer *time.Timer // runs while anything is remembered
	done  bool

	closed chan struct{} // the subscription has delivered its last message
}

func listenForDead(c *Conn, p *pool) (*deadLetters, error) {
	d := &deadLetters{
		inbox:  c.prefix + "." + nuid.Next() + ".",
		pool:   p,
		young:  make(map[string]func()),
		closed: make(chan struct{}),
	}
	sub, err := c.nc.Subscribe(d.inbox+"*", d.receive)
	if err != nil {
		return nil, err
	}
	sub.SetClosedHandler(func(string) { close(d.closed) })
	d.sub = sub
	return d, nil
}

// expect makes a throw-away subject; hook runs if the reply sent with it
// reaches nobody.
func (d *deadLetters) expect(hook func()) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.done || len(d.young) >= maxRemembered {
		return ""
	}
	d.next++
	token := strconv.FormatUint(d.next, 36)
	d.young[token] = hook
	if d.timer == nil {
		d.timer = time.AfterFunc(noticeAfter, d.age)
	}
	return d.inbox + token
}

// age forgets what has been remembered for long enough.
func (d *deadLetters) age() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.old, d.young = d.young, make(map[string]func())
	d.timer = nil
	if len(d.old) > 0 && !d.done {
		d.timer = time.AfterFunc(noticeAfter, d.age)
	}
}

// forget takes back an expectation.
func (d *deadLetters) forget(subject string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.take(subject)
}

// take removes and returns a hook; the lock is held.
func (d *deadLetters) take(subject string) func() {
	token := subject[strings.LastIndexByte(subject, '.')+1:]
	hook := d.young[token]
	if hook == nil {
		hook = d.old[token]
	}
	delete(d.young, token)
	delete(d.old, token)
	return hook
}

func (d *deadLetters) receive(msg *nats.Msg) {
	if !isNoResponders(msg) {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if hook := d.take(msg.Subject); hook != nil && !d.done {
		d.pool.submit(hook) // under the lock: none may follow close
	}
}

// close takes what the server has said so far, and no more. It comes before
// the pool's close.
func (d *deadLetters) close() {
	if err := d.sub.Drain(); err != nil {
		_ = d.sub.Unsubscribe() // no connection: there is nothing to drain
	}
	select {
	case <-d.closed:
	case <-time.After(lastMoment):
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.done = true
	if d.timer != nil {
		d.timer.Stop()
	}
}
