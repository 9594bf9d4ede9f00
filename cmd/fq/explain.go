package main

import (
	"fmt"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/job"
	"flexiq/pkg/quota"
)

type explainCmd struct {
	Job string `arg:"" optional:"" help:"Id of a job (default: the namespace)."`

	Task  string `help:"Instead: what would become of enqueueing this task." placeholder:"TASK"`
	Queue string `help:"Of the task that would be enqueued (default: default)." placeholder:"Q"`
	Count many   `help:"Jobs in the call that would be made." default:"1" placeholder:"N"`
}

func (cmd *explainCmd) Run(s *session) error {
	switch {
	case cmd.Job != "" && cmd.Task != "":
		return usagef("a job and --task do not go together")
	case cmd.Task == "" && (cmd.Queue != "" || cmd.Count > 1):
		return usagef("--queue and --count are for what would be enqueued: give --task too")
	case cmd.Count > job.MaxBatch:
		return usagef("--count must be from 1 to %d", job.MaxBatch)
	}
	req := &flexiqv1.ExplainRequest{JobId: cmd.Job}
	if cmd.Task != "" {
		for range cmd.Count {
			req.Jobs = append(req.Jobs, &flexiqv1.JobSpec{Task: cmd.Task, Queue: cmd.Queue})
		}
	}
	c, hangUp, err := s.dial(ofNamespace)
	if err != nil {
		return err
	}
	defer hangUp()
	res, err := c.Admin().Explain(s.ctx, req)
	if err != nil {
		return err
	}
	if s.json() {
		return writeJSON(s.out, res)
	}
	return s.printFindings(res.GetFindings())
}

func (s *session) printFindings(findings []*flexiqv1.Finding) error {
	if len(findings) == 0 {
		_, err := fmt.Fprintln(s.out, "nothing holds it back")
		return err
	}
	for i, f := range findings {
		if i > 0 {
			fmt.Fprintln(s.out)
		}
		t := new(table)
		t.row("what", f.GetWhat())
		t.row("because", f.GetMessage())
		if f.Limit != nil {
			t.row("limit", f.GetLimit())
		}
		if f.Current != nil {
			t.row(currentLabel(f), f.GetCurrent())
		}
		if f.GetSince() != nil {
			t.row("since", when(f.GetSince()))
		}
		if f.Ahead != nil {
			t.row("ahead", fmt.Sprint(f.GetAhead())+orMore(f))
		}
		if f.GetEstimate() != nil {
			t.row("estimate", span(f.GetEstimate()))
		}
		for _, h := range f.GetHeldBy() {
			t.row("held by", fmt.Sprintf("%s (task %s, queue %s) on %s since %s", h.GetJobId(), h.GetTask(), h.GetQueue(), orDash(h.GetWorker()), when(h.GetStartedAt())))
		}
		if err := t.write(s.out); err != nil {
			return err
		}
	}
	return nil
}

// currentLabel says what a limit's current is: of a rate what is left, of others
// what is used.
func currentLabel(f *flexiqv1.Finding) string {
	if f.GetWhat() == quota.EnqueueRate {
		return "left now"
	}
	return "used now"
}

func orMore(f *flexiqv1.Finding) string {
	if f.GetAheadOrMore() {
		return " or more"
	}
	return ""
}
