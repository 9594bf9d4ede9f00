package retention

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"flexiq/pkg/quota"
	"flexiq/pkg/store"
)

func limit(n int64) *int64 { return &n }

func TestOverCeiling(t *testing.T) {
	stamp := store.Stamp{Revision: 3}
	over := func(table store.Table, keep int64) task {
		return task{namespace: "ns", table: table, keep: &keep, stamp: stamp}
	}
	for _, c := range []struct {
		name           string
		archived, dead int64
		quota          quota.Quota
		want           []task
	}{
		{name: "no limits", archived: 5, dead: 5},
		{name: "under", archived: 4, dead: 4, quota: quota.Quota{MaxArchivedRows: limit(5), MaxDeadRows: limit(5)}},
		{name: "exact", archived: 5, dead: 5, quota: quota.Quota{MaxArchivedRows: limit(5), MaxDeadRows: limit(5)}},
		{
			name: "over by one", archived: 6, dead: 6, quota: quota.Quota{MaxArchivedRows: limit(5), MaxDeadRows: limit(5)},
			want: []task{over(store.Archive, 5), over(store.DeadLetters, 5)},
		},
		{
			name: "zero is a ceiling", archived: 1, dead: 1, quota: quota.Quota{MaxArchivedRows: limit(0)},
			want: []task{over(store.Archive, 0)},
		},
		{name: "zero with nothing", quota: quota.Quota{MaxArchivedRows: limit(0), MaxDeadRows: limit(0)}},
		{
			name: "one table", archived: 9, dead: 9, quota: quota.Quota{MaxDeadRows: limit(8)},
			want: []task{over(store.DeadLetters, 8)},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := overCeiling(store.Usage{Namespace: "ns", Archived: c.archived, Dead: c.dead}, c.quota, stamp)
			if diff := cmp.Diff(c.want, got, cmp.AllowUnexported(task{})); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestOverAge(t *testing.T) {
	now := time.Date(2026, 3, 8, 12, 0, 0, 0, time.UTC)
	got := overAge(store.Usage{Namespace: "ns", Archived: 1, Dead: 1, Now: now},
		map[store.Table]time.Duration{store.Archive: time.Hour, store.DeadLetters: 0})
	want := []task{{namespace: "ns", table: store.Archive, before: now.Add(-time.Hour)}}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(task{})); diff != "" {
		t.Errorf("one window is off:\n%s", diff)
	}
	if got := overAge(store.Usage{Namespace: "ns", Now: now}, map[store.Table]time.Duration{store.Archive: time.Hour}); got != nil {
		t.Errorf("a namespace without rows has tasks: %v", got)
	}
}

func TestTrim(t *testing.T) {
	stamp := store.Stamp{Revision: 2}
	got := task{namespace: "ns", table: store.Archive, keep: limit(0), stamp: stamp}.trim(7, 500)
	want := store.Trim{Term: 7, Namespace: "ns", Table: store.Archive, Keep: limit(0), Limit: 500, Stamp: &stamp}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	before := time.Unix(1, 0)
	got = task{namespace: "ns", table: store.DeadLetters, before: before}.trim(7, 500)
	want = store.Trim{Term: 7, Namespace: "ns", Table: store.DeadLetters, Before: before, Limit: 500}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("a window has no stamp:\n%s", diff)
	}
}

// A big namespace gets one batch, then each other, then the big one again, and
// no more than its share.
func TestTakeTurns(t *testing.T) {
	const share = 20
	need := map[string]int{"big": 100, "one": 1, "two": 2}
	var order []string
	left, err := takeTurns([]task{{namespace: "big"}, {namespace: "one"}, {namespace: "two"}}, share, func(t task) (*task, error) {
		order = append(order, t.namespace)
		if need[t.namespace]--; need[t.namespace] == 0 {
			return nil, nil
		}
		return &t, nil
	})
	if err != nil || !left {
		t.Fatalf("left %v, %v; want true and no error", left, err)
	}
	if want := []string{"big", "one", "two", "big", "two", "big"}; !slices.Equal(order[:6], want) {
		t.Errorf("order %v, want %v first", order[:6], want)
	}
	if need["big"] != 100-share {
		t.Errorf("the big one got %d batches, want %d", 100-need["big"], share)
	}

	left, err = takeTurns([]task{{namespace: "exact"}}, share, func(t task) (*task, error) {
		if need["exact"]++; need["exact"] == share {
			return nil, nil
		}
		return &t, nil
	})
	if left || err != nil {
		t.Errorf("done with the last batch of its share: left %v, %v", left, err)
	}

	boom := errors.New("boom")
	if left, err := takeTurns([]task{{}}, share, func(task) (*task, error) { return nil, boom }); !left || err != boom {
		t.Errorf("an error ended with left %v, %v", left, err)
	}
}

func TestPause(t *testing.T) {
	for _, c := range []struct {
		name       string
		tick, took time.Duration
		left       bool
		want       time.Duration
	}{
		{"quick sweep", time.Minute, 2 * time.Second, false, 58 * time.Second},
		{"slow sweep", time.Minute, 2 * time.Minute, false, time.Second},
		{"excess left", time.Minute, 2 * time.Second, true, time.Second},
		{"short tick", 200 * time.Millisecond, 10 * time.Millisecond, false, 200 * time.Millisecond},
		{"short tick, excess left", 200 * time.Millisecond, 10 * time.Millisecond, true, 200 * time.Millisecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := pause(c.tick, c.took, c.left); got != c.want {
				t.Errorf("pause %s, want %s", got, c.want)
			}
		})
	}
}

func TestPace(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	p := newPace(500)
	if p.rows != 80 {
		t.Fatalf("it begins with %d rows", p.rows)
	}
	for i, s := range []struct {
		took   time.Duration
		failed bool
		want   int
		rest   time.Duration
	}{
		{ms, false, 160, ms}, {brief / 2, false, 320, brief / 2}, {0, false, 500, 0}, {brief, false, 500, brief},
		{brief + 1, false, 250, brief + 1}, {20 * ms, false, 125, 20 * ms}, {20 * ms, false, 80, 20 * ms}, {slow - 1, false, 80, mostRest},
		{slow, false, 40, mostRest}, {ms, true, 25, ms}, {time.Minute, false, 25, mostRest},
		{brief, false, 25, brief}, {ms, false, 50, ms}, {time.Second, false, 25, mostRest}, {20 * ms, false, 80, 20 * ms},
	} {
		if rest := p.took(s.took, s.failed); p.rows != s.want || rest != s.rest {
			t.Fatalf("step %d: %d rows after a rest of %s, want %d after %s", i, p.rows, rest, s.want, s.rest)
		}
	}
	small := newPace(3)
	if small.took(time.Minute, false); small.rows != 3 {
		t.Errorf("%d rows of a bound of 3", small.rows)
	}
}
