package client_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/rs/zerolog"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/auth"
	"flexiq/pkg/client"
	"flexiq/pkg/fault"
)

// wayTo carries requests to a server that can go away.
type wayTo struct {
	next  http.RoundTripper
	down  func(try int64) bool
	tries atomic.Int64
}

func (w *wayTo) RoundTrip(r *http.Request) (*http.Response, error) {
	if w.down(w.tries.Add(1)) {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	}
	return w.next.RoundTrip(r)
}

// unsteady is an HTTP client whose tries fail as down says.
func unsteady(t *testing.T, down func(try int64) bool) (*http.Client, *wayTo) {
	tr := http.DefaultTransport.(*http.Transport).Clone()
	t.Cleanup(tr.CloseIdleConnections)
	w := &wayTo{next: tr, down: down}
	return &http.Client{Transport: w}, w
}

func TestNobodyThereIsToldAtOnceInPlainWords(t *testing.T) {
	t.Parallel()
	in := install(t)
	token := in.token("acme", auth.Produce)
	_, err := client.Dial(t.Context(), client.Options{Server: "nats://me:hush@127.0.0.1:1,nats://127.0.0.1:2", Token: token})
	want := "cannot reach nats://127.0.0.1:1,nats://127.0.0.1:2: connection refused"
	if f := fault.Of(err); f.Reason != client.Unreachable || f.Message != want {
		t.Errorf("over NATS: %v, want %q", err, want)
	}
	h, way := unsteady(t, func(int64) bool { return true })
	c := in.dial(client.Options{Server: "http://me:hush@127.0.0.1:1", Token: token, HTTP: h})
	_, err = c.Job(t.Context(), knownID)
	want = "cannot reach http://127.0.0.1:1: connection refused"
	if f := fault.Of(err); f.Reason != client.Unreachable || f.Message != want {
		t.Errorf("over HTTP: %v, want %q", err, want)
	}
	if n := way.tries.Load(); n != 1 {
		t.Errorf("%d tries of a first contact", n)
	}
	if _, err = c.Enqueue(t.Context(), client.Job{Task: "t"}); !fault.Is(err, client.Unreachable) || client.MayHaveEnqueued(err) {
		t.Errorf("enqueue: %v", err)
	}
	w, err := client.NewWorker(client.WorkerOptions{}, c)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Run(t.Context()); !fault.Is(err, client.Unreachable) {
		t.Errorf("the worker ends with %v", err)
	}
}

func TestWhatAnsweredOnceIsWaitedFor(t *testing.T) {
	t.Parallel()
	d := newDesk()
	in := install(t, d.methods()...)
	h, way := unsteady(t, func(try int64) bool { return try == 2 || try == 3 })
	c := in.dial(client.Options{Server: in.http.URL, Token: in.token("acme", auth.Produce), HTTP: h})
	for range 2 {
		if _, err := c.Enqueue(t.Context(), client.Job{Task: "t"}); err != nil {
			t.Fatal(err)
		}
	}
	if n := way.tries.Load(); n != 4 {
		t.Errorf("%d tries", n)
	}
}

// A server that dies takes its connections along. Whatever the call sees of
// that, it is sent again, and nobody is told that it was withdrawn.
func TestABrokenConnectionIsNoCancellation(t *testing.T) {
	t.Parallel()
	d := newDesk()
	in := install(t, d.methods()...)
	target, err := url.Parse(in.http.URL)
	if err != nil {
		t.Fatal(err)
	}
	for name, linger := range map[string]int{"reset": 0, "closed": -1} {
		var tries atomic.Int64
		proxy := httputil.NewSingleHostReverseProxy(target)
		front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if n := tries.Add(1); n != 2 && n != 3 {
				proxy.ServeHTTP(w, r)
				return
			}
			conn, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			if err := errors.Join(conn.(*net.TCPConn).SetLinger(linger), conn.Close()); err != nil {
				t.Error(err)
			}
		}))
		t.Cleanup(front.Close)
		c := in.dial(client.Options{Server: front.URL, Token: in.token("acme", auth.Produce)})
		for range 2 {
			if _, err := c.Enqueue(t.Context(), client.Job{Task: "t"}); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		if n := tries.Load(); n != 4 {
			t.Errorf("%s: %d tries, want 4", name, n)
		}
	}
}

// lines is a log that can be read while it is written.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *lines) count(level string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.buf.String(), `"level":"`+level+`"`)
}

func TestAnOutageIsToldOnceAndItsEnd(t *testing.T) {
	t.Parallel()
	g := newGate()
	in := install(t, g.methods()...)
	t.Cleanup(g.shut)
	h, _ := unsteady(t, func(try int64) bool { return try >= 2 && try <= 4 })
	c := in.dial(client.Options{Server: in.http.URL, Token: in.token("acme", auth.Work), HTTP: h})
	log := &lines{}
	w, err := client.NewWorker(client.WorkerOptions{Drain: true, Log: zerolog.New(log)}, c)
	if err != nil {
		t.Fatal(err)
	}
	w.HandleAll(func(context.Context, *client.Task) error { return nil })
	g.push("acme", task("t"))
	if err := w.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if warn, info := log.count("warn"), log.count("info"); warn != 1 || info != 1 {
		t.Errorf("%d warnings and %d remarks:\n%s", warn, info, log.buf.String())
	}
	if !strings.Contains(log.buf.String(), "connection refused") {
		t.Errorf("the log does not say why:\n%s", log.buf.String())
	}
}

func TestMayHaveEnqueued(t *testing.T) {
	t.Parallel()
	overBothDoors(t, func(t *testing.T, door string) {
		d := newDesk()
		d.hold, d.came = make(chan struct{}), make(chan struct{}, 8)
		d.refuse = func(*flexiqv1.JobSpec) error { return fault.New(fault.QueueFull, "full") }
		c := d.open(t, door, client.Options{})
		ctx, cancel := context.WithCancel(t.Context())
		errs := make(chan error, 1)
		go func() {
			_, err := c.Enqueue(ctx, client.Job{Task: "t"})
			errs <- err
		}()
		<-d.came
		cancel()
		if err := <-errs; !client.MayHaveEnqueued(err) || !fault.Is(err, fault.Cancelled) {
			t.Errorf("given up on its way: %v", err)
		}
		close(d.hold)
		if _, err := c.Enqueue(t.Context(), client.Job{Task: "t"}); err == nil || client.MayHaveEnqueued(err) {
			t.Errorf("refused: %v", err)
		}
		if _, err := c.Enqueue(ctx, client.Job{Task: "t"}); err == nil || client.MayHaveEnqueued(err) {
			t.Errorf("never sent: %v", err)
		}
	})
	if client.MayHaveEnqueued(nil) || client.MayHaveEnqueued(errors.New("other")) {
		t.Error("no enqueue is in doubt")
	}
}

func TestALostAnswerLeavesDoubt(t *testing.T) {
	t.Parallel()
	d := newDesk()
	d.lose = 1
	c := d.open(t, "nats", client.Options{RetryFor: -1})
	if _, err := c.Enqueue(t.Context(), client.Job{Task: "t"}); !client.MayHaveEnqueued(err) {
		t.Errorf("written and not answered: %v", err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.jobs) != 1 {
		t.Errorf("%d jobs", len(d.jobs))
	}
}
