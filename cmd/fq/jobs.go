package main

import (
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/timestamppb"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/client"
	"flexiq/pkg/fault"
	"flexiq/pkg/job"
)

type jobsCmd struct {
	List   jobsListCmd   `cmd:"" help:"List jobs."`
	Get    jobsGetCmd    `cmd:"" help:"Show one job."`
	Cancel jobsCancelCmd `cmd:"" help:"Cancel jobs by id, or by a filter."`
	Wait   jobsWaitCmd   `cmd:"" help:"Wait until jobs have ended; exits 0 if all are complete."`
}

type jobsListCmd struct {
	Status string `help:"Only jobs of this status: pending, running, complete, dead or cancelled."`
	Queue  string `help:"Only jobs of this queue."`
	Task   string `help:"Only jobs of this task."`
	paging
}

// jobListing prints jobs, a line each.
var jobListing = listing[*flexiqv1.ListJobsResponse, *flexiqv1.Job]{
	name:   "jobs",
	items:  (*flexiqv1.ListJobsResponse).GetJobs,
	header: []any{"ID", "STATUS", "QUEUE", "TASK", "ATTEMPT", "RUN AT", "ERROR"},
	row: func(j *flexiqv1.Job) []any {
		return []any{
			j.GetId(), j.GetStatus(), j.GetQueue(), j.GetTask(),
			fmt.Sprintf("%d/%d", j.GetAttempt(), j.GetMaxAttempts()), when(j.GetRunAt()), head(j.GetError()),
		}
	},
}

func (cmd *jobsListCmd) Run(s *session) error {
	c, hangUp, err := s.dial(ofNamespace)
	if err != nil {
		return err
	}
	defer hangUp()
	return jobListing.print(s, cmd.paging, func(size int32, token string) (*flexiqv1.ListJobsResponse, error) {
		return c.ListJobs(s.ctx, &flexiqv1.ListJobsRequest{
			Status: cmd.Status, Queue: cmd.Queue, Task: cmd.Task, PageSize: size, PageToken: token,
		})
	})
}

type jobsGetCmd struct {
	ID string `arg:"" name:"id" help:"Id of the job."`
}

func (cmd *jobsGetCmd) Run(s *session) error {
	c, hangUp, err := s.dial(ofNamespace)
	if err != nil {
		return err
	}
	defer hangUp()
	j, err := c.Job(s.ctx, cmd.ID)
	if err != nil {
		return err
	}
	if s.json() {
		return writeJSON(s.out, &flexiqv1.GetJobResponse{Job: j})
	}
	return jobTable(j).write(s.out)
}

// jobTable shows everything of a job.
func jobTable(j *flexiqv1.Job) *table {
	t := new(table)
	t.row("id", j.GetId())
	t.row("namespace", j.GetNamespace())
	t.row("queue", j.GetQueue())
	t.row("task", j.GetTask())
	t.row("status", j.GetStatus())
	t.row("priority", j.GetPriority())
	t.row("attempt", fmt.Sprintf("%d of %d", j.GetAttempt(), j.GetMaxAttempts()))
	t.row("run at", when(j.GetRunAt()))
	t.row("created", when(j.GetCreatedAt()))
	t.row("started", when(j.GetStartedAt()))
	t.row("finished", when(j.GetFinishedAt()))
	t.row("origin", fmt.Sprintf("%s by %s", j.GetOrigin(), orDash(j.GetEnqueuedBy())))
	if k := j.GetUniqueKey(); k != "" {
		t.row("unique key", k)
	}
	switch {
	case j.GetArgs() != nil:
		text, err := appendMessage(nil, j.GetArgs().ProtoReflect())
		if err != nil {
			text = []byte("unreadable")
		}
		t.row("args", string(text))
	case j.Payload != nil:
		t.row("payload", bytesText(j.GetPayload()))
	default:
		t.row("payload", "none")
	}
	if j.Result != nil {
		t.row("result", bytesText(j.GetResult()))
	} else if j.GetStatus() == string(job.Complete) {
		t.row("result", "none")
	}
	if e := j.GetError(); e != "" {
		t.row("error", e)
	}
	for _, k := range detailKeys(j.GetMetadata()) {
		t.row("metadata "+k, j.GetMetadata()[k])
	}
	for _, k := range detailKeys(j.GetDeadMetadata()) {
		t.row("dead "+k, j.GetDeadMetadata()[k])
	}
	return t
}

