package main

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// progress draws a bar on standard error when it is a terminal, and nothing
// otherwise.
type progress struct {
	w     io.Writer // nil: nothing is drawn
	total int       // 0: unknown
	start time.Time
	drawn time.Time
}

const (
	barWidth  = 30
	drawEvery = 100 * time.Millisecond
)

func newProgress(s *session, total int) *progress {
	p := &progress{total: total, start: time.Now()}
	if terminal(s.err) && !s.json() {
		p.w = s.err
	}
	return p
}

func (p *progress) set(t tally) {
	if p.w == nil || time.Since(p.drawn) < drawEvery {
		return
	}
	p.drawn = time.Now()
	fmt.Fprintf(p.w, "\r\x1b[K%s", bar(t, p.total, time.Since(p.start)))
}

// end wipes the bar away.
func (p *progress) end() {
	if p.w != nil && !p.drawn.IsZero() {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
}

func bar(t tally, total int, took time.Duration) string {
	done := t.jobs()
	text := fmt.Sprintf("%d jobs, %.0f/s, %d rejected, %d shed", done, float64(done)/max(took.Seconds(), 0.001), t.rejected, t.shed)
	if total == 0 {
		return text
	}
	filled := barWidth * min(done, total) / total
	return fmt.Sprintf("[%s%s] %3d%% %s", strings.Repeat("=", filled), strings.Repeat(" ", barWidth-filled), 100*done/total, text)
}
