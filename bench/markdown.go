package main

import (
	"fmt"
	"strings"
	"time"
)

// markdown is the table for people who read the repository.
func markdown(r report) string {
	var s strings.Builder
	fmt.Fprintf(&s, "# FlexiQ beside its peers\n\nMade by `make bench` at %s from commit %s on %s, %d cores, %s of memory, %s.\n",
		r.Time.Format("2006-01-02 15:04 MST"), r.Commit, r.Machine.CPU, r.Machine.Cores, r.Machine.Memory, r.Machine.Go)
	s.WriteString("Medians, with the least and the greatest round. What the rows mean: [performance.md](../../docs/performance.md).\n\n")
	s.WriteString("| row | scenario | FlexiQ | peer | ratio | bar | |\n| --- | --- | --- | --- | --- | --- | --- |\n")
	for _, v := range r.Results {
		if v.Error != "" {
			fmt.Fprintf(&s, "| %s | %s | | | | | ERROR: %s |\n", v.ID, v.Title, cell(firstLine(v.Error)))
			continue
		}
		peer := "–"
		if v.Peer != nil {
			peer = fmt.Sprintf("%s (%s to %s)", figure(*v.Peer), figure(v.PeerRange.Min), figure(v.PeerRange.Max))
		}
		fmt.Fprintf(&s, "| %s | %s | %s (%s to %s) %s | %s | %s | %s | %s |\n", v.ID, cell(v.Title), figure(v.Ours), figure(v.OursRange.Min),
			figure(v.OursRange.Max), v.Unit, peer, optional(v.Ratio), v.bar(), v.verdict())
	}
	earlier(&s, r)
	s.WriteString("\n## What a job costs\n\n")
	for _, v := range r.Results {
		for _, note := range v.Notes {
			fmt.Fprintf(&s, "- %s, %s\n", v.ID, note)
		}
	}
	return s.String()
}

// earlier names the rows that an earlier run measured.
func earlier(s *strings.Builder, r report) {
	told := make(map[string]bool)
	for _, v := range r.Results {
		if line := fmt.Sprintf("\n%s was measured at %s from commit %s.\n", rowOf(v.ID), v.Time, v.Commit); v.Time != r.Time.Format(time.RFC3339) && !told[line] {
			told[line] = true
			s.WriteString(line)
		}
	}
}

// cell is text that stays in its cell of a table.
func cell(s string) string { return strings.ReplaceAll(s, "|", "\\|") }
