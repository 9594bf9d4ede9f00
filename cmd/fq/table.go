package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/timestamppb"
)

// table prints aligned columns, without lines or colours.
type table struct {
	rows   [][]string
	steady bool  // later writes keep the columns of earlier ones, or widen them
	widths []int // of a steady table
}

func (t *table) row(cells ...any) {
	row := make([]string, len(cells))
	for i, c := range cells {
		row[i] = clean(fmt.Sprint(c))
	}
	t.rows = append(t.rows, row)
}

// write prints the rows gathered so far, and forgets them.
func (t *table) write(w io.Writer) error {
	widths := t.widths
	for _, row := range t.rows {
		for i, c := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(c))
		}
	}
	var b strings.Builder
	for _, row := range t.rows {
		for i, c := range row {
			if i == len(row)-1 {
				b.WriteString(c)
				break
			}
			b.WriteString(c + strings.Repeat(" ", widths[i]-utf8.RuneCountInString(c)+2))
		}
		b.WriteByte('\n')
	}
	t.rows = nil
	if t.steady {
		t.widths = widths
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// when shows a time to the second, in UTC; "-" for none.
func when(t *timestamppb.Timestamp) string {
	if t == nil {
		return "-"
	}
	return t.AsTime().UTC().Format(time.RFC3339)
}

// orDash shows an empty text as "-".
func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// head shows the first line of a text, cut to a sane width.
func head(s string) string {
	const most = 60
	s, rest, _ := strings.Cut(s, "\n")
	if r := []rune(s); len(r) > most {
		return string(r[:most-1]) + "…"
	}
	if rest != "" {
		return s + " …"
	}
	return orDash(s)
}

func detailKeys(m map[string]string) []string { return slices.Sorted(maps.Keys(m)) }

func printDetails(w io.Writer, details map[string]string) {
	var t table
	for _, k := range detailKeys(details) {
		t.row("  "+k, details[k])
	}
	_ = t.write(w)
}
