package main

import (
	"fmt"
	"io"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
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
		_, err := fmt.Fprintf(r.s.out,
			`{"jobs":%d,"admitted":%d,"rejected":%d,"shed":%d,"deduplicated":%d,"failed":%d,"seconds":%.3f}`+"\n",
			t.jobs(), t.admitted, t.rejected, t.shed, t.deduplicated, t.failed, seconds)
		return err
	}
	var tab table
	tab.row("admitted", t.admitted)
	tab.row("rejected", t.rejected)
	tab.row("shed", t.shed)
	if t.deduplicated > 0 {
		tab.row("deduplicated", t.deduplicated)
	}
	if t.failed > 0 {
		tab.row("failed", t.failed)
	}
	if err := tab.write(r.s.out); err != nil {
		return err
	}
	r.s.remark("%d jobs in %.1fs, %.0f/s", t.jobs(), seconds, float64(t.jobs())/max(seconds, 0.001))
	if t.problem != nil {
		r.s.remark("the first that was not enqueued:")
		r.s.complain(fault.Of(t.problem))
	}
	return nil
}

// outcomes prints the id of each job, or as JSON the outcome of each call.
type outcomes struct {
	s       *session
	printed int
}

func showOutcomes(s *session) reporter { return &outcomes{s: s} }

func (r *outcomes) outcome(o outcome) error {
	if r.s.json() {
		return r.json(o)
	}
	if o.err != nil {
		place := fmt.Sprintf("line %d", o.first+1)
		if o.jobs > 1 {
			place = fmt.Sprintf("lines %d to %d", o.first+1, o.first+o.jobs)
		}
		r.s.remark("%s:", place)
		r.s.complain(fault.Of(o.err))
		return nil
	}
	for _, result := range o.results {
		if _, err := fmt.Fprintln(r.s.out, clean(orDash(result.ID))); err != nil {
			return err
		}
	}
	return nil
}

func (r *outcomes) json(o outcome) error {
	m := new(flexiqv1.EnqueueOutcome)
	for _, result := range o.results {
		m.Results = append(m.Results, resultMessage(result))
	}
	if o.err != nil {
		f := fault.Of(o.err)
		m.Error = &flexiqv1.CallError{Code: string(f.Reason.Code()), Reason: string(f.Reason), Message: f.Message, Details: f.Details}
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
		if r.printed == 0 {
			_, err := io.WriteString(r.s.out, "{\"outcomes\":[]}\n")
			return err
		}
		_, err := io.WriteString(r.s.out, "]}\n")
		return err
	}
	if t.rejected+t.failed+t.shed > 0 {
		r.s.remark("%d admitted, %d rejected, %d shed, %d failed", t.admitted, t.rejected, t.shed, t.failed)
	}
	return nil
}
