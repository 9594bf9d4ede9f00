package client_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/structpb"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/auth"
	"flexiq/pkg/client"
	"flexiq/pkg/fault"
)

// crew is a worker in a test, with the gate that it works for.
type crew struct {
	*installation
	gate   *gate
	worker *client.Worker
	ended  chan error
	stop   context.CancelFunc
}

// hire installs a gate and a worker for the namespace "acme" on one door.
func hire(t *testing.T, door string, o client.WorkerOptions) *crew {
	t.Helper()
	g := newGate()
	in := g.install(t)
	c := in.dial(client.Options{Server: in.doors()[door], Token: in.token("acme", auth.Work)})
	w, err := client.NewWorker(o, c)
	if err != nil {
		t.Fatal(err)
	}
	return &crew{installation: in, gate: g, worker: w}
}

// start runs the worker. It is stopped when the test ends at the latest.
func (c *crew) start() {
	ctx, stop := context.WithCancel(context.Background())
	c.stop, c.ended = stop, make(chan error, 1)
	go func() { c.ended <- c.worker.Run(ctx) }()
	c.t.Cleanup(func() { c.end() })
}

// end stops the worker and returns what Run returned.
func (c *crew) end() error {
	c.stop()
	return c.wait()
}

// wait waits for Run to return by itself.
func (c *crew) wait() error {
	select {
	case err := <-c.ended:
		c.ended <- err
		return err
	case <-time.After(20 * time.Second):
		c.t.Fatal("the worker does not end")
		return nil
	}
}

func task(name string) *flexiqv1.Job { return &flexiqv1.Job{Task: name, Queue: "default"} }

func TestWorkerSettlesWhatHandlersReturn(t *testing.T) {
	t.Parallel()
	overBothDoors(t, func(t *testing.T, door string) {
		c := hire(t, door, client.WorkerOptions{Drain: true})
		c.worker.Handle("complete", func(_ context.Context, task *client.Task) error {
			return task.SetResult([]byte("42"))
		})
		c.worker.Handle("empty", func(_ context.Context, task *client.Task) error { return task.SetResult([]byte{}) })
		c.worker.Handle("fail", func(context.Context, *client.Task) error { return errors.New("no\x00 \x1b[31mroute") })
		c.worker.Handle("dead", func(context.Context, *client.Task) error { return client.Dead(errors.New("bad input")) })
		c.worker.Handle("later", func(context.Context, *client.Task) error {
			return fmt.Errorf("wrapped: %w", client.RetryAfter(0, errors.New("busy")))
		})
		c.worker.Handle("panic", func(context.Context, *client.Task) error { panic("oh no") })
		var released atomic.Bool
		c.worker.Handle("release", func(context.Context, *client.Task) error {
			if released.CompareAndSwap(false, true) {
				return client.ErrRelease
			}
			return nil
		})
		for _, name := range []string{"complete", "empty", "fail", "dead", "later", "panic", "release", "stranger"} {
			c.gate.push("acme", &flexiqv1.Job{Id: name, Task: name})
		}
		c.start()
		if err := c.wait(); err != nil {
			t.Fatalf("Run: %v", err)
		}

		last := func(id string) *flexiqv1.Settlement {
			all := c.gate.outcomes(id)
			if len(all) == 0 {
				t.Fatalf("%s was not settled", id)
			}
			return all[len(all)-1]
		}
		for id, want := range map[string]string{
			"complete": "complete", "empty": "complete", "fail": "fail", "dead": "dead", "later": "fail",
			"panic": "fail", "release": "complete", "stranger": "fail",
		} {
			if got := last(id).GetOutcome(); got != want {
				t.Errorf("%s: outcome %s, want %s", id, got, want)
			}
		}
		if got := last("complete"); string(got.GetResult()) != "42" {
			t.Errorf("result %q, want 42", got.GetResult())
		}
		if got := last("empty"); got.Result == nil || len(got.GetResult()) != 0 {
			t.Errorf("an empty result came as %v", got.Result)
		}
		if got := last("release"); got.Result != nil {
			t.Errorf("a job without a result has %q", got.Result)
		}
		if got := last("fail").GetError(); got != "no\uFFFD \uFFFD[31mroute" {
			t.Errorf("error text %q", got)
		}
		if got := last("later"); got.GetRetryAfter() == nil || got.GetRetryAfter().AsDuration() != 0 {
			t.Errorf("retry_after %v, want 0s", got.GetRetryAfter())
		}
		if got := last("panic").GetError(); !strings.HasPrefix(got, "panic: oh no\n") {
			t.Errorf("a panic is told as %q", got)
		}
		if got := c.gate.outcomes("release")[0].GetOutcome(); got != "release" {
			t.Errorf("first outcome %s, want release", got)
		}
		want := client.WorkerStats{Completed: 3, Failed: 4, Dead: 1, Released: 1}
		if got := c.worker.Stats(); got != want {
			t.Errorf("stats %+v, want %+v", got, want)
		}
	})
}

