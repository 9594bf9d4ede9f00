package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"flexiq/pkg/client"
	"flexiq/pkg/store"
	"flexiq/pkg/testkit"
)

// runMain tells a copy of the test binary to be the daemon.
const runMain = "FLEXIQD_TEST_RUN_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(runMain) != "" {
		if claims := os.Getenv(crashClaim); claims != "" {
			os.Exit(fragileMain(claims))
		}
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
	}
	if text := os.Getenv(runRole); text != "" {
		os.Exit(playMain(text))
	}
	if os.Getenv(runWorker) != "" {
		os.Exit(workerMain())
	}
	// A NATS server that is shut down while it creates a stream leaves the
	// stream's file store behind. Only a stop right after the start meets that.
	const nats = "github.com/nats-io/nats-server/v2/server"
	goleak.VerifyTestMain(servers{m},
		goleak.IgnoreAnyFunction(nats+".(*fileStore).flushStreamStateLoop"),
		goleak.IgnoreAnyFunction(nats+"/ats.Register.func1"))
}

// servers runs the tests and stops the servers that they shared.
type servers struct{ *testing.M }

func (s servers) Run() int {
	if name := os.Getenv(notTried); name != "" {
		_ = os.Remove(name) // of the run before; there may be none
	}
	defer testkit.StopRedis()
	defer testkit.StopPostgres()
	return s.M.Run()
}

// home gives the test a home folder of its own, for contexts and data.
func home(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	t.Setenv("HOME", dir)
	t.Setenv("XDG_CONFIG_HOME", filepath.Join(dir, "config"))
	t.Setenv("XDG_DATA_HOME", filepath.Join(dir, "data"))
	return dir
}

// inProcess starts a daemon in this process on free ports and stops it with the test.
func inProcess(t *testing.T, args ...string) *daemon {
	t.Helper()
	d, _ := inProcessLogging(t, io.Discard, args...)
	return d
}

func inProcessLogging(t *testing.T, log io.Writer, args ...string) (*daemon, func()) {
	t.Helper()
	c := parse(t, args...)
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	d, err := start(ctx, c, stdio{out: io.Discard, err: log})
	if err != nil {
		t.Fatalf("start: %v", err)
	}
	stop := sync.OnceFunc(func() {
		if err := d.stop(); err != nil {
			t.Errorf("stop: %v", err)
		}
	})
	t.Cleanup(stop)
	return d, stop
}

// parse reads options as the command line does.
func parse(t *testing.T, args ...string) *serveCommand {
	t.Helper()
	var cli commands
	p, err := newParser(&cli, io.Discard, io.Discard, func(int) {})
	if err != nil {
		t.Fatal(err)
	}
	base := []string{"serve", "--nats-listen=127.0.0.1:0", "--http-listen=127.0.0.1:0"}
	if _, err := p.Parse(append(base, args...)); err != nil {
		t.Fatal(err)
	}
	if err := cli.Serve.complete(); err != nil {
		t.Fatal(err)
	}
	return &cli.Serve
}

// process is a daemon in a process of its own.
type process struct {
	cmd  *exec.Cmd
	out  *bytes.Buffer // standard error
	done chan struct{}
	err  error
}

// spawn starts a daemon process and waits until it serves.
func spawn(t *testing.T, args ...string) *process {
	t.Helper()
	p := &process{cmd: exec.Command(os.Args[0], args...), out: &bytes.Buffer{}, done: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), runMain+"=1")
	p.cmd.Stderr = p.out
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ready := make(chan bool, 1)
	go func() {
		defer close(p.done)
		var seen []byte
		buf := make([]byte, 4096)
		told := false
		for {
			n, err := stdout.Read(buf)
			seen = append(seen, buf[:n]...)
			if !told && bytes.Contains(seen, []byte("FlexiQ is ready")) {
				told = true
				ready <- true
			}
			if err != nil {
				break
			}
		}
		if !told {
			ready <- false
		}
		p.err = p.cmd.Wait()
	}()
	t.Cleanup(p.kill)
	select {
	case ok := <-ready:
		if !ok {
			<-p.done
			t.Fatalf("the daemon ended at its start: %v\n%s", p.err, p.out)
		}
	case <-time.After(testkit.Patience):
		t.Fatalf("the daemon did not serve within %s\n", testkit.Patience)
	}
	return p
}

// kill is SIGKILL and waits until the process is gone. Twice is safe.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// terminate is SIGTERM and waits for the end.
func (p *process) terminate(t *testing.T) {
	t.Helper()
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	<-p.done
	if p.err != nil {
		t.Errorf("the daemon ended with %v\n%s", p.err, p.out)
	}
}

// dial connects with one of the data folder's tokens.
func dial(t *testing.T, dir, token, server string) *client.Client {
	t.Helper()
	c, err := readCredentials(credentialsFile(dir))
	if err != nil {
		t.Fatal(err)
	}
	if server == "" {
		server = c.NATSURL
	}
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	cl, err := client.Dial(ctx, client.Options{Server: server, Token: c.Tokens[token]})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cl.Close(context.Background()) })
	return cl
}

// post calls a method over HTTP as curl would.
func post(t *testing.T, d *daemon, token, method, body string) (*http.Response, map[string]any) {
	t.Helper()
	req, err := http.NewRequest(http.MethodPost, d.httpURL+"/flexiq.v1."+method, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Content-Type", "application/json")
	return do(t, req)
}

func do(t *testing.T, req *http.Request) (*http.Response, map[string]any) {
	t.Helper()
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	res, err := (&http.Client{Transport: transport, Timeout: testkit.Patience}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	var out map[string]any
	if strings.HasPrefix(res.Header.Get("Content-Type"), "application/json") {
		if err := json.Unmarshal(b, &out); err != nil {
			t.Fatalf("%s: %v in %s", req.URL.Path, err, b)
		}
	}
	return res, out
}

// checkCounts opens the store of a stopped daemon and compares every
// namespace's kept counts with a recount.
func checkCounts(t *testing.T, o storeOptions) {
	t.Helper()
	s := open(t, o)
	ctx := t.Context()
	after := ""
	for {
		page, err := s.Namespaces(ctx, after, 100)
		if err != nil {
			t.Fatal(err)
		}
		for _, ns := range page.Items {
			kept, err := s.Usage(ctx, []string{ns})
			if err != nil {
				t.Fatal(err)
			}
			real, err := s.Recount(ctx, ns)
			if err != nil {
				t.Fatal(err)
			}
			k := kept[0]
			if k.Pending != real.Pending || k.Running != real.Running || k.Archived != real.Archived || k.Dead != real.Dead || k.Shed != real.Shed {
				t.Errorf("namespace %q: kept counts %+v, recount %+v", ns, k, real)
			}
		}
		if after = page.Next; after == "" {
			return
		}
	}
}

func open(t *testing.T, o storeOptions) store.Store {
	t.Helper()
	s, err := openStore(t.Context(), o, testLog())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}
