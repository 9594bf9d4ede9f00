package bus

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

// The names of this package's metrics.
const (
	metricDropped     = "flexiq_bus_dropped_total"
	metricOverloaded  = "flexiq_bus_overloaded_total"
	metricUndelivered = "flexiq_bus_undelivered_total"
)

// Why a message was dropped without an answer.
const (
	dropSubject = "subject"  // not <verb>.<namespace>.<token>
	dropReply   = "reply"    // the reply subject is not the caller's
	dropNoReply = "no_reply" // the method needs one
	dropSlow    = "slow"     // more arrived than could be taken
)

// metrics of one connection. The zero value counts nothing.
type metrics struct {
	dropped     *prometheus.CounterVec
	overloaded  prometheus.Counter
	undelivered prometheus.Counter
}

// newMetrics makes the metrics and registers them; several connections of one
// process share them.
func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		dropped: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: metricDropped,
			Help: "Messages dropped without an answer, by why.",
		}, []string{"why"}),
		overloaded: prometheus.NewCounter(prometheus.CounterOpts{
			Name: metricOverloaded,
			Help: "Calls refused because too much was in flight.",
		}),
		undelivered: prometheus.NewCounter(prometheus.CounterOpts{
			Name: metricUndelivered,
			Help: "Replies that reached nobody.",
		}),
	}
	if reg != nil {
		m.dropped = register(reg, m.dropped)
		m.overloaded = register(reg, m.overloaded)
		m.undelivered = register(reg, m.undelivered)
	}
	return m
}

// register returns the collector that is registered: this one, or the one
// that another connection has registered before.
func register[C prometheus.Collector](reg prometheus.Registerer, c C) C {
	err := reg.Register(c)
	var already prometheus.AlreadyRegisteredError
	if errors.As(err, &already) {
		return already.ExistingCollector.(C)
	}
	if err != nil {
		panic(err) // two metrics of one name: a mistake of the program
	}
	return c
}

func (m *metrics) drop(why string) { m.dropped.WithLabelValues(why).Inc() }
