package config

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"flexiq/pkg/store"
)

func (p *progress) tell(t *testing.T, process string, position int64, at time.Time) {
	t.Helper()
	if err := p.heard(fmt.Appendf(nil, `{"process":%q,"position":%d}`, process, position), at); err != nil {
		t.Fatal(err)
	}
}

func TestProgress(t *testing.T) {
	p := newProgress("self")
	check := func(when string, at time.Time, wantDone int64, wantSettled bool, wantLagging ...string) {
		t.Helper()
		done, lagging, settled, _ := p.past(7, at)
		if done != wantDone || settled != wantSettled || !slices.Equal(lagging, wantLagging) {
			t.Errorf("%s: %d done, lagging %v, settled %v; want %d, %v, %v", when, done, lagging, settled, wantDone, wantLagging, wantSettled)
		}
	}
	check("before anything was heard", now, 0, false, "self")
	p.listen(now)
	p.tell(t, "b", 6, now)
	p.tell(t, "a", 9, now)
	check("without our own report", now, 1, false, "b", "self")
	p.tell(t, "self", 7, now.Add(time.Second))
	check("one lags", now.Add(2*time.Second), 2, true, "b")
	p.tell(t, "b", 7, now.Add(2*time.Second))
	check("all are there", now.Add(2*time.Second), 3, true)
	check("a has fallen silent", now.Add(3*time.Second), 2, true)
	if err := p.heard([]byte("not JSON"), now); err == nil {
		t.Error("garbage was taken for a report")
	}
}

// changed is a store whose newest change has a number.
type changed struct {
	Store
	latest int64
}

func (c changed) Changes(context.Context, int64, int) (store.Changes, error) {
	return store.Changes{Latest: c.latest}, nil
}

// standsAt is a position that a test moves.
type standsAt struct {
	mu    sync.Mutex
	at    int64
	moved chan struct{}
}

func (p *standsAt) Position() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.at
}

func (p *standsAt) Moved() <-chan struct{} { return p.moved }

func (p *standsAt) move(to int64) {
	p.mu.Lock()
	p.at = to
	p.mu.Unlock()
	p.moved <- struct{}{}
}

func TestWait(t *testing.T) {
	for _, c := range []struct {
		name     string
		catchUp  time.Duration // when the other process catches up; 0: never
		deadline time.Duration // of the caller; 0: none
		lagging  []string
		within   [2]time.Duration
	}{
		{name: "all catch up", catchUp: 2512 * time.Millisecond, within: [2]time.Duration{2512 * time.Millisecond, 2512 * time.Millisecond}},
		{name: "one lags", lagging: []string{"other"}, within: [2]time.Duration{5 * time.Second, 5 * time.Second}},
		{name: "the caller has less time", deadline: 3 * time.Second, lagging: []string{"other"}, within: [2]time.Duration{2800 * time.Millisecond, 2800 * time.Millisecond}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &Service{cfg: Config{Process: "self", MaxWait: 5 * time.Second}, store: changed{latest: 9}, progress: newProgress("self")}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				started := time.Now()
				s.progress.listen(started)
				go func() { _ = Report(ctx, "self", &standsAt{at: 9}, s.hearProgress) }()
				other := &standsAt{at: 8, moved: make(chan struct{}, 1)}
				if c.catchUp > 0 {
					time.AfterFunc(c.catchUp, func() { other.move(10) })
				}
				go func() { _ = Report(ctx, "other", other, s.hearProgress) }()
				call := ctx
				if c.deadline > 0 {
					var stop context.CancelFunc
					call, stop = context.WithTimeout(ctx, c.deadline)
					defer stop()
				}
				got := s.awaitEnforced(call)
				if took := time.Since(started); took < c.within[0] || took > c.within[1] {
					t.Errorf("took %s, want %v", took, c.within)
				}
				if !slices.Equal(got.Lagging, c.lagging) || got.Processes != int64(2-len(c.lagging)) {
					t.Errorf("%v", got)
				}
			})
		})
	}
}
