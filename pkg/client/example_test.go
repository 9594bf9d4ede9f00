package client_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os/signal"
	"syscall"
	"time"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/client"
)

// A producer: the server and the token come from FLEXIQ_SERVER and
// FLEXIQ_TOKEN, or from the user's current context.
func ExampleClient_Enqueue() {
	ctx := context.Background()
	c, err := client.FromEnvironment(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)

	result, err := c.Enqueue(ctx, client.Job{
		Queue:     "mail",
		Task:      "send-invoice",
		Args:      map[string]any{"invoice": 4711},
		UniqueKey: "invoice-4711",
		Delay:     time.Minute,
	})
	if r, ok := client.AsRefusal(err); ok {
		log.Printf("%s is full: try again in %s", r.Limit, r.RetryAfter)
		return
	}
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(result.ID, result.Deduplicated)
}

// A batch is one unit: all of its jobs are enqueued, or none.
func ExampleClient_EnqueueBatch() {
	ctx := context.Background()
	c, err := client.Dial(ctx, client.Options{Server: "http://127.0.0.1:8080", Token: "fqt.…"})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)

	_, err = c.EnqueueBatch(ctx, []client.Job{
		{Task: "resize", Args: map[string]any{"width": 320}},
		{Task: "resize", Args: map[string]any{"width": 1280}},
	})
	if r, ok := client.AsRefusal(err); ok && r.Never {
		log.Printf("at most %d jobs pass at once", r.Cap)
	}
}

// A worker: it stops in order when the process is told to.
func ExampleWorker() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	c, err := client.FromEnvironment(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(context.WithoutCancel(ctx))

	w, err := client.NewWorker(client.WorkerOptions{Queues: []string{"mail"}, Slots: 20}, c)
	if err != nil {
		log.Fatal(err)
	}
	w.Handle("send-invoice", func(ctx context.Context, t *client.Task) error {
		var args struct{ Invoice int }
		if err := t.Args(&args); err != nil {
			return client.Dead(err) // no retry can mend it
		}
		if args.Invoice == 0 {
			return client.RetryAfter(time.Hour, errors.New("the invoice is not ready"))
		}
		return t.SetResult(fmt.Appendf(nil, "sent %d", args.Invoice))
	})
	if err := w.Run(ctx); err != nil {
		log.Fatal(err)
	}
}

// Listings are sequences that read page after page.
func ExampleClient_Jobs() {
	ctx := context.Background()
	c, err := client.FromEnvironment(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)

	for j, err := range c.Jobs(ctx, &flexiqv1.ListJobsRequest{Status: "pending"}) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(j.GetId(), j.GetTask(), j.GetRunAt().AsTime())
	}
}

// The operators' calls take and give the messages of the interface.
func ExampleAdmin_SetQuota() {
	ctx := context.Background()
	c, err := client.FromEnvironment(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)

	res, err := c.Admin().SetQuota(ctx, &flexiqv1.SetQuotaRequest{
		Quota: &flexiqv1.NamespaceQuota{
			MaxPending:  new(int64(10_000)),
			EnqueueRate: new("500/s"),
		},
		Wait: true,
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(res.GetRevision(), res.GetEnforcedBy().GetProcesses())
}
