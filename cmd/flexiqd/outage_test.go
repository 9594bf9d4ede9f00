package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/client"
	"flexiq/pkg/fault"
	"flexiq/pkg/testkit"
)

// database is a private server that a test may kill.
type database struct {
	kept
	crash, restart func() error
}

// eachDatabase runs a test over each store that is a server of its own.
func eachDatabase(t *testing.T, test func(t *testing.T, db database)) {
	t.Helper()
	t.Run("postgres", func(t *testing.T) {
		home(t)
		s := testkit.StartPostgres(t)
		test(t, database{keptAt("postgres", s.URL(), ""), s.Crash, s.Start})
	})
	t.Run("redis", func(t *testing.T) {
		home(t)
		s := testkit.StartRedis(t, "appendonly", "yes", "appendfsync", "always")
		test(t, database{keptAt("redis", s.URL(), ""), s.Crash, s.Start})
	})
}

// TestKilledDatabase kills the database under load. Every acknowledged job is there
// afterwards, callers were told STORAGE_UNAVAILABLE and nothing else, and each
// service goes on by itself.
func TestKilledDatabase(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db database) {
		o := newOutage(t, db)
		for range 2 {
			o.round(t)
		}
		o.end(t)
	})
}

// outage is a daemon under load whose database is killed.
type outage struct {
	database
	daemon    *process
	dir, http string
	c, side   *client.Client // of two namespaces

	load    sync.WaitGroup
	stop    context.CancelFunc
	doors   []*caller
	drained atomic.Int64

	ready []time.Duration // from the database's return to readiness
}

// caller enqueues through one door and keeps what it is told.
type caller struct {
	name  string
	c     *client.Client
	acked acknowledged

	mu      sync.Mutex
	reasons map[fault.Reason]int
	last    time.Time // of the latest acknowledgement
	back    []time.Duration
}

func newOutage(t *testing.T, db database) *outage {
	o := &outage{database: db, http: "127.0.0.1:" + testkit.FreePort(t)}
	o.dir = t.TempDir()
	o.daemon = spawn(t, append([]string{
		"--data-dir=" + o.dir, "--nats-listen=127.0.0.1:" + testkit.FreePort(t), "--http-listen=" + o.http,
		"--claim-lease=1s", "--retention-tick=200ms", "--leader-lease=3s",
	}, db.args...)...)
	o.c = dial(t, o.dir, "default", "")
	o.side = tenant(t, o.dir, "", "side")
	limit(t, o.c, &flexiqv1.NamespaceQuota{MaxPending: proto.Int64(1_000_000), MaxRunning: proto.Int64(20)})
	ctx, cancel := context.WithCancel(t.Context())
	o.stop = cancel
	t.Cleanup(func() { cancel(); o.load.Wait() })
	for name, server := range map[string]string{"nats": "", "http": "http://" + o.http} {
		door := &caller{name: name, c: impatient(t, o.dir, server), reasons: map[fault.Reason]int{}}
		o.doors = append(o.doors, door)
		for range 2 {
			o.load.Go(func() { door.produce(ctx) })
		}
	}
	w, err := client.NewWorker(client.WorkerOptions{Slots: slots, LeaseFor: time.Second, Queues: []string{"default"}}, o.c)
	if err != nil {
		t.Fatal(err)
	}
	w.Handle("work", func(context.Context, *client.Task) error { o.drained.Add(1); return nil })
	o.load.Go(func() {
		if err := w.Run(ctx); err != nil {
			t.Errorf("the worker gave up: %v", err)
		}
	})
	return o
}

// impatient connects as dial does, and repeats nothing by itself.
func impatient(t *testing.T, dir, server string) *client.Client {
	t.Helper()
	tokens, err := readCredentials(credentialsFile(dir))
	if err != nil {
		t.Fatal(err)
	}
	if server == "" {
		server = tokens.NATSURL
	}
	c, err := client.Dial(t.Context(), client.Options{Server: server, Token: tokens.Tokens["default"], RetryFor: -1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(context.Background()) })
	return c
}

// produce enqueues until ctx ends.
func (d *caller) produce(ctx context.Context) {
	for ctx.Err() == nil {
		res, err := d.c.Enqueue(ctx, client.Job{Task: "work", Payload: []byte("x")})
		switch {
		case err == nil:
			d.mu.Lock()
			d.last = time.Now()
			d.mu.Unlock()
			d.acked.add(res.Job.GetId())
		case ctx.Err() == nil:
			d.mu.Lock()
			d.reasons[fault.Of(err).Reason]++
			d.mu.Unlock()
		}
		select {
		case <-ctx.Done():
		case <-time.After(10 * time.Millisecond): // as a caller that has something else to do
		}
	}
}

func (d *caller) unavailable() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.reasons[fault.StorageUnavailable]
}

func (d *caller) ackedSince(at time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.last.After(at)
}

