package config

import (
	"sync"
	"time"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/wire"
)

// window is the seconds of a sliding minute.
const window = 60

// minute sums what admission reported in the last minute, by namespace. It
// keeps a slot a second, so what it holds ends with the minute whatever is
// reported. The zero value is ready; it is safe for concurrent use.
type minute struct {
	mu    sync.Mutex
	slots [window]slot
}

type slot struct {
	second int64 // since 1970
	counts map[string]wire.AdmissionCounts
}

// add counts a report that came at now.
func (m *minute) add(now time.Time, r wire.AdmissionReport) {
	m.mu.Lock()
	defer m.mu.Unlock()
	sl := &m.slots[now.Unix()%window]
	if sl.second != now.Unix() {
		*sl = slot{second: now.Unix(), counts: make(map[string]wire.AdmissionCounts, len(r.Namespaces))}
	}
	for ns, c := range r.Namespaces {
		sum := sl.counts[ns]
		sum.Admitted += c.Admitted
		sum.Rejected += c.Rejected
		sum.Shed += c.Shed
		sl.counts[ns] = sum
	}
}

// sum is the last minute of a namespace.
func (m *minute) sum(now time.Time, ns string) *flexiqv1.AdmissionCounts {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := &flexiqv1.AdmissionCounts{}
	for i := range m.slots {
		if age := now.Unix() - m.slots[i].second; age >= 0 && age < window {
			c := m.slots[i].counts[ns]
			out.Admitted += c.Admitted
			out.Rejected += c.Rejected
			out.Shed += c.Shed
		}
	}
	return out
}

// hearStats takes a report of an admission process.
func (s *Service) hearStats(data []byte) {
	r, err := wire.ParseAdmissionReport(data)
	if err != nil {
		s.metrics.badReports.Inc()
		s.deps.Log.Debug().Err(err).Msg("bad report")
		return
	}
	s.minute.add(time.Now(), r)
}
