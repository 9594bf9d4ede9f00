package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/auth"
	"flexiq/pkg/client"
	"flexiq/pkg/events"
	"flexiq/pkg/fault"
	"flexiq/pkg/testkit"
)

// ear gathers what one listener hears.
type ear struct {
	mu   sync.Mutex
	all  []*flexiqv1.Event
	text strings.Builder // bodies, where they are known
}

func (e *ear) add(ev *flexiqv1.Event, body string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = append(e.all, ev)
	e.text.WriteString(body + "\n")
}

// of is what was heard of a job, or of quotas when the id is empty.
func (e *ear) of(id string) []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	var out []string
	for _, ev := range e.all {
		if ev.GetJobId() != id {
			continue
		}
		line := ev.GetType()
		switch d := ev.GetDetails(); line {
		case string(events.QuotaThreshold):
			line += " " + d["limit"] + " " + d["threshold"] + " " + d["direction"]
		case string(events.QuotaChanged):
			line += " " + d["operation"] + " " + d["revision"]
		case string(events.JobRejected):
			line += " " + ev.GetReason() + " " + d["limit"]
		}
		out = append(out, line)
	}
	return out
}

func (e *ear) count() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.all)
}

// listeners hear a namespace in every way there is: by a subscription of any
// NATS client, by our client over NATS and over HTTP, and by HTTP alone.
func listeners(t *testing.T, d *daemon, token string) map[string]*ear {
	t.Helper()
	out := map[string]*ear{"subscription": {}, "nats": {}, "http": {}, "lines": {}}
	parts, err := auth.Parse(token)
	if err != nil {
		t.Fatal(err)
	}
	nc := bare(t, d.natsURL, token)
	if _, err := nc.Subscribe("fqe.v1."+parts.NSToken+".>", func(m *nats.Msg) {
		e, err := events.Decode(m.Data)
		if err != nil || !strings.HasSuffix(m.Subject, "."+e.GetType()) {
			t.Errorf("%s: %s: %v", m.Subject, m.Data, err)
		}
		out["subscription"].add(e, string(m.Data))
	}); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var reading sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		reading.Wait()
	})
	for name, server := range map[string]string{"nats": d.natsURL, "http": d.httpURL} {
		all, err := eventsOf(ctx, t, server, token, &flexiqv1.WatchEventsRequest{})
		if err != nil {
			t.Fatal(err)
		}
		reading.Go(func() {
			for e := range all {
				out[name].add(e, "")
			}
		})
	}
	lines := openLines(ctx, t, d, token, `{}`)
	if !lines.Scan() || lines.Text() != "{}" {
		t.Fatalf("the first line is %q", lines.Text())
	}
	reading.Go(func() {
		for lines.Scan() {
			var res struct{ Event json.RawMessage }
			if err := json.Unmarshal(lines.Bytes(), &res); err == nil && res.Event != nil {
				e, _ := events.Decode(res.Event)
				out["lines"].add(e, string(res.Event))
			}
		}
	})
	return out
}

// eventsOf hears events with our client, and loses errors: who wants them reads
// the sequence.
func eventsOf(ctx context.Context, t *testing.T, server, token string, req *flexiqv1.WatchEventsRequest) (func(func(*flexiqv1.Event) bool), error) {
	t.Helper()
	c, err := client.Dial(t.Context(), client.Options{Server: server, Token: token})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(context.Background()) })
	all, err := c.Admin().WatchEvents(ctx, req)
	if err != nil {
		return nil, err
	}
	return func(yield func(*flexiqv1.Event) bool) {
		for e, err := range all {
			if err != nil || !yield(e) {
				return
			}
		}
	}, nil
}

// openLines watches as curl does.
func openLines(ctx context.Context, t *testing.T, d *daemon, token, body string) *bufio.Scanner {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, d.httpURL+"/flexiq.v1.AdminService/WatchEvents", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	transport := &http.Transport{ReadBufferSize: 4 << 10}
	t.Cleanup(transport.CloseIdleConnections)
	res, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = res.Body.Close() })
	if res.StatusCode != http.StatusOK {
		t.Fatalf("watch: %s", res.Status)
	}
	lines := bufio.NewScanner(res.Body)
	lines.Buffer(nil, 1<<20)
	return lines
}

