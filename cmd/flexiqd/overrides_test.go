package main

import (
	"fmt"
	"io"
	"sync/atomic"
	"testing"

	"google.golang.org/protobuf/types/known/durationpb"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/client"
	"flexiq/pkg/fault"
	"flexiq/pkg/testkit"
)

// Pauses, caps and defaults of queues and tasks take effect on a running
// installation, and their end as well, without a worker asking again.
func TestOverridesOnEveryBackend(t *testing.T) {
	eachStore(t, func(t *testing.T, s kept) {
		d, stop := inProcessLogging(t, io.Discard, s.args...)
		for name, test := range map[string]func(*testing.T, *client.Client){
			"a pause of a task":  taskPaused,
			"a pause of a queue": queuePaused,
			"a cap of a task":    taskCapped,
			"defaults":           defaultsSet,
		} {
			t.Run(name, func(t *testing.T) { test(t, tenant(t, d.opts.DataDir, "", name)) })
		}
		stop()
		checkCounts(t, s.opts)
	})
}

func override(t *testing.T, c *client.Client, req *flexiqv1.SetOverrideRequest) {
	t.Helper()
	if _, err := c.Admin().SetOverride(t.Context(), req); err != nil {
		t.Fatal(err)
	}
}

func clearOverride(t *testing.T, c *client.Client, req *flexiqv1.ClearOverrideRequest) {
	t.Helper()
	if err := c.Admin().ClearOverride(t.Context(), req); err != nil {
		t.Fatal(err)
	}
}

// staff is a worker whose jobs run until they are let go.
type staff struct {
	started atomic.Int64
	running atomic.Int64
	most    atomic.Int64
	let     chan struct{} // one value ends one job, its end all of them
}

func hireStaff(t *testing.T, c *client.Client, slots int) *staff {
	t.Helper()
	s := &staff{let: make(chan struct{})}
	work(t, c, client.WorkerOptions{Slots: slots}, func(task *client.Task) error {
		s.started.Add(1)
		if n := s.running.Add(1); n > s.most.Load() {
			s.most.Store(n)
		}
		<-s.let
		s.running.Add(-1)
		return nil
	})
	t.Cleanup(s.letAll)
	return s
}

func (s *staff) letAll() {
	select {
	case <-s.let:
	default:
		close(s.let)
	}
}

// idle waits until the worker's claim has been looked at in vain: then only news
// brings it work.
func idle(t *testing.T, c *client.Client, workers int) {
	t.Helper()
	testkit.Eventually(t, "the worker waits", func() bool {
		res, err := c.Admin().ListWorkers(t.Context(), &flexiqv1.ListWorkersRequest{})
		return err == nil && len(res.GetWorkers()) == workers
	})
}

func taskPaused(t *testing.T, c *client.Client) {
	task := "work"
	override(t, c, &flexiqv1.SetOverrideRequest{Task: &task, Paused: new(true)})
	enqueue(t, c, 3)
	s := hireStaff(t, c, 5)
	other, err := c.Enqueue(t.Context(), client.Job{Task: "other"})
	if err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "a job of another task runs", func() bool { return s.started.Load() == 1 })
	idle(t, c, 1)
	holds(t, c, 3, 1, 0, 0)
	res, err := c.Admin().Explain(t.Context(), &flexiqv1.ExplainRequest{})
	if err != nil || len(res.GetFindings()) == 0 || res.GetFindings()[0].GetWhat() != "paused_task" {
		t.Errorf("explained by %v, %v", res.GetFindings(), err)
	}
	clearOverride(t, c, &flexiqv1.ClearOverrideRequest{Task: &task})
	testkit.Eventually(t, "all run", func() bool { return s.running.Load() == 4 })
	s.letAll()
	testkit.Eventually(t, "all are done", func() bool {
		u, err := c.Admin().GetUsage(t.Context())
		return err == nil && u.GetArchived() == 4
	})
	if j, err := c.Job(t.Context(), other.ID); err != nil || j.GetAttempt() != 1 {
		t.Errorf("the other job: %v, %v", j, err)
	}
	if err := c.Admin().ClearOverride(t.Context(), &flexiqv1.ClearOverrideRequest{Task: &task}); !fault.Is(err, fault.NotFound) {
		t.Errorf("clearing it twice: %v", err)
	}
}

