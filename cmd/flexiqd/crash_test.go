package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"google.golang.org/protobuf/proto"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/client"
	"flexiq/pkg/fault"
	"flexiq/pkg/testkit"
)

func testLog() zerolog.Logger { return zerolog.Nop() }

// acknowledged collects the ids that the server said it has.
type acknowledged struct {
	mu  sync.Mutex
	ids []string
}

func (a *acknowledged) add(id string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ids = append(a.ids, id)
}

func (a *acknowledged) count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.ids)
}

// TestKillLosesNothing kills the daemon with SIGKILL at random moments while
// producers enqueue and a worker completes jobs, and starts it again. Every
// acknowledged job is there at the end, the quota still holds, and the counts
// are those of the rows.
func TestKillLosesNothing(t *testing.T) {
	const rounds, producers, limit = 6, 4, 200
	const returned = slots // what a lost worker held comes back above the cap
	dir := filepath.Join(home(t), "data", "flexiq")
	args := []string{"--nats-listen=127.0.0.1:" + testkit.FreePort(t), "--http-listen=127.0.0.1:0", "--claim-lease=1s"}
	p := spawn(t, args...)
	c := dial(t, dir, "default", "")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if _, err := c.Admin().SetQuota(ctx, &flexiqv1.SetQuotaRequest{Quota: &flexiqv1.NamespaceQuota{MaxPending: proto.Int64(limit)}}); err != nil {
		t.Fatal(err)
	}

	var acked acknowledged
	var wg sync.WaitGroup
	for range producers {
		wg.Go(func() { produce(ctx, c, &acked) })
	}
	w := worker(t, c)
	wg.Go(func() { _ = w.Run(ctx) })

	for round := range rounds {
		before := acked.count()
		testkit.Eventually(t, fmt.Sprintf("round %d: jobs are acknowledged", round), func() bool { return acked.count() > before+20 })
		// Where in its work the kill finds the process is what the rounds vary.
		time.Sleep(time.Duration(rand.IntN(30)) * time.Millisecond)
		p.kill()
		p = spawn(t, args...)
		if u, err := c.Admin().GetUsage(ctx); err == nil && u.GetPending() > limit+returned {
			t.Errorf("round %d: %d pending, max_pending is %d", round, u.GetPending(), limit)
		}
	}
	cancel()
	wg.Wait()
	checkKept(t, c, &acked, limit)
	p.terminate(t)
	checkCounts(t, storeOptions{url: "sqlite:" + filepath.Join(dir, "flexiq.db")})
}

// produce enqueues until ctx ends. A refusal is the quota's word, not a loss.
func produce(ctx context.Context, c *client.Client, acked *acknowledged) {
	for ctx.Err() == nil {
		res, err := c.Enqueue(ctx, client.Job{Task: "work", Payload: []byte("x")})
		switch {
		case err == nil:
			acked.add(res.Job.GetId())
		case fault.Is(err, fault.QueueFull):
			select {
			case <-ctx.Done():
			case <-time.After(5 * time.Millisecond): // the worker makes room
			}
		}
	}
}

// slots is how many jobs the worker runs at once.
const slots = 4

func worker(t *testing.T, c *client.Client) *client.Worker {
	t.Helper()
	w, err := client.NewWorker(client.WorkerOptions{Slots: slots, LeaseFor: time.Second}, c)
	if err != nil {
		t.Fatal(err)
	}
	w.Handle("work", func(context.Context, *client.Task) error { return nil })
	return w
}

func checkKept(t *testing.T, c *client.Client, acked *acknowledged, limit int64) {
	t.Helper()
	ctx := t.Context()
	q, err := c.Admin().GetQuota(ctx, &flexiqv1.GetQuotaRequest{})
	if err != nil || q.GetQuota().GetMaxPending() != limit {
		t.Errorf("the quota after the kills is %v, %v", q, err)
	}
	for _, id := range acked.ids {
		if _, err := c.Job(ctx, id); err != nil {
			t.Errorf("acknowledged job %s: %v", id, err)
		}
	}
	if acked.count() == 0 {
		t.Error("nothing was acknowledged: the test shows nothing")
	}
}
