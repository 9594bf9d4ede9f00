package main

import (
	"path/filepath"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/client"
	"flexiq/pkg/fault"
	"flexiq/pkg/testkit"
)

// TestRateSurvivesTheService: a service that is killed and started again gives no
// token away.
func TestRateSurvivesTheService(t *testing.T) {
	const capacity, calls = 5, 40
	eachStore(t, func(t *testing.T, s kept) {
		dir := filepath.Join(t.TempDir(), "flexiq")
		args := append([]string{"--data-dir=" + dir, "--nats-listen=127.0.0.1:" + testkit.FreePort(t), "--http-listen=127.0.0.1:0"}, s.args...)
		p := spawn(t, args...)
		c := dial(t, dir, "default", "")
		limit(t, c, &flexiqv1.NamespaceQuota{EnqueueRate: proto.String("5/h")})
		if n, _ := flood(t, c, calls); n != capacity {
			t.Errorf("%d of %d calls at once were admitted, want %d", n, calls, capacity)
		}
		p.kill()
		p = spawn(t, args...)
		if n, _ := flood(t, c, calls); n != 0 {
			t.Errorf("%d calls were admitted after the service was killed, want none", n)
		}
		p.terminate(t)
	})
}

// flood makes calls at once and tells how many were admitted and how long it took.
func flood(t *testing.T, c *client.Client, calls int) (admitted int, took time.Duration) {
	t.Helper()
	var mu sync.Mutex
	var group sync.WaitGroup
	began := time.Now()
	for range calls {
		group.Go(func() {
			_, err := c.Enqueue(t.Context(), client.Job{Task: "work"})
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				admitted++
			case !fault.Is(err, fault.RateLimited):
				t.Error(err)
			}
		})
	}
	group.Wait()
	return admitted, time.Since(began)
}
