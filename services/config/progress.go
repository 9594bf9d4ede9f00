package config

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
)

const (
	// reportEvery is how often a process reports its progress at least.
	reportEvery = time.Second
	// goneAfter is the silence after which a process is gone.
	goneAfter = 3 * time.Second
	// hearsAll is how long one must have listened to have heard every process.
	hearsAll = 2 * reportEvery
)

// standing is what a process reports of itself.
type standing struct {
	Process  string `json:"process"`
	Position int64  `json:"position"` // changes of the store up to here are in force in it
}

// Position tells how far a process has caught up with the store's changes.
type Position interface {
	Position() int64
	Moved() <-chan struct{} // has a value when the position has changed
}

// Report publishes a process's position once a second and whenever it changes,
// until ctx ends; then it returns nil. Every process runs it, whatever it serves:
// a write with wait returns when each has caught up.
func Report(ctx context.Context, process string, position Position, publish func(report []byte)) error {
	tick := time.NewTicker(reportEvery)
	defer tick.Stop()
	for {
		text, err := json.Marshal(standing{Process: process, Position: position.Position()})
		if err == nil { // a string and a number always marshal
			publish(text)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		case <-position.Moved():
		}
	}
}

// sighting is the last that was heard of a process.
type sighting struct {
	position int64
	at       time.Time
}

// progress knows how far each process has caught up. It is safe for concurrent use.
type progress struct {
	self string

	mu        sync.Mutex
	listening time.Time // since when; zero: not yet
	seen      map[string]sighting
	news      chan struct{} // closed at the next report
}

func newProgress(self string) *progress {
	return &progress{self: self, seen: map[string]sighting{}, news: make(chan struct{})}
}

// listen notes that reports arrive from now on.
func (p *progress) listen(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.listening = now
}

// heard takes a report that came at now.
func (p *progress) heard(report []byte, now time.Time) error {
	var st standing
	if err := json.Unmarshal(report, &st); err != nil {
		return fmt.Errorf("progress report: %w", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seen[st.Process] = sighting{position: st.Position, at: now}
	close(p.news)
	p.news = make(chan struct{})
	return nil
}

// past tells how many processes have caught up with a change, which have not,
// and whether all that live have been heard. next is closed when there is more
// to tell. A process that was silent for too long is gone and forgotten.
func (p *progress) past(change int64, now time.Time) (caughtUp int64, lagging []string, settled bool, next <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(p.seen)) {
		switch s := p.seen[name]; {
		case now.Sub(s.at) >= goneAfter:
			delete(p.seen, name)
		case s.position >= change:
			caughtUp++
		default:
			lagging = append(lagging, name)
		}
	}
	if _, ok := p.seen[p.self]; !ok { // our own reports are lost, so are those of others
		lagging = append(lagging, p.self)
		slices.Sort(lagging)
	}
	settled = !p.listening.IsZero() && now.Sub(p.listening) >= hearsAll
	return caughtUp, lagging, settled, p.news
}

// hearProgress takes a report from the bus.
func (s *Service) hearProgress(report []byte) {
	if err := s.progress.heard(report, time.Now()); err != nil {
		s.metrics.badReports.Inc()
		s.deps.Log.Debug().Err(err).Msg("bad report")
	}
}

// awaitEnforced waits until every process has caught up with what was written
// before. It gives up after the longest wait, or shortly before the caller does:
// the change stands in any case, so this is an answer and no error.
func (s *Service) awaitEnforced(ctx context.Context) *flexiqv1.EnforcedBy {
	patience := s.cfg.MaxWait
	if deadline, ok := ctx.Deadline(); ok {
		const slack = 200 * time.Millisecond // to answer
		patience = min(patience, time.Until(deadline)-slack)
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	change, err := s.latestChange(ctx)
	if err != nil {
		s.deps.Log.Warn().Err(err).Msg("cannot tell which change to wait for")
		return &flexiqv1.EnforcedBy{Lagging: []string{s.cfg.Process}}
	}
	// A process can also fall silent, and the first seconds of listening pass.
	look := time.NewTicker(reportEvery / 4)
	defer look.Stop()
	for {
		caughtUp, lagging, settled, news := s.progress.past(change, time.Now())
		if settled && len(lagging) == 0 || ctx.Err() != nil {
			return &flexiqv1.EnforcedBy{Processes: caughtUp, Lagging: lagging}
		}
		select {
		case <-ctx.Done():
		case <-news:
		case <-look.C:
		}
	}
}

// latestChange is the number of the newest change in the store.
func (s *Service) latestChange(ctx context.Context) (int64, error) {
	const page = 1000
	since := s.progress.position()
	for {
		changes, err := s.store.Changes(ctx, since, page)
		if err != nil {
			return 0, err
		}
		since = changes.Latest
		if len(changes.Items) < page {
			return since, nil
		}
	}
}

// position is where this process was when last heard.
func (p *progress) position() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seen[p.self].position
}
