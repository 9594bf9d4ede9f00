package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/client"
	"flexiq/pkg/store"
	"flexiq/pkg/testkit"
)

// bound is the limit that is in force, as far as its writer knows.
type bound struct {
	mu   sync.Mutex
	now  int64 // the highest that may be in force
	peak int64 // since it was last taken
}

// change makes a write: while it is under way the limit before may hold, and the
// limit after.
func (b *bound) change(to int64, write func()) {
	b.mu.Lock()
	b.now = max(b.now, to)
	b.peak = max(b.peak, b.now)
	b.mu.Unlock()
	write()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.now = to
}

func (b *bound) take() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	peak := b.peak
	b.peak = b.now
	return peak
}

// sightings are what was seen of the running jobs of a namespace.
type sightings struct {
	samples, starts int
	most            int64
	wrong           []string
}

// look compares two samples. Between them jobs started if more have started in
// all, and after the last start no more than the limit ran; from then on jobs
// only ended. Without a start jobs only ended, too.
func (s *sightings) look(before, after store.Usage, limit int64) {
	s.samples++
	s.most = max(s.most, after.Running)
	started := after.Running + after.Archived - before.Running - before.Archived
	s.starts += int(started)
	if started > 0 && after.Running > limit || after.Running > max(before.Running, limit) {
		s.wrong = append(s.wrong, fmt.Sprintf("%d ran, then %d started and %d ran, and the limit was %d at most",
			before.Running, started, after.Running, limit))
	}
}

func TestSightingsKnowAStartAboveTheLimit(t *testing.T) {
	for _, c := range []struct {
		running, archived int64 // before
		runs, ended       int64 // after
		limit             int64
		wrong             bool
	}{
		{running: 6, archived: 10, runs: 6, ended: 10, limit: 1},              // what ran before a cut runs on
		{running: 6, archived: 10, runs: 4, ended: 12, limit: 1},              // and ends
		{running: 6, archived: 10, runs: 6, ended: 11, limit: 1, wrong: true}, // and nothing takes its place
		{running: 6, archived: 10, runs: 2, ended: 15, limit: 1, wrong: true}, // not below the former number either
		{running: 6, archived: 10, runs: 1, ended: 16, limit: 1},              // but at the limit
		{running: 1, archived: 10, runs: 2, ended: 10, limit: 1, wrong: true},
		{running: 1, archived: 10, runs: 6, ended: 12, limit: 6},
	} {
		var s sightings
		s.look(store.Usage{Running: c.running, Archived: c.archived}, store.Usage{Running: c.runs, Archived: c.ended}, c.limit)
		if len(s.wrong) > 0 != c.wrong {
			t.Errorf("%+v: %v", c, s.wrong)
		}
	}
}

// TestLimitChangesAreExactOverProcesses changes the limit of a namespace a hundred
// times while two dispatchgate processes give out its jobs. The running count is
// read from the store every 10 ms: no job starts above the limit that was answered
// last, and what ran before a cut runs on.
func TestLimitChangesAreExactOverProcesses(t *testing.T) {
	const times = 100
	eachStore(t, func(t *testing.T, s kept) {
		natsURL, dir := testkit.NATS(t).ClientURL(), filepath.Join(t.TempDir(), "flexiq")
		serve := func(services ...string) (httpURL string) {
			at := "127.0.0.1:" + testkit.FreePort(t)
			args := append([]string{"serve"}, services...)
			p := spawn(t, append(append(args, "--nats-url="+natsURL, "--http-listen="+at, "--data-dir="+dir), s.args...)...)
			t.Cleanup(func() { p.terminate(t) })
			return "http://" + at
		}
		serve("admission", "config")
		gates := []string{serve("dispatchgate"), serve("dispatchgate")}
		c := dial(t, dir, "default", natsURL)

		b := &bound{}
		set := func(n int64) {
			b.change(n, func() { limit(t, c, &flexiqv1.NamespaceQuota{MaxRunning: proto.Int64(n)}) })
		}
		set(1)
		backlog(t, c, 2000)
		seen, stop := watch(t, s, b)
		defer stop()
		rest := make([]func(), 2)
		for i := range rest {
			rest[i] = busy(t, dial(t, dir, "default", natsURL))
			defer rest[i]()
		}
		for i := range times {
			time.Sleep(rand.N(10 * time.Millisecond)) // the load goes on under each limit for a while
			set([]int64{6, 1}[i%2])
		}
		set(6)
		testkit.Eventually(t, "the namespace is served under its last limit", func() bool { return seen().most >= 4 && seen().starts > times })
		for _, r := range rest {
			r()
		}
		stop()
		got := seen()
		for _, w := range got.wrong {
			t.Error(w)
		}
		t.Logf("%d starts, at most %d ran, in %d samples", got.starts, got.most, got.samples)
		if got.most > 6 || got.samples < 50 {
			t.Errorf("at most %d ran in %d samples", got.most, got.samples)
		}
		for _, url := range gates {
			if n := gaveOut(t, url); n == 0 {
				t.Error("one of the gates gave out no job: the test shows nothing of two")
			}
		}
		waits(t, c, 3)
		checkCounts(t, s.opts)
	})
}

