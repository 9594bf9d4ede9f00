package config

import (
	"encoding/json"
	"sync"
	"time"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/wire"
)

// window is the seconds of a sliding minute.
const window = 60

// minute sums what was reported in the last minute, by namespace. It
// keeps a slot a second, so what it holds ends with the minute whatever is
// reported. The zero value is ready; it is safe for concurrent use.
type minute struct {
	mu    sync.Mutex
	slots [window]slot
}

type slot struct {
	second   int64 // since 1970
	counts   map[string]wire.AdmissionCounts
	finished map[string]map[string]int64 // by namespace and queue
}

// at is the slot of now. The caller holds mu.
func (m *minute) at(now time.Time) *slot {
	sl := &m.slots[now.Unix()%window]
	if sl.second != now.Unix() {
		*sl = slot{second: now.Unix(), counts: make(map[string]wire.AdmissionCounts), finished: make(map[string]map[string]int64)}
	}
	return sl
}

// add counts a report that came at now.
func (m *minute) add(now time.Time, r wire.AdmissionReport) {
	m.mu.Lock()
	defer m.mu.Unlock()
	sl := m.at(now)
	for ns, c := range r.Namespaces {
		sum := sl.counts[ns]
		sum.Add(c)
		sl.counts[ns] = sum
	}
}

// addFinished counts attempts that a report of a gate says have ended.
func (m *minute) addFinished(now time.Time, r wire.DispatchReport) {
	m.mu.Lock()
	defer m.mu.Unlock()
	sl := m.at(now)
	for ns, c := range r.Namespaces {
		sum := wire.DispatchCounts{Finished: sl.finished[ns]}
		sum.Add(wire.DispatchCounts{Finished: c.Finished})
		sl.finished[ns] = sum.Finished
	}
}

// queues is the last minute of a namespace by queue: jobs enqueued and attempts
// that ended.
func (m *minute) queues(now time.Time, ns string) (enqueued, finished map[string]int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var in wire.AdmissionCounts
	var out wire.DispatchCounts
	for i := range m.slots {
		if age := now.Unix() - m.slots[i].second; age >= 0 && age < window {
			in.Add(m.slots[i].counts[ns])
			out.Add(wire.DispatchCounts{Finished: m.slots[i].finished[ns]})
		}
	}
	return in.Queues, out.Finished
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
	s.board.admitted(r)
}

// count counts what this process brought into a namespace itself.
func (s *Service) count(ns string, c wire.AdmissionCounts) {
	if c.Admitted+c.Rejected+c.Shed == 0 {
		return
	}
	report, err := json.Marshal(wire.AdmissionReport{Process: s.cfg.Process, Namespaces: map[string]wire.AdmissionCounts{ns: c}})
	if err == nil { // texts and numbers always marshal
		s.deps.Bus.PublishStats(report)
	}
}
