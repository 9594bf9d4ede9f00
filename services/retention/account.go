package retention

import (
	"encoding/json"
	"time"

	"flexiq/pkg/store"
	"flexiq/pkg/wire"
)

// Why a sweep skipped a namespace, as reports name it.
const (
	skippedFailed     = "failed"           // a call of the store failed
	skippedUnreadable = "quota_unreadable" // its ceilings and retries; age windows went on
)

// account is what a sweep did, by namespace; one of which it did nothing has no entry.
type account map[string]wire.SweepCounts

func (a account) change(ns string, fn func(*wire.SweepCounts)) {
	c := a[ns]
	fn(&c)
	a[ns] = c
}

func (a account) trimmed(ns string, t store.Trimmed) {
	if t.Completed+t.Cancelled+t.Dead+t.Shed == 0 {
		return
	}
	a.change(ns, func(c *wire.SweepCounts) {
		c.Completed, c.Cancelled = c.Completed+t.Completed, c.Cancelled+t.Cancelled
		c.Dead, c.Shed = c.Dead+t.Dead, c.Shed+t.Shed
	})
}

// maxReport bounds the bytes of the names in one report, so that it fits into
// any server's messages.
const maxReport = 256 << 10

// tell publishes what a sweep did, in as many messages as it takes.
func (a account) tell(term int64, at time.Time, publish func([]byte)) {
	report := wire.SweepReport{Term: term, At: at.UnixMicro()}
	send := func() {
		data, _ := json.Marshal(report) // numbers and texts always marshal
		publish(data)
		report.Namespaces = nil
	}
	size := 0
	for ns, c := range a {
		const numbers = 200
		if n := len(ns)*2 + numbers; size+n > maxReport {
			send()
			size = n
		} else {
			size += n
		}
		if report.Namespaces == nil {
			report.Namespaces = make(map[string]wire.SweepCounts)
		}
		report.Namespaces[ns] = c
	}
	send() // also when nothing was done: the sweep was there
}
