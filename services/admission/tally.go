package admission

import (
	"encoding/json"
	"sync"

	"flexiq/pkg/wire"
)

// maxReport bounds the bytes of the names in one report, so that it fits into
// any server's messages.
const maxReport = 256 << 10

// tally counts jobs by namespace between two reports.
type tally struct {
	process string
	out     Reports // nil: nothing is counted

	mu     sync.Mutex
	counts map[string]wire.AdmissionCounts
}

func newTally(process string, out Reports) *tally {
	return &tally{process: process, out: out, counts: make(map[string]wire.AdmissionCounts)}
}

func (t *tally) add(ns string, c wire.AdmissionCounts) {
	if t.out == nil {
		return
	}
	t.mu.Lock()
	sum := t.counts[ns]
	sum.Add(c)
	t.counts[ns] = sum
	t.mu.Unlock()
}

// report sends what was counted since the last one, in as many messages as it takes.
func (t *tally) report() {
	t.mu.Lock()
	counts := t.counts
	t.counts = make(map[string]wire.AdmissionCounts)
	t.mu.Unlock()
	part, size := make(map[string]wire.AdmissionCounts), 0
	for ns, c := range counts {
		const numbers = 100
		n := len(ns)*2 + numbers
		for queue := range c.Queues {
			n += len(queue)*2 + numbers
		}
		if size+n > maxReport {
			t.send(part)
			part, size = make(map[string]wire.AdmissionCounts), n
		} else {
			size += n
		}
		part[ns] = c
	}
	if len(part) > 0 {
		t.send(part)
	}
}

func (t *tally) send(part map[string]wire.AdmissionCounts) {
	// A map of strings to numbers always marshals.
	data, _ := json.Marshal(wire.AdmissionReport{Process: t.process, Namespaces: part})
	t.out.PublishStats(data)
}
