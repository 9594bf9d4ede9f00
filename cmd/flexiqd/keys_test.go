package main

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/client"
	"flexiq/pkg/fault"
	"flexiq/pkg/testkit"
)

// uniqueKeyEnds: a unique key lives as long as its job, and a shed job has none.
func uniqueKeyEnds(t *testing.T, as func(string) *client.Client) {
	ctx := t.Context()
	put := func(c *client.Client, key string) client.Result {
		t.Helper()
		r, err := c.Enqueue(ctx, client.Job{Task: "work", UniqueKey: key})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	c := as("quill")
	first := put(c, "bill-3")
	<-work(t, c, client.WorkerOptions{Slots: 1, MaxJobs: 1}, func(*client.Task) error { return client.Dead(errors.New("no such bill")) })
	if r := put(c, "bill-3"); r.Deduplicated || r.ID == first.ID || r.Status != "pending" {
		t.Errorf("a key whose job is dead gives %+v", r)
	}
	holds(t, c, 1, 0, 0, 1)

	c = as("quill drop")
	limit(t, c, &flexiqv1.NamespaceQuota{MaxPending: proto.Int64(1), OnExcess: proto.String("drop")})
	enqueue(t, c, 1)
	for range 2 {
		if r := put(c, "bill-4"); !r.Shed || r.Deduplicated {
			t.Errorf("a job over the limit is %+v", r)
		}
	}
	limit(t, c, &flexiqv1.NamespaceQuota{MaxPending: proto.Int64(10)})
	accepted := put(c, "bill-4")
	if accepted.Deduplicated || accepted.Status != "pending" {
		t.Errorf("the key of shed jobs, once there is room, gives %+v", accepted)
	}
	if r := put(c, "bill-4"); !r.Deduplicated || r.ID != accepted.ID {
		t.Errorf("the key of a pending job gives %+v", r)
	}
	holds(t, c, 2, 0, 0, 2)
}

// runs are the payloads that a worker was given.
type runs struct {
	mu   sync.Mutex
	seen []string
}

func (r *runs) add(payload []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen = append(r.seen, string(payload))
}

func (r *runs) is(want ...string) func() bool {
	return func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return fmt.Sprint(r.seen) == fmt.Sprint(want)
	}
}

