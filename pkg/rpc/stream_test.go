package rpc_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/auth"
	"flexiq/pkg/fault"
	"flexiq/pkg/rpc"
	"flexiq/pkg/store"
	"flexiq/pkg/testkit"
)

const watchPath = "/flexiq.v1.AdminService/WatchEvents"

// streaming is a door with one stream behind it.
func streaming(t *testing.T, change func(*rpc.HandlerOptions),
	fn func(context.Context, *flexiqv1.WatchEventsRequest, func(*flexiqv1.WatchEventsResponse) error) error) *rig {
	t.Helper()
	r := &rig{source: tokens{}}
	r.url = serve(t, streamDoor(r.source, change, fn))
	return r
}

func streamDoor(source auth.Source, change func(*rpc.HandlerOptions),
	fn func(context.Context, *flexiqv1.WatchEventsRequest, func(*flexiqv1.WatchEventsResponse) error) error) http.Handler {
	o := rpc.HandlerOptions{MaxBytes: maxBytes}
	if change != nil {
		change(&o)
	}
	return rpc.Handler([]rpc.Method{rpc.Stream("WatchEvents", fn)}, auth.NewVerifier(source, time.Now), o)
}

// revocable are tokens that all end at once.
type revocable struct {
	tokens
	ended atomic.Bool
}

func (r *revocable) Token(ctx context.Context, id string) (*store.Token, error) {
	tok, err := r.tokens.Token(ctx, id)
	if err == nil && r.ended.Load() {
		tok.RevokedAt = time.Now()
	}
	return tok, err
}

func numbered(n int) *flexiqv1.WatchEventsResponse {
	return &flexiqv1.WatchEventsResponse{Event: &flexiqv1.Event{Type: "job.dead", JobId: fmt.Sprint(n)}}
}

// count sends the queue's name in numbers, then fails as the task says.
func count(ctx context.Context, req *flexiqv1.WatchEventsRequest, send func(*flexiqv1.WatchEventsResponse) error) error {
	for i := range len(req.GetQueue()) {
		if err := send(numbered(i)); err != nil {
			return err
		}
	}
	switch req.GetTask() {
	case "":
		return nil
	case "wait":
		<-ctx.Done()
		return ctx.Err()
	case "panic":
		panic("of the method")
	}
	return fault.New(fault.Overloaded, "cut: a < b").With("limit", "3")
}

func TestStreamAsLines(t *testing.T) {
	r := streaming(t, nil, count)
	token := r.mint(t, "lark", auth.Inspect)
	for _, header := range [][]string{{}, {"Content-Type", ""}, {"Content-Type", "application/json; charset=utf-8"}} {
		got := r.post(t, watchPath, token, `{"queue":"abc"}`, header...)
		lines := strings.Split(got.body, "\n")
		if got.status != 200 || got.header.Get("Content-Type") != "application/x-ndjson" || len(lines) != 4 || !strings.HasPrefix(lines[2], `{"event":{"type":"job.dead",`) {
			t.Errorf("%v: %d %v %q", header, got.status, got.header, got.body)
		}
	}
	got := r.post(t, watchPath, token, `{"queue":"abc","task":"fail"}`)
	lines := strings.Split(strings.TrimSpace(got.body), "\n")
	var end struct {
		Error struct {
			Code, Reason, Message string
			Details               map[string]string
		}
	}
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &end); err != nil {
		t.Fatal(err)
	}
	if e := end.Error; len(lines) != 4 || e.Code != "UNAVAILABLE" || e.Reason != "OVERLOADED" || e.Message != "cut: a < b" || e.Details["limit"] != "3" {
		t.Errorf("an error after events: %q", got.body)
	}
}

// An error before the first message is that of any call, in the form of the caller's protocol.
func TestStreamRefused(t *testing.T) {
	r := streaming(t, nil, count)
	good, produce := r.mint(t, "lark", auth.Inspect), r.mint(t, "lark", auth.Produce)
	for name, c := range map[string]struct {
		token, body, reason string
		status              int
		header              []string
	}{
		"no token":         {"", `{}`, "UNAUTHENTICATED", 401, nil},
		"another scope":    {produce, `{}`, "PERMISSION_DENIED", 403, nil},
		"an unknown field": {good, `{"que":1}`, "INVALID_REQUEST", 400, nil},
		"no JSON":          {good, `{`, "INVALID_REQUEST", 400, nil},
		"too large":        {good, `{"queue":"` + strings.Repeat("x", maxBytes) + `"}`, "PAYLOAD_TOO_LARGE", 400, nil},
		"at once":          {good, `{"task":"fail"}`, "OVERLOADED", 503, nil},
		"a panic":          {good, `{"task":"panic"}`, "INTERNAL", 500, nil},
		"another type":     {good, `{}`, "INVALID_REQUEST", 415, []string{"Content-Type", "text/plain"}},
		"another encoding": {good, `{}`, "INVALID_REQUEST", 400, []string{"Content-Encoding", "br"}},
		"no time":          {good, `{}`, "DEADLINE_EXCEEDED", 504, []string{"Connect-Timeout-Ms", "0"}},
	} {
		got := r.post(t, watchPath, c.token, c.body, c.header...)
		if got.status != c.status || got.header.Get("Fq-Reason") != c.reason || !strings.HasPrefix(got.body, `{"code":`) {
			t.Errorf("%s: %d %s %s", name, got.status, got.header.Get("Fq-Reason"), got.body)
		}
	}
	for name, opts := range map[string][]connect.ClientOption{"connect": nil, "connect with JSON": {connect.WithProtoJSON()}, "gRPC-Web": {connect.WithGRPCWeb()}} {
		for task, want := range map[string]fault.Reason{"fail": fault.Overloaded, "panic": fault.Internal} {
			_, err := watch(t.Context(), r, good, opts, &flexiqv1.WatchEventsRequest{Task: task})
			if f := rpc.FromConnectError(err); f == nil || f.Reason != want || task == "fail" && f.Details["limit"] != "3" {
				t.Errorf("%s: %s is told as %v", name, task, err)
			}
		}
		if _, err := watch(t.Context(), r, produce, opts, &flexiqv1.WatchEventsRequest{}); rpc.FromConnectError(err).Reason != fault.PermissionDenied {
			t.Errorf("%s: another scope is told as %v", name, err)
		}
		if _, err := watch(t.Context(), r, "", opts, &flexiqv1.WatchEventsRequest{}); rpc.FromConnectError(err).Reason != fault.Unauthenticated {
			t.Errorf("%s: no token is told as %v", name, err)
		}
	}
}

