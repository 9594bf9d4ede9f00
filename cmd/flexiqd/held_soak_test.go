//go:build soak

package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"flexiq/pkg/client"
	"flexiq/pkg/fault"
	"flexiq/pkg/testkit"
)

// TestSoakHeldLock holds the lock of one namespace's rows for five seconds, as a
// transaction that hangs would, while eight others enqueue and work.
func TestSoakHeldLock(t *testing.T) {
	const others, least, hold, most = 8, 200, 5 * time.Second, time.Second
	home(t)
	url, schema := testkit.PostgresSchema(t)
	soak := testkit.StartSoak(t, "held-lock-postgres", "one namespace's lock is held for 5 s, eight others go on")
	d := inProcess(t, keptAt("postgres", url, schema).args...)
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	defer group.Wait()
	defer cancel()

	var mu sync.Mutex
	var answers, starts []time.Duration
	refused := 0
	for i := range others {
		c := tenant(t, d.opts.DataDir, "", fmt.Sprint("other-", i))
		work(t, c, client.WorkerOptions{Slots: 4}, func(task *client.Task) error {
			mu.Lock()
			defer mu.Unlock()
			starts = append(starts, time.Since(task.Job().GetCreatedAt().AsTime()))
			return nil
		})
		group.Go(func() {
			for ctx.Err() == nil {
				began := time.Now()
				if _, err := c.Enqueue(ctx, client.Job{Task: "work"}); err != nil && ctx.Err() == nil {
					t.Error(err)
				}
				mu.Lock()
				answers = append(answers, time.Since(began))
				mu.Unlock()
			}
		})
	}
	held := tenant(t, d.opts.DataDir, "", "held")
	enqueue(t, held, 1)
	for range 4 {
		group.Go(func() {
			for ctx.Err() == nil {
				short, stop := context.WithTimeout(ctx, hold)
				_, err := held.Enqueue(short, client.Job{Task: "work"})
				stop()
				mu.Lock()
				if fault.Is(err, fault.StorageUnavailable) {
					refused++
				}
				mu.Unlock()
			}
		})
	}
	testkit.Eventually(t, "jobs run", func() bool { mu.Lock(); defer mu.Unlock(); return len(starts) > least })
	mu.Lock()
	soak.Durations("answers before", slices.Clone(answers))
	soak.Durations("starts before", slices.Clone(starts))
	answers, starts = nil, nil
	mu.Unlock()

	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if _, err := conn.Exec(ctx, "begin"); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(ctx, "select from "+schema+".namespaces where name = 'held' for update"); err != nil {
		t.Fatal(err)
	}
	time.Sleep(hold) // what is measured is what others get meanwhile
	if _, err := conn.Exec(ctx, "rollback"); err != nil {
		t.Fatal(err)
	}
	cancel()
	group.Wait()
	mu.Lock()
	defer mu.Unlock()
	soak.Durations("answers while held", answers)
	soak.Durations("starts while held", starts)
	soak.Figure("refused of the held one", "%d", refused)
	soak.Check(len(answers) > least && slices.Max(answers) <= most, "no other namespace's enqueue is answered later than %s", most)
	soak.Check(len(starts) > least && slices.Max(starts) <= most, "no other namespace's job starts later than %s", most)
	_, err = tenant(t, d.opts.DataDir, "", "held").Enqueue(t.Context(), client.Job{Task: "work"})
	soak.Check(err == nil, "the held namespace goes on afterwards: %v", err)
}
