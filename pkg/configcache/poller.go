package configcache

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"flexiq/pkg/fault"
	"flexiq/pkg/store"
)

const (
	// pollEvery and pollTimeout are half the validity, so that a store that
	// answers just in time never lets the entries lapse between two polls.
	pollEvery   = time.Second
	pollTimeout = time.Second
	// pollRetry is the pause after a poll that failed.
	pollRetry = 200 * time.Millisecond
	// nudgeGap is the time at least from one poll to the next that is asked for, and
	// nudgeShare times as long as it took: a burst of changes costs at most a hundred
	// polls a second, and they fill at most a quarter of the time.
	nudgeGap   = 10 * time.Millisecond
	nudgeShare = 4
	// pollPage bounds the changes of one query.
	pollPage = 1000
)

// Source tells what changed; see [store.Quotas].
type Source interface {
	Changes(ctx context.Context, since int64, limit int) (store.Changes, error)
}

// Poller asks the store what changed, once a second and when it is nudged. One serves all caches of a
// process. It is a [prometheus.Collector].
type Poller struct {
	// Log may be set before Run. It is told when polls begin to fail and when
	// they work again.
	Log zerolog.Logger

	src    Source
	handle func([]store.Change)

	nudged   chan struct{}             // somebody wants a poll at once
	moved    chan struct{}             // the position is another
	good     atomic.Pointer[time.Time] // the start of the last good poll
	position atomic.Int64
	polls    prometheus.Counter
	failures prometheus.Counter
	changes  prometheus.Counter
}

// NewPoller makes a poller. handle must drop from every cache what has changed
// before it returns; nil means that anything may have.
func NewPoller(src Source, handle func([]store.Change)) *Poller {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	return &Poller{
		src:      src,
		handle:   handle,
		nudged:   make(chan struct{}, 1),
		moved:    make(chan struct{}, 1),
		polls:    counter("flexiq_config_polls_total", "Polls of the store for changes."),
		failures: counter("flexiq_config_poll_failures_total", "Polls that failed."),
		changes:  counter("flexiq_config_changes_total", "Changes that polls told of."),
	}
}

// Run polls until the context ends and then returns nil.
func (p *Poller) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	failing := false
	earliest := time.Now() // of a poll that is asked for
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		case <-p.nudged:
			if failing { // it is tried again soon
				continue
			}
			if wait := time.Until(earliest); wait > 0 {
				timer.Reset(wait)
				continue
			}
		}
		started := time.Now()
		err := p.poll(ctx, started)
		took := time.Since(started)
		pause := max(0, pollEvery-took)
		earliest = started.Add(max(nudgeGap, nudgeShare*took))
		switch {
		case err != nil && ctx.Err() == nil:
			pause = pollRetry
			p.failures.Inc()
			if !failing {
				p.Log.Warn().Err(err).Msg("changes of the settings cannot be read")
			}
		case failing:
			p.Log.Info().Msg("changes of the settings can be read again")
		}
		failing = err != nil
		timer.Reset(pause)
	}
}

// Nudge asks for a poll at once, as after a hint. It does not block, and may be
// called as often as hints come.
func (p *Poller) Nudge() { signal(p.nudged) }

// Moved has a value when the position has changed since the last one was taken.
func (p *Poller) Moved() <-chan struct{} { return p.moved }

// signal leaves one value in the channel.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// poll hands every change since the last poll to handle. Only then does the
// poll count, as of its start: what was committed later may be missing.
func (p *Poller) poll(ctx context.Context, started time.Time) error {
	p.polls.Inc()
	for {
		since := p.position.Load()
		page, err := p.page(ctx, since)
		if err != nil {
			return err
		}
		p.changes.Add(float64(len(page.Items)))
		switch {
		case page.Latest < since: // another store, or an older copy of this one
			p.handle(nil)
		case len(page.Items) > 0:
			p.handle(page.Items)
		}
		p.position.Store(page.Latest)
		if page.Latest != since {
			signal(p.moved)
		}
		if len(page.Items) < pollPage {
			p.good.Store(&started)
			return nil
		}
		if page.Latest == since {
			return errors.New("the store lists changes without end")
		}
	}
}

func (p *Poller) page(ctx context.Context, since int64) (store.Changes, error) {
	ctx, cancel := context.WithTimeout(ctx, pollTimeout)
	defer cancel()
	return p.src.Changes(ctx, since, pollPage)
}

// Fresh reports whether the last good poll started less than two seconds ago.
// It is what caches take as [Options.Fresh].
func (p *Poller) Fresh() bool {
	at := p.good.Load()
	return at != nil && time.Since(*at) < Validity
}

// Position is the number of the last change that was handled.
func (p *Poller) Position() int64 { return p.position.Load() }

// Check is for health: STORAGE_UNAVAILABLE while the poller is not fresh.
func (p *Poller) Check(context.Context) error {
	if p.Fresh() {
		return nil
	}
	at := p.good.Load()
	if at == nil {
		return fault.New(fault.StorageUnavailable, "the changes of the settings have not been read yet")
	}
	return fault.New(fault.StorageUnavailable, "the changes of the settings were last read %s ago", time.Since(*at).Round(time.Second))
}

var ageDesc = prometheus.NewDesc("flexiq_config_age_seconds",
	"Time since the start of the last good poll for changes; entries are valid for two seconds.", nil, nil)

// Describe implements [prometheus.Collector].
func (p *Poller) Describe(descs chan<- *prometheus.Desc) {
	descs <- ageDesc
	for _, c := range []prometheus.Counter{p.polls, p.failures, p.changes} {
		c.Describe(descs)
	}
}

// Collect implements [prometheus.Collector]. Before the first good poll there
// is no age.
func (p *Poller) Collect(metrics chan<- prometheus.Metric) {
	if at := p.good.Load(); at != nil {
		metrics <- prometheus.MustNewConstMetric(ageDesc, prometheus.GaugeValue, time.Since(*at).Seconds())
	}
	for _, c := range []prometheus.Counter{p.polls, p.failures, p.changes} {
		c.Collect(metrics)
	}
}