func newToken(t *testing.T, d *daemon, namespace string, scopes ...string) string {
	t.Helper()
	made, err := dial(t, d.opts.DataDir, "platform", "").Admin().CreateToken(t.Context(), &flexiqv1.CreateTokenRequest{Namespace: namespace, Scopes: scopes})
	if err != nil {
		t.Fatal(err)
	}
	return made.GetToken()
}

// Every kind of event is heard in every way, in order for each job, by whoever
// may inspect the namespace, with nothing in it that a worker or a producer
// wrote into a job.
func TestEventsTellWhatHappens(t *testing.T) {
	modes(t, func(t *testing.T, d *daemon) {
		const hidden = "hushed-9d1f"
		token := newToken(t, d, "lark", "inspect")
		ears := listeners(t, d, token)
		strangers := listeners(t, d, newToken(t, d, "wren", "inspect"))
		c := tenant(t, d.opts.DataDir, "", "lark")
		want := map[string][]string{}
		enqueue := func(id, task string) {
			t.Helper()
			j := client.Job{ID: id, Task: task, Args: hidden, Metadata: map[string]string{"m": hidden}, MaxAttempts: 2, Backoff: client.Backoff{Base: time.Millisecond, Max: time.Millisecond}}
			if _, err := c.Enqueue(t.Context(), j); err != nil {
				t.Fatal(err)
			}
		}
		limit(t, c, &flexiqv1.NamespaceQuota{MaxPending: proto.Int64(100)})
		good, bad, gone := newID(t), newID(t), newID(t)
		enqueue(good, "good")
		enqueue(bad, "bad")
		enqueue(bad, "bad") // a repeated call is no event
		drain(t, c, func(task *client.Task) error {
			if task.Name() == "bad" {
				return errors.New(hidden)
			}
			return task.SetResult([]byte(hidden))
		})
		want[good] = []string{"job.enqueued", "job.started", "job.complete"}
		want[bad] = []string{"job.enqueued", "job.started", "job.retried", "job.started", "job.dead"}
		enqueue(gone, "gone")
		if _, err := c.Cancel(t.Context(), gone); err != nil {
			t.Fatal(err)
		}
		want[gone] = []string{"job.enqueued", "job.cancelled"}
		replayed, err := c.Admin().ReplayDeadLetters(t.Context(), &flexiqv1.ReplayDeadLettersRequest{Ids: []string{bad}})
		if err != nil || replayed.GetMoved() != 1 {
			t.Fatalf("replay: %v, %v", replayed, err)
		}
		testkit.Eventually(t, "the replayed job is in the last minute", func() bool {
			u, err := c.Admin().GetUsage(t.Context())
			return err == nil && u.GetLastMinute().GetAdmitted() == 4 // three enqueues, and it
		})
		if _, err := c.CancelMatching(t.Context(), &flexiqv1.CancelFilter{}); err != nil {
			t.Fatal(err)
		}

		limit(t, c, &flexiqv1.NamespaceQuota{MaxPending: proto.Int64(0)})
		lost := newID(t)
		nc := bare(t, d.natsURL, newToken(t, d, "lark", "produce"))
		id := idOf(t, nc.Opts.Token)
		if err := nc.Publish(auth.Subject("enqueue", "lark", id), []byte(`{"job":{"id":"`+lost+`","task":"lost","args":"`+hidden+`"}}`)); err != nil {
			t.Fatal(err)
		}
		want[lost] = []string{"job.rejected QUEUE_FULL max_pending"}
		hear(t, ears, lost, want[lost])
		limit(t, c, &flexiqv1.NamespaceQuota{MaxPending: proto.Int64(0), OnExcess: proto.String("drop")})
		shed := newID(t)
		enqueue(shed, "shed")
		want[shed] = []string{"job.shed"}

		for id, types := range want {
			hear(t, ears, id, types)
		}
		quotas := []string{"quota.changed set-quota 1", "quota.changed set-quota 2", "quota.changed set-quota 3"}
		for way, e := range ears {
			testkit.Eventually(t, way+" hears of the quotas", func() bool {
				var got []string
				for _, line := range e.of("") {
					if strings.HasPrefix(line, "quota.changed") {
						got = append(got, line)
					}
				}
				return slices.Equal(got, quotas)
			})
			testkit.Eventually(t, way+" hears that a limit of zero is full", func() bool {
				return slices.Contains(e.of(""), "quota.threshold max_pending 100 up")
			})
			if strings.Contains(e.text.String(), hidden) {
				t.Errorf("%s hears what is in jobs: %s", way, e.text.String())
			}
		}
		for way, e := range strangers {
			if n := e.count(); n != 0 {
				t.Errorf("%s hears %d events of another namespace: %v", way, n, e.all)
			}
		}
	})
}

