package config

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/wire"
)

func TestMinuteSlides(t *testing.T) {
	var m minute
	for i := range 90 { // one job a second, from two processes in turn
		m.add(now.Add(time.Duration(i)*time.Second), wire.AdmissionReport{
			Process:    []string{"a", "b"}[i%2],
			Namespaces: map[string]wire.AdmissionCounts{"tansy": {Admitted: 1, Rejected: 2, Shed: 3}, "sorrel": {Admitted: 1}},
		})
	}
	last := now.Add(89 * time.Second)
	m.add(last, wire.AdmissionReport{Namespaces: map[string]wire.AdmissionCounts{"tansy": {Admitted: 40}}}) // the same second again
	for _, c := range []struct {
		name  string
		after time.Duration
		want  *flexiqv1.AdmissionCounts
	}{
		{"at once", 0, &flexiqv1.AdmissionCounts{Admitted: 100, Rejected: 120, Shed: 180}},
		{"half a minute later", 30 * time.Second, &flexiqv1.AdmissionCounts{Admitted: 70, Rejected: 60, Shed: 90}},
		{"a second before the end", 59 * time.Second, &flexiqv1.AdmissionCounts{Admitted: 41, Rejected: 2, Shed: 3}},
		{"a minute later", time.Minute, &flexiqv1.AdmissionCounts{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, m.sum(last.Add(c.after), "tansy"), protocmp.Transform()); diff != "" {
				t.Error(diff)
			}
		})
	}
	if diff := cmp.Diff(&flexiqv1.AdmissionCounts{}, m.sum(last, "heron"), protocmp.Transform()); diff != "" {
		t.Errorf("a silent namespace:\n%s", diff)
	}
}
