package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/client"
	"flexiq/pkg/testkit"
)

// newTenant makes a namespace's token for everything a worker and a producer do.
func newTenant(t *testing.T, d *daemon, ns string) *client.Client {
	t.Helper()
	platform := dial(t, d.opts.DataDir, "platform", "")
	made, err := platform.Admin().CreateToken(t.Context(), &flexiqv1.CreateTokenRequest{Namespace: ns, Scopes: []string{"produce", "work", "inspect", "admin"}})
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.Dial(t.Context(), client.Options{Server: d.natsURL, Token: made.GetToken()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(context.Background()) })
	return c
}

func backlog(t *testing.T, c *client.Client, jobs int) {
	t.Helper()
	for jobs > 0 {
		batch := make([]client.Job, min(jobs, 1000))
		for i := range batch {
			batch[i] = client.Job{Task: "work"}
		}
		if _, err := c.EnqueueBatch(t.Context(), batch); err != nil {
			t.Fatal(err)
		}
		jobs -= len(batch)
	}
}

// crowd is three namespaces with big backlogs, one of them with max_running 1,
// before many with a single job each, enqueued last.
type crowd struct {
	big, small int // namespaces
	backlog    int // jobs of each big one
	slots      int
	hold       time.Duration // of each job
}

// run works until each namespace has started and the big ones have gone on, and
// returns how many jobs had started, and how long it took, until each had one.
func (c crowd) run(t *testing.T, d *daemon) (jobs int, took time.Duration) {
	var clients []*client.Client
	for i := range c.big + c.small {
		cl := newTenant(t, d, fmt.Sprintf("ns-%02d", i))
		clients = append(clients, cl)
		if i == 1 {
			if _, err := cl.Admin().SetQuota(t.Context(), &flexiqv1.SetQuotaRequest{Quota: &flexiqv1.NamespaceQuota{MaxRunning: proto.Int64(1)}}); err != nil {
				t.Fatal(err)
			}
		}
		backlog(t, cl, map[bool]int{true: c.backlog, false: 1}[i < c.big])
	}
	w, err := client.NewWorker(client.WorkerOptions{Slots: c.slots}, clients...)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var mu sync.Mutex
	started, all := map[string]int{}, 0
	begun := time.Now()
	w.Handle("work", func(ctx context.Context, task *client.Task) error {
		mu.Lock()
		started[task.Job().GetNamespace()]++
		all++
		if len(started) == c.big+c.small && jobs == 0 {
			jobs, took = all, time.Since(begun)
		}
		if jobs > 0 && started["ns-00"] >= 5 && started["ns-01"] >= 5 && started["ns-02"] >= 5 {
			stop()
		}
		mu.Unlock()
		select {
		case <-time.After(c.hold): // the job's work
		case <-ctx.Done():
		}
		return ctx.Err()
	})
	if err := w.Run(ctx); err != nil {
		t.Fatal(err)
	}
	return jobs, took
}

// No backlog and no cap of some namespaces starves the others that one worker
// serves.
func TestOneWorkerServesAllItsNamespacesByTurns(t *testing.T) {
	eachStore(t, func(t *testing.T, s kept) {
		c := crowd{big: 3, small: 17, backlog: 300, slots: 4, hold: 5 * time.Millisecond}
		jobs, _ := c.run(t, inProcess(t, s.args...))
		// A turn gives a big namespace no more than the slots, so a round of all turns
		// is bounded, and everybody's first is in the first rounds.
		if most := 4 * (c.big*c.slots + c.small); jobs > most {
			t.Errorf("the last namespace started after %d jobs, want at most %d", jobs, most)
		}
	})
}

// Delayed jobs wait as pending, each runs once and not before its time, and a
// restart changes nothing.
func TestDelayedJobsSurviveRestarts(t *testing.T) {
	eachStore(t, func(t *testing.T, s kept) {
		d := delays{jobs: 20, first: 200 * time.Millisecond, last: 2500 * time.Millisecond, restarts: []time.Duration{500 * time.Millisecond, 1500 * time.Millisecond}}
		d.run(t, s)
	})
}

// delays is jobs whose times are spread evenly, and when the server restarts.
type delays struct {
	jobs        int
	first, last time.Duration
	restarts    []time.Duration
}

