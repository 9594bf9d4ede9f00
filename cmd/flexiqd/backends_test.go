package main

import (
	"context"
	"io"
	"testing"

	"google.golang.org/protobuf/proto"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/client"
	"flexiq/pkg/fault"
	"flexiq/pkg/testkit"
)

// TestTheWholePathOnEveryBackend takes jobs from enqueue to archive, with a
// refusal on the way, over each store that flexiqd knows.
func TestTheWholePathOnEveryBackend(t *testing.T) {
	for name, args := range map[string]func(t *testing.T) []string{
		"sqlite": func(*testing.T) []string { return nil },
		"postgres": func(t *testing.T) []string {
			url, schema := testkit.PostgresSchema(t)
			return []string{"--store=" + url, "--pg-schema=" + schema}
		},
		"redis": func(t *testing.T) []string { return []string{"--store=" + testkit.StartRedis(t).URL()} },
	} {
		t.Run(name, func(t *testing.T) {
			home(t)
			d, stop := inProcessLogging(t, io.Discard, args(t)...)
			c := dial(t, d.opts.DataDir, "default", "")
			wholePath(t, c)
			opts := d.opts.storeOptions()
			stop()
			checkCounts(t, opts)
		})
	}
}

func wholePath(t *testing.T, c *client.Client) {
	t.Helper()
	const limit = 20
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	if _, err := c.Admin().SetQuota(ctx, &flexiqv1.SetQuotaRequest{Quota: &flexiqv1.NamespaceQuota{
		MaxPending: proto.Int64(limit), MaxRunning: proto.Int64(3),
	}}); err != nil {
		t.Fatal(err)
	}
	jobs := make([]client.Job, limit)
	for i := range jobs {
		jobs[i] = client.Job{Task: "work", Args: i}
	}
	if _, err := c.EnqueueBatch(ctx, jobs); err != nil {
		t.Fatal(err)
	}
	_, err := c.Enqueue(ctx, client.Job{Task: "work"})
	if want := "queue 'default' is full: 20 pending >= max_pending 20"; !fault.Is(err, fault.QueueFull) || fault.Of(err).Message != want {
		t.Errorf("one more is %v, want %q", err, want)
	}
	w, err := client.NewWorker(client.WorkerOptions{Slots: 10, Drain: true}, c)
	if err != nil {
		t.Fatal(err)
	}
	w.Handle("work", func(_ context.Context, task *client.Task) error { return nil })
	if err := w.Run(ctx); err != nil {
		t.Fatal(err)
	}
	u, err := c.Admin().GetUsage(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if u.GetPending() != 0 || u.GetRunning() != 0 || u.GetArchived() != limit || u.GetDead() != 0 {
		t.Errorf("usage after the drain is %v, want %d archived and nothing else", u, limit)
	}
}