func hear(t *testing.T, ears map[string]*ear, id string, want []string) {
	t.Helper()
	for way, e := range ears {
		testkit.Eventually(t, fmt.Sprintf("%s hears %v", way, want), func() bool { return len(e.of(id)) >= len(want) })
		if diff := cmp.Diff(want, e.of(id)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", way, diff)
		}
	}
}

// newID makes a job's id.
func newID(t *testing.T) string {
	t.Helper()
	return uuid.Must(uuid.NewV7()).String()
}

// Who may not inspect hears nothing, and is told so at once; nobody can name
// another namespace. Filters leave out what is not asked for.
func TestWhoMayHearEvents(t *testing.T) {
	modes(t, func(t *testing.T, d *daemon) {
		deaf := newToken(t, d, "lark", "produce", "work", "admin")
		for _, server := range []string{d.natsURL, d.httpURL} {
			all, err := eventsOf(t.Context(), t, server, deaf, &flexiqv1.WatchEventsRequest{})
			if err == nil { // over NATS the server's word comes after the subscription
				for range all {
					t.Errorf("%s: an event came through", server)
				}
			} else if !fault.Is(err, fault.PermissionDenied) {
				t.Errorf("%s: %v", server, err)
			}
		}
		if res, _ := post(t, d, newToken(t, d, "lark", "inspect"), "AdminService/WatchEvents", `{"namespace":"wren"}`); res.StatusCode != http.StatusBadRequest {
			t.Errorf("a namespace in the request: %s", res.Status)
		}
		c := tenant(t, d.opts.DataDir, "", "lark")
		heard := make(chan *flexiqv1.Event, 100)
		ctx, cancel := context.WithCancel(t.Context())
		var reading sync.WaitGroup
		defer reading.Wait()
		defer cancel()
		token := newToken(t, d, "lark", "inspect")
		for _, server := range []string{d.natsURL, d.httpURL} {
			all, err := eventsOf(ctx, t, server, token, &flexiqv1.WatchEventsRequest{Types: []string{"job.cancelled"}, Queue: "mine", Task: "this"})
			if err != nil {
				t.Fatal(err)
			}
			reading.Go(func() {
				for e := range all {
					heard <- e
				}
			})
		}
		for _, j := range []client.Job{{Task: "this"}, {Task: "that", Queue: "mine"}, {Task: "this", Queue: "mine"}} {
			if _, err := c.Enqueue(t.Context(), j); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := c.CancelMatching(t.Context(), &flexiqv1.CancelFilter{}); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if e := <-heard; e.GetType() != "job.cancelled" || e.GetQueue() != "mine" || e.GetTask() != "this" {
				t.Errorf("heard %v", e)
			}
		}
	})
}

