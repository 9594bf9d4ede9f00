package main

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
)

type eventsCmd struct {
	Type  []string `help:"Only events of this type, such as job.dead; job and quota are all of theirs. May be repeated." placeholder:"TYPE"`
	Queue string   `help:"Only events of this queue."`
	Task  string   `help:"Only events of this task."`
	Limit many     `help:"End after so many events." placeholder:"N"`
}

func (cmd *eventsCmd) Run(s *session) error {
	c, hangUp, err := s.dial(ofNamespace)
	if err != nil {
		return err
	}
	defer hangUp()
	all, err := c.Admin().WatchEvents(s.ctx, &flexiqv1.WatchEventsRequest{Types: cmd.Type, Queue: cmd.Queue, Task: cmd.Task})
	if err != nil {
		return err
	}
	t := table{steady: true}
	t.row("TIME", "TYPE", "JOB", "QUEUE", "TASK", "DETAILS")
	if !s.json() {
		if err := t.write(s.out); err != nil {
			return err
		}
	}
	n := 0
	for e, err := range all {
		if err != nil {
			return err
		}
		if s.json() {
			err = writeJSON(s.out, e)
		} else {
			t.row(when(e.GetTime()), e.GetType(), orDash(e.GetJobId()), orDash(e.GetQueue()), orDash(e.GetTask()), about(e))
			err = t.write(s.out)
		}
		if err != nil {
			return err
		}
		if n++; n == int(cmd.Limit) {
			return nil
		}
	}
	return nil // interrupted: that is how it ends
}

// about is what an event says beside its job, on one line.
func about(e *flexiqv1.Event) string {
	var out []string
	if e.GetReason() != "" {
		out = append(out, e.GetReason())
	}
	if e.GetCount() > 1 {
		out = append(out, "×"+strconv.FormatInt(e.GetCount(), 10))
	}
	if e.GetAttempt() > 0 {
		out = append(out, "attempt "+strconv.Itoa(int(e.GetAttempt())))
	}
	if o := e.GetOrigin(); o != "" && o != "enqueue" {
		out = append(out, o)
	}
	for _, k := range slices.Sorted(maps.Keys(e.GetDetails())) {
		if k != "namespace" {
			out = append(out, k+"="+e.GetDetails()[k])
		}
	}
	return orDash(strings.Join(out, " "))
}
