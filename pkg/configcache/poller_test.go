package configcache

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"flexiq/pkg/fault"
	"flexiq/pkg/store"
)

// journal is a store's list of changes.
type journal struct {
	mu    sync.Mutex
	keys  []string // the change number of an entry is its index + 1
	fail  error
	delay time.Duration
	asked []time.Time
}

func (j *journal) Changes(ctx context.Context, since int64, limit int) (store.Changes, error) {
	j.mu.Lock()
	j.asked = append(j.asked, time.Now())
	fail, delay := j.fail, j.delay
	out := store.Changes{Latest: min(since, int64(len(j.keys)))}
	for _, key := range j.keys[min(since, int64(len(j.keys))):] {
		if len(out.Items) == limit {
			break
		}
		out.Items = append(out.Items, store.Change{Kind: store.KindQuota, Key: key})
		out.Latest++
	}
	j.mu.Unlock()
	if err := sleep(ctx, delay); err != nil {
		return store.Changes{}, err
	}
	return out, fail
}

func (j *journal) with(change func(j *journal)) {
	j.mu.Lock()
	defer j.mu.Unlock()
	change(j)
}

// polling runs a poller of j on fake time and collects what it hands over.
func polling(t *testing.T, j *journal, test func(t *testing.T, p *Poller, handled func() []string)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var got []string
		p := NewPoller(j, func(changes []store.Change) {
			mu.Lock()
			defer mu.Unlock()
			if changes == nil {
				got = append(got, "*")
			}
			for _, c := range changes {
				got = append(got, c.Key)
			}
		})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- p.Run(ctx) }()
		synctest.Wait()
		test(t, p, func() []string {
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			taken := got
			got = nil
			return taken
		})
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run = %v", err)
		}
	})
}

func TestThePollerAsksOnceASecond(t *testing.T) {
	j := &journal{keys: []string{"a", "b"}}
	polling(t, j, func(t *testing.T, p *Poller, handled func() []string) {
		if diff := cmp.Diff([]string{"a", "b"}, handled()); diff != "" {
			t.Errorf("first poll (-want +got):\n%s", diff)
		}
		j.with(func(j *journal) { j.keys = append(j.keys, "c") })
		time.Sleep(pollEvery)
		if diff := cmp.Diff([]string{"c"}, handled()); diff != "" {
			t.Errorf("second poll (-want +got):\n%s", diff)
		}
		time.Sleep(10 * pollEvery)
		if got := handled(); got != nil || p.Position() != 3 || !p.Fresh() {
			t.Errorf("handled %v at %d, fresh %v; want nothing more at 3, fresh", got, p.Position(), p.Fresh())
		}
		j.with(func(j *journal) {
			if len(j.asked) != 12 {
				t.Errorf("%d queries in eleven seconds, want 12", len(j.asked))
			}
		})
	})
}

func (j *journal) queries() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return len(j.asked)
}

func TestANudgeIsAnsweredAtOnce(t *testing.T) {
	j := &journal{keys: []string{"a"}}
	polling(t, j, func(t *testing.T, p *Poller, handled func() []string) {
		handled()
		<-p.Moved()
		time.Sleep(pollEvery / 2)
		j.with(func(j *journal) { j.keys = append(j.keys, "b") })
		p.Nudge()
		if diff := cmp.Diff([]string{"b"}, handled()); diff != "" || p.Position() != 2 {
			t.Errorf("at %d, (-want +got):\n%s", p.Position(), diff)
		}
		select {
		case <-p.Moved():
		default:
			t.Error("nobody is told that the position has changed")
		}
		// One that comes during a poll, or right after it, is not lost: that poll may
		// have begun too early.
		j.with(func(j *journal) { j.delay = time.Millisecond })
		time.Sleep(nudgeGap)
		p.Nudge()
		synctest.Wait()
		j.with(func(j *journal) { j.keys = append(j.keys, "c") })
		p.Nudge()
		time.Sleep(nudgeGap + 2*time.Millisecond)
		if diff := cmp.Diff([]string{"c"}, handled()); diff != "" {
			t.Errorf("after one during a poll (-want +got):\n%s", diff)
		}
		before := j.queries()
		time.Sleep(5 * pollEvery)
		if n := j.queries() - before; n != 5 {
			t.Errorf("%d queries in the five seconds after, want 5", n)
		}
		select {
		case <-p.Moved():
		default:
			t.Error("nobody is told of the third change")
		}
		select {
		case <-p.Moved():
			t.Error("the position is told of although it stayed")
		default:
		}
	})
}

