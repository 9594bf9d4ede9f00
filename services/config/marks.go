package config

import (
	"encoding/json"
	"hash/fnv"
	"sync"
	"time"

	"flexiq/pkg/wire"
)

// marks are the shares of a limit, in percent, whose crossing is told.
var marks = []int64{50, 80, 100}

// markSlack is how many points below a mark the use must be until it counts as
// back: one job that comes and goes at a mark is not told of each time.
const markSlack = 5

// markOf is how many marks the use of a limit has reached, given how many it
// had before. A limit of zero has no room: it is reached.
func markOf(current, limit int64, before int) int {
	share := 100.0
	if limit > 0 {
		share = 100 * float64(current) / float64(limit)
	}
	now := 0
	for now < len(marks) && share >= float64(marks[now]) {
		now++
	}
	for before > now && share < float64(marks[before-1]-markSlack) {
		before--
	}
	return max(now, before)
}

const (
	// markEvery is how often processes tell each other that they watch, and look.
	markEvery = time.Second
	// markAgain is when a namespace that reached a mark is looked at without news of it.
	markAgain = 10 * time.Second
	// markMost bounds the namespaces that are looked at in a round.
	markMost = 1000
	// markRoom bounds the names in one message between processes, in bytes.
	markRoom = 256 << 10
)

// reached are the marks of a namespace's limits, by field. Those at zero are not kept.
type reached map[string]int

// markReport is what a process that watches tells the others. Exactly one of
// them watches a namespace, and all know what was told of it.
type markReport struct {
	Process string             `json:"process"`
	Reached map[string]reached `json:"reached,omitempty"` // by namespace, as far as they changed
}

// board knows which limits have reached which marks, and who watches which
// namespace. It is safe for concurrent use.
type board struct {
	self string

	mu      sync.Mutex
	reached map[string]reached
	looked  map[string]time.Time // of the namespaces in reached
	news    map[string]struct{}  // namespaces in which something moved
	seen    map[string]time.Time // other processes that watch
	since   time.Time            // this one is told to the others; zero: not yet
}

func newBoard(self string) *board {
	return &board{
		self: self, reached: map[string]reached{}, looked: map[string]time.Time{},
		news: map[string]struct{}{}, seen: map[string]time.Time{},
	}
}

// moved notes that the use of a namespace's limits, or the limits, may be others.
func (b *board) moved(ns string) {
	if ns == "" {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.news[ns] = struct{}{}
}

// admitted notes the namespaces of a report of an admission process.
func (b *board) admitted(r wire.AdmissionReport) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for ns := range r.Namespaces {
		b.news[ns] = struct{}{}
	}
}

// dispatched notes the namespaces of a gate's report in which jobs started or ended.
func (b *board) dispatched(r wire.DispatchReport) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for ns, c := range r.Namespaces {
		moved := len(c.Finished) > 0
		for _, w := range c.Workers {
			moved = moved || w.Waiting == 0 // its claim has ended, perhaps with jobs
		}
		if moved {
			b.news[ns] = struct{}{}
		}
	}
}

// swept notes the namespaces in which a sweep deleted or retried something.
func (b *board) swept(r wire.SweepReport) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for ns := range r.Namespaces {
		b.news[ns] = struct{}{}
	}
}

// hear takes the report of another process, or one's own.
func (b *board) hear(r markReport, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if r.Process == b.self {
		return
	}
	b.seen[r.Process] = now
	for ns, m := range r.Reached {
		b.put(ns, m, now)
	}
}

// put sets what a namespace has reached. The caller holds mu.
func (b *board) put(ns string, m reached, now time.Time) {
	if len(m) == 0 {
		delete(b.reached, ns)
		delete(b.looked, ns)
		return
	}
	b.reached[ns], b.looked[ns] = m, now
}

// round tells which namespaces this process is to look at now. A process that
// begins lets the others notice it first, so that no two watch a namespace.
func (b *board) round(now time.Time) []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	for name, at := range b.seen {
		if now.Sub(at) >= goneAfter {
			delete(b.seen, name)
		}
	}
	if b.since.IsZero() {
		b.since = now
	}
	if now.Sub(b.since) < markEvery/2 {
		return nil
	}
	for ns, at := range b.looked {
		if now.Sub(at) >= markAgain {
			b.news[ns] = struct{}{}
		}
	}
	var out []string
	for ns := range b.news {
		if len(out) == markMost {
			break
		}
		delete(b.news, ns)
		if b.watches(ns) {
			out = append(out, ns)
		}
	}
	return out
}

// watches reports whether this process is the one to watch a namespace: of all
// that live the one whose name, with the namespace's, hashes highest. The caller
// holds mu.
func (b *board) watches(ns string) bool {
	own := weight(b.self, ns)
	for name := range b.seen {
		if w := weight(name, ns); w > own || w == own && name > b.self {
			return false
		}
	}
	return true
}

func weight(process, ns string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(process + "\x00" + ns)) // a hash never fails
	sum := h.Sum64()
	sum ^= sum >> 31 // names that differ in their ends alone differ in the low bits alone
	sum *= 0x9e3779b97f4a7c15
	return sum ^ sum>>29
}

// crossing is a mark that was passed.
type crossing struct {
	field          string
	limit, current int64
	mark           int64
	up             bool
}

// look compares the use of a namespace's limits with what they had reached, and
// remembers it. A limit that is gone is back at nothing, which is not told: the
// change of the quota is.
func (b *board) look(v view, now time.Time) (out []crossing, changed reached) {
	b.mu.Lock()
	defer b.mu.Unlock()
	before, after := b.reached[v.usage.Namespace], reached{}
	if v.err != nil {
		return nil, nil // nobody knows its limits
	}
	for _, l := range limits(v.quota, v.usage) {
		if !watched(l.GetField()) {
			continue
		}
		was := before[l.GetField()]
		is := markOf(l.GetCurrent(), l.GetLimit(), was)
		for at := was; at < is; at++ {
			out = append(out, crossing{l.GetField(), l.GetLimit(), l.GetCurrent(), marks[at], true})
		}
		for at := was; at > is; at-- {
			out = append(out, crossing{l.GetField(), l.GetLimit(), l.GetCurrent(), marks[at-1], false})
		}
		if is > 0 {
			after[l.GetField()] = is
		}
	}
	same := len(before) == len(after)
	for field, is := range after {
		same = same && before[field] == is
	}
	b.put(v.usage.Namespace, after, now)
	if same {
		return out, nil
	}
	return out, after
}

// reports writes what changed as messages for the others, at least one: it says
// that this process watches.
func (b *board) reports(changed map[string]reached) [][]byte {
	var out [][]byte
	part, size := markReport{Process: b.self, Reached: map[string]reached{}}, 0
	flush := func() {
		text, _ := json.Marshal(part) // strings and numbers always marshal
		out = append(out, text)
		part.Reached, size = map[string]reached{}, 0
	}
	for ns, m := range changed {
		if size += 2*len(ns) + 100; size > markRoom && len(part.Reached) > 0 {
			flush()
		}
		part.Reached[ns] = m
	}
	flush()
	return out
}