// One who reads too slowly is cut off with an error that says so, and holds up
// nobody meanwhile.
func TestASlowListenerIsCutOff(t *testing.T) {
	home(t)
	d := inProcess(t)
	token := newToken(t, d, "lark", "inspect")
	lines := openLines(t.Context(), t, d, token, `{}`)
	if !lines.Scan() {
		t.Fatal("no first line")
	}
	quick := listeners(t, d, token)
	body := []byte(`{"type":"job.dead","task":"` + strings.Repeat("x", 8<<10) + `"}`)
	const n = 4 * events.Room // far more than the sockets between hold
	for i := range n {
		if err := d.conn.PublishEvent("fqe.v1.lark.job.dead", body); err != nil {
			t.Fatal(err)
		}
		if i%128 != 0 {
			continue
		}
		if err := d.conn.Raw().Flush(); err != nil {
			t.Fatal(err)
		}
	}
	testkit.Eventually(t, "one who keeps up hears everything", func() bool { return quick["subscription"].count() == n })
	read, last := 0, ""
	for lines.Scan() {
		read, last = read+1, lines.Text()
	}
	if !strings.HasPrefix(last, `{"error":{"code":"UNAVAILABLE",`) || !strings.Contains(last, `"reason":"OVERLOADED"`) || read >= n {
		t.Errorf("after %d of %d events the stream ended with %.200s", read, n, last)
	}
}

// Streams do not keep a daemon from stopping, and are told why they end.
func TestStreamsEndWithTheDaemon(t *testing.T) {
	home(t)
	d, stop := inProcessLogging(t, new(lockedBuffer))
	token := newToken(t, d, "lark", "inspect")
	lines := openLines(t.Context(), t, d, token, `{}`)
	if !lines.Scan() {
		t.Fatal("no first line")
	}
	stop()
	if !lines.Scan() || !strings.Contains(lines.Text(), `"reason":"OVERLOADED"`) || lines.Scan() {
		t.Errorf("the last line is %q", lines.Text())
	}
}

// However many processes watch, a crossing is told once, up and down.
func TestThresholdsAreToldOnceByAllProcesses(t *testing.T) {
	home(t)
	n := newOutsideNATS(t)
	d, _ := n.daemon("admission", "config")
	n.daemon("dispatchgate", "retention", "config")
	const most = 10
	names := []string{"lark", "wren", "a.b", "Acme"}
	up, down := make(map[string][]string), make(map[string][]string)
	ears, clients := make(map[string]*ear), make(map[string]*client.Client)
	for _, ns := range names {
		e := &ear{}
		ears[ns] = e
		nc := bare(t, d.natsURL, newToken(t, d, ns, "inspect"))
		parts, err := auth.Parse(nc.Opts.Token)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := nc.Subscribe("fqe.v1."+parts.NSToken+".quota.threshold", func(m *nats.Msg) {
			ev, _ := events.Decode(m.Data)
			e.add(ev, string(m.Data))
		}); err != nil {
			t.Fatal(err)
		}
		if err := nc.Flush(); err != nil {
			t.Fatal(err)
		}
		clients[ns] = tenant(t, d.opts.DataDir, "", ns)
		limit(t, clients[ns], &flexiqv1.NamespaceQuota{MaxPending: proto.Int64(most)})
		for _, mark := range []string{"50", "80", "100"} {
			up[ns] = append(up[ns], "quota.threshold max_pending "+mark+" up")
			down[ns] = slices.Insert(down[ns], 0, "quota.threshold max_pending "+mark+" down")
		}
	}
	for _, ns := range names {
		if _, err := clients[ns].EnqueueBatch(t.Context(), jobs(most)); err != nil {
			t.Fatal(err)
		}
	}
	for _, ns := range names {
		testkit.Eventually(t, ns+" hears that it is full", func() bool { return len(ears[ns].of("")) >= 3 })
		if _, err := clients[ns].CancelMatching(t.Context(), &flexiqv1.CancelFilter{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, ns := range names {
		want := append(up[ns], down[ns]...)
		testkit.Eventually(t, ns+" hears that it is empty", func() bool { return len(ears[ns].of("")) >= len(want) })
		if diff := cmp.Diff(want, ears[ns].of("")); diff != "" {
			t.Errorf("%s hears (-want +got):\n%s", ns, diff)
		}
	}
}