func TestTaskShowsTheJob(t *testing.T) {
	t.Parallel()
	c := hire(t, "nats", client.WorkerOptions{MaxJobs: 2, Slots: 1})
	args, err := structpb.NewValue(map[string]any{"b": 1, "a": []any{"<", nil}})
	if err != nil {
		t.Fatal(err)
	}
	c.gate.push("acme",
		&flexiqv1.Job{Id: "with-args", Task: "t", Queue: "q", Args: args, Metadata: map[string]string{"k": "v"}},
		&flexiqv1.Job{Id: "with-bytes", Task: "t", Queue: "q", Payload: []byte{0, 1}})
	var seen []string
	c.worker.HandleAll(func(_ context.Context, task *client.Task) error {
		seen = append(seen, fmt.Sprintf("%s %s %s %d %s %q", task.ID(), task.Name(), task.Queue(), task.Attempt(), task.Metadata()["k"], task.Input()))
		var v struct{ B int }
		if err := task.Args(&v); (err == nil) != (task.ID() == "with-args") || err == nil && v.B != 1 {
			return fmt.Errorf("Args: %v %v", v, err)
		}
		return task.SetResult(make([]byte, 64<<10))
	})
	c.start()
	if err := c.wait(); err != nil {
		t.Fatal(err)
	}
	want := []string{
		`with-args t q 1 v "{\"a\":[\"<\",null],\"b\":1}"`,
		`with-bytes t q 1  "\x00\x01"`,
	}
	if fmt.Sprint(seen) != fmt.Sprint(want) {
		t.Errorf("seen %q\nwant %q", seen, want)
	}
	if got := c.worker.Stats().Completed; got != 2 {
		t.Errorf("%d completed, want 2", got)
	}
}

func TestWorkerNeverHoldsMoreThanItsSlots(t *testing.T) {
	t.Parallel()
	overBothDoors(t, func(t *testing.T, door string) {
		const jobs, slots = 200, 7
		c := hire(t, door, client.WorkerOptions{Slots: slots, Drain: true})
		for range jobs {
			c.gate.push("acme", task("t"))
		}
		var running, most atomic.Int32
		c.worker.HandleAll(func(context.Context, *client.Task) error {
			if n := running.Add(1); n > most.Load() {
				most.Store(n)
			}
			defer running.Add(-1)
			c.gate.mu.Lock()
			defer c.gate.mu.Unlock()
			if n := len(c.gate.leases); n > slots {
				return fmt.Errorf("%d leases are held", n)
			}
			return nil
		})
		c.start()
		if err := c.wait(); err != nil {
			t.Fatal(err)
		}
		if got := c.worker.Stats(); got.Completed != jobs || got.Failed != 0 {
			t.Errorf("stats %+v, want %d completed", got, jobs)
		}
		if most.Load() > slots {
			t.Errorf("%d ran at once, slots are %d", most.Load(), slots)
		}
		c.gate.until(t, "claims", func() bool {
			for _, req := range c.gate.claims {
				if req.GetMaxJobs() < 1 || req.GetMaxJobs() > slots || req.GetSlots() != slots {
					t.Errorf("a claim asks for %d jobs and names %d slots", req.GetMaxJobs(), req.GetSlots())
				}
			}
			return true
		})
	})
}