// watch reads a stream to its end with connect's client.
func watch(ctx context.Context, r *rig, token string, opts []connect.ClientOption, req *flexiqv1.WatchEventsRequest) (n int, err error) {
	c := connect.NewClient[flexiqv1.WatchEventsRequest, flexiqv1.WatchEventsResponse](http.DefaultClient, r.url+watchPath, opts...)
	call := connect.NewRequest(req)
	call.Header().Set("Authorization", "Bearer "+token)
	stream, err := c.CallServerStream(ctx, call)
	if err != nil {
		return 0, err
	}
	defer stream.Close()
	for stream.Receive() {
		n++
	}
	return n, stream.Err()
}

func TestStreamInEveryProtocol(t *testing.T) {
	r := streaming(t, nil, count)
	token := r.mint(t, "lark", auth.Inspect)
	for name, opts := range map[string][]connect.ClientOption{
		"connect": nil, "connect with JSON": {connect.WithProtoJSON()}, "gRPC-Web": {connect.WithGRPCWeb()}, "compressed": {connect.WithSendGzip()},
	} {
		if n, err := watch(t.Context(), r, token, opts, &flexiqv1.WatchEventsRequest{Queue: "four"}); n != 4 || err != nil {
			t.Errorf("%s: %d messages, %v", name, n, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		n, err := watch(ctx, r, token, opts, &flexiqv1.WatchEventsRequest{Queue: "q", Task: "wait"})
		cancel()
		if connect.CodeOf(err) != connect.CodeDeadlineExceeded {
			t.Errorf("%s: after its deadline %d messages, %v", name, n, err)
		}
	}
}

// A stream ends with its token, and with its client.
func TestStreamEndsWithItsTokenAndItsClient(t *testing.T) {
	ended := make(chan error, 2)
	r := &rig{source: tokens{}}
	all := &revocable{tokens: r.source}
	r.url = serve(t, streamDoor(all, nil, func(ctx context.Context, _ *flexiqv1.WatchEventsRequest, send func(*flexiqv1.WatchEventsResponse) error) error {
		if err := send(numbered(0)); err != nil {
			return err
		}
		<-ctx.Done()
		ended <- context.Cause(ctx)
		return ctx.Err()
	}))
	token := r.mint(t, "lark", auth.Inspect)
	ctx, hangUp := context.WithCancel(t.Context())
	lines := openLines(ctx, t, r, token)
	if !lines.Scan() {
		t.Fatal("no first line")
	}
	hangUp()
	if err := <-ended; fault.Is(err, fault.Unauthenticated) {
		t.Errorf("when its client went it ended with %v", err)
	}
	lines = openLines(t.Context(), t, r, token)
	if !lines.Scan() {
		t.Fatal("no first line")
	}
	all.ended.Store(true)
	if err := <-ended; !fault.Is(err, fault.Unauthenticated) {
		t.Errorf("when its token was revoked it ended with %v", err)
	}
	if !lines.Scan() || !strings.Contains(lines.Text(), `"reason":"UNAUTHENTICATED"`) || lines.Scan() {
		t.Errorf("its last line is %q", lines.Text())
	}
}

func openLines(ctx context.Context, t *testing.T, r *rig, token string) *bufio.Scanner {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.url+watchPath, strings.NewReader(`{}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = res.Body.Close() })
	return bufio.NewScanner(res.Body)
}

// A client that does not read is cut off after a time; it does not hold its place for ever.
func TestStreamToOneWhoDoesNotRead(t *testing.T) {
	var sent atomic.Int64
	ended := make(chan error, 1)
	r := streaming(t, func(o *rpc.HandlerOptions) { o.TransferTimeout = 200 * time.Millisecond },
		func(ctx context.Context, _ *flexiqv1.WatchEventsRequest, send func(*flexiqv1.WatchEventsResponse) error) error {
			big := &flexiqv1.WatchEventsResponse{Event: &flexiqv1.Event{Task: strings.Repeat("x", 32<<10)}}
			for {
				if err := send(big); err != nil {
					ended <- err
					return err
				}
				sent.Add(1)
			}
		})
	token := r.mint(t, "lark", auth.Inspect)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, r.url+watchPath, strings.NewReader(`{}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	res, err := (&http.Client{Transport: &http.Transport{ReadBufferSize: 4 << 10}}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	select {
	case <-ended:
	case <-time.After(testkit.Patience):
		t.Fatalf("%d messages were sent to one who does not read, and the stream goes on", sent.Load())
	}
	if n, err := io.Copy(io.Discard, res.Body); err == nil {
		t.Errorf("the stream ended in order after %d bytes", n)
	}
}
