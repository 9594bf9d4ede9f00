package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rs/zerolog"

	"flexiq/pkg/client"
)

type workCmd struct {
	Exec    string        `help:"Command for each job: sh -c CMD, with the job's input on standard input. Exit 0 completes it, with standard output as its result; 100 makes it dead; anything else fails it, with the end of standard error." required:"" placeholder:"CMD"`
	With    []string      `help:"Saved context of another namespace to work for with the same slots, by turns; may be repeated." sep:"none" placeholder:"CONTEXT"`
	Queue   []string      `help:"Queue to take from; may be repeated (default: all)." sep:"none"`
	Slots   many          `help:"Jobs to run at once." default:"10"`
	Name    string        `help:"Name that operators see."`
	Lease   time.Duration `help:"How long the server waits for a sign of life (default: the installation's, 30s)." placeholder:"30s" positive:""`
	Grace   time.Duration `help:"How long running jobs may go on once the worker is told to stop." default:"30s"`
	Drain   bool          `help:"End when no job has been ready or running for a second."`
	MaxJobs many          `help:"End after so many jobs." placeholder:"N"`
}

func (cmd *workCmd) Run(s *session) error {
	if cmd.Grace < 0 {
		return usagef("--grace must not be negative")
	}
	clients, hangUp, err := cmd.dial(s)
	if err != nil {
		return err
	}
	defer hangUp()
	log := zerolog.New(zerolog.ConsoleWriter{Out: s.err, NoColor: !terminal(s.err), TimeFormat: time.TimeOnly}).
		Level(zerolog.InfoLevel).With().Timestamp().Logger()
	w, err := client.NewWorker(client.WorkerOptions{
		Queues: cmd.Queue, Slots: int(cmd.Slots), Name: cmd.Name, LeaseFor: cmd.Lease, Grace: graceOf(cmd.Grace),
		Drain: cmd.Drain, MaxJobs: int64(cmd.MaxJobs), Log: log,
	}, clients...)
	if err != nil {
		return err
	}
	w.HandleAll(command{line: cmd.Exec, env: s.environ}.run)
	ctx := s.ctx
	if s.As != "" {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, actingLife-cmd.Grace)
		defer cancel()
	}
	err = w.Run(ctx)
	if err == nil && s.ctx.Err() == nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		err = errors.New("the token of --as lives for 5 minutes; for longer work make one: fq tokens create --scope work --namespace NAMESPACE")
	}
	stats := w.Stats()
	if perr := s.printStats(stats); err == nil {
		err = perr
	}
	if err == nil && stats.Lost > 0 {
		err = fmt.Errorf("%d outcomes came too late to count: those jobs run again, or have", stats.Lost)
	}
	return err
}

// dial connects to each namespace that is worked for.
func (cmd *workCmd) dial(s *session) (clients []*client.Client, hangUp func(), err error) {
	if s.As != "" && len(cmd.With) > 0 {
		return nil, nil, usagef("--with cannot be used together with --as: each context has its own token")
	}
	var ends []func()
	hangUp = func() {
		for _, end := range ends {
			end()
		}
	}
	one := func(s *session) error {
		c, end, err := s.dial(ofNamespace)
		if err != nil {
			return err
		}
		clients, ends = append(clients, c), append(ends, end)
		return nil
	}
	err = one(s)
	for _, name := range cmd.With {
		if err == nil {
			other := *s
			other.Context, other.Server, other.CAFile = name, "", ""
			err = one(&other)
		}
	}
	if err != nil {
		hangUp()
		return nil, nil, err
	}
	return clients, hangUp, nil
}

// graceOf: the client's zero value means its default.
func graceOf(d time.Duration) time.Duration {
	if d == 0 {
		return -1
	}
	return d
}

func (s *session) printStats(n client.WorkerStats) error {
	if s.json() {
		_, err := fmt.Fprintf(s.out, `{"completed":%d,"failed":%d,"dead":%d,"released":%d,"lost":%d}`+"\n",
			n.Completed, n.Failed, n.Dead, n.Released, n.Lost)
		return err
	}
	t := new(table)
	t.row("completed", n.Completed)
	t.row("failed", n.Failed)
	t.row("dead", n.Dead)
	t.row("released", n.Released)
	if n.Lost > 0 {
		t.row("lost", n.Lost)
	}
	return t.write(s.out)
}
