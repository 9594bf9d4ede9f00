package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/client"
	"flexiq/pkg/testkit"
)

func TestWhatIsTakenIsNamed(t *testing.T) {
	home(t)
	d := inProcess(t)
	busy := d.listener.Addr().String()
	natsBusy := strings.TrimPrefix(d.natsURL, "nats://")
	for name, tc := range map[string]struct {
		args []string
		want []string
	}{
		"data folder": {nil, []string{"the data folder " + d.opts.DataDir + " is in use by another flexiqd (process ", "--data-dir"}},
		"http port":   {[]string{"--data-dir=" + t.TempDir(), "--http-listen=" + busy}, []string{"cannot listen for HTTP on " + busy, "address already in use", "--http-listen"}},
		"nats port":   {[]string{"--data-dir=" + t.TempDir(), "--nats-listen=" + natsBusy}, []string{"cannot listen for NATS on " + natsBusy, "address already in use", "--nats-listen"}},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			args := append([]string{"--nats-listen=127.0.0.1:0", "--http-listen=127.0.0.1:0", "--log-level=error"}, tc.args...)
			if code := run(t.Context(), args, io.Discard, &out); code != exitError {
				t.Errorf("exit code %d, want %d", code, exitError)
			}
			for _, w := range tc.want {
				if !strings.Contains(out.String(), w) {
					t.Errorf("the message lacks %q:\n%s", w, &out)
				}
			}
		})
	}
}

func TestUsageErrorsNameTheFlag(t *testing.T) {
	home(t)
	for _, tc := range []struct{ args, want string }{
		{"serve admission", "--nats-url: is required when fewer than four services run"},
		{"serve admision", `unknown service "admision"`},
		{"--store=mysql://root:secret@db/x", `--store: must be sqlite:PATH, postgres://… or redis://…, got the scheme "mysql"`},
		{"--store=sqlite:x --store-file=/dev/null", "--store-file: must not be given together with --store"},
		{"--store-file=/dev/null", "--store-file: the first line of /dev/null is empty"},
		{"--http-listen=0.0.0.0:8080", "--http-listen: 0.0.0.0:8080 is reachable from other hosts"},
		{"--nats-listen=:4222", "--nats-listen: :4222 is reachable from other hosts"},
		{"--http-listen=127.0.0.1:http", "--http-listen: the port must be from 0 to 65535"},
		{"--claim-lease=10ms", "--claim-lease: must be from 1s to 1h0m0s"},
		{"--max-payload=0", "--max-payload: must be from 1 to 4194304 bytes"},
		{"--maintenance=maybe", `--maintenance must be one of "on","off"`},
		{"--archive-age=-3h", "--archive-age"},
		{"--archive-age=soon", "--archive-age"},
		{"--nonsense", "--nonsense"},
	} {
		t.Run(tc.args, func(t *testing.T) {
			var out bytes.Buffer
			if code := run(t.Context(), strings.Fields(tc.args), io.Discard, &out); code != exitUsage {
				t.Errorf("exit code %d, want %d", code, exitUsage)
			}
			if !strings.Contains(out.String(), tc.want) || strings.Contains(out.String(), "secret") {
				t.Errorf("the message is %q, want %q in it", &out, tc.want)
			}
		})
	}
}

