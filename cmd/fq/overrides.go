package main

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
)

type overridesCmd struct {
	Set   overridesSetCmd   `cmd:"" help:"Set what holds for a queue or a task, in the place of what was set before: what is left out is lifted."`
	Clear overridesClearCmd `cmd:"" help:"Remove everything that is set for a queue or a task."`
	List  overridesListCmd  `cmd:"" help:"List the overrides of the namespace."`
}

// aimFlags say which queue or task is meant.
type aimFlags struct {
	Queue *string `help:"The queue that it is about." placeholder:"NAME" xor:"aim" required:""`
	Task  *string `help:"The task that it is about, over all queues." placeholder:"NAME" xor:"aim" required:""`
}

// text names the queue or task for people.
func (f aimFlags) text() string {
	if f.Task != nil {
		return "task " + clean(*f.Task)
	}
	return "queue " + clean(*f.Queue)
}

type overridesSetCmd struct {
	aimFlags
	MaxConcurrent *count        `help:"Jobs of it that may run at once; 0 lets nothing start." placeholder:"N"`
	Paused        bool          `help:"Let nothing of it start."`
	MaxAttempts   many          `help:"Attempts of its jobs that are enqueued without --max-attempts." placeholder:"N"`
	Timeout       time.Duration `help:"Longest attempt of its jobs that are enqueued without --timeout." placeholder:"30m" positive:""`
	Priority      *int8         `help:"Priority of its jobs that are enqueued without --priority, from -128 to 127 (--priority=-5)." placeholder:"N"`
}

func (cmd *overridesSetCmd) request() *flexiqv1.SetOverrideRequest {
	req := &flexiqv1.SetOverrideRequest{Queue: cmd.Queue, Task: cmd.Task, MaxConcurrent: cmd.MaxConcurrent.ptr()}
	if cmd.Paused {
		req.Paused = new(true)
	}
	if cmd.MaxAttempts > 0 {
		req.MaxAttempts = new(int32(cmd.MaxAttempts))
	}
	if cmd.Timeout > 0 {
		req.Timeout = durationpb.New(cmd.Timeout)
	}
	if cmd.Priority != nil {
		req.Priority = new(int32(*cmd.Priority))
	}
	return req
}

func (cmd *overridesSetCmd) Run(s *session) error {
	if cmd.MaxConcurrent == nil && !cmd.Paused && cmd.MaxAttempts == 0 && cmd.Timeout == 0 && cmd.Priority == nil {
		return usagef("overrides set: nothing is to be set; to lift everything use: fq overrides clear")
	}
	c, hangUp, err := s.dial(ofNamespace)
	if err != nil {
		return err
	}
	defer hangUp()
	o, err := c.Admin().SetOverride(s.ctx, cmd.request())
	if err != nil {
		return err
	}
	if s.json() {
		return writeJSON(s.out, &flexiqv1.SetOverrideResponse{Override: o})
	}
	t := new(table)
	t.row(overrideHeader...)
	t.row(overrideRow(o)...)
	return t.write(s.out)
}

var overrideHeader = []any{"KIND", "NAME", "MAX CONCURRENT", "STATE", "MAX ATTEMPTS", "TIMEOUT", "PRIORITY", "UPDATED", "BY"}

func overrideRow(o *flexiqv1.Override) []any {
	kind, name, limit, state := "queue", o.GetQueue(), any("unlimited"), "open"
	if o.Task != nil {
		kind, name = "task", o.GetTask()
	}
	if o.MaxConcurrent != nil {
		limit = o.GetMaxConcurrent()
	}
	if o.GetPaused() {
		state = "PAUSED"
	}
	return []any{kind, name, limit, state, orUnset(o.MaxAttempts), span(o.Timeout), orUnset(o.Priority), when(o.GetUpdatedAt()), orDash(o.GetUpdatedBy())}
}

// orUnset shows a number that may not be set as "-"; 0 is one.
func orUnset(n *int32) string {
	if n == nil {
		return "-"
	}
	return fmt.Sprint(*n)
}

type overridesClearCmd struct{ aimFlags }

func (cmd *overridesClearCmd) Run(s *session) error {
	c, hangUp, err := s.dial(ofNamespace)
	if err != nil {
		return err
	}
	defer hangUp()
	if err := c.Admin().ClearOverride(s.ctx, &flexiqv1.ClearOverrideRequest{Queue: cmd.Queue, Task: cmd.Task}); err != nil {
		return err
	}
	if s.json() {
		return writeJSON(s.out, &flexiqv1.ClearOverrideResponse{})
	}
	_, err = fmt.Fprintf(s.out, "cleared %s\n", cmd.text())
	return err
}

type overridesListCmd struct{ paging }

func (cmd *overridesListCmd) Run(s *session) error {
	c, hangUp, err := s.dial(ofNamespace)
	if err != nil {
		return err
	}
	defer hangUp()
	l := listing[*flexiqv1.ListOverridesResponse, *flexiqv1.Override]{
		name: "overrides", items: (*flexiqv1.ListOverridesResponse).GetOverrides, header: overrideHeader, row: overrideRow,
	}
	return l.print(s, cmd.paging, func(size int32, token string) (*flexiqv1.ListOverridesResponse, error) {
		return c.Admin().ListOverrides(s.ctx, &flexiqv1.ListOverridesRequest{PageSize: size, PageToken: token})
	})
}
