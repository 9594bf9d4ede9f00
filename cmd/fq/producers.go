package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
)

// template are the flags of the job that a schedule or a trigger enqueues.
type template struct {
	Task        string            `help:"What the worker is to do." required:""`
	Args        *string           `help:"Input: any JSON value." placeholder:"JSON" xor:"input"`
	PayloadFile string            `help:"Input: the bytes of a file; - is standard input." placeholder:"FILE" xor:"input"`
	Queue       string            `help:"Queue to wait in (default: default)."`
	Priority    *int8             `help:"From -128 to 127, higher first (--priority=-5; default: the override's, else 0)." placeholder:"N"`
	Delay       time.Duration     `help:"Start no earlier than after this time." placeholder:"5m"`
	MaxAttempts many              `help:"Attempts before the job is dead (default: the override's, else 25)." placeholder:"N"`
	Timeout     time.Duration     `help:"Longest time that one attempt may run (default: the override's, else 30m)." placeholder:"30m" positive:""`
	UniqueKey   string            `help:"Add no job while one with this key is pending or running." placeholder:"KEY"`
	Metadata    map[string]string `help:"Labels; may be repeated." placeholder:"KEY=VALUE" mapsep:"none"`
}

func (t *template) spec(s *session) (*flexiqv1.JobSpec, error) {
	e := enqueueCmd{
		Task: t.Task, Args: t.Args, PayloadFile: t.PayloadFile, Queue: t.Queue, Priority: t.Priority, Delay: t.Delay,
		MaxAttempts: t.MaxAttempts, Timeout: t.Timeout, UniqueKey: t.UniqueKey, Metadata: t.Metadata,
	}
	j, err := e.job(s)
	if err != nil {
		return nil, err
	}
	return j.Template()
}

type schedulesCmd struct {
	Put    schedulesPutCmd    `cmd:"" help:"Create or replace a schedule."`
	List   schedulesListCmd   `cmd:"" help:"List the schedules."`
	Delete schedulesDeleteCmd `cmd:"" help:"Remove a schedule."`
	Pause  schedulesPauseCmd  `cmd:"" help:"Stop a schedule until it is resumed."`
	Resume schedulesResumeCmd `cmd:"" help:"Let a paused schedule go on with its next slot."`
	Run    schedulesRunCmd    `cmd:"" help:"Enqueue a schedule's job now."`
}

type schedulesPutCmd struct {
	Name     string `arg:"" help:"Name of the schedule."`
	Cron     string `help:"Minute, hour, day of month, month, day of week; six fields begin with seconds." required:"" placeholder:"\"*/5 * * * *\""`
	TimeZone string `help:"IANA name of the zone that it is read in (default: UTC)." placeholder:"Europe/Berlin"`
	template
}

func (cmd *schedulesPutCmd) Run(s *session) error {
	spec, err := cmd.spec(s)
	if err != nil {
		return err
	}
	c, hangUp, err := s.dial(ofNamespace)
	if err != nil {
		return err
	}
	defer hangUp()
	done, err := c.Admin().PutSchedule(s.ctx, &flexiqv1.PutScheduleRequest{Name: cmd.Name, Cron: cmd.Cron, TimeZone: cmd.TimeZone, Job: spec})
	return s.showSchedule(done, err)
}

// showSchedule prints a schedule that was changed.
func (s *session) showSchedule(one *flexiqv1.Schedule, err error) error {
	if err != nil {
		return err
	}
	if s.json() {
		return writeJSON(s.out, &flexiqv1.PutScheduleResponse{Schedule: one})
	}
	t := new(table)
	t.row(scheduleHeader...)
	t.row(scheduleRow(one)...)
	return t.write(s.out)
}

var scheduleHeader = []any{"NAME", "CRON", "ZONE", "TASK", "PAUSED", "NEXT", "LAST", "REFUSED"}

func scheduleRow(one *flexiqv1.Schedule) []any {
	refused := "-"
	if r := one.GetRefusal(); r != nil {
		refused = fmt.Sprintf("%s, %d tries", r.GetReason(), r.GetTries())
	}
	return []any{one.GetName(), one.GetCron(), one.GetTimeZone(), one.GetJob().GetTask(), one.GetPaused(), when(one.GetNextRun()), when(one.GetLastRun()), refused}
}

type schedulesListCmd struct{ paging }

func (cmd *schedulesListCmd) Run(s *session) error {
	c, hangUp, err := s.dial(ofNamespace)
	if err != nil {
		return err
	}
	defer hangUp()
	l := listing[*flexiqv1.ListSchedulesResponse, *flexiqv1.Schedule]{
		name: "schedules", items: (*flexiqv1.ListSchedulesResponse).GetSchedules, header: scheduleHeader, row: scheduleRow,
	}
	return l.print(s, cmd.paging, func(size int32, token string) (*flexiqv1.ListSchedulesResponse, error) {
		return c.Admin().ListSchedules(s.ctx, &flexiqv1.ListSchedulesRequest{PageSize: size, PageToken: token})
	})
}

type schedulesDeleteCmd struct {
	Name string `arg:"" help:"Name of the schedule."`
}

