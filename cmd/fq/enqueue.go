package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/client"
	"flexiq/pkg/job"
	"flexiq/pkg/quota"
)

type enqueueCmd struct {
	Task string `arg:"" help:"What the worker is to do."`

	Args        *string `help:"Input: any JSON value." placeholder:"JSON" xor:"input"`
	PayloadFile string  `help:"Input: the bytes of a file; - is standard input." placeholder:"FILE" xor:"input"`
	Lines       string  `help:"One job for each line of a file, the line's bytes being its input; - is standard input." placeholder:"FILE" xor:"input"`

	Queue       string            `help:"Queue to wait in (default: default)."`
	ID          string            `help:"UUIDv7 of the job, by which a repeated call is recognised." placeholder:"UUID"`
	Priority    *int8             `help:"From -128 to 127, higher first (--priority=-5; default: the override's, else 0)." placeholder:"N"`
	Delay       time.Duration     `help:"Start no earlier than after this time." placeholder:"5m"`
	RunAt       *time.Time        `help:"Start no earlier than at this time." placeholder:"2030-01-02T15:04:05Z"`
	MaxAttempts many              `help:"Attempts before the job is dead (default: the override's, else 25)." placeholder:"N"`
	Timeout     time.Duration     `help:"Longest time that one attempt may run (default: the override's, else 30m)." placeholder:"30m" positive:""`
	BackoffBase time.Duration     `help:"Delay before the first retry (default: 1s)." placeholder:"1s" positive:""`
	BackoffMax  time.Duration     `help:"Ceiling of the growing delay (default: 1h)." placeholder:"1h" positive:""`
	UniqueKey   string            `help:"Add no job while one with this key is pending or running." placeholder:"KEY"`
	DebounceKey string            `help:"Let later enqueues of this key replace the pending job." placeholder:"KEY"`
	Window      time.Duration     `help:"Of the debounce: each enqueue moves the start to this far from now." placeholder:"10s" positive:""`
	MaxWait     time.Duration     `help:"Of the debounce: but never further from the first (default: 10 windows)." placeholder:"2m" positive:""`
	Metadata    map[string]string `help:"Labels; may be repeated." placeholder:"KEY=VALUE" mapsep:"none"`

	Count many   `help:"Enqueue so many of the same job: a flood." placeholder:"N"`
	Batch many   `help:"Jobs in one call, admitted or refused together (at most 1000)." placeholder:"N"`
	Rate  string `help:"Enqueue no faster than this, such as 500/s." placeholder:"N/UNIT"`
}

func (cmd *enqueueCmd) Run(s *session) error {
	if err := cmd.check(); err != nil {
		return err
	}
	pace, err := newPace(cmd.Rate)
	if err != nil {
		return err
	}
	j, err := cmd.job(s)
	if err != nil {
		return err
	}
	lines, closeLines, err := cmd.openLines(s)
	if err != nil {
		return err
	}
	defer closeLines()
	c, hangUp, err := s.dial(ofNamespace)
	if err != nil {
		return err
	}
	defer hangUp()
	switch {
	case lines != nil:
		f := &flood{s: s, c: c, pace: pace, batch: int(max(1, cmd.Batch)), next: eachLine(lines, j), show: showOutcomes}
		return f.run()
	case cmd.Count > 0:
		f := &flood{s: s, c: c, pace: pace, batch: int(max(1, cmd.Batch)), next: repeated(int(cmd.Count), j), total: int(cmd.Count), show: showSummary}
		return f.run()
	}
	return enqueueOne(s, c, j)
}

func (cmd *enqueueCmd) check() error {
	many := cmd.Count > 0 || cmd.Lines != ""
	switch {
	case cmd.Batch > job.MaxBatch:
		return usagef("--batch must be from 1 to %d", job.MaxBatch)
	case cmd.Count > 0 && cmd.Lines != "":
		return usagef("--count and --lines do not go together")
	case many && cmd.ID != "":
		return usagef("--id names one job: it does not go with --count or --lines")
	case !many && (cmd.Batch > 0 || cmd.Rate != ""):
		return usagef("--batch and --rate are for many jobs: give --count or --lines too")
	case cmd.Delay != 0 && cmd.RunAt != nil:
		return usagef("--delay and --run-at do not go together")
	case cmd.DebounceKey == "" && (cmd.Window != 0 || cmd.MaxWait != 0):
		return usagef("--window and --max-wait belong to --debounce-key")
	}
	return nil
}