// However many nudges come, the store is asked a bounded number of times, and
// less often when it is slow.
func TestAStormOfNudgesIsBounded(t *testing.T) {
	for delay, most := range map[time.Duration]int{0: 100, 20 * time.Millisecond: 13} {
		j := &journal{delay: delay}
		polling(t, j, func(t *testing.T, p *Poller, _ func() []string) {
			before := j.queries()
			for range 1000 {
				p.Nudge()
				time.Sleep(time.Millisecond)
			}
			if n := j.queries() - before; n > most || n < most/2 {
				t.Errorf("a store that takes %s is asked %d times in a second, want %d at most", delay, n, most)
			}
			j.with(func(j *journal) { j.fail = errors.New("down") })
			time.Sleep(pollEvery)
			before = j.queries()
			for range 1000 {
				p.Nudge()
				time.Sleep(time.Millisecond)
			}
			if n := j.queries() - before; n > 6 {
				t.Errorf("a store that fails is asked %d times in a second", n)
			}
		})
	}
}

func TestFreshnessCountsFromTheStartOfAGoodPoll(t *testing.T) {
	j := &journal{delay: 700 * time.Millisecond}
	polling(t, j, func(t *testing.T, p *Poller, _ func() []string) {
		if p.Fresh() || p.Check(t.Context()) == nil {
			t.Error("fresh before the first answer")
		}
		for range 100 { // slow answers never let it lapse
			time.Sleep(pollEvery)
			synctest.Wait()
			if !p.Fresh() {
				t.Fatal("not fresh between two good polls")
			}
		}
		j.with(func(j *journal) { j.fail = errors.New("down") })
		var last time.Time // of the polls before the failure
		j.with(func(j *journal) { last = j.asked[len(j.asked)-2] })
		time.Sleep(time.Until(last.Add(pollEvery + Validity - time.Nanosecond)))
		synctest.Wait()
		if !p.Fresh() {
			t.Error("lapsed before two seconds after the start of the last good poll")
		}
		time.Sleep(time.Nanosecond)
		if p.Fresh() {
			t.Error("fresh two seconds after the start of the last good poll")
		}
		if err := p.Check(t.Context()); !fault.Is(err, fault.StorageUnavailable) {
			t.Errorf("Check = %v, want STORAGE_UNAVAILABLE", err)
		}
		j.with(func(j *journal) { j.fail = nil })
		time.Sleep(2 * pollEvery)
		if !p.Fresh() || p.Check(t.Context()) != nil {
			t.Error("not fresh although the store is back")
		}
	})
}

func TestAHangingQueryEndsAtItsDeadline(t *testing.T) {
	j := &journal{delay: time.Hour}
	polling(t, j, func(t *testing.T, p *Poller, _ func() []string) {
		time.Sleep(10*(pollTimeout+pollRetry) - time.Nanosecond)
		j.with(func(j *journal) {
			if len(j.asked) != 10 {
				t.Errorf("%d queries, want 10", len(j.asked))
			}
		})
	})
}

func TestThePollerReadsEveryPage(t *testing.T) {
	j := &journal{}
	for i := range 2*pollPage + 1 {
		j.keys = append(j.keys, fmt.Sprint(i))
	}
	polling(t, j, func(t *testing.T, p *Poller, handled func() []string) {
		if diff := cmp.Diff(j.keys, handled()); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		if len(j.asked) != 3 || !p.Fresh() {
			t.Errorf("%d queries, fresh %v; want 3 and fresh", len(j.asked), p.Fresh())
		}
	})
}

func TestAStoreThatWentBackDropsEverything(t *testing.T) {
	j := &journal{keys: []string{"a", "b", "c"}}
	polling(t, j, func(t *testing.T, p *Poller, handled func() []string) {
		handled()
		j.with(func(j *journal) { j.keys = j.keys[:1] })
		time.Sleep(pollEvery)
		if diff := cmp.Diff([]string{"*"}, handled()); diff != "" || p.Position() != 1 {
			t.Errorf("at %d, (-want +got):\n%s", p.Position(), diff)
		}
	})
}

// stuck lists the same full page for ever.
type stuck struct{}

func (stuck) Changes(_ context.Context, since int64, limit int) (store.Changes, error) {
	return store.Changes{Items: make([]store.Change, limit), Latest: since}, nil
}

func TestAListWithoutEndIsAFailedPoll(t *testing.T) {
	p := NewPoller(stuck{}, func([]store.Change) {})
	if err := p.poll(t.Context(), time.Now()); err == nil || p.Fresh() {
		t.Errorf("poll = %v, fresh %v", err, p.Fresh())
	}
}

func TestThePollerIsACollector(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	j := &journal{keys: []string{"a"}}
	p := NewPoller(j, func([]store.Change) {})
	reg.MustRegister(p)
	if families, err := reg.Gather(); err != nil || len(families) != 3 {
		t.Errorf("before the first poll: %d metrics, %v; want 3", len(families), err)
	}
	if err := p.poll(t.Context(), time.Now()); err != nil {
		t.Fatal(err)
	}
	if families, err := reg.Gather(); err != nil || len(families) != 4 {
		t.Errorf("after a poll: %d metrics, %v; want 4", len(families), err)
	}
}
