package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/client"
	"flexiq/pkg/fault"
	"flexiq/pkg/testkit"
)

// TestLimitsOnEveryBackend holds the limits at their edges, from a client's side.
func TestLimitsOnEveryBackend(t *testing.T) {
	eachStore(t, func(t *testing.T, s kept) {
		d, stop := inProcessLogging(t, io.Discard, s.args...)
		for name, test := range map[string]func(*testing.T, func(ns string) *client.Client){
			"a batch is one unit":              batchIsOneUnit,
			"many clients at the last place":   lastPlace,
			"the depth that a call would make": projectedDepth,
			"a batch larger than the rate":     largerThanRate,
			"a duplicate costs nothing":        duplicatesAreFree,
			"returned work is let in":          returnedWork,
			"a unique key ends with its job":   uniqueKeyEnds,
			"a debounce keeps the last update": debounceKeepsTheLast,
			"a debounced update is an enqueue": debounceIsAnEnqueue,
			"the system's own publishers":      ownPublishers,
		} {
			t.Run(name, func(t *testing.T) {
				test(t, func(ns string) *client.Client { return tenant(t, d.opts.DataDir, "", ns) })
			})
		}
		stop()
		checkCounts(t, s.opts)
	})
}

// full checks that a call was refused for depth, with what the refusal says.
func full(t *testing.T, err error, text string) {
	t.Helper()
	if !fault.Is(err, fault.QueueFull) || text != "" && fault.Of(err).Message != text {
		t.Errorf("got %v, want QUEUE_FULL: %q", err, text)
	}
}

func enqueue(t *testing.T, c *client.Client, n int) {
	t.Helper()
	if _, err := c.EnqueueBatch(t.Context(), jobs(n)); err != nil {
		t.Fatalf("a batch of %d: %v", n, err)
	}
}

func batchIsOneUnit(t *testing.T, as func(string) *client.Client) {
	c := as("hasp")
	limit(t, c, &flexiqv1.NamespaceQuota{MaxPending: proto.Int64(5)})
	enqueue(t, c, 3)
	_, err := c.EnqueueBatch(t.Context(), jobs(6))
	full(t, err, "queue 'default' is full: 3 pending >= max_pending 5")
	holds(t, c, 3, 0, 0, 0)
	enqueue(t, c, 2)
	_, err = c.EnqueueBatch(t.Context(), jobs(1))
	full(t, err, "queue 'default' is full: 5 pending >= max_pending 5")
	holds(t, c, 5, 0, 0, 0)

	c = as("hasp drop")
	limit(t, c, &flexiqv1.NamespaceQuota{MaxPending: proto.Int64(5), OnExcess: proto.String("drop")})
	enqueue(t, c, 3)
	results, err := c.EnqueueBatch(t.Context(), jobs(6))
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range results {
		if r.Job.GetStatus() != "dead" {
			t.Errorf("job %d of the shed batch is %s", i, r.Job.GetStatus())
		}
	}
	holds(t, c, 3, 0, 0, 6)
	for l, err := range c.Admin().DeadLetters(t.Context(), &flexiqv1.ListDeadLettersRequest{}) {
		if err != nil {
			t.Fatal(err)
		}
		if l.GetDeadMetadata()["shed"] != "quota" {
			t.Errorf("dead letter %v", l)
		}
	}
}

// lastPlace: neither a batch of two nor a second job gets onto one free place.
func lastPlace(t *testing.T, as func(string) *client.Client) {
	const clients, places = 16, 5
	c := as("hasp crowd")
	limit(t, c, &flexiqv1.NamespaceQuota{MaxPending: proto.Int64(places)})
	enqueue(t, c, places-1)
	var admitted atomic.Int64
	crowd := func(size int) {
		var group sync.WaitGroup
		for range clients {
			group.Go(func() {
				switch _, err := c.EnqueueBatch(t.Context(), jobs(size)); {
				case err == nil:
					admitted.Add(1)
				case !fault.Is(err, fault.QueueFull):
					t.Error(err)
				}
			})
		}
		done := make(chan struct{})
		go func() { group.Wait(); close(done) }()
		for {
			u, err := c.Admin().GetUsage(t.Context())
			if err != nil || u.GetPending() > places {
				t.Errorf("usage %v, %v", u, err)
			}
			select {
			case <-done:
				return
			default:
			}
		}
	}
	crowd(2)
	if n := admitted.Load(); n != 0 {
		t.Errorf("%d batches of two got onto one place", n)
	}
	crowd(1)
	if n := admitted.Load(); n != 1 {
		t.Errorf("%d jobs got onto one place", n)
	}
	holds(t, c, places, 0, 0, 0)
}