// queuePaused: what runs when a queue is paused runs on, and nothing follows it.
func queuePaused(t *testing.T, c *client.Client) {
	queue := "default"
	s := hireStaff(t, c, 1)
	enqueue(t, c, 2)
	testkit.Eventually(t, "one runs", func() bool { return s.running.Load() == 1 })
	override(t, c, &flexiqv1.SetOverrideRequest{Queue: &queue, Paused: new(true)})
	s.let <- struct{}{}
	testkit.Eventually(t, "it is done", func() bool {
		u, err := c.Admin().GetUsage(t.Context())
		return err == nil && u.GetArchived() == 1
	})
	idle(t, c, 1)
	holds(t, c, 1, 0, 1, 0)
	q, err := c.Admin().ListQueues(t.Context(), &flexiqv1.ListQueuesRequest{})
	if err != nil || len(q.GetQueues()) != 1 || !q.GetQueues()[0].GetPaused() {
		t.Errorf("queues %v, %v", q.GetQueues(), err)
	}
	// A set without the pause is its end: it replaces.
	override(t, c, &flexiqv1.SetOverrideRequest{Queue: &queue, MaxConcurrent: new(int64(1))})
	testkit.Eventually(t, "the second runs", func() bool { return s.started.Load() == 2 })
	s.letAll()
}

// taskCapped: no more run than the cap says, a raise lets more start, and a cut
// stops nothing that runs.
func taskCapped(t *testing.T, c *client.Client) {
	task := "work"
	capAt := func(n int64) { override(t, c, &flexiqv1.SetOverrideRequest{Task: &task, MaxConcurrent: &n}) }
	capAt(1)
	enqueue(t, c, 20)
	s := hireStaff(t, c, 10)
	runs := func(n int64) {
		t.Helper()
		testkit.Eventually(t, fmt.Sprintf("%d run", n), func() bool { return s.running.Load() == n })
	}
	runs(1)
	idle(t, c, 1)
	holds(t, c, 19, 1, 0, 0)
	capAt(4)
	runs(4)
	capAt(2)
	holds(t, c, 16, 4, 0, 0)
	for range 2 { // two end, and none takes their place
		s.let <- struct{}{}
	}
	runs(2)
	testkit.Eventually(t, "two are done", func() bool {
		u, err := c.Admin().GetUsage(t.Context())
		return err == nil && u.GetArchived() == 2
	})
	holds(t, c, 16, 2, 2, 0)
	s.let <- struct{}{}
	testkit.Eventually(t, "another takes the place of the third", func() bool { return s.started.Load() == 5 })
	if most := s.most.Load(); most != 4 {
		t.Errorf("%d ran at once, the cap was 4 at most", most)
	}
	clearOverride(t, c, &flexiqv1.ClearOverrideRequest{Task: &task})
	runs(10)
	s.letAll()
	testkit.Eventually(t, "all are done", func() bool {
		u, err := c.Admin().GetUsage(t.Context())
		return err == nil && u.GetArchived() == 20
	})
}

// defaultsSet: the next enqueue after the answer has them, and the next after
// their end does not.
func defaultsSet(t *testing.T, c *client.Client) {
	task := "work"
	made := func(j client.Job) (attempts, priority int32) {
		t.Helper()
		r, err := c.Enqueue(t.Context(), j)
		if err != nil {
			t.Fatal(err)
		}
		return r.Job.GetMaxAttempts(), r.Job.GetPriority()
	}
	want := func(j client.Job, attempts, priority int32) {
		t.Helper()
		if a, p := made(j); a != attempts || p != priority {
			t.Errorf("%d attempts at priority %d, want %d at %d", a, p, attempts, priority)
		}
	}
	want(client.Job{Task: task}, 25, 0)
	override(t, c, &flexiqv1.SetOverrideRequest{Task: &task, MaxAttempts: new(int32(2)), Priority: new(int32(9)), Timeout: durationpb.New(5e9)})
	want(client.Job{Task: task}, 2, 9)
	want(client.Job{Task: task, MaxAttempts: 3, Priority: new(int32(0))}, 3, 0)
	want(client.Job{Task: "other"}, 25, 0)
	clearOverride(t, c, &flexiqv1.ClearOverrideRequest{Task: &task})
	want(client.Job{Task: task}, 25, 0)
}