// watch samples until stop. seen may be called at any time.
func watch(t *testing.T, s kept, b *bound) (seen func() sightings, stop func()) {
	t.Helper()
	db, ctx := open(t, s.opts), t.Context()
	read := func() store.Usage {
		u, err := db.Usage(ctx, []string{"default"})
		if err != nil {
			t.Error(err)
			return store.Usage{}
		}
		return u[0]
	}
	var mu sync.Mutex
	var all sightings
	end, ended := make(chan struct{}), make(chan struct{})
	before, older := read(), b.take()
	go func() {
		defer close(ended)
		for tick := time.NewTicker(10 * time.Millisecond); ; {
			select {
			case <-end:
				tick.Stop()
				return
			case <-tick.C:
			}
			after := read()
			newer := b.take()
			mu.Lock()
			all.look(before, after, max(older, newer)) // it was read before newer was
			mu.Unlock()
			before, older = after, newer
		}
	}()
	seen = func() sightings {
		mu.Lock()
		defer mu.Unlock()
		return all
	}
	return seen, sync.OnceFunc(func() { close(end); <-ended })
}

// busy works on the namespace, a few milliseconds a job, until stop.
func busy(t *testing.T, c *client.Client) (stop func()) {
	t.Helper()
	w, err := client.NewWorker(client.WorkerOptions{Slots: 6}, c)
	if err != nil {
		t.Fatal(err)
	}
	w.HandleAll(func(context.Context, *client.Task) error {
		time.Sleep(rand.N(20 * time.Millisecond)) // the job's work
		return nil
	})
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

var claimedJobs = regexp.MustCompile(`(?m)^flexiq_gate_granted_jobs_total ([0-9.e+]+)$`)

// gaveOut is how many jobs a gate has given out.
func gaveOut(t *testing.T, url string) float64 {
	t.Helper()
	res, err := http.Get(url + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	m := claimedJobs.FindSubmatch(text)
	if m == nil {
		t.Fatalf("no count of claimed jobs in\n%s", text)
	}
	n, err := strconv.ParseFloat(string(m[1]), 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// waits makes changes that wait until every process has them.
func waits(t *testing.T, c *client.Client, processes int64) {
	t.Helper()
	var took []time.Duration
	for i := range int64(9) {
		began := time.Now()
		res, err := c.Admin().SetQuota(t.Context(), &flexiqv1.SetQuotaRequest{Quota: &flexiqv1.NamespaceQuota{MaxRunning: &i}, Wait: true})
		if err != nil {
			t.Fatal(err)
		}
		took = append(took, time.Since(began))
		if e := res.GetEnforcedBy(); e.GetProcesses() != processes || len(e.GetLagging()) > 0 {
			t.Errorf("enforced by %v, want %d processes", e, processes)
		}
	}
	slices.Sort(took)
	t.Logf("a change that waits takes %s (median), %s at most", took[len(took)/2], took[len(took)-1])
}
