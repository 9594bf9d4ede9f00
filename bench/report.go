package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// report is what is written to latest.json.
type report struct {
	Time    time.Time `json:"time"`
	Commit  string    `json:"commit"`
	Quick   bool      `json:"quick,omitempty"`
	Machine machine   `json:"machine"`
	Results []result  `json:"results"`
}

// machine is where the figures come from.
type machine struct {
	OS     string `json:"os"`
	CPU    string `json:"cpu"`
	Cores  int    `json:"cores"`
	Memory string `json:"memory,omitempty"`
	Go     string `json:"go"`
}

func newReport(ctx context.Context, o options, results []result) report {
	r := report{Time: time.Now().UTC().Truncate(time.Second), Quick: o.quick, Results: results}
	cmd := exec.CommandContext(context.WithoutCancel(ctx), "git", "describe", "--always", "--dirty", "--abbrev=12")
	cmd.Dir = o.source
	if out, err := cmd.Output(); err == nil { // a source without its history has no commit
		r.Commit = strings.TrimSpace(string(out))
	}
	r.Machine = machine{
		OS: runtime.GOOS + "/" + runtime.GOARCH, CPU: procField("/proc/cpuinfo", "model name"), Cores: runtime.NumCPU(),
		Memory: procField("/proc/meminfo", "MemTotal"), Go: runtime.Version(),
	}
	return r
}

// keep takes over, from the report of an earlier run, the figures of rows that
// this one did not measure, and says of each result which run it is of.
func (r *report) keep(dir string, measured []row) error {
	for i := range r.Results {
		r.Results[i].Time, r.Results[i].Commit = r.Time.Format(time.RFC3339), r.Commit
	}
	defer r.sort()
	raw, err := os.ReadFile(filepath.Join(dir, "latest.json"))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	var earlier report
	if err == nil {
		err = json.Unmarshal(raw, &earlier)
	}
	if err != nil {
		return fmt.Errorf("the report of the earlier run: %w", err)
	}
	for _, old := range earlier.Results {
		again := func(m row) bool { return m.id == rowOf(old.ID) }
		if old.Error == "" && earlier.Machine == r.Machine && earlier.Quick == r.Quick && !slices.ContainsFunc(measured, again) {
			r.Results = append(r.Results, old)
		}
	}
	return nil
}

// sort puts the results in the order of the rows, whatever order they ran in.
func (r *report) sort() {
	place := func(x result) int {
		return slices.IndexFunc(rows, func(m row) bool { return m.id == rowOf(x.ID) })
	}
	slices.SortStableFunc(r.Results, func(a, b result) int { return place(a) - place(b) })
}

// rowOf is the row that a result belongs to: B7 of B7.archive.
func rowOf(id string) string {
	row, _, _ := strings.Cut(id, ".")
	return row
}

// procField is the first value with a name in a file of /proc; empty where
// there is none.
func procField(file, name string) string {
	raw, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(raw)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// write writes latest.json, its chart and its table.
func (r report) write(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	raw, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(filepath.Join(dir, "latest.json"), append(raw, '\n'), 0o644),
		os.WriteFile(filepath.Join(dir, "latest.svg"), []byte(chart(r)), 0o644),
		os.WriteFile(filepath.Join(dir, "latest.md"), []byte(markdown(r)), 0o644),
	)
}

// writeTable prints a line for each result.
func writeTable(w io.Writer, results []result) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "id\tscenario\tours\tpeer\tratio\tbar\t\tunit and spread")
	for _, r := range results {
		if r.Error != "" {
			fmt.Fprintf(t, "%s\t%s\t\t\t\t\tERROR\t%s\n", r.ID, r.Title, firstLine(r.Error))
			continue
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", r.ID, r.Title, figure(r.Ours), optional(r.Peer), optional(r.Ratio),
			r.bar(), r.verdict(), r.spread())
	}
	_ = t.Flush() // to a terminal or a buffer
}

func firstLine(s string) string {
	s, _, _ = strings.Cut(s, "\n")
	return s
}

func optional(v *float64) string {
	if v == nil {
		return "-"
	}
	return figure(*v)
}

func (r result) bar() string {
	if r.Bar == nil {
		return "-"
	}
	sign := "≥ "
	if r.Better == "lower" {
		sign = "≤ "
	}
	return sign + figure(*r.Bar)
}

// verdict is PASS, or by how much the bar is missed.
func (r result) verdict() string {
	switch {
	case r.Bar == nil:
		return "told"
	case r.Pass:
		return "PASS"
	}
	reached := r.Ours
	if r.Ratio != nil {
		reached = *r.Ratio
	}
	return fmt.Sprintf("GAP %s", figure(max(reached / *r.Bar, *r.Bar/reached))+"x")
}

func (r result) spread() string {
	s := fmt.Sprintf("%s; %s to %s", r.Unit, figure(r.OursRange.Min), figure(r.OursRange.Max))
	if r.PeerRange != nil {
		s += fmt.Sprintf(", peer %s to %s", figure(r.PeerRange.Min), figure(r.PeerRange.Max))
	}
	return s
}

// failures is an error when a row could not be measured. A bar that is missed
// is a finding, not a failure.
func failures(results []result) error {
	var failed []string
	for _, r := range results {
		if r.Error != "" {
			failed = append(failed, r.ID)
		}
	}
	if len(failed) == 0 {
		return nil
	}
	return fmt.Errorf("not measured: %s", strings.Join(failed, ", "))
}