func TestWorkerKeepsItsLeasesAlive(t *testing.T) {
	t.Parallel()
	c := hire(t, "nats", client.WorkerOptions{MaxJobs: 1, LeaseFor: time.Second})
	c.gate.length = time.Second
	c.gate.push("acme", task("t"))
	c.worker.HandleAll(func(ctx context.Context, _ *client.Task) error {
		c.gate.until(t, "three heartbeats", func() bool { return c.gate.beats >= 3 })
		return ctx.Err()
	})
	c.start()
	if err := c.wait(); err != nil {
		t.Fatal(err)
	}
	if got := c.worker.Stats(); got.Completed != 1 {
		t.Errorf("stats %+v", got)
	}
}

func TestHandlersHearWhyTheyMustStop(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		prepare func(*gate)
		during  func(*gate)
		cause   error
		settled string // the outcome that is accepted, if any
	}{
		"cancelled": {
			prepare: func(g *gate) { g.cancel["job-0"] = true },
			cause:   client.ErrJobCancelled, settled: "fail",
		},
		"lease lost": {
			during: func(g *gate) { g.expire("job-0") },
			cause:  client.ErrLeaseLost,
		},
		// Nobody answers the heartbeats: the lease ends by our own clock. The
		// server may have been away as well, so the outcome is told all the same.
		"no answer": {
			prepare: func(g *gate) { g.deaf = true },
			cause:   client.ErrLeaseLost, settled: "fail",
		},
		"out of time": {
			prepare: func(g *gate) { g.timeout = 50 * time.Millisecond },
			cause:   context.DeadlineExceeded, settled: "fail",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := hire(t, "nats", client.WorkerOptions{MaxJobs: 1})
			c.gate.length = time.Second
			if tc.prepare != nil {
				tc.prepare(c.gate)
			}
			c.gate.push("acme", task("t"))
			var cause error
			c.worker.HandleAll(func(ctx context.Context, _ *client.Task) error {
				if tc.during != nil {
					tc.during(c.gate)
				}
				<-ctx.Done()
				cause = context.Cause(ctx)
				return cause
			})
			c.start()
			if err := c.wait(); err != nil {
				t.Fatal(err)
			}
			if !errors.Is(cause, tc.cause) {
				t.Errorf("cause %v, want %v", cause, tc.cause)
			}
			outcomes := c.gate.outcomes("job-0")
			switch {
			case tc.settled == "" && len(outcomes) > 0:
				t.Errorf("settled as %s", outcomes[0].GetOutcome())
			case tc.settled != "" && (len(outcomes) != 1 || outcomes[0].GetOutcome() != tc.settled):
				t.Errorf("settlements %v, want one %s", outcomes, tc.settled)
			}
		})
	}
}

func TestMaxJobsIsExact(t *testing.T) {
	t.Parallel()
	c := hire(t, "nats", client.WorkerOptions{MaxJobs: 25, Slots: 10})
	for range 40 {
		c.gate.push("acme", task("t"))
	}
	c.worker.HandleAll(func(context.Context, *client.Task) error { return nil })
	c.start()
	if err := c.wait(); err != nil {
		t.Fatal(err)
	}
	if got := c.worker.Stats(); got != (client.WorkerStats{Completed: 25}) {
		t.Errorf("stats %+v", got)
	}
	if n := len(c.gate.ready["acme"]); n != 15 {
		t.Errorf("%d jobs are left, want 15", n)
	}
}

func TestSeveralNamespacesTakeTurns(t *testing.T) {
	t.Parallel()
	const big, small, jobs = 3, 12, 100
	g := newGate()
	in := g.install(t)
	var names, tokens []string
	for i := range big + small {
		names = append(names, fmt.Sprintf("ns-%02d", i))
		tokens = append(tokens, in.token(names[i], auth.Work))
	}
	var clients []*client.Client
	for i, token := range tokens {
		clients = append(clients, in.dial(client.Options{Token: token}))
		if i >= big {
			continue
		}
		for range jobs {
			g.push(names[i], task("t"))
		}
	}
	for _, ns := range names[big:] {
		g.push(ns, task("t")) // enqueued last
	}
	w, err := client.NewWorker(client.WorkerOptions{Slots: 4, Drain: true}, clients...)
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var order []string
	w.HandleAll(func(_ context.Context, task *client.Task) error {
		mu.Lock()
		defer mu.Unlock()
		order = append(order, task.Job().GetNamespace())
		return nil
	})
	c := &crew{installation: in, gate: g, worker: w}
	c.start()
	if err := c.wait(); err != nil {
		t.Fatal(err)
	}
	if got, want := w.Stats().Completed, int64(big*jobs+small); got != want {
		t.Errorf("%d completed, want %d", got, want)
	}
	started := map[string]bool{}
	for i, ns := range order {
		if started[ns] = true; len(started) == len(names) {
			// Every turn gives at most 4 jobs to each of the big ones.
			if most := 4 * (big*4 + small); i > most {
				t.Errorf("all namespaces had started after %d jobs, want at most %d", i, most)
			}
			return
		}
	}
	t.Errorf("only %d of %d namespaces started", len(started), len(names))
}

