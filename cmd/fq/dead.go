package main

import (
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
)

type deadCmd struct {
	List deadListCmd `cmd:"" help:"List dead letters."`
	Show deadShowCmd `cmd:"" help:"Show one dead letter."`
}

type deadListCmd struct {
	Queue  string     `help:"Only those of this queue."`
	Task   string     `help:"Only those of this task."`
	Shed   *bool      `help:"Only those that the quota shed; --no-shed: only the others." negatable:""`
	Before *time.Time `help:"Only those dead before this time." placeholder:"2030-01-02T15:04:05Z"`
	paging
}

func (cmd *deadListCmd) filter() *flexiqv1.DeadLetterFilter {
	f := &flexiqv1.DeadLetterFilter{Queue: cmd.Queue, Task: cmd.Task, Shed: cmd.Shed}
	if cmd.Before != nil {
		f.Before = timestamppb.New(*cmd.Before)
	}
	return f
}

func (cmd *deadListCmd) Run(s *session) error {
	c, hangUp, err := s.dial(ofNamespace)
	if err != nil {
		return err
	}
	defer hangUp()
	l := listing[*flexiqv1.ListDeadLettersResponse, *flexiqv1.Job]{
		name:   "dead_letters",
		items:  (*flexiqv1.ListDeadLettersResponse).GetDeadLetters,
		header: []any{"ID", "DIED", "QUEUE", "TASK", "ATTEMPT", "SHED", "ERROR"},
		row: func(j *flexiqv1.Job) []any {
			return []any{
				j.GetId(), when(j.GetFinishedAt()), j.GetQueue(), j.GetTask(), j.GetAttempt(),
				orDash(j.GetDeadMetadata()["shed"]), head(j.GetError()),
			}
		},
	}
	return l.print(s, cmd.paging, func(size int32, token string) (*flexiqv1.ListDeadLettersResponse, error) {
		return c.Admin().ListDeadLetters(s.ctx, &flexiqv1.ListDeadLettersRequest{
			Filter: cmd.filter(), PageSize: size, PageToken: token,
		})
	})
}

type deadShowCmd struct {
	ID string `arg:"" name:"id" help:"Id of the dead letter."`
}

func (cmd *deadShowCmd) Run(s *session) error {
	c, hangUp, err := s.dial(ofNamespace)
	if err != nil {
		return err
	}
	defer hangUp()
	j, err := c.Admin().GetDeadLetter(s.ctx, cmd.ID)
	if err != nil {
		return err
	}
	if s.json() {
		return writeJSON(s.out, &flexiqv1.GetDeadLetterResponse{DeadLetter: j})
	}
	return jobTable(j).write(s.out)
}
