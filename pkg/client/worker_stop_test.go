package client_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"flexiq/pkg/auth"
	"flexiq/pkg/client"
)

func TestSettlementsAreSentUntilTheyAreAnswered(t *testing.T) {
	t.Parallel()
	overBothDoors(t, func(t *testing.T, door string) {
		c := hire(t, door, client.WorkerOptions{MaxJobs: 1})
		c.gate.refusing, c.gate.dropping, c.gate.failing = 2, 1, 1
		c.gate.push("acme", task("t"))
		c.worker.HandleAll(func(context.Context, *client.Task) error { return nil })
		c.start()
		if err := c.wait(); err != nil {
			t.Fatal(err)
		}
		if n := len(c.gate.outcomes("job-0")); n != 1 {
			t.Errorf("settled %d times", n)
		}
		if got := c.worker.Stats(); got.Completed != 1 {
			t.Errorf("stats %+v", got)
		}
	})
}

func TestSettlementsSurviveARestartOfTheGate(t *testing.T) {
	t.Parallel()
	g := newGate()
	in := install(t)
	t.Cleanup(g.shut)
	token := in.token("acme", auth.Work)
	first := in.connect()
	endpoints := in.serve(first, g.methods())
	c := &crew{installation: in, gate: g}
	c.worker, _ = client.NewWorker(client.WorkerOptions{MaxJobs: 1}, in.dial(client.Options{Token: token}))
	g.push("acme", task("t"))
	finished := make(chan struct{})
	c.worker.HandleAll(func(ctx context.Context, _ *client.Task) error {
		defer close(finished)
		return endpoints.Stop(ctx)
	})
	c.start()
	<-finished // there is no gate now
	in.serve(in.connect(), g.methods())
	if err := c.wait(); err != nil {
		t.Fatal(err)
	}
	if got := g.outcomes("job-0"); len(got) != 1 || got[0].GetOutcome() != "complete" {
		t.Errorf("settlements %v", got)
	}
}

// kick breaks the connections of everybody but the services.
func (in *installation) kick() {
	in.t.Helper()
	for id := uint64(1); id < 64; id++ {
		if c := in.nats.GetClient(id); c != nil && c.GetOpts().Username != serviceUser {
			_ = in.nats.DisconnectClientByID(id) // gone by itself: fine
		}
	}
}

func TestWorkerClaimsAgainAfterABrokenConnection(t *testing.T) {
	t.Parallel()
	c := hire(t, "nats", client.WorkerOptions{Wait: time.Minute, MaxJobs: 1})
	c.worker.HandleAll(func(context.Context, *client.Task) error { return nil })
	c.start()
	c.gate.until(t, "a poll", func() bool { return len(c.gate.claims) == 1 })
	c.kick()
	c.gate.push("acme", task("t"))
	if err := c.wait(); err != nil {
		t.Fatal(err)
	}
	// The first poll was answered into the dead inbox, and undone, or into the
	// renewed one; either way the job ran once.
	if got := c.gate.outcomes("job-0"); len(got) != 1 || got[0].GetOutcome() != "complete" {
		t.Errorf("settlements %v", got)
	}
}

func TestStopWithdrawsThePoll(t *testing.T) {
	t.Parallel()
	overBothDoors(t, func(t *testing.T, door string) {
		c := hire(t, door, client.WorkerOptions{Wait: time.Minute})
		c.worker.HandleAll(func(context.Context, *client.Task) error { return errors.New("claimed after the stop") })
		c.start()
		c.gate.until(t, "a poll", func() bool { return len(c.gate.waiters) == 1 })
		if err := c.end(); err != nil {
			t.Fatal(err)
		}
		if door == "http" { // NATS does not tell a service that a caller has left
			c.gate.until(t, "the end of the poll", func() bool { return len(c.gate.waiters) == 0 })
		}
		c.gate.push("acme", task("t"))
		if door == "nats" {
			c.gate.until(t, "the claim for nobody is undone", func() bool { return c.gate.undone == 1 })
		}
		if n := len(c.gate.ready["acme"]); n != 1 {
			t.Errorf("%d jobs are ready, want 1", n)
		}
	})
}