func TestWorkerEndsWhenItCanNeverClaim(t *testing.T) {
	t.Parallel()
	overBothDoors(t, func(t *testing.T, door string) {
		g := newGate()
		in := g.install(t)
		token := in.token("acme", auth.Produce)
		c := &crew{installation: in, gate: g}
		c.worker, _ = client.NewWorker(client.WorkerOptions{}, in.dial(client.Options{Server: in.doors()[door], Token: token}))
		c.start()
		if err := c.wait(); !fault.Is(err, fault.PermissionDenied) {
			t.Errorf("Run: %v, want PERMISSION_DENIED", err)
		}
	})
}

func TestWorkerEndsWhenItsTokenIsNoLongerAccepted(t *testing.T) {
	t.Parallel()
	overBothDoors(t, func(t *testing.T, door string) {
		c := hire(t, door, client.WorkerOptions{})
		c.worker.Distrust(300 * time.Millisecond)
		c.worker.HandleAll(func(context.Context, *client.Task) error { return nil })
		c.start()
		c.gate.push("acme", task("t"))
		c.gate.until(t, "a settlement", func() bool { return len(c.gate.settled) == 1 })
		c.tokens.revoke()
		c.kick()
		c.gate.shut() // ends the poll over HTTP
		if err := c.wait(); !fault.Is(err, fault.Unauthenticated) {
			t.Errorf("Run: %v, want UNAUTHENTICATED", err)
		}
	})
}

// A service that does not run is named, and a worker that was to end when all is
// done does not wait for it for ever.
func TestAServiceThatDoesNotRunIsNamed(t *testing.T) {
	t.Parallel()
	in := install(t)
	c := in.dial(client.Options{Token: in.token("acme", auth.Work, auth.Produce, auth.Inspect), RetryFor: -1})
	w, err := client.NewWorker(client.WorkerOptions{Drain: true}, c)
	if err != nil {
		t.Fatal(err)
	}
	w.Hasten(200 * time.Millisecond)
	w.HandleAll(func(context.Context, *client.Task) error { return nil })
	_, usage := c.Admin().GetUsage(t.Context())
	_, enqueue := c.Enqueue(t.Context(), client.Job{Task: "t"})
	for service, err := range map[string]error{"dispatchgate": w.Run(t.Context()), "config": usage, "admission": enqueue} {
		want := "no process of the service " + service + " answers now"
		if f := fault.Of(err); f == nil || f.Reason != client.Unreachable || f.Message != want || client.MayHaveEnqueued(err) {
			t.Errorf("%s: %v, want UNAVAILABLE: %s", service, err, want)
		}
	}
}

func TestNewWorkerRefusesWhatCannotWork(t *testing.T) {
	t.Parallel()
	in := install(t)
	c := in.dial(client.Options{Token: in.token("acme", auth.Work)})
	for field, o := range map[string]client.WorkerOptions{
		"slots":     {Slots: -1},
		"lease_for": {LeaseFor: time.Millisecond},
		"wait":      {Wait: time.Hour},
		"max_jobs":  {MaxJobs: -1},
		"queues[1]": {Queues: []string{"a", " b"}},
		"worker":    {Name: "a\x00b"},
	} {
		_, err := client.NewWorker(o, c)
		if f := fault.Of(err); err == nil || f.Details[fault.KeyField] != field {
			t.Errorf("%s: %v", field, err)
		}
	}
	if _, err := client.NewWorker(client.WorkerOptions{}); err == nil {
		t.Error("a worker without a client was made")
	}
}