func projectedDepth(t *testing.T, as func(string) *client.Client) {
	c := as("bodkin")
	limit(t, c, &flexiqv1.NamespaceQuota{MaxPending: proto.Int64(1000)})
	enqueue(t, c, 990)
	_, err := c.EnqueueBatch(t.Context(), jobs(20))
	full(t, err, "queue 'default' is full: 990 pending >= max_pending 1000")
	if r, ok := client.AsRefusal(err); !ok || r.Fits != 10 || r.Asked != 20 || r.Never {
		t.Errorf("the refusal says %+v", r)
	}
	enqueue(t, c, 10)
	holds(t, c, 1000, 0, 0, 0)
}

func largerThanRate(t *testing.T, as func(string) *client.Client) {
	c := as("bodkin rate")
	limit(t, c, &flexiqv1.NamespaceQuota{EnqueueRate: proto.String("50/h")})
	_, err := c.EnqueueBatch(t.Context(), jobs(51))
	if r, ok := client.AsRefusal(err); !ok || r.Reason != fault.RateLimited || !r.Never || r.RetryAfter != 0 || r.Fits != 50 {
		t.Errorf("51 of 50: %+v, %v", r, err)
	}
	enqueue(t, c, 50)
	_, err = c.Enqueue(t.Context(), client.Job{Task: "work"})
	r, ok := client.AsRefusal(err)
	if !ok || r.Reason != fault.RateLimited || r.Never || r.RetryAfter < time.Millisecond || r.RetryAfter > time.Hour/50 {
		t.Errorf("one of none: %+v, %v", r, err)
	}
	if want := "rate limit exceeded for: namespace 'bodkin rate' enqueue_rate 50/h"; fault.Of(err).Message != want {
		t.Errorf("the message is %q, want %q", fault.Of(err).Message, want)
	}
	holds(t, c, 50, 0, 0, 0)
}

func duplicatesAreFree(t *testing.T, as func(string) *client.Client) {
	c := as("tansy")
	limit(t, c, &flexiqv1.NamespaceQuota{MaxPending: proto.Int64(10)})
	ctx := t.Context()
	first, err := c.Enqueue(ctx, client.Job{Task: "work", UniqueKey: "inv-88"})
	if err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	for range 60 {
		group.Go(func() {
			r, err := c.Enqueue(ctx, client.Job{Task: "work", UniqueKey: "inv-88"})
			if err != nil || !r.Deduplicated || r.Job.GetId() != first.Job.GetId() {
				t.Errorf("a duplicate got %+v, %v", r, err)
			}
		})
	}
	group.Wait()
	holds(t, c, 1, 0, 0, 0)
	for range 9 {
		enqueue(t, c, 1)
	}
	_, err = c.Enqueue(ctx, client.Job{Task: "work"})
	full(t, err, "queue 'default' is full: 10 pending >= max_pending 10")
	holds(t, c, 10, 0, 0, 0)
}

// returnedWork: what fails comes back beside what took its place.
func returnedWork(t *testing.T, as func(string) *client.Client) {
	const most = 10
	c := as("ingot")
	limit(t, c, &flexiqv1.NamespaceQuota{MaxPending: proto.Int64(most)})
	enqueue(t, c, most)
	var running atomic.Int64
	failing := make(chan struct{})
	done := work(t, c, client.WorkerOptions{Slots: most, MaxJobs: most}, func(*client.Task) error {
		running.Add(1)
		<-failing
		return errors.New("try again")
	})
	testkit.Eventually(t, "all of them run", func() bool { return running.Load() == most })
	enqueue(t, c, most)
	holds(t, c, most, most, 0, 0)
	close(failing)
	<-done
	holds(t, c, 2*most, 0, 0, 0)
	_, err := c.Enqueue(t.Context(), client.Job{Task: "work"})
	full(t, err, "queue 'default' is full: 20 pending >= max_pending 10")
	complete := func(n int64) {
		<-work(t, c, client.WorkerOptions{Slots: int(n), MaxJobs: n}, func(*client.Task) error { return nil })
	}
	complete(most)
	_, err = c.Enqueue(t.Context(), client.Job{Task: "work"})
	full(t, err, "queue 'default' is full: 10 pending >= max_pending 10")
	complete(1)
	enqueue(t, c, 1)
	holds(t, c, most, 0, most+1, 0)
}

// work starts a worker for all tasks and tells when it has ended.
func work(t *testing.T, c *client.Client, o client.WorkerOptions, do func(*client.Task) error) <-chan struct{} {
	t.Helper()
	w, err := client.NewWorker(o, c)
	if err != nil {
		t.Fatal(err)
	}
	w.HandleAll(func(_ context.Context, task *client.Task) error { return do(task) })
	done := make(chan struct{})
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		defer close(done)
		if err := w.Run(ctx); err != nil && ctx.Err() == nil {
			t.Error(fmt.Errorf("the worker ended: %w", err))
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	return done
}
