package rpc_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/auth"
	"flexiq/pkg/fault"
	"flexiq/pkg/rpc"
	"flexiq/pkg/testkit"
)

func TestLargeMessages(t *testing.T) {
	r := newRig(t)
	token := r.mint(t, "lark", auth.Produce)
	r.getJob = func(_ context.Context, q *flexiqv1.GetJobRequest) (*flexiqv1.GetJobResponse, error) {
		return &flexiqv1.GetJobResponse{}, nil
	}
	body := func(size int) string { return `{"id":"` + strings.Repeat("x", size-len(`{"id":""}`)) + `"}` }
	if got := r.post(t, pathGetJob, token, body(maxBytes)); got.status != 200 {
		t.Errorf("at the limit: %d %s", got.status, got.body)
	}
	check := func(name string, got answer) {
		t.Helper()
		if got.status != 400 || got.header.Get("Fq-Reason") != "PAYLOAD_TOO_LARGE" || !strings.Contains(got.body, "65536") {
			t.Errorf("%s: %d %v %s", name, got.status, got.header, got.body)
		}
	}
	check("announced", r.post(t, pathGetJob, token, body(maxBytes+1)))

	chunked, err := r.send(t.Context(), pathGetJob, token, io.MultiReader(strings.NewReader(body(maxBytes+1)))) // of no known length
	if err != nil {
		t.Fatal(err)
	}
	check("chunked", chunked)

	var bomb bytes.Buffer
	w := gzip.NewWriter(&bomb)
	if _, err := io.WriteString(w, body(10*maxBytes)); err != nil {
		t.Fatal(err)
	}
	w.Close()
	check("gzip", r.post(t, pathGetJob, token, bomb.String(), "Content-Encoding", "gzip"))

	for name, opts := range protocols() {
		req := &flexiqv1.GetJobRequest{Id: strings.Repeat("x", 10*maxBytes)}
		_, err := call[flexiqv1.GetJobRequest, flexiqv1.GetJobResponse](t, r, token, pathGetJob, req, opts...)
		if got := rpc.FromConnectError(err); got == nil || got.Reason != fault.PayloadTooLarge {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestDeadlines(t *testing.T) {
	r := newRig(t)
	token := r.mint(t, "lark", auth.Produce, auth.Work)
	left := make(chan time.Duration, 1)
	note := func(ctx context.Context) {
		deadline, ok := ctx.Deadline()
		if !ok {
			t.Error("no deadline")
		}
		left <- time.Until(deadline)
	}
	r.getJob = func(ctx context.Context, _ *flexiqv1.GetJobRequest) (*flexiqv1.GetJobResponse, error) {
		note(ctx)
		return &flexiqv1.GetJobResponse{}, nil
	}
	r.claim = func(ctx context.Context, _ *flexiqv1.ClaimRequest, done func(*flexiqv1.ClaimResponse, error)) {
		note(ctx)
		done(&flexiqv1.ClaimResponse{}, nil)
	}
	tests := []struct {
		path   string
		header []string
		most   time.Duration
	}{
		{pathGetJob, nil, rpc.DefaultDeadline},
		{pathGetJob, []string{"Connect-Timeout-Ms", "100000"}, 100 * time.Second},
		{pathClaim, nil, rpc.PollDeadline},
		{pathClaim, []string{"Connect-Timeout-Ms", "9000000"}, rpc.MaxDeadline},
	}
	for _, tt := range tests {
		if got := r.post(t, tt.path, token, `{}`, tt.header...); got.status != 200 {
			t.Fatalf("%s: %d %s", tt.path, got.status, got.body)
		}
		if got := <-left; got > tt.most || got < tt.most-testkit.Patience {
			t.Errorf("%s %v: %s left, want %s", tt.path, tt.header, got, tt.most)
		}
	}
	r.getJob = func(ctx context.Context, _ *flexiqv1.GetJobRequest) (*flexiqv1.GetJobResponse, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if got := r.post(t, pathGetJob, token, `{}`, "Connect-Timeout-Ms", "1"); got.status != 504 || got.header.Get("Fq-Reason") != "DEADLINE_EXCEEDED" {
		t.Errorf("over the deadline: %d %s", got.status, got.body)
	}
}

func TestFullIsToldAtOnce(t *testing.T) {
	r := newRig(t, func(o *rpc.HandlerOptions) { o.MaxCalls = 4 })
	lark, wren := r.mint(t, "lark", auth.Produce, auth.Work), r.mint(t, "wren", auth.Produce)
	arrived, release := make(chan struct{}, 8), make(chan struct{})
	r.getJob = func(context.Context, *flexiqv1.GetJobRequest) (*flexiqv1.GetJobResponse, error) {
		arrived <- struct{}{}
		<-release
		return &flexiqv1.GetJobResponse{}, nil
	}
	r.claim = func(_ context.Context, _ *flexiqv1.ClaimRequest, done func(*flexiqv1.ClaimResponse, error)) {
		done(&flexiqv1.ClaimResponse{}, nil)
	}
	statuses := make(chan int, 8)
	hold := func(token string) {
		go func() {
			got, err := r.send(context.Background(), pathGetJob, token, strings.NewReader(`{}`))
			if err != nil {
				t.Error(err)
			}
			statuses <- got.status
		}()
		<-arrived
	}
	for range 3 { // three quarters of the places
		hold(lark)
	}
	if got := r.post(t, pathGetJob, lark, `{}`); got.status != 503 || got.header.Get("Fq-Reason") != "OVERLOADED" {
		t.Errorf("the fourth: %d %s", got.status, got.body)
	}
	if got := r.post(t, pathClaim, lark, `{}`); got.status != 200 { // long polls count apart
		t.Errorf("a poll: %d %s", got.status, got.body)
	}
	hold(wren)
	close(release)
	for range 4 {
		if got := <-statuses; got != 200 {
			t.Errorf("a call that had its place: %d", got)
		}
	}
}

// When everything fails for one cause, the log stays readable.
func TestLogsAreBounded(t *testing.T) {
	r := newRig(t)
	token := r.mint(t, "lark", auth.Produce)
	r.getJob = func(context.Context, *flexiqv1.GetJobRequest) (*flexiqv1.GetJobResponse, error) {
		return nil, fault.Wrap(errors.New("disk on fire"), fault.StorageUnavailable, "try again")
	}
	start := time.Now()
	for range 200 {
		r.post(t, pathGetJob, token, `{}`)
	}
	seconds := int(time.Since(start)/time.Second) + 2
	if n := strings.Count(r.log.String(), "disk on fire"); n == 0 || n > 20*seconds {
		t.Errorf("%d lines in %d seconds", n, seconds)
	}
	if got := r.counted(t)["GetJob http UNAVAILABLE"]; got != 200 {
		t.Errorf("%v were counted", got)
	}
}

// A client that stops in the middle does not hold its place.
func TestSlowBodies(t *testing.T) {
	const transferTimeout = time.Second
	r := newRig(t, func(o *rpc.HandlerOptions) { o.TransferTimeout = transferTimeout })
	token := r.mint(t, "lark", auth.Work)
	r.claim = func(_ context.Context, _ *flexiqv1.ClaimRequest, done func(*flexiqv1.ClaimResponse, error)) {
		time.AfterFunc(transferTimeout+transferTimeout/2, func() { done(&flexiqv1.ClaimResponse{}, nil) }) // a method may take its time
	}
	send := func(body string) string {
		t.Helper()
		conn, err := net.Dial("tcp", strings.TrimPrefix(r.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if err := conn.SetDeadline(time.Now().Add(testkit.Patience)); err != nil {
			t.Fatal(err)
		}
		head := "POST " + pathClaim + " HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + token +
			"\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n"
		if _, err := io.WriteString(conn, head+body); err != nil {
			t.Fatal(err)
		}
		res, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			return err.Error()
		}
		defer res.Body.Close()
		text, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return res.Status + " " + string(text)
	}
	if got := send("{}"); got != `200 OK {"jobs":[]}` {
		t.Errorf("a whole body: %s", got)
	}
	if got := send("{"); !strings.HasPrefix(got, "504 ") || !strings.Contains(got, "DEADLINE_EXCEEDED") || strings.Contains(got, "127.0.0.1") {
		t.Errorf("half a body: %s", got)
	}
}

// An answer that comes after its caller was told of the deadline, or after the
// caller left, belongs to nobody.
func TestUndelivered(t *testing.T) {
	t.Run("late", func(t *testing.T) {
		r := newRig(t)
		token := r.mint(t, "lark", auth.Work)
		came := make(chan func(*flexiqv1.ClaimResponse, error), 1)
		r.claim = func(_ context.Context, _ *flexiqv1.ClaimRequest, done func(*flexiqv1.ClaimResponse, error)) {
			came <- done
		}
		var finish func(*flexiqv1.ClaimResponse, error)
		for finish == nil { // a deadline may pass before the handler is called
			if got := r.post(t, pathClaim, token, `{}`, "Connect-Timeout-Ms", "20"); got.status != 504 {
				t.Fatalf("%d %s", got.status, got.body)
			}
			select {
			case finish = <-came:
			default:
			}
		}
		late := &flexiqv1.ClaimResponse{Jobs: []*flexiqv1.ClaimedJob{{Lease: "l"}}}
		finish(late, nil)
		if got := <-r.undelivered; !proto.Equal(got, late) {
			t.Errorf("undelivered %v", got)
		}
		finish(late, nil)
		if len(r.undelivered) > 0 {
			t.Error("told twice")
		}
	})
	t.Run("gone", func(t *testing.T) {
		r := newRig(t)
		token := r.mint(t, "lark", auth.Work)
		ctx, cancel := context.WithCancel(t.Context())
		r.claim = func(ctx context.Context, _ *flexiqv1.ClaimRequest, done func(*flexiqv1.ClaimResponse, error)) {
			cancel()
			<-ctx.Done() // the door has noticed
			done(&flexiqv1.ClaimResponse{}, nil)
		}
		if _, err := r.send(ctx, pathClaim, token, strings.NewReader(`{}`)); !errors.Is(err, context.Canceled) {
			t.Errorf("the client got %v", err)
		}
		select {
		case <-r.undelivered:
		case <-time.After(testkit.Patience):
			t.Error("nobody was told")
		}
	})
	t.Run("delivered", func(t *testing.T) {
		r := newRig(t)
		token := r.mint(t, "lark", auth.Work)
		r.claim = func(_ context.Context, _ *flexiqv1.ClaimRequest, done func(*flexiqv1.ClaimResponse, error)) {
			done(&flexiqv1.ClaimResponse{}, nil)
			done(nil, errors.New("again")) // is ignored
		}
		if got := r.post(t, pathClaim, token, `{}`); got.status != 200 || got.body != `{"jobs":[]}` {
			t.Errorf("%d %s", got.status, got.body)
		}
		if len(r.undelivered) > 0 {
			t.Error("a delivered answer was told as undelivered")
		}
	})
}