// natsPost calls a method as `nats req` would: the token's own subject and inbox, a JSON body.
// TestBothDoorsTellTheSame makes the same calls with curl's means and with
// those of `nats req`, and compares results, refusals and texts.
// shape replaces what must differ between two calls.
// TestFloodMeetsTheRate sends far more than the rate admits: every job is
// admitted or shed, no more is admitted than the rate lets through, and usage,
// the list of dead letters and a recount agree.
func TestFloodMeetsTheRate(t *testing.T) {
	const jobs, rate = 2000, 200
	home(t)
	d, stop := inProcessLogging(t, io.Discard)
	c := dial(t, d.opts.DataDir, "default", "")
	ctx := t.Context()
	if _, err := c.Admin().SetQuota(ctx, &flexiqv1.SetQuotaRequest{Quota: &flexiqv1.NamespaceQuota{
		OnExcess: proto.String("drop"), EnqueueRate: proto.String(fmt.Sprintf("%d/s", rate)),
	}}); err != nil {
		t.Fatal(err)
	}
	var admitted, shed, other int
	var mu sync.Mutex
	var wg sync.WaitGroup
	began := time.Now()
	for range 50 {
		wg.Go(func() {
			for range jobs / 50 {
				res, err := c.Enqueue(ctx, client.Job{Task: "flood"})
				mu.Lock()
				switch {
				case err != nil:
					other++
				case res.Job.GetStatus() == "dead":
					shed++
				default:
					admitted++
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	seconds := time.Since(began).Seconds()
	if admitted+shed != jobs || other != 0 {
		t.Errorf("admitted %d + shed %d, other %d, want %d in all", admitted, shed, other, jobs)
	}
	if most := rate + int(rate*seconds) + 1; admitted > most {
		t.Errorf("admitted %d in %.2f s, at most %d may pass", admitted, seconds, most)
	}
	u, err := c.Admin().GetUsage(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if u.GetPending() != int64(admitted) || u.GetDead() != int64(shed) || u.GetShed() != int64(shed) {
		t.Errorf("usage %v, want %d pending and %d dead, all of them shed", u, admitted, shed)
	}
	listed := 0
	for l, err := range c.Admin().DeadLetters(ctx, &flexiqv1.ListDeadLettersRequest{PageSize: 500}) {
		if err != nil {
			t.Fatal(err)
		}
		if listed++; !strings.HasPrefix(l.GetError(), "quota: ") || l.GetDeadMetadata()["shed"] != "quota" {
			t.Fatalf("a shed dead letter: %v", l)
		}
	}
	if listed != shed {
		t.Errorf("%d dead letters are listed, want %d", listed, shed)
	}
	opts := d.opts.storeOptions()
	stop()
	checkCounts(t, opts)
}

// TestSplitInstallation runs the services in two processes on an outside NATS
// server and one store.
func TestSplitInstallation(t *testing.T) {
	dir := filepath.Join(home(t), "data", "flexiq")
	natsURL := testkit.NATS(t).ClientURL()
	front := spawn(t, "serve", "admission", "config", "--nats-url="+natsURL, "--http-listen=127.0.0.1:0", "--data-dir="+dir)
	back := spawn(t, "serve", "dispatchgate", "retention", "--nats-url="+natsURL, "--http-listen=127.0.0.1:0", "--data-dir="+dir)
	c := dial(t, dir, "default", natsURL)
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	ran := make(chan string, 1)
	w, err := client.NewWorker(client.WorkerOptions{Slots: 1}, c)
	if err != nil {
		t.Fatal(err)
	}
	w.Handle("split", func(_ context.Context, task *client.Task) error {
		ran <- task.ID()
		return nil
	})
	running, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- w.Run(running) }()
	res, err := c.Enqueue(ctx, client.Job{Task: "split"})
	if err != nil {
		t.Fatal(err)
	}
	select {
	case id := <-ran:
		if id != res.Job.GetId() {
			t.Errorf("job %s ran, want %s", id, res.Job.GetId())
		}
	case <-ctx.Done():
		t.Fatal("the job did not run")
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	front.terminate(t)
	back.terminate(t)
}

func TestAPayloadLargerThanAMessageIsRefusedAtTheStart(t *testing.T) {
	dir := home(t)
	o := testkit.NATSOptions(t)
	o.MaxPayload = 256 << 10
	natsURL := testkit.StartNATS(t, o).ClientURL()
	var out bytes.Buffer
	code := run(t.Context(), []string{"--nats-url=" + natsURL, "--http-listen=127.0.0.1:0", "--data-dir=" + dir}, io.Discard, &out)
	if want := "--max-payload: 262144 bytes do not fit into a message of the NATS server, whose max_payload is 262144"; code != exitUsage || !strings.Contains(out.String(), want) {
		t.Errorf("exit code %d, want %d; the message is %q, want %q in it", code, exitUsage, &out, want)
	}
}

// TestNoSecretIsLogged runs calls good and bad at debug level and looks for
// tokens and payloads in the log.
// lockedBuffer collects what several goroutines write.
func TestHealthOverHTTP(t *testing.T) {
	home(t)
	d := inProcess(t)
	for path, want := range map[string]int{"/healthz": 200, "/readyz": 200, "/metrics": 200, "/nothing": 401} {
		req, err := http.NewRequest(http.MethodGet, d.httpURL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		res, body := do(t, req)
		if res.StatusCode != want {
			t.Errorf("GET %s without a token: %d %v, want %d", path, res.StatusCode, body, want)
		}
	}
}

// TestARevokedTokenEndsItsParkedPolls parks a poll and revokes its token: the
// poll ends, and the job that comes then stays for somebody else.
// parked reads the gauge of parked claims.
