package main

import (
	"context"
	"path/filepath"
	"sync"
	"testing"

	"google.golang.org/protobuf/proto"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/client"
	"flexiq/pkg/testkit"
)

// TestFloodThroughTwoAdmissions lets eight producer processes flood one namespace
// through two admission processes, while a worker makes a little room again and
// again: the depth never reads above the limit.
func TestFloodThroughTwoAdmissions(t *testing.T) {
	const producers, calls, size, limited = 8, 90, 7, 1000
	eachStore(t, func(t *testing.T, s kept) {
		natsURL := testkit.NATS(t).ClientURL()
		dir := filepath.Join(t.TempDir(), "flexiq")
		serve := func(services ...string) {
			args := append([]string{"serve"}, services...)
			args = append(args, "--nats-url="+natsURL, "--http-listen=127.0.0.1:0", "--data-dir="+dir)
			p := spawn(t, append(args, s.args...)...)
			t.Cleanup(func() { p.terminate(t) })
		}
		serve("admission", "config", "dispatchgate", "retention")
		serve("admission")
		c := dial(t, dir, "default", natsURL)
		limit(t, c, &flexiqv1.NamespaceQuota{MaxPending: proto.Int64(limited), MaxRunning: proto.Int64(2)})
		tokens, err := readCredentials(credentialsFile(dir))
		if err != nil {
			t.Fatal(err)
		}

		var flood []*player
		for range producers {
			flood = append(flood, playing(t, role{Name: "flood", Server: natsURL, Token: tokens.Tokens["default"], Calls: calls, Jobs: size}))
		}
		stop := make(chan struct{})
		stopped := sync.OnceFunc(func() { close(stop) })
		defer stopped()
		var peak int64
		samples := sample(t, s, stop, func(pending int64) { peak = max(peak, pending) })
		stopWork := workUntil(t, c)

		var sum told
		for _, p := range flood {
			r := p.rest(t)
			sum.Sent, sum.Admitted, sum.Refused, sum.Jobs = sum.Sent+r.Sent, sum.Admitted+r.Admitted, sum.Refused+r.Refused, sum.Jobs+r.Jobs
			sum.Other = append(sum.Other, r.Other...)
		}
		stopped()
		n := <-samples
		stopWork()
		if sum.Sent != producers*calls || sum.Admitted+sum.Refused != sum.Sent || len(sum.Other) > 0 {
			t.Errorf("%d calls sent, %d admitted, %d refused, otherwise %q", sum.Sent, sum.Admitted, sum.Refused, sum.Other)
		}
		if peak > limited {
			t.Errorf("%d pending in one of %d samples, max_pending is %d", peak, n, limited)
		}
		if sum.Refused == 0 || peak < limited-size || n < 10 {
			t.Errorf("%d calls refused, at most %d pending in %d samples: the limit was not met, the test shows nothing", sum.Refused, peak, n)
		}
		u, err := c.Admin().GetUsage(t.Context())
		if err != nil || u.GetPending()+u.GetRunning()+u.GetArchived() != int64(sum.Jobs) {
			t.Errorf("usage %v, %v; %d jobs were admitted", u, err, sum.Jobs)
		}
		checkCounts(t, s.opts)
	})
}

// sample reads the depth of the namespace "default" from the store itself until
// stop, and then tells how often it did.
func sample(t *testing.T, s kept, stop <-chan struct{}, saw func(pending int64)) <-chan int {
	t.Helper()
	db := open(t, s.opts)
	ctx := t.Context()
	done := make(chan int, 1)
	go func() {
		n := 0
		defer func() { done <- n }()
		for ; ; n++ {
			u, err := db.Usage(ctx, []string{"default"})
			if err != nil {
				t.Error(err)
				return
			}
			saw(u[0].Pending)
			select {
			case <-stop:
				return
			default:
			}
		}
	}()
	return done
}

// workUntil completes jobs until the returned function is called.
func workUntil(t *testing.T, c *client.Client) (stop func()) {
	t.Helper()
	w, err := client.NewWorker(client.WorkerOptions{Slots: 2}, c)
	if err != nil {
		t.Fatal(err)
	}
	w.HandleAll(func(context.Context, *client.Task) error { return nil })
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	return sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
