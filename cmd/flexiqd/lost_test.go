package main

import (
	"context"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/client"
	"flexiq/pkg/store"
	"flexiq/pkg/testkit"
)

// TestLostWorkersLeakNothing kills workers that hold jobs: others run the jobs,
// and nothing of the dead ones is counted any more.
func TestLostWorkersLeakNothing(t *testing.T) {
	eachStore(t, func(t *testing.T, s kept) {
		d, stop := inProcessLogging(t, io.Discard, s.args...)
		lostWorkers(t, d, 1, 10, time.Second)
		stop()
		checkCounts(t, s.opts)
	})
}

// lostWorkers does rounds of: enqueue jobs, let a process claim all of them, kill
// it, let another worker run them.
func lostWorkers(t *testing.T, d *daemon, rounds, size int, lease time.Duration) {
	t.Helper()
	const limited = 500
	c := dial(t, d.opts.DataDir, "default", "")
	limit(t, c, &flexiqv1.NamespaceQuota{MaxPending: proto.Int64(limited)})
	tokens, err := readCredentials(credentialsFile(d.opts.DataDir))
	if err != nil {
		t.Fatal(err)
	}
	for range rounds {
		enqueue(t, c, size)
		p := playing(t, role{Name: "hold", Server: d.natsURL, Token: tokens.Tokens["default"], Jobs: size, Lease: lease})
		for range size {
			p.next(t)
		}
		p.kill()
		<-work(t, c, client.WorkerOptions{Slots: 10, MaxJobs: int64(size)}, func(*client.Task) error { return nil })
	}
	holds(t, c, 0, 0, int64(rounds*size), 0)
	enqueue(t, c, limited)
	_, err = c.Enqueue(t.Context(), client.Job{Task: "work"})
	full(t, err, "queue 'default' is full: 500 pending >= max_pending 500")
}

// crashClaim tells a daemon of this test binary at which of its grants to die.
const crashClaim = "FLEXIQD_TEST_CRASH_CLAIM"

// fragile is a store whose process dies between the claim's write and its reply.
type fragile struct {
	store.Store
	left atomic.Int64
}

func (f *fragile) Turn(ctx context.Context, settlements []store.Settlement, wants []store.Want) ([]store.Settled, []store.Grant, error) {
	settled, grants, err := f.Store.Turn(ctx, settlements, wants)
	for _, g := range grants {
		if len(g.Jobs) > 0 && f.left.Add(-1) == 0 {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
	}
	return settled, grants, err
}

// fragileMain is a daemon over such a store.
func fragileMain(claims string) int {
	n, err := strconv.ParseInt(claims, 10, 64)
	if err != nil {
		return exitUsage
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	var cli commands
	p, err := newParser(&cli, os.Stdout, os.Stderr, os.Exit)
	if err != nil {
		return exitError
	}
	command, err := p.Parse(os.Args[1:])
	if err != nil {
		return exitUsage
	}
	cli.Serve.between = func(s store.Store) store.Store {
		f := &fragile{Store: s}
		f.left.Store(n)
		return f
	}
	command.BindTo(ctx, (*context.Context)(nil))
	command.Bind(stdio{out: os.Stdout, err: os.Stderr})
	if err := command.Run(); err != nil {
		return exitError
	}
	return exitOK
}

// TestCrashBetweenClaimAndReply crashes the service after a claim was written and
// before anybody was told: the jobs run all the same, and no slot stays taken.
func TestCrashBetweenClaimAndReply(t *testing.T) {
	eachStore(t, func(t *testing.T, s kept) { crashingClaims(t, s, 3, 60) })
}

// crashingClaims runs jobs through a service that crashes so often, and returns
// how long it took from each crash until the service was back.
func crashingClaims(t *testing.T, s kept, crashes, n int) (back []time.Duration) {
	t.Helper()
	const most = 20
	dir := filepath.Join(t.TempDir(), "flexiq")
	args := append([]string{
		"--data-dir=" + dir, "--nats-listen=127.0.0.1:" + testkit.FreePort(t), "--http-listen=127.0.0.1:0", "--claim-lease=1s",
	}, s.args...)
	p := spawn(t, args...)
	c := dial(t, dir, "default", "")
	limit(t, c, &flexiqv1.NamespaceQuota{MaxRunning: proto.Int64(most)})
	enqueue(t, c, n)
	p.terminate(t)

	crashing := func() *process {
		t.Setenv(crashClaim, strconv.Itoa(1+rand.IntN(5)))
		return spawn(t, args...)
	}
	p = crashing()
	var done atomic.Int64
	// Each job takes a moment, or all of them would be done before the last crash.
	w := work(t, c, client.WorkerOptions{Slots: 4, LeaseFor: time.Second}, func(*client.Task) error {
		done.Add(1)
		time.Sleep(10 * time.Millisecond)
		return nil
	})
	db := open(t, s.opts)
	for i := range crashes {
		select {
		case <-p.done:
		case <-w:
			t.Fatal("the worker gave up")
		case <-time.After(2 * testkit.Patience):
			t.Fatalf("no claim crashed the service; %d jobs ran", done.Load())
		}
		at := time.Now()
		if i < crashes-1 {
			p = crashing()
		} else {
			t.Setenv(crashClaim, "")
			p = spawn(t, args...)
		}
		back = append(back, time.Since(at))
		u, err := db.Usage(t.Context(), []string{"default"})
		if err != nil || u[0].Running > most {
			t.Errorf("usage %+v, %v", u, err)
		}
	}
	testkit.Eventually(t, "all jobs are done", func() bool {
		u, err := db.Usage(t.Context(), []string{"default"})
		return err == nil && u[0].Archived == int64(n)
	})
	holds(t, c, 0, 0, int64(n), 0)
	p.terminate(t)
	checkCounts(t, s.opts)
	return back
}
