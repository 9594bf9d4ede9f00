package main

import (
	"fmt"
	"html"
	"math"
	"strings"
)

// chart draws how far each ratio is from its bar, on a logarithmic scale: a
// mark to the right of the line is better than asked for.
func chart(r report) string {
	const (
		width, left, right = 900, 420, 130
		line, top          = 22, 56
	)
	var shown []result
	for _, v := range r.Results {
		if v.Error == "" && v.Bar != nil {
			shown = append(shown, v)
		}
	}
	height := top + line*len(shown) + 24
	var s strings.Builder
	fmt.Fprintf(&s, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">`+"\n", width, height, width, height)
	fmt.Fprintf(&s, `<rect width="%d" height="%d" fill="#ffffff"/>`+"\n", width, height)
	fmt.Fprintf(&s, `<text x="12" y="22" font-size="15" font-weight="bold">FlexiQ beside its peers: what is reached, as a multiple of what is asked for</text>`+"\n")
	fmt.Fprintf(&s, `<text x="12" y="40" fill="#666">%s, %d cores, commit %s, %s; medians, lines show the spread</text>`+"\n",
		html.EscapeString(r.Machine.CPU), r.Machine.Cores, html.EscapeString(r.Commit), r.Time.Format("2006-01-02"))
	span := float64(width - left - right)
	place := func(score float64) float64 { // 1/4 to 8 times what is asked for
		return float64(left) + span*(math.Log2(min(8, max(0.25, score)))+2)/5
	}
	for i, v := range shown {
		y := top + line*i
		score, low, high := v.scores()
		colour := "#2a7d4f"
		if !v.Pass {
			colour = "#c0392b"
		}
		from, to := min(place(1), place(score)), max(place(1), place(score))
		fmt.Fprintf(&s, `<text x="12" y="%d">%s</text>`+"\n", y+15, html.EscapeString(v.ID+"  "+v.Title))
		fmt.Fprintf(&s, `<rect x="%.1f" y="%d" width="%.1f" height="12" fill="%s"/>`+"\n", from, y+5, max(1, to-from), colour)
		fmt.Fprintf(&s, `<line x1="%.1f" y1="%d" x2="%.1f" y2="%d" stroke="#333"/>`+"\n", place(low), y+11, place(high), y+11)
		reached := v.Ours
		if v.Ratio != nil {
			reached = *v.Ratio
		}
		fmt.Fprintf(&s, `<text x="%d" y="%d">%s (%s)</text>`+"\n", width-right+10, y+15, figure(reached), html.EscapeString(v.bar()))
	}
	fmt.Fprintf(&s, `<line x1="%.1f" y1="%d" x2="%.1f" y2="%d" stroke="#333" stroke-dasharray="4 3"/>`+"\n", place(1), top, place(1), height-20)
	for _, tick := range []float64{0.25, 0.5, 1, 2, 4, 8} {
		fmt.Fprintf(&s, `<text x="%.1f" y="%d" text-anchor="middle" fill="#666">%s×</text>`+"\n", place(tick), height-6, figure(tick))
	}
	return s.String() + "</svg>\n"
}

// scores are the median, the worst and the best round as multiples of the bar,
// more being better.
func (r result) scores() (score, low, high float64) {
	v, rng := r.Ours, r.OursRange
	if r.Ratio != nil {
		v, rng = *r.Ratio, *r.RatioRange
	}
	if r.Better == "lower" {
		return *r.Bar / v, *r.Bar / rng.Max, *r.Bar / rng.Min
	}
	return v / *r.Bar, rng.Min / *r.Bar, rng.Max / *r.Bar
}