func (d delays) run(t *testing.T, s kept) (late []time.Duration) {
	dir, args := restartable(t, s)
	p := spawn(t, args...)
	c := dial(t, dir, "default", "")
	ctx := t.Context()
	batch := make([]client.Job, d.jobs)
	for i := range batch {
		batch[i] = client.Job{Task: "work", Delay: d.first + time.Duration(i)*(d.last-d.first)/time.Duration(d.jobs)}
	}
	made, err := c.EnqueueBatch(ctx, batch)
	if err != nil {
		t.Fatal(err)
	}
	if u, err := c.Admin().GetUsage(ctx); err != nil || u.GetPending()+u.GetArchived() < int64(d.jobs) || u.GetRunning() != 0 {
		t.Errorf("before they are due: %v, %v", u, err)
	}
	begun := time.Now()
	w := worker(t, c)
	working, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- w.Run(working) }()
	for _, at := range d.restarts {
		time.Sleep(time.Until(begun.Add(at))) // the restart is due by the clock, as the delays are
		p.terminate(t)
		p = spawn(t, args...)
	}
	for _, r := range made {
		var j *flexiqv1.Job
		testkit.Eventually(t, "a delayed job has run", func() bool {
			j, err = c.Job(ctx, r.Job.GetId())
			return err == nil && j.GetFinishedAt() != nil
		})
		started, due := j.GetStartedAt().AsTime(), j.GetRunAt().AsTime()
		if j.GetStatus() != "complete" || j.GetAttempt() != 1 || started.Before(due) {
			t.Errorf("a job due at %s is %s, attempt %d, started at %s", due, j.GetStatus(), j.GetAttempt(), started)
		}
		late = append(late, started.Sub(due))
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	p.terminate(t)
	return late
}

// restartable are the data folder and the options of a daemon that comes back
// where it was.
func restartable(t *testing.T, s kept) (dir string, args []string) {
	dir = filepath.Join(t.TempDir(), "d")
	return dir, append([]string{
		"--data-dir=" + dir, "--nats-listen=127.0.0.1:" + testkit.FreePort(t), "--http-listen=127.0.0.1:" + testkit.FreePort(t),
	}, s.args...)
}

// runWorker tells a copy of the test binary to be a worker: the server, the
// token, and how long each job takes.
const runWorker = "FLEXIQD_TEST_RUN_WORKER"

// workerMain works until SIGTERM, and tells of each start and of the signal on
// standard output.
func workerMain() int {
	server, rest, _ := strings.Cut(os.Getenv(runWorker), " ")
	token, hold, _ := strings.Cut(rest, " ")
	ms, err := strconv.Atoi(hold)
	if err != nil {
		fmt.Println("error", err)
		return 1
	}
	var mu sync.Mutex
	told := func(word, id string) { mu.Lock(); defer mu.Unlock(); fmt.Println(word, id) }
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM)
	go func() {
		<-signals
		stop() // nothing starts from here on
		told("stopping", "-")
	}()
	c, err := client.Dial(ctx, client.Options{Server: server, Token: token})
	if err != nil {
		fmt.Println("error", err)
		return 1
	}
	w, err := client.NewWorker(client.WorkerOptions{Slots: 2, LeaseFor: time.Second}, c)
	if err != nil {
		fmt.Println("error", err)
		return 1
	}
	w.Handle("work", func(_ context.Context, task *client.Task) error {
		told("start", task.ID())
		time.Sleep(time.Duration(ms) * time.Millisecond) // the job's work
		return nil
	})
	if err := w.Run(ctx); err != nil {
		fmt.Println("error", err)
		return 1
	}
	return 0
}

// hand is a worker process.
type hand struct {
	cmd   *exec.Cmd
	lines chan string // closed at its end
}

func hire(t *testing.T, server, token string, hold time.Duration) *hand {
	t.Helper()
	h := &hand{cmd: exec.Command(os.Args[0]), lines: make(chan string, 10_000)}
	h.cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %s %d", runWorker, server, token, hold.Milliseconds()))
	out, err := h.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := h.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer close(h.lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			h.lines <- s.Text()
		}
		_ = h.cmd.Wait() // a killed one has an error
	}()
	t.Cleanup(func() {
		_ = h.cmd.Process.Kill() // gone already: fine
		<-done
	})
	return h
}

