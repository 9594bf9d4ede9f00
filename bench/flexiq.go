package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/client"
)

// flexiqd is a daemon of this run, with all services and its NATS server.
type flexiqd struct {
	*process
	env      *env
	dir      string
	pprof    string // address; empty without profiles
	platform *client.Client
	tokens   struct {
		NATS   string            `json:"nats_url"`
		HTTP   string            `json:"http_url"`
		Tokens map[string]string `json:"tokens"`
	}
	made atomic.Int64 // namespaces
}

// startFlexiqd starts a daemon over a store.
func (e *env) startFlexiqd(ctx context.Context, store string) (*flexiqd, error) {
	dir, err := os.MkdirTemp(e.dir, "flexiqd-")
	if err != nil {
		return nil, err
	}
	d := &flexiqd{env: e, dir: dir}
	if store == "" {
		store = "sqlite:" + filepath.Join(dir, "flexiq.db")
	}
	cmd := exec.Command(e.flexiqd, "serve", "--nats-listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0", "--log-level", "warn",
		"--data-dir", filepath.Join(dir, "data"))
	cmd.Env = append(os.Environ(), "FLEXIQ_STORE="+store, "XDG_CONFIG_HOME="+dir, "HOME="+dir)
	if e.opts.profile != "" {
		port, err := freePort()
		if err != nil {
			return nil, err
		}
		d.pprof = "127.0.0.1:" + port
		cmd.Env = append(cmd.Env, "FLEXIQ_PPROF_LISTEN="+d.pprof)
	}
	if d.process, err = startProcess(cmd); err != nil {
		return nil, err
	}
	e.later(func() error {
		err := d.stop(syscall.SIGTERM)
		return errors.Join(err, os.RemoveAll(dir))
	})
	if err := d.await(ctx, "flexiqd", time.Minute, d.ready); err != nil {
		return nil, err
	}
	d.platform, err = d.dial(ctx, d.tokens.Tokens["platform"])
	return d, err
}

// ready reads the credentials, which are written before the doors open, and
// asks for health.
func (d *flexiqd) ready() error {
	raw, err := os.ReadFile(filepath.Join(d.dir, "data", "credentials.json"))
	if err != nil {
		return err
	}
	if err := json.Unmarshal(raw, &d.tokens); err != nil {
		return err
	}
	res, err := (&http.Client{Timeout: time.Second}).Get(d.tokens.HTTP + "/readyz")
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("readyz answers %s", res.Status)
	}
	return nil
}

func (d *flexiqd) pid() int { return d.cmd.Process.Pid }

// dial connects with a token, until the row ends.
func (d *flexiqd) dial(ctx context.Context, token string) (*client.Client, error) {
	c, err := client.Dial(ctx, client.Options{Server: d.tokens.NATS, Token: token})
	if err != nil {
		return nil, err
	}
	d.env.later(func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		return c.Close(ctx)
	})
	return c, nil
}

// slack is a quota with every limit set and none in reach.
func slack() *flexiqv1.NamespaceQuota {
	const plenty = int64(1_000_000_000)
	return &flexiqv1.NamespaceQuota{
		MaxPending: new(plenty), OnExcess: new("reject"), EnqueueRate: new("1000000/s"), MaxRunning: new(plenty),
		MaxArchivedRows: new(plenty), MaxDeadRows: new(plenty),
	}
}

// tenant is a new namespace with a token of its own.
func (d *flexiqd) tenant(ctx context.Context, quota *flexiqv1.NamespaceQuota) (string, error) {
	name := fmt.Sprintf("tenant-%d", d.made.Add(1))
	t, err := d.platform.Admin().CreateToken(ctx, &flexiqv1.CreateTokenRequest{
		Namespace: name, Scopes: []string{"produce", "work", "inspect", "admin"}, Name: "bench",
	})
	if err != nil {
		return "", fmt.Errorf("create a token: %w", err)
	}
	if quota == nil {
		return t.GetToken(), nil
	}
	c, err := client.Dial(ctx, client.Options{Server: d.tokens.NATS, Token: t.GetToken()})
	if err != nil {
		return "", err
	}
	if _, err := c.Admin().SetQuota(ctx, &flexiqv1.SetQuotaRequest{Quota: quota}); err != nil {
		return "", fmt.Errorf("set a quota: %w", err)
	}
	return t.GetToken(), c.Close(ctx)
}

// connect makes a tenant and a client of it.
func (d *flexiqd) connect(ctx context.Context, quota *flexiqv1.NamespaceQuota) (*client.Client, error) {
	token, err := d.tenant(ctx, quota)
	if err != nil {
		return nil, err
	}
	return d.dial(ctx, token)
}

// noop is the job that everybody enqueues.
func noop() client.Job { return client.Job{Task: "noop", Payload: payload} }

// payload is what a job of each entrant carries.
var payload = []byte(strings.Repeat("0123456789", 10))

// fill enqueues n jobs in batches, as fast as it can.
func fill(ctx context.Context, c *client.Client, n int, change func(*client.Job)) error {
	return inParallel(ctx, 4, (n+999)/1000, func(ctx context.Context, i int) error {
		jobs := make([]client.Job, min(1000, n-i*1000))
		for k := range jobs {
			jobs[k] = noop()
			if change != nil {
				change(&jobs[k])
			}
		}
		_, err := c.EnqueueBatch(ctx, jobs)
		return err
	})
}

// drain works off n jobs without doing anything in them, until their outcomes
// are stored, and returns how many a second that was.
func drain(ctx context.Context, c *client.Client, n, slots int) (float64, error) {
	w, err := client.NewWorker(client.WorkerOptions{Slots: slots, MaxJobs: int64(n), Name: "bench"}, c)
	if err != nil {
		return 0, err
	}
	w.HandleAll(func(context.Context, *client.Task) error { return nil })
	start := time.Now()
	err = w.Run(ctx) // returns when every settlement is answered
	took := time.Since(start)
	if err = errors.Join(err, context.Cause(ctx)); err != nil {
		return 0, err
	}
	if done := w.Stats().Completed; done != int64(n) {
		return 0, fmt.Errorf("%d of %d jobs were completed: %+v", done, n, w.Stats())
	}
	return float64(n) / took.Seconds(), nil
}

// working keeps a worker running until stop, which waits for its end.
func working(ctx context.Context, slots int, do client.Handler, clients ...*client.Client) (stop func() error, err error) {
	w, err := client.NewWorker(client.WorkerOptions{Slots: slots, Grace: 5 * time.Second}, clients...)
	if err != nil {
		return nil, err
	}
	w.HandleAll(do)
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	return func() error {
		cancel()
		return <-ended
	}, nil
}
