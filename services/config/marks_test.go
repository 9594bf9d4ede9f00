package config

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"flexiq/pkg/quota"
	"flexiq/pkg/store"
)

func TestMarkOf(t *testing.T) {
	for _, c := range []struct {
		current, limit int64
		before, want   int
	}{
		{0, 1000, 0, 0}, {499, 1000, 0, 0}, {500, 1000, 0, 1}, {799, 1000, 0, 1}, {800, 1000, 0, 2}, {999, 1000, 0, 2}, {1000, 1000, 0, 3}, {5000, 1000, 0, 3},
		{950, 1000, 3, 3}, {949, 1000, 3, 2}, {750, 1000, 2, 2}, {749, 1000, 2, 1}, {450, 1000, 1, 1}, {449, 1000, 1, 0}, // back with slack
		{0, 1000, 3, 0}, {500, 1000, 3, 1}, {760, 1000, 3, 2},
		{0, 1, 0, 0}, {1, 1, 0, 3}, {0, 1, 3, 0},
		{0, 0, 0, 3}, {7, 0, 0, 3}, // a limit of zero has no room
		{math.MaxInt64, math.MaxInt64, 0, 3}, {math.MaxInt64/2 + 1, math.MaxInt64, 0, 1},
	} {
		if got := markOf(c.current, c.limit, c.before); got != c.want {
			t.Errorf("%d of %d after %d marks: %d, want %d", c.current, c.limit, c.before, got, c.want)
		}
	}
}

// limited is a namespace with so many pending jobs of 100.
func limited(ns string, pending int64) view {
	most := int64(100)
	return view{usage: store.Usage{Namespace: ns, Pending: pending}, quota: quota.Quota{MaxPending: &most}}
}

// office is processes that watch, with a clock of the test's.
type office struct {
	now    time.Time
	boards map[string]*board
	told   []string
	use    map[string]int64
}

func newOffice(names ...string) *office {
	o := &office{now: time.Unix(1_000_000, 0), boards: map[string]*board{}, use: map[string]int64{}}
	for _, name := range names {
		o.boards[name] = newBoard(name)
	}
	return o
}

// set changes the use of a namespace, which every process hears of.
func (o *office) set(ns string, pending int64) {
	o.use[ns] = pending
	for _, b := range o.boards {
		b.moved(ns)
	}
}

// second lets a second pass: every process looks, and the others hear it.
func (o *office) second() {
	for _, b := range o.boards {
		changed := map[string]reached{}
		for _, ns := range b.round(o.now) {
			crossed, after := b.look(limited(ns, o.use[ns]), o.now)
			for _, c := range crossed {
				o.told = append(o.told, fmt.Sprintf("%s %d %v", ns, c.mark, c.up))
			}
			if after != nil {
				changed[ns] = after
			}
		}
		for _, text := range b.reports(changed) {
			for _, other := range o.boards {
				var r markReport
				if err := json.Unmarshal(text, &r); err != nil {
					panic(err)
				}
				other.hear(r, o.now)
			}
		}
	}
	o.now = o.now.Add(time.Second)
}

func (o *office) expect(t *testing.T, want ...string) {
	t.Helper()
	slices.Sort(o.told)
	slices.Sort(want)
	if !slices.Equal(o.told, want) {
		t.Fatalf("told %q, want %q", o.told, want)
	}
	o.told = nil
}

// Each crossing is told once, there and back, whichever process sees it, and
// going to and fro at a mark is not a crossing.
func TestACrossingIsToldOnce(t *testing.T) {
	o := newOffice("one", "two", "three")
	o.second()
	o.second() // all know of each other
	var up, down []string
	for i := range 40 {
		ns := fmt.Sprint("ns-", i)
		o.set(ns, 100)
		for _, mark := range marks {
			up, down = append(up, fmt.Sprintf("%s %d true", ns, mark)), append(down, fmt.Sprintf("%s %d false", ns, mark))
		}
	}
	o.second()
	o.expect(t, up...)
	for i := range 10 { // nothing new, and to and fro
		for ns := range o.use {
			o.set(ns, int64(96+i%4))
		}
		o.second()
	}
	o.expect(t)
	for ns := range o.use {
		o.set(ns, 0)
	}
	o.second()
	o.expect(t, down...)
}

func TestNamespacesAreSharedAmongProcesses(t *testing.T) {
	o := newOffice("host-1", "host-2", "host-3")
	o.second()
	o.second()
	for i := range 600 {
		n := 0
		for _, b := range o.boards {
			if b.watches(fmt.Sprint("ns-", i)) {
				n++
			}
		}
		if n != 1 {
			t.Fatalf("%d processes watch ns-%d", n, i)
		}
	}
	for name, b := range o.boards {
		n := 0
		for i := range 600 {
			if b.watches(fmt.Sprint("ns-", i)) {
				n++
			}
		}
		if n < 100 || n > 320 {
			t.Errorf("%s watches %d of 600 namespaces", name, n)
		}
	}
}

// A process that comes adds nothing to what was told, and one that goes takes
// nothing of it with it.
func TestProcessesComeAndGo(t *testing.T) {
	o := newOffice("one")
	o.second()
	o.second()
	o.set("a", 85)
	o.second()
	o.expect(t, "a 50 true", "a 80 true")
	late := newBoard("two")
	if crossed, _ := late.look(limited("a", 85), o.now); len(crossed) != 2 { // as it adopts what there is, without telling
		t.Fatalf("adopted %v", crossed)
	}
	o.boards["two"] = late
	o.set("a", 86)
	o.second()
	o.second()
	o.expect(t)
	delete(o.boards, "one")
	o.set("a", 100)
	for range 15 { // the one that is gone is believed for three seconds, and then looked for by itself
		o.second()
	}
	o.expect(t, "a 100 true")
}

// A limit that is lifted is not told as a crossing, and counts from nothing when it is set again.
func TestALiftedLimitIsForgotten(t *testing.T) {
	b := newBoard("one")
	now := time.Unix(1_000_000, 0)
	b.look(limited("a", 100), now)
	free := limited("a", 100)
	free.quota = quota.Quota{}
	if crossed, after := b.look(free, now); len(crossed) != 0 || after == nil || len(after) != 0 {
		t.Errorf("crossed %v, reached %v", crossed, after)
	}
	if crossed, _ := b.look(limited("a", 60), now); len(crossed) != 1 || crossed[0].mark != 50 || !crossed[0].up {
		t.Errorf("crossed %v", crossed)
	}
	broken := limited("a", 100)
	broken.err = fmt.Errorf("unreadable")
	if crossed, after := b.look(broken, now); crossed != nil || after != nil {
		t.Errorf("of a quota that cannot be read: %v, %v", crossed, after)
	}
}

func TestReportsFitIntoMessages(t *testing.T) {
	b := newBoard("one")
	changed := map[string]reached{}
	for i := range 20_000 {
		changed[fmt.Sprintf("a namespace with a rather long name %05d", i)] = reached{"max_pending": 1}
	}
	n := 0
	for _, text := range b.reports(changed) {
		if len(text) > 1<<20 {
			t.Errorf("a message of %d bytes", len(text))
		}
		var r markReport
		if err := json.Unmarshal(text, &r); err != nil {
			t.Fatal(err)
		}
		n += len(r.Reached)
	}
	if n != len(changed) {
		t.Errorf("%d namespaces in the messages, want %d", n, len(changed))
	}
}
