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
}

// ParseAdmissionReport reads a report. Fields that it does not know are ignored.
func ParseAdmissionReport(data []byte) (AdmissionReport, error) {
	var r AdmissionReport
	if err := json.Unmarshal(data, &r); err != nil {
		return AdmissionReport{}, fmt.Errorf("admission report: %w", err)
	}
	return r, nil
}
