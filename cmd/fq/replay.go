package main

import (
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
)

// letterFilter are the flags by which dead letters are chosen.
type letterFilter struct {
	Queue  string     `help:"Only those of this queue."`
	Task   string     `help:"Only those of this task."`
	Shed   *bool      `help:"Only those that the quota shed; --no-shed: only the others." negatable:""`
	Before *time.Time `help:"Only those dead before this time." placeholder:"2030-01-02T15:04:05Z"`
}

func (f *letterFilter) given() bool {
	return f.Queue != "" || f.Task != "" || f.Shed != nil || f.Before != nil
}

func (f *letterFilter) message() *flexiqv1.DeadLetterFilter {
	m := &flexiqv1.DeadLetterFilter{Queue: f.Queue, Task: f.Task, Shed: f.Shed}
	if f.Before != nil {
		m.Before = timestamppb.New(*f.Before)
	}
	return m
}

type deadReplayCmd struct {
	IDs []string `arg:"" name:"id" optional:"" help:"Ids of the dead letters."`
	All bool     `help:"Every one that the flags choose, at the quota's pace, until none is left that can move."`
	letterFilter
}

func (cmd *deadReplayCmd) Run(s *session) error {
	if len(cmd.IDs) > 0 == (cmd.given() || cmd.All) {
		return usagef("dead replay: give ids, or --queue, --task, --shed or --before, or --all")
	}
	c, hangUp, err := s.dial(ofNamespace)
	if err != nil {
		return err
	}
	defer hangUp()
	var res *flexiqv1.ReplayDeadLettersResponse
	switch {
	case cmd.All:
		bar := newReplayBar(s)
		res, err = c.Admin().ReplayAll(s.ctx, cmd.message(), bar.set)
		bar.end()
	case len(cmd.IDs) > 0:
		res, err = c.Admin().ReplayDeadLetters(s.ctx, &flexiqv1.ReplayDeadLettersRequest{Ids: cmd.IDs})
	default:
		res, err = c.Admin().ReplayDeadLetters(s.ctx, &flexiqv1.ReplayDeadLettersRequest{Filter: cmd.message()})
	}
	if err != nil && !cmd.All {
		return err
	}
	// What moved before an error moved.
	if told := s.replayed(res); err == nil {
		err = told
	}
	if err == nil && (res.GetLeft() > 0 || res.GetGone() > 0 && len(cmd.IDs) > 0) {
		return errTold
	}
	return err
}

func (s *session) replayed(res *flexiqv1.ReplayDeadLettersResponse) error {
	if s.json() {
		return writeJSON(s.out, res)
	}
	t := new(table)
	t.row("moved", res.GetMoved())
	t.row("left", res.GetLeft())
	t.row("gone", res.GetGone())
	for _, r := range res.GetReasons() {
		t.row("left for "+r.GetReason(), r.GetCount())
	}
	return t.write(s.out)
}

// replayBar tells on a terminal how far a long replay is.
type replayBar struct {
	s     *session
	drawn bool
}

func newReplayBar(s *session) *replayBar { return &replayBar{s: s} }

func (b *replayBar) set(sum *flexiqv1.ReplayDeadLettersResponse) {
	if terminal(b.s.err) && !b.s.json() {
		b.drawn = true
		fmt.Fprintf(b.s.err, "\r\x1b[K%d moved, %d left", sum.GetMoved(), sum.GetLeft())
	}
}

func (b *replayBar) end() {
	if b.drawn {
		fmt.Fprint(b.s.err, "\r\x1b[K")
	}
}

type deadDeleteCmd struct {
	IDs []string `arg:"" name:"id" help:"Ids of the dead letters."`
}

func (cmd *deadDeleteCmd) Run(s *session) error {
	c, hangUp, err := s.dial(ofNamespace)
	if err != nil {
		return err
	}
	defer hangUp()
	res, err := c.Admin().DeleteDeadLetters(s.ctx, &flexiqv1.DeleteDeadLettersRequest{Ids: cmd.IDs})
	if err != nil {
		return err
	}
	if err := s.deleted(res); err != nil {
		return err
	}
	if named := distinct(cmd.IDs); res.GetDeleted() < int64(named) {
		if !s.json() {
			s.remark("%d of %d dead letters were not there", int64(named)-res.GetDeleted(), named)
		}
		return errTold
	}
	return nil
}

// distinct counts ids, which are compared without regard to case.
func distinct(ids []string) int {
	seen := make(map[string]bool, len(ids))
	for _, id := range ids {
		seen[strings.ToLower(id)] = true
	}
	return len(seen)
}

func (s *session) deleted(res *flexiqv1.DeleteDeadLettersResponse) error {
	if s.json() {
		return writeJSON(s.out, res)
	}
	t := new(table)
	t.row("deleted", res.GetDeleted())
	return t.write(s.out)
}

type deadPurgeCmd struct {
	All bool `help:"Every dead letter of the namespace."`
	letterFilter
}

func (cmd *deadPurgeCmd) Run(s *session) error {
	if cmd.given() == cmd.All {
		return usagef("dead purge: give --queue, --task, --shed or --before, or --all")
	}
	c, hangUp, err := s.dial(ofNamespace)
	if err != nil {
		return err
	}
	defer hangUp()
	sum := &flexiqv1.DeleteDeadLettersResponse{}
	req := &flexiqv1.DeleteDeadLettersRequest{Filter: cmd.message()}
	for {
		res, err := c.Admin().DeleteDeadLetters(s.ctx, req)
		if err != nil {
			if told := s.deleted(sum); told != nil {
				return told
			}
			return err
		}
		sum.Deleted += res.GetDeleted()
		if req.PageToken = res.GetNextPageToken(); req.PageToken == "" {
			return s.deleted(sum)
		}
	}
}