func (cmd *schedulesDeleteCmd) Run(s *session) error {
	c, hangUp, err := s.dial(ofNamespace)
	if err != nil {
		return err
	}
	defer hangUp()
	if err := c.Admin().DeleteSchedule(s.ctx, cmd.Name); err != nil {
		return err
	}
	if s.json() {
		return writeJSON(s.out, &flexiqv1.DeleteScheduleResponse{})
	}
	_, err = fmt.Fprintf(s.out, "deleted %s\n", clean(cmd.Name))
	return err
}

type schedulesPauseCmd struct {
	Name string `arg:"" help:"Name of the schedule."`
}

func (cmd *schedulesPauseCmd) Run(s *session) error {
	c, hangUp, err := s.dial(ofNamespace)
	if err != nil {
		return err
	}
	defer hangUp()
	return s.showSchedule(c.Admin().PauseSchedule(s.ctx, cmd.Name))
}

type schedulesResumeCmd struct {
	Name string `arg:"" help:"Name of the schedule."`
}

func (cmd *schedulesResumeCmd) Run(s *session) error {
	c, hangUp, err := s.dial(ofNamespace)
	if err != nil {
		return err
	}
	defer hangUp()
	return s.showSchedule(c.Admin().ResumeSchedule(s.ctx, cmd.Name))
}

type schedulesRunCmd struct {
	Name string `arg:"" help:"Name of the schedule."`
}

func (cmd *schedulesRunCmd) Run(s *session) error {
	c, hangUp, err := s.dial(ofNamespace)
	if err != nil {
		return err
	}
	defer hangUp()
	res, err := c.Admin().RunSchedule(s.ctx, cmd.Name)
	if err != nil {
		return err
	}
	if s.json() {
		return writeJSON(s.out, &flexiqv1.RunScheduleResponse{Result: res})
	}
	_, err = fmt.Fprintln(s.out, res.GetJob().GetId())
	return err
}

type triggersCmd struct {
	Put    triggersPutCmd    `cmd:"" help:"Create or replace a trigger."`
	List   triggersListCmd   `cmd:"" help:"List the triggers, without their secrets."`
	Delete triggersDeleteCmd `cmd:"" help:"Remove a trigger."`
}

type triggersPutCmd struct {
	Name       string `arg:"" help:"Name of the trigger."`
	SecretFile string `help:"Over HTTP, with the secret in this file; - is standard input." placeholder:"FILE" xor:"door" required:""`
	Nats       bool   `help:"Over NATS, on plain messages." xor:"door" required:""`
	Stream     string `help:"Over NATS, from this JetStream stream, durably." placeholder:"NAME" xor:"door" required:""`
	template
}

func (cmd *triggersPutCmd) Run(s *session) error {
	spec, err := cmd.spec(s)
	if err != nil {
		return err
	}
	req := &flexiqv1.PutTriggerRequest{Name: cmd.Name, Job: spec}
	if cmd.SecretFile != "" {
		in, closeIn, err := s.open(cmd.SecretFile)
		if err != nil {
			return err
		}
		defer closeIn()
		secret, err := io.ReadAll(io.LimitReader(in, 1<<10))
		if err != nil {
			return fmt.Errorf("read the secret: %w", err)
		}
		req.Http = &flexiqv1.HttpTrigger{Secret: strings.TrimRight(string(secret), "\r\n")}
	} else {
		req.Nats = &flexiqv1.NatsTrigger{DurableStream: cmd.Stream}
	}
	c, hangUp, err := s.dial(ofNamespace)
	if err != nil {
		return err
	}
	defer hangUp()
	done, err := c.Admin().PutTrigger(s.ctx, req)
	if err != nil {
		return err
	}
	if s.json() {
		return writeJSON(s.out, &flexiqv1.PutTriggerResponse{Trigger: done})
	}
	t := new(table)
	t.row(triggerHeader...)
	t.row(triggerRow(done)...)
	return t.write(s.out)
}

var triggerHeader = []any{"NAME", "AT", "STREAM", "TASK", "CHANGED"}

func triggerRow(t *flexiqv1.Trigger) []any {
	return []any{t.GetName(), t.GetAddress(), orDash(t.GetNats().GetDurableStream()), t.GetJob().GetTask(), when(t.GetUpdatedAt())}
}

type triggersListCmd struct{ paging }

func (cmd *triggersListCmd) Run(s *session) error {
	c, hangUp, err := s.dial(ofNamespace)
	if err != nil {
		return err
	}
	defer hangUp()
	l := listing[*flexiqv1.ListTriggersResponse, *flexiqv1.Trigger]{
		name: "triggers", items: (*flexiqv1.ListTriggersResponse).GetTriggers, header: triggerHeader, row: triggerRow,
	}
	return l.print(s, cmd.paging, func(size int32, token string) (*flexiqv1.ListTriggersResponse, error) {
		return c.Admin().ListTriggers(s.ctx, &flexiqv1.ListTriggersRequest{PageSize: size, PageToken: token})
	})
}

type triggersDeleteCmd struct {
	Name string `arg:"" help:"Name of the trigger."`
}

func (cmd *triggersDeleteCmd) Run(s *session) error {
	c, hangUp, err := s.dial(ofNamespace)
	if err != nil {
		return err
	}
	defer hangUp()
	if err := c.Admin().DeleteTrigger(s.ctx, cmd.Name); err != nil {
		return err
	}
	if s.json() {
		return writeJSON(s.out, &flexiqv1.DeleteTriggerResponse{})
	}
	_, err = fmt.Fprintf(s.out, "deleted %s\n", clean(cmd.Name))
	return err
}
