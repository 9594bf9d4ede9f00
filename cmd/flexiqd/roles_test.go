package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"flexiq/pkg/client"
	"flexiq/pkg/fault"
)

// runRole holds a role, as JSON, that a copy of the test binary plays.
const runRole = "FLEXIQD_TEST_ROLE"

// role is what a client does in a process of its own.
type role struct {
	Name   string
	Server string
	Token  string
	Calls  int // to make, of 1 to Jobs jobs
	Jobs   int // of a call; to hold at once
	Lease  time.Duration
}

// told is a line that such a process writes.
type told struct {
	Held                    string // id of a job that it holds
	Sent, Admitted, Refused int    // calls
	Jobs                    int    // of the admitted calls
	Other                   []string
}

var roles = map[string]func(context.Context, *client.Client, role, func(told)) error{
	"flood": playFlood,
	"hold":  playHold,
}

// play is the main function of a process that plays a role.
func play(text string) error {
	var p role
	if err := json.Unmarshal([]byte(text), &p); err != nil {
		return err
	}
	ctx := context.Background()
	c, err := client.Dial(ctx, client.Options{Server: p.Server, Token: p.Token})
	if err != nil {
		return err
	}
	defer c.Close(ctx)
	var mu sync.Mutex
	out := json.NewEncoder(os.Stdout)
	tell := func(line told) {
		mu.Lock()
		defer mu.Unlock()
		_ = out.Encode(line) // nobody listens: the test has ended
	}
	return roles[p.Name](ctx, c, p, tell)
}

// playFlood makes calls, four at a time, and tells what became of them in all.
func playFlood(ctx context.Context, c *client.Client, p role, tell func(told)) error {
	const lanes = 4
	var mu sync.Mutex
	var sum told
	var group sync.WaitGroup
	for lane := range lanes {
		group.Go(func() {
			for n := lane; n < p.Calls; n += lanes {
				call := jobs(1 + n%p.Jobs)
				_, err := c.EnqueueBatch(ctx, call)
				mu.Lock()
				sum.Sent++
				switch {
				case err == nil:
					sum.Admitted++
					sum.Jobs += len(call)
				case fault.Is(err, fault.QueueFull):
					sum.Refused++
				default:
					sum.Other = append(sum.Other, err.Error())
				}
				mu.Unlock()
			}
		})
	}
	group.Wait()
	tell(sum)
	return nil
}

// playHold claims jobs, tells of each, and never ends one.
func playHold(ctx context.Context, c *client.Client, p role, tell func(told)) error {
	w, err := client.NewWorker(client.WorkerOptions{Slots: p.Jobs, LeaseFor: p.Lease}, c)
	if err != nil {
		return err
	}
	w.HandleAll(func(ctx context.Context, task *client.Task) error {
		tell(told{Held: task.ID()})
		<-ctx.Done()
		return ctx.Err()
	})
	return w.Run(ctx)
}

// player is a process that plays a role.
type player struct {
	cmd *exec.Cmd
	out *json.Decoder
	end func() error
}

// playing starts a process. It is killed with the test at the latest.
func playing(t *testing.T, p role) *player {
	t.Helper()
	text, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), runRole+"="+string(text))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pl := &player{cmd: cmd, out: json.NewDecoder(out), end: sync.OnceValue(cmd.Wait)}
	t.Cleanup(pl.kill)
	return pl
}

// next reads the next line.
func (p *player) next(t *testing.T) told {
	t.Helper()
	var line told
	if err := p.out.Decode(&line); err != nil {
		t.Fatalf("a process tells nothing: %v", err)
	}
	return line
}

// rest reads the last line, and wants the process to end well.
func (p *player) rest(t *testing.T) told {
	t.Helper()
	line := p.next(t)
	if err := p.out.Decode(new(told)); !errors.Is(err, io.EOF) {
		t.Fatalf("a process goes on: %v", err)
	}
	if err := p.end(); err != nil {
		t.Fatalf("a process failed: %v", err)
	}
	return line
}

// kill is SIGKILL.
func (p *player) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.end()
}

func playMain(text string) int {
	if err := play(text); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}