// debounceKeepsTheLast: each update moves the start away, the last one is what
// runs, one that comes meanwhile runs after it, and the key goes on working.
func debounceKeepsTheLast(t *testing.T, as func(string) *client.Client) {
	const updates, window = 30, 2 * time.Second
	c := as("quill bounce")
	update := func(payload string) client.Result {
		t.Helper()
		r, err := c.Enqueue(t.Context(), client.Job{
			Task: "work", Payload: []byte(payload), Debounce: client.Debounce{Key: "cart", Window: window, MaxWait: time.Hour},
		})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	started, release := make(chan struct{}, 1), make(chan struct{})
	var ran runs
	work(t, c, client.WorkerOptions{Slots: 2}, func(task *client.Task) error {
		ran.add(task.Input())
		if bytes.Equal(task.Input(), []byte("29")) {
			started <- struct{}{}
			<-release
		}
		return nil
	})
	var before client.Result
	for n := range updates {
		r := update(fmt.Sprint(n))
		if n > 0 && (!r.Debounced || r.ID != before.ID || !r.Job.GetRunAt().AsTime().After(before.Job.GetRunAt().AsTime())) {
			t.Errorf("update %d: %+v after %+v", n, r, before)
		}
		before = r
	}
	select {
	case <-started:
	case <-time.After(testkit.Patience):
		t.Fatal("the debounced job does not run")
	}
	if r := update("meanwhile"); r.Debounced || r.ID == before.ID {
		t.Errorf("an update while the job runs: %+v", r)
	}
	close(release)
	testkit.Eventually(t, "what came meanwhile runs", ran.is("29", "meanwhile"))
	if r := update("later"); r.Debounced {
		t.Errorf("an update after it was quiet: %+v", r)
	}
	testkit.Eventually(t, "a later update runs", ran.is("29", "meanwhile", "later"))
	testkit.Eventually(t, "all are done", func() bool {
		u, err := c.Admin().GetUsage(t.Context())
		return err == nil && u.GetArchived() == 3
	})
}

// debounceIsAnEnqueue: an update adds no job, and is refused all the same while
// the namespace is full.
func debounceIsAnEnqueue(t *testing.T, as func(string) *client.Client) {
	c := as("quill full")
	limit(t, c, &flexiqv1.NamespaceQuota{MaxPending: proto.Int64(1)})
	j := client.Job{Task: "work", Payload: []byte("first"), Debounce: client.Debounce{Key: "cart", Window: time.Hour}}
	first, err := c.Enqueue(t.Context(), j)
	if err != nil {
		t.Fatal(err)
	}
	j.Payload = []byte("second")
	_, err = c.Enqueue(t.Context(), j)
	full(t, err, "queue 'default' is full: 1 pending >= max_pending 1")
	kept, err := c.Job(t.Context(), first.ID)
	if err != nil || string(kept.GetPayload()) != "first" || !kept.GetRunAt().AsTime().Equal(first.Job.GetRunAt().AsTime()) {
		t.Errorf("the job after a refused update: %v, %v", kept, err)
	}
	holds(t, c, 1, 0, 0, 0)
}

// ownPublishers: what the system itself enqueues never passes the limit either.
func ownPublishers(t *testing.T, as func(string) *client.Client) {
	const most, slots = 10, 4
	ctx := t.Context()
	c := as("flail")
	enqueue(t, c, 1)
	<-work(t, c, client.WorkerOptions{Slots: 1, MaxJobs: 1}, func(*client.Task) error { return client.Dead(errors.New("boom")) })
	limit(t, c, &flexiqv1.NamespaceQuota{MaxPending: proto.Int64(most)})
	enqueue(t, c, most)
	if _, err := c.Admin().PutSchedule(ctx, &flexiqv1.PutScheduleRequest{
		Name: "every second", Cron: "* * * * * *", Job: &flexiqv1.JobSpec{Task: "work"},
	}); err != nil {
		t.Fatal(err)
	}
	const text = "queue 'default' is full: 10 pending >= max_pending 10"
	told := map[string]int{}
	testkit.Eventually(t, "the refused slots are on record", func() bool {
		_, err := c.Enqueue(ctx, client.Job{Task: "work"})
		full(t, err, text)
		_, err = c.EnqueueBatch(ctx, jobs(2))
		full(t, err, text)
		_, err = c.Enqueue(ctx, client.Job{Task: "work", Delay: time.Hour})
		full(t, err, text)
		_, err = c.Admin().RunSchedule(ctx, "every second")
		full(t, err, text)
		_, err = c.Admin().ReplayDeadLetters(ctx, &flexiqv1.ReplayDeadLettersRequest{Filter: &flexiqv1.DeadLetterFilter{}})
		full(t, err, text)
		holds(t, c, most, 0, 0, 1)
		clear(told)
		for r, err := range c.Admin().Audit(ctx, &flexiqv1.ListAuditRequest{Kind: "schedule"}) {
			if err != nil {
				t.Fatal(err)
			}
			if r.GetOperation() == "fire-schedule" {
				told[r.GetNew()]++ // it names the slot
				if r.GetOutcome() != string(fault.QueueFull) {
					t.Errorf("on record: %v", r)
				}
			}
		}
		time.Sleep(200 * time.Millisecond) // each round writes to the trail, and slots come by the second
		return len(told) >= slots
	})
	for slot, n := range told {
		if n != 1 {
			t.Errorf("%s is on record %d times", slot, n)
		}
	}
	if err := c.Admin().DeleteSchedule(ctx, "every second"); err != nil {
		t.Fatal(err)
	}
	holds(t, c, most, 0, 0, 1)
}