// bytesText shows bytes as text when they are some.
func bytesText(b []byte) string {
	switch {
	case len(b) == 0:
		return "empty"
	case !utf8.Valid(b):
		return fmt.Sprintf("%d bytes that are not text", len(b))
	}
	return string(b)
}

type jobsCancelCmd struct {
	IDs           []string   `arg:"" name:"id" optional:"" help:"Ids of the jobs."`
	Queue         string     `help:"Every job of this queue."`
	Task          string     `help:"Every job of this task."`
	CreatedBefore *time.Time `help:"Every job older than this." placeholder:"2030-01-02T15:04:05Z"`
	All           bool       `help:"Every pending and running job of the namespace."`
}

func (cmd *jobsCancelCmd) Run(s *session) error {
	filter := cmd.Queue != "" || cmd.Task != "" || cmd.CreatedBefore != nil
	if len(cmd.IDs) > 0 == (filter || cmd.All) {
		return usagef("jobs cancel: give ids, or --queue, --task or --created-before, or --all")
	}
	c, hangUp, err := s.dial(ofNamespace)
	if err != nil {
		return err
	}
	defer hangUp()
	var res *flexiqv1.CancelJobsResponse
	if len(cmd.IDs) > 0 {
		res, err = c.Cancel(s.ctx, cmd.IDs...)
	} else {
		f := &flexiqv1.CancelFilter{Queue: cmd.Queue, Task: cmd.Task}
		if cmd.CreatedBefore != nil {
			f.CreatedBefore = timestamppb.New(*cmd.CreatedBefore)
		}
		res, err = c.CancelMatching(s.ctx, f)
	}
	if err != nil {
		return err
	}
	if s.json() {
		err = writeJSON(s.out, res)
	} else {
		t := new(table)
		t.row("cancelled", res.GetCancelled())
		t.row("cancelling", res.GetCancelling())
		t.row("not found", res.GetNotFound())
		err = t.write(s.out)
	}
	if err == nil && res.GetNotFound() > 0 {
		if !s.json() {
			s.remark("not found are jobs that have already ended, and ids of no job: fq jobs get ID tells which")
		}
		return errTold
	}
	return err
}

type jobsWaitCmd struct {
	IDs     []string      `arg:"" name:"id" help:"Ids of the jobs."`
	Timeout time.Duration `help:"Give up after this time; 0: never." default:"0s"`
}

// Intervals between two looks at a job that is waited for.
const (
	firstLook = 50 * time.Millisecond
	laterLook = time.Second
)

func (cmd *jobsWaitCmd) Run(s *session) error {
	c, hangUp, err := s.dial(ofNamespace)
	if err != nil {
		return err
	}
	defer hangUp()
	var over <-chan time.Time
	if cmd.Timeout > 0 {
		over = time.After(cmd.Timeout)
	}
	several := len(cmd.IDs) > 1
	ends := jobListing.begin(s)
	complete := true
	for _, id := range cmd.IDs {
		j, err := s.await(c, id, over)
		switch {
		case err != nil:
			return err
		case several:
			err = ends.page([]*flexiqv1.Job{j})
		case s.json():
			err = writeJSON(s.out, &flexiqv1.GetJobResponse{Job: j})
		default:
			err = jobTable(j).write(s.out)
		}
		if err != nil {
			return err
		}
		complete = complete && j.GetStatus() == string(job.Complete)
	}
	if several {
		if err := ends.end(""); err != nil {
			return err
		}
	}
	if !complete {
		return errTold
	}
	return nil
}

// await looks at a job, ever more seldom, until it has ended.
func (s *session) await(c *client.Client, id string, over <-chan time.Time) (*flexiqv1.Job, error) {
	for pause := firstLook; ; pause = min(2*pause, laterLook) {
		j, err := c.Job(s.ctx, id)
		if err != nil {
			return nil, err
		}
		switch job.State(j.GetStatus()) {
		case job.Complete, job.Dead, job.Cancelled:
			return j, nil
		}
		select {
		case <-time.After(pause):
		case <-over:
			return nil, fault.New(fault.DeadlineExceeded, "job %s is still %s", id, j.GetStatus())
		case <-s.ctx.Done():
			return nil, errors.Join(errTold, s.ctx.Err())
		}
	}
}