func TestAWorkerThatEndsSignsOff(t *testing.T) {
	t.Parallel()
	overBothDoors(t, func(t *testing.T, door string) {
		c := hire(t, door, client.WorkerOptions{Name: "mill", MaxJobs: 1})
		c.worker.HandleAll(func(context.Context, *client.Task) error { return nil })
		c.gate.push("acme", task("t"))
		c.start()
		if err := c.wait(); err != nil {
			t.Fatal(err)
		}
		c.gate.until(t, "it has signed off", func() bool { return slices.Equal(c.gate.gone, []string{"mill"}) })
		if got := c.gate.outcomes("job-0"); len(got) != 1 {
			t.Errorf("it signed off before its settlement: %v", got)
		}
	})
}

// A job that was on its way as the worker was told to stop does not start.
func TestNothingStartsAfterTheStop(t *testing.T) {
	t.Parallel()
	overBothDoors(t, func(t *testing.T, door string) {
		c := hire(t, door, client.WorkerOptions{Wait: time.Minute})
		c.worker.HandleAll(func(context.Context, *client.Task) error { return errors.New("started after the stop") })
		c.gate.push("acme", task("t"))
		c.gate.onClaim = func() { c.stop() }
		c.start()
		if err := c.wait(); err != nil {
			t.Fatal(err)
		}
		if got := c.worker.Stats(); got.Failed != 0 {
			t.Errorf("stats %+v", got)
		}
		c.gate.until(t, "the job is back", func() bool { return len(c.gate.ready["acme"]) == 1 || door == "http" })
		if n := len(c.gate.claims); n != 1 {
			t.Errorf("%d claims, want the one before the stop", n)
		}
	})
}

func TestStopGivesRunningJobsTheirGrace(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		grace   time.Duration
		handler func(ctx context.Context, release <-chan struct{}) error
		want    string
	}{
		"in time": {
			grace: time.Minute, want: "complete",
			handler: func(ctx context.Context, release <-chan struct{}) error { <-release; return ctx.Err() },
		},
		"too slow": {
			grace: 20 * time.Millisecond, want: "release",
			handler: func(ctx context.Context, _ <-chan struct{}) error { <-ctx.Done(); return context.Cause(ctx) },
		},
		"no grace": {
			grace: -1, want: "release",
			handler: func(ctx context.Context, _ <-chan struct{}) error { <-ctx.Done(); return context.Cause(ctx) },
		},
		"done all the same": {
			grace: -1, want: "complete",
			handler: func(ctx context.Context, _ <-chan struct{}) error { <-ctx.Done(); return nil },
		},
		"deaf": {
			grace: -1, want: "release",
			handler: func(_ context.Context, release <-chan struct{}) error { <-release; return nil },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := hire(t, "nats", client.WorkerOptions{Grace: tc.grace})
			c.gate.push("acme", task("t"))
			started, release := make(chan struct{}), make(chan struct{})
			var handlers sync.WaitGroup
			handlers.Add(1)
			c.worker.HandleAll(func(ctx context.Context, _ *client.Task) error {
				defer handlers.Done()
				close(started)
				return tc.handler(ctx, release)
			})
			c.start()
			<-started
			if name == "in time" {
				time.AfterFunc(20*time.Millisecond, func() { close(release) })
			}
			if err := c.end(); err != nil {
				t.Fatal(err)
			}
			if got := c.gate.outcomes("job-0"); len(got) != 1 || got[0].GetOutcome() != tc.want {
				t.Errorf("settlements %v, want one %s", got, tc.want)
			}
			if name == "deaf" {
				close(release)
			}
			handlers.Wait()
		})
	}
}