// job is what the flags describe, without the lines.
func (cmd *enqueueCmd) job(s *session) (client.Job, error) {
	j := client.Job{
		ID: cmd.ID, Queue: cmd.Queue, Task: cmd.Task, Delay: cmd.Delay, MaxAttempts: int32(cmd.MaxAttempts), Timeout: cmd.Timeout,
		Backoff: client.Backoff{Base: cmd.BackoffBase, Max: cmd.BackoffMax}, UniqueKey: cmd.UniqueKey,
		Debounce: client.Debounce{Key: cmd.DebounceKey, Window: cmd.Window, MaxWait: cmd.MaxWait}, Metadata: cmd.Metadata,
	}
	if cmd.Priority != nil {
		j.Priority = new(int32(*cmd.Priority))
	}
	if cmd.RunAt != nil {
		j.RunAt = *cmd.RunAt
	}
	switch {
	case cmd.Args != nil:
		if !json.Valid([]byte(*cmd.Args)) {
			return j, usagef("--args must be one JSON value")
		}
		j.Args = json.RawMessage(*cmd.Args)
	case cmd.PayloadFile != "":
		in, closeIn, err := s.open(cmd.PayloadFile)
		if err != nil {
			return j, err
		}
		defer closeIn()
		// A byte more than any server takes, so that it is refused by its size.
		if j.Payload, err = io.ReadAll(io.LimitReader(in, 8<<20+1)); err != nil {
			return j, fmt.Errorf("read the payload: %w", err)
		}
		if j.Payload == nil {
			j.Payload = []byte{}
		}
	}
	return j, nil
}

// open opens a file to read, or standard input.
func (s *session) open(name string) (io.Reader, func(), error) {
	if name == "-" {
		return s.in, func() {}, nil
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, nil, usageError{err.Error()}
	}
	if info, err := f.Stat(); err == nil && info.IsDir() {
		_ = f.Close() // it was only opened
		return nil, nil, usagef("open %s: is a directory", name)
	}
	return f, func() { _ = f.Close() }, nil // it was only read
}

func (cmd *enqueueCmd) openLines(s *session) (io.Reader, func(), error) {
	if cmd.Lines == "" {
		return nil, func() {}, nil
	}
	return s.open(cmd.Lines)
}

// source gives jobs one by one, and io.EOF after the last.
type source func() (client.Job, error)

func repeated(n int, j client.Job) source {
	return func() (client.Job, error) {
		if n--; n < 0 {
			return client.Job{}, io.EOF
		}
		return j, nil
	}
}

// eachLine makes one job of each line: its bytes without the line feed. A last
// line without a line feed counts, an empty one is an empty payload.
func eachLine(r io.Reader, j client.Job) source {
	in := bufio.NewReaderSize(r, 64<<10)
	return func() (client.Job, error) {
		line, err := in.ReadBytes('\n')
		if err != nil && (!errors.Is(err, io.EOF) || len(line) == 0) {
			return client.Job{}, err
		}
		if n := len(line); line[n-1] == '\n' {
			line = line[:n-1]
		}
		one := j
		one.Payload = line
		return one, nil
	}
}

func enqueueOne(s *session, c *client.Client, j client.Job) error {
	ctx, giveUp := outlive(s.ctx, s.patience)
	defer giveUp()
	r, err := c.Enqueue(ctx, j)
	if err != nil {
		return err
	}
	if s.json() {
		return writeJSON(s.out, &flexiqv1.EnqueueResponse{Result: resultMessage(r)})
	}
	switch {
	case r.Shed:
		s.remark("the quota shed the job: %s", r.Job.GetError())
	case r.Deduplicated:
		s.remark("an earlier job holds the unique key; none was added")
	case r.Debounced:
		s.remark("an earlier pending job took over the input")
	}
	_, err = fmt.Fprintln(s.out, clean(orDash(r.ID)))
	return err
}

func resultMessage(r client.Result) *flexiqv1.EnqueueResult {
	return &flexiqv1.EnqueueResult{Job: r.Job, Deduplicated: r.Deduplicated, Debounced: r.Debounced}
}

// parseRate reads a rate as quotas spell it, in jobs per second.
func parseRate(text string) (perSecond float64, burst int, err error) {
	r, err := quota.ParseRate(text)
	if err != nil {
		return 0, 0, usagef("--rate must be a count and a unit s, m or h, such as 500/s; got %q", text)
	}
	unit := map[quota.Unit]float64{quota.PerSecond: 1, quota.PerMinute: 60, quota.PerHour: 3600}[r.Unit]
	return float64(r.Count) / unit, 1, nil
}
