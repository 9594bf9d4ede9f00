package main

import (
	flexiqv1 "flexiq/pkg/api/flexiq/v1"
)

type deadCmd struct {
	List   deadListCmd   `cmd:"" help:"List dead letters."`
	Show   deadShowCmd   `cmd:"" help:"Show one dead letter."`
	Replay deadReplayCmd `cmd:"" help:"Enqueue dead letters again, within the quota."`
	Delete deadDeleteCmd `cmd:"" help:"Delete dead letters by id."`
	Purge  deadPurgeCmd  `cmd:"" help:"Delete the dead letters that a filter chooses."`
}

type deadListCmd struct {
	letterFilter
	paging
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
			Filter: cmd.message(), PageSize: size, PageToken: token,
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
