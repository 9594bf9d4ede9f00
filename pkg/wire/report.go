package wire

import (
	"encoding/json"
	"fmt"
)

// AdmissionReport is what one admission process counted in one second, as it
// publishes it for the last minute of a namespace's usage. A process may send
// several for one second; they add up.
type AdmissionReport struct {
	Process    string                     `json:"process"`
	Namespaces map[string]AdmissionCounts `json:"namespaces"`
}

// AdmissionCounts are numbers of jobs.
type AdmissionCounts struct {
	Admitted int64 `json:"admitted"` // passed the limits, duplicates included
	Rejected int64 `json:"rejected"` // of calls that a limit refused
	Shed     int64 `json:"shed"`     // became dead letters at once

	Queues map[string]int64 `json:"queues,omitempty"` // new pending jobs by queue
}

// Add adds the counts of another report.
func (c *AdmissionCounts) Add(o AdmissionCounts) {
	c.Admitted += o.Admitted
	c.Rejected += o.Rejected
	c.Shed += o.Shed
	c.Queues = addCounts(c.Queues, o.Queues)
}

func addCounts(sum, more map[string]int64) map[string]int64 {
	if sum == nil && len(more) > 0 {
		sum = make(map[string]int64, len(more))
	}
	for k, n := range more {
		sum[k] += n
	}
	return sum
}

// DispatchReport is what one dispatching process saw in one second. A process
// may send several for one second; they add up.
type DispatchReport struct {
	Namespaces map[string]DispatchCounts `json:"namespaces"`
}

// DispatchCounts is what was seen of a namespace.
type DispatchCounts struct {
	Finished map[string]int64          `json:"finished,omitempty"` // attempts that ended, by queue
	Workers  map[string]WorkerSighting `json:"workers,omitempty"`  // by name
}

// Add adds the counts of another report; its sightings are newer.
func (c *DispatchCounts) Add(o DispatchCounts) {
	c.Finished = addCounts(c.Finished, o.Finished)
	if c.Workers == nil && len(o.Workers) > 0 {
		c.Workers = make(map[string]WorkerSighting, len(o.Workers))
	}
	for name, w := range o.Workers {
		c.Workers[name] = w
	}
}

// WorkerSighting tells that a worker is there.
type WorkerSighting struct {
	Queues  []string `json:"queues,omitempty"` // that it takes from; empty: all
	Slots   int32    `json:"slots,omitempty"`
	Beat    bool     `json:"beat,omitempty"` // it only sent a heartbeat: queues and slots are not told
	Waiting int      `json:"waiting,omitempty"`
	Gone    bool     `json:"gone,omitempty"` // it has signed off
}

// ParseAdmissionReport reads a report. Fields that it does not know are ignored.
func ParseAdmissionReport(data []byte) (AdmissionReport, error) {
	var r AdmissionReport
	if err := json.Unmarshal(data, &r); err != nil {
		return AdmissionReport{}, fmt.Errorf("admission report: %w", err)
	}
	return r, nil
}

// ParseDispatchReport reads a report. Fields that it does not know are ignored.
func ParseDispatchReport(data []byte) (DispatchReport, error) {
	var r DispatchReport
	if err := json.Unmarshal(data, &r); err != nil {
		return DispatchReport{}, fmt.Errorf("dispatch report: %w", err)
	}
	return r, nil
}

// SweepReport is what one retention sweep did. One sweep may take several
// messages of the same term and time.
type SweepReport struct {
	Term       int64                  `json:"term"`
	At         int64                  `json:"at"` // when it began, microseconds since 1970
	Namespaces map[string]SweepCounts `json:"namespaces,omitempty"`
}

// SweepCounts is what a sweep did in a namespace.
type SweepCounts struct {
	Completed int64  `json:"completed,omitempty"` // rows deleted, by kind
	Cancelled int64  `json:"cancelled,omitempty"`
	Dead      int64  `json:"dead,omitempty"`
	Shed      int64  `json:"shed,omitempty"`
	Retried   int64  `json:"retried,omitempty"` // dead letters that went back to pending
	Blocked   int64  `json:"blocked,omitempty"` // dead letters that were to, and stay
	Left      bool   `json:"left,omitempty"`    // there is more to delete: the next sweep goes on
	Skipped   string `json:"skipped,omitempty"` // why it was left out
}

// ParseSweepReport reads a report. Fields that it does not know are ignored.
func ParseSweepReport(data []byte) (SweepReport, error) {
	var r SweepReport
	if err := json.Unmarshal(data, &r); err != nil {
		return SweepReport{}, fmt.Errorf("sweep report: %w", err)
	}
	return r, nil
}
