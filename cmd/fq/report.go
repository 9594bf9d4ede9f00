package main

import (
	"fmt"
	"strings"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/client"
	"flexiq/pkg/fault"
)

// reporter prints what became of calls, in their order.
type reporter interface {
	outcome(o outcome) error
	end(t tally) error
}

// summary prints how many jobs fared how.
type summary struct{ s *session }

func showSummary(s *session) reporter { return summary{s} }

func (r summary) outcome(outcome) error { return nil }

func (r summary) end(t tally) error {
	seconds := t.took.Seconds()
	if r.s.json() {
		_, err := fmt.Fprintf(r.s.out, `{"jobs":%d,"admitted":%d,"rejected":%d,"shed":%d,"deduplicated":%d,"failed":%d,`+
			`"unknown":%d,"not_sent":%d,"seconds":%.3f}`+"\n",
			t.jobs(), t.admitted, t.rejected, t.shed, t.deduplicated, t.failed, t.unknown, t.unsent, seconds)
		return err
	}
	var tab table
	tab.row("admitted", t.admitted)
	tab.row("rejected", t.rejected)
	tab.row("shed", t.shed)
	for _, seldom := range []struct {
		name string
		n    int
	}{{"deduplicated", t.deduplicated}, {"failed", t.failed}, {"unknown", t.unknown}, {"not sent", t.unsent}} {
		if seldom.n > 0 {
			tab.row(seldom.name, seldom.n)
		}
	}
	if err := tab.write(r.s.out); err != nil {
		return err
	}
	r.s.remark("%s in %.1fs, %.0f/s", plural(t.jobs(), "job"), seconds, float64(t.jobs())/max(seconds, 0.001))
	if t.unknown > 0 {
		r.s.remark("unknown jobs were sent and not answered: they may be enqueued")
	}
	if t.problem != nil {
		r.s.remark("the first that was not enqueued:")
		r.s.complain(told(t.problem))
	}
	return nil
}

// outcomes prints the id of each job, or as JSON the outcome of each call.
type outcomes struct {
	s       *session
	printed int
	doubt   ranges // lines whose outcome is unknown
}

func showOutcomes(s *session) reporter { return &outcomes{s: s} }

func (r *outcomes) outcome(o outcome) error {
	if r.s.json() {
		return r.json(o)
	}
	if o.err == nil {
		for _, result := range o.results {
			if _, err := fmt.Fprintln(r.s.out, clean(orDash(result.ID))); err != nil {
				return err
			}
		}
		return nil
	}
	lines := ranges{{o.first + 1, o.first + o.jobs}}
	switch fateOf(o.err) {
	case unknown:
		r.doubt = r.doubt.and(lines[0])
	case notSent: // counted; what follows was not sent either
	default:
		r.s.remark("%s: %s", lines, summaryOf(fault.Of(o.err)))
	}
	return nil
}

func (r *outcomes) json(o outcome) error {
	m := new(flexiqv1.EnqueueOutcome)
	for _, result := range o.results {
		m.Results = append(m.Results, resultMessage(result))
	}
	if o.err != nil {
		f := told(o.err)
		m.Error = &flexiqv1.CallError{Code: string(codeOf(f.Reason)), Reason: string(f.Reason), Message: f.Message, Details: f.Details}
	}
	b := []byte(",")
	if r.printed == 0 {
		b = []byte(`{"outcomes":[`)
	}
	r.printed++
	b, err := appendMessage(b, m.ProtoReflect())
	if err != nil {
		return err
	}
	_, err = r.s.out.Write(b)
	return err
}

func (r *outcomes) end(t tally) error {
	if r.s.json() {
		b := []byte("]")
		if r.printed == 0 {
			b = []byte(`{"outcomes":[]`)
		}
		if t.unknown > 0 || t.stopped {
			b = fmt.Appendf(b, `,"unknown":%d`, t.unknown)
		}
		if t.stopped {
			b = fmt.Appendf(b, `,"not_sent_from_line":%d`, t.sent+1)
		}
		_, err := r.s.out.Write(append(b, "}\n"...))
		return err
	}
	if !t.stopped && t.rejected+t.failed+t.shed+t.unknown == 0 {
		return nil
	}
	text := fmt.Sprintf("%d admitted, %d rejected, %d shed, %d failed", t.admitted, t.rejected, t.shed, t.failed)
	if t.unknown > 0 {
		text += fmt.Sprintf(", %d unknown, which may be enqueued: %s", t.unknown, r.doubt)
	}
	if t.stopped {
		text += fmt.Sprintf("; not sent: line %d and what follows", t.sent+1)
	}
	r.s.remark("%s", text)
	if t.unknown > 0 && client.MayHaveEnqueued(t.problem) {
		r.s.complain(fault.Of(t.problem))
	}
	return nil
}

// ranges are line numbers, in order.
type ranges [][2]int

// and adds a range that is not before the last one.
func (r ranges) and(next [2]int) ranges {
	if n := len(r); n > 0 && r[n-1][1]+1 == next[0] {
		r[n-1][1] = next[1]
		return r
	}
	return append(r, next)
}

func (r ranges) String() string {
	texts := make([]string, len(r))
	for i, lines := range r {
		if texts[i] = fmt.Sprintf("line %d", lines[0]); lines[1] > lines[0] {
			texts[i] = fmt.Sprintf("lines %d to %d", lines[0], lines[1])
		}
	}
	return strings.Join(texts, ", ")
}