// deploy is workers that are told to stop and killed soon after, in turn.
type deploy struct {
	jobs, workers, rounds int
	hold, patience        time.Duration // of a job; between SIGTERM and SIGKILL
	drain                 time.Duration // for the rest after the last round
}

func (p deploy) run(t *testing.T, d *daemon) {
	t.Helper()
	c := dial(t, d.opts.DataDir, "default", "")
	creds, err := readCredentials(credentialsFile(d.opts.DataDir))
	if err != nil {
		t.Fatal(err)
	}
	backlog(t, c, p.jobs)
	hands := make([]*hand, p.workers)
	for i := range hands {
		hands[i] = hire(t, d.natsURL, creds.Tokens["default"], p.hold)
	}
	starts := map[string]int{}
	collect := func(h *hand) {
		stopping := false
		for line := range h.lines {
			switch word, id, _ := strings.Cut(line, " "); word {
			case "start":
				starts[id]++
				if stopping {
					t.Error("a job was started after SIGTERM")
				}
			case "stopping":
				stopping = true
			default:
				t.Error(line)
			}
		}
	}
	for range p.rounds {
		for i := range hands {
			_ = hands[i].cmd.Process.Signal(syscall.SIGTERM)
			time.Sleep(p.patience) // as the one who deploys has it
			_ = hands[i].cmd.Process.Kill()
			collect(hands[i])
			hands[i] = hire(t, d.natsURL, creds.Tokens["default"], p.hold)
		}
	}
	for deadline := time.Now().Add(p.drain); ; {
		u, err := c.Admin().GetUsage(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if u.GetArchived() == int64(p.jobs) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d jobs are archived after %s", u.GetArchived(), p.jobs, p.drain)
		}
		time.Sleep(10 * time.Millisecond) // nothing tells of it
	}
	for _, h := range hands {
		_ = h.cmd.Process.Signal(syscall.SIGTERM)
		collect(h)
	}
	u, err := c.Admin().GetUsage(t.Context())
	if err != nil || u.GetDead() != 0 || u.GetRunning() != 0 || u.GetPending() != 0 {
		t.Errorf("at the end: %v, %v", u, err)
	}
	twice := 0
	for _, n := range starts {
		twice += n - 1
	}
	if cut := 2 * p.workers * p.rounds; twice > cut || len(starts) != p.jobs {
		t.Errorf("%d of %d jobs ran, %d runs more than once; kills can have cut %d", len(starts), p.jobs, twice, cut)
	}
}

// Workers that are stopped and killed in turn lose no job and freeze none, and
// start nothing after SIGTERM.
func TestDeployOfWorkersLosesNothing(t *testing.T) {
	eachStore(t, func(t *testing.T, s kept) {
		p := deploy{jobs: 60, workers: 3, rounds: 2, hold: 150 * time.Millisecond, patience: 100 * time.Millisecond, drain: 3 * testkit.Patience}
		p.run(t, inProcess(t, s.args...))
	})
}

// What runs while the server and its NATS are restarted settles afterwards, with
// the lease it has.
func TestRunningJobsOutliveARestart(t *testing.T) { eachStore(t, outliveRestart) }

func outliveRestart(t *testing.T, s kept) {
	dir, args := restartable(t, s)
	p := spawn(t, args...)
	c := dial(t, dir, "default", "")
	w, err := client.NewWorker(client.WorkerOptions{Slots: 8, MaxJobs: 8}, c)
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	running.Add(8)
	away := make(chan struct{})
	w.Handle("work", func(context.Context, *client.Task) error { running.Done(); <-away; return nil })
	backlog(t, c, 8)
	ended := make(chan error, 1)
	go func() { ended <- w.Run(t.Context()) }()
	running.Wait()
	p.kill()
	close(away) // all settlements are sent into nowhere
	p = spawn(t, args...)
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if got := w.Stats(); got != (client.WorkerStats{Completed: 8}) {
		t.Errorf("stats %+v", got)
	}
	p.terminate(t)
}