// round kills the database and brings it back.
func (o *outage) round(t *testing.T) {
	t.Helper()
	ctx := t.Context()
	for _, d := range o.doors {
		before := d.acked.count()
		testkit.Eventually(t, d.name+": jobs are acknowledged", func() bool { return d.acked.count() > before+20 })
	}
	waits := o.park(t)
	if err := o.crash(); err != nil {
		t.Fatal(err)
	}
	for _, d := range o.doors {
		before := d.unavailable()
		testkit.Eventually(t, d.name+": callers are told", func() bool { return d.unavailable() > before+2 })
	}
	testkit.Eventually(t, "the daemon is not ready", func() bool { return o.status(t, "/readyz") == http.StatusServiceUnavailable })
	if code := o.status(t, "/healthz"); code != http.StatusOK {
		t.Errorf("the daemon lives, and says %d", code)
	}
	if err := o.restart(); err != nil {
		t.Fatal(err)
	}
	at := time.Now()
	for _, d := range o.doors {
		testkit.Eventually(t, d.name+": jobs are acknowledged again", func() bool { return d.ackedSince(at) })
		d.back = append(d.back, time.Since(at))
	}
	testkit.Eventually(t, "the daemon is ready", func() bool { return o.status(t, "/readyz") == http.StatusOK })
	o.ready = append(o.ready, time.Since(at))
	done := o.drained.Load()
	testkit.Eventually(t, "jobs run again", func() bool { return o.drained.Load() > done })

	res, err := o.c.Enqueue(ctx, client.Job{Task: "quiet", Queue: "quiet"})
	if err != nil {
		t.Fatal(err)
	}
	select {
	case got := <-waits:
		if got.id != res.Job.GetId() {
			t.Errorf("the claim that waited got %+v, want the job %s", got, res.Job.GetId())
		}
		body := fmt.Sprintf(`{"settlements":[{"job_id":%q,"lease":%q,"outcome":"complete"}]}`, got.id, got.lease)
		if status, text := o.call(t, "WorkerService/Settle", body); status != http.StatusOK {
			t.Errorf("its settlement was answered with %d %s", status, text)
		}
	case <-time.After(testkit.Patience):
		t.Error("the claim that waited got nothing")
	}
	o.changes(t)
}

// held is a claimed job.
type held struct{ id, lease string }

// park makes a claim that waits for a job of a queue of its own, and returns when
// it waits.
func (o *outage) park(t *testing.T) <-chan held {
	t.Helper()
	got := make(chan held, 1)
	before := o.waiting(t)
	o.load.Go(func() {
		_, text := o.call(t, "WorkerService/Claim", `{"queues":["quiet"],"wait":"60s","lease_for":"60s"}`)
		var answer struct {
			Jobs []struct {
				Lease string
				Job   struct{ ID string }
			}
		}
		if err := json.Unmarshal(text, &answer); err != nil || len(answer.Jobs) != 1 {
			t.Errorf("the claim that waited was answered with %s", text)
			got <- held{}
			return
		}
		got <- held{answer.Jobs[0].Job.ID, answer.Jobs[0].Lease}
	})
	testkit.Eventually(t, "a claim waits", func() bool { return o.waiting(t) > before })
	return got
}

var waitingClaims = regexp.MustCompile(`(?m)^flexiq_gate_waiting_claims ([0-9]+)$`)

// waiting is how many claims wait in the daemon, the worker's aside.
func (o *outage) waiting(t *testing.T) int {
	t.Helper()
	res, err := http.Get("http://" + o.http + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	m := waitingClaims.FindSubmatch(text)
	if m == nil {
		t.Fatal("no gauge of waiting claims")
	}
	n, _ := strconv.Atoi(string(m[1])) // digits
	return n
}

// call calls a method over HTTP.
func (o *outage) call(t *testing.T, method, body string) (int, []byte) {
	req, err := http.NewRequest(http.MethodPost, "http://"+o.http+"/flexiq.v1."+method, strings.NewReader(body))
	if err != nil {
		t.Error(err)
		return 0, nil
	}
	tokens, err := readCredentials(credentialsFile(o.dir))
	if err != nil {
		t.Error(err)
		return 0, nil
	}
	req.Header.Set("Authorization", "Bearer "+tokens.Tokens["default"])
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Error(err)
		return 0, nil
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Error(err)
	}
	return res.StatusCode, text
}

func (o *outage) status(t *testing.T, path string) int {
	t.Helper()
	res, err := http.Get("http://" + o.http + path)
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	return res.StatusCode
}

// changes checks that a changed quota is in force and that the sweeps go on.
func (o *outage) changes(t *testing.T) {
	t.Helper()
	limit(t, o.side, &flexiqv1.NamespaceQuota{MaxPending: proto.Int64(0)})
	_, err := o.side.Enqueue(t.Context(), client.Job{Task: "work"})
	full(t, err, "queue 'default' is full: 0 pending >= max_pending 0")
	limit(t, o.side, &flexiqv1.NamespaceQuota{MaxPending: proto.Int64(10)})
	enqueue(t, o.side, 6)
	<-work(t, o.side, client.WorkerOptions{Slots: 6, MaxJobs: 6}, func(*client.Task) error { return nil })
	limit(t, o.side, &flexiqv1.NamespaceQuota{MaxArchivedRows: proto.Int64(2)})
	testkit.Eventually(t, "a sweep has trimmed the archive", func() bool {
		u, err := o.side.Admin().GetUsage(t.Context())
		return err == nil && u.GetArchived() == 2
	})
}

// end stops the load and checks what is left.
func (o *outage) end(t *testing.T) {
	t.Helper()
	o.stop()
	o.load.Wait()
	for _, d := range o.doors {
		told := slices.Collect(maps.Keys(d.reasons))
		if !slices.Equal(told, []fault.Reason{fault.StorageUnavailable}) {
			t.Errorf("%s: callers were told %v, want STORAGE_UNAVAILABLE alone", d.name, d.reasons)
		}
		for _, id := range d.acked.ids {
			if _, err := o.c.Job(t.Context(), id); err != nil {
				t.Errorf("acknowledged job %s: %v", id, err)
			}
		}
	}
	o.daemon.terminate(t)
	checkCounts(t, o.opts)
}
