package events

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"google.golang.org/protobuf/encoding/protojson"
)

var lenient = protojson.UnmarshalOptions{DiscardUnknown: true}

// Names of the metrics. None has a namespace in it.
const (
	metricPublished = "flexiq_events_published_total"
	metricDropped   = "flexiq_events_dropped_total"
)

const (
	// buffered is how many events wait to be published before more are dropped.
	buffered = 16384

	// refusalEvery is how often at most one process tells of the refusals of a
	// namespace for one reason, and refusalLook how often it looks.
	refusalEvery = time.Second
	refusalLook  = refusalEvery / 4

	// mostRefusals bounds the namespaces and reasons that are remembered for it.
	mostRefusals = 10_000
)

// Bus carries events.
type Bus interface {
	// EventHeard reports whether somebody listens on a subject, as far as known.
	EventHeard(subject string) bool
	// PublishEvent hands an event to the server. It does not wait for it.
	PublishEvent(subject string, body []byte) error
}

// Publisher publishes the events of a process, in the order in which they were
// told. Make it with [Start]. A nil one publishes nothing. It is safe for
// concurrent use.
type Publisher struct {
	bus  Bus
	log  zerolog.Logger
	room chan Event
	done chan struct{}

	published, dropped prometheus.Counter

	closing  sync.Once
	stop     chan struct{}
	mu       sync.Mutex
	refusals map[refusalKey]*refusals
}

// refusalKey is what refusals are told of together.
type refusalKey struct {
	ns     string
	reason string
}

// refusals are those that were not told of yet.
type refusals struct {
	told  time.Time
	count int64
	last  Event
}

// Start makes a publisher and begins to publish.
func Start(bus Bus, log zerolog.Logger, reg prometheus.Registerer) (*Publisher, error) {
	p := &Publisher{
		bus: bus, log: log, room: make(chan Event, buffered), done: make(chan struct{}), stop: make(chan struct{}),
		published: prometheus.NewCounter(prometheus.CounterOpts{Name: metricPublished, Help: "Events that were published."}),
		dropped:   prometheus.NewCounter(prometheus.CounterOpts{Name: metricDropped, Help: "Events that were not published: too many waited, or NATS was away."}),
		refusals:  make(map[refusalKey]*refusals),
	}
	if reg != nil {
		for _, c := range []prometheus.Collector{p.published, p.dropped} {
			if err := reg.Register(c); err != nil {
				return nil, err
			}
		}
	}
	go p.run()
	return p, nil
}

// Wanted reports whether anybody hears a type of a namespace. It is cheap; ask
// it before making many events.
func (p *Publisher) Wanted(ns string, t Type) bool {
	return p != nil && p.bus.EventHeard(Subject(ns, t))
}

// Ask returns Wanted with a memory of its last answer, for a loop over what was
// done in one step, which is of few namespaces and types.
func (p *Publisher) Ask() func(ns string, t Type) bool {
	var lastNS string
	var lastType Type
	var last bool
	return func(ns string, t Type) bool {
		if ns != lastNS || t != lastType {
			lastNS, lastType, last = ns, t, p.Wanted(ns, t)
		}
		return last
	}
}

// Tell publishes an event soon, if anybody hears it. It does not block.
func (p *Publisher) Tell(e Event) {
	if p.Wanted(e.Namespace, e.Type) {
		p.put(e)
	}
}

// put queues an event that somebody hears.
func (p *Publisher) put(e Event) {
	if e.at.IsZero() {
		e.at = time.Now()
	}
	select {
	case p.room <- e:
	default:
		p.dropped.Inc()
	}
}

// Refused tells of refused calls. The first of a namespace for a reason is told
// of at once, those that follow together, once a second: a flood of refusals is
// no flood of events. The event's count is how many jobs were refused.
func (p *Publisher) Refused(e Event) {
	e.Type = JobRejected
	if !p.Wanted(e.Namespace, e.Type) {
		return
	}
	e.at, e.Count = time.Now(), max(1, e.Count)
	if p.holdBack(e) {
		return
	}
	p.put(e)
}

// holdBack keeps a refusal for later when its like was told of just now.
func (p *Publisher) holdBack(e Event) bool {
	key := refusalKey{e.Namespace, string(e.Reason)}
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.refusals[key]
	switch {
	case r != nil:
		r.count += e.Count
		r.last = e
		return true
	case len(p.refusals) >= mostRefusals:
		p.dropped.Inc()
		return true
	}
	p.refusals[key] = &refusals{told: e.at}
	return false
}

// heldBack are the refusals whose time has come; all of them at the end.
func (p *Publisher) heldBack(now time.Time, end bool) []Event {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []Event
	for key, r := range p.refusals {
		switch {
		case !end && now.Sub(r.told) < refusalEvery:
		case r.count == 0:
			delete(p.refusals, key)
		default:
			r.last.Count = r.count
			out = append(out, r.last)
			r.told, r.count = now, 0
		}
	}
	return out
}

// run publishes until the publisher is closed, and then what waits.
func (p *Publisher) run() {
	defer close(p.done)
	look := time.NewTicker(refusalLook)
	defer look.Stop()
	for {
		select {
		case e := <-p.room:
			p.publish(&e)
		case <-look.C:
			for _, e := range p.heldBack(time.Now(), false) {
				p.publish(&e)
			}
		case <-p.stop:
			for _, e := range p.heldBack(time.Now(), true) {
				p.put(e)
			}
			for len(p.room) > 0 {
				e := <-p.room
				p.publish(&e)
			}
			return
		}
	}
}

func (p *Publisher) publish(e *Event) {
	body, err := e.encode()
	if err == nil {
		err = p.bus.PublishEvent(Subject(e.Namespace, e.Type), body)
	}
	if err != nil {
		p.dropped.Inc()
		p.log.Debug().Err(err).Str("type", string(e.Type)).Msg("event not published")
		return
	}
	p.published.Inc()
}

// Close publishes what waits and ends. Events that are told later are lost. It
// may be called twice, and on nil.
func (p *Publisher) Close() {
	if p == nil {
		return
	}
	p.closing.Do(func() { close(p.stop) })
	<-p.done
}
