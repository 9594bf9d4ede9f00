package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/auth"
	"flexiq/pkg/fault"
	"flexiq/pkg/job"
	"flexiq/pkg/rpc"
	"flexiq/pkg/store"
)

func TestOutliveEndsSoLongAfter(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		late, giveUp := outlive(ctx, answerPatience)
		defer giveUp()
		time.Sleep(time.Hour)
		stopped := time.Now()
		stop()
		if late.Err() != nil {
			t.Fatal("it ended with the first")
		}
		<-late.Done()
		if d := time.Since(stopped); d != answerPatience {
			t.Errorf("it ended after %s", d)
		}
		early, giveUp := outlive(t.Context(), answerPatience)
		giveUp()
		<-early.Done()
	})
}

// holding is a server that takes every enqueue in and answers when it is let.
type holding struct {
	address, token string
	came           chan int      // the jobs of each message
	answer         chan struct{} // closed: answer
}

func hold(t *testing.T) *holding {
	t.Helper()
	text, token, err := auth.Mint("acme", []auth.Scope{auth.Produce}, "", 0, "", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	h := &holding{token: text, came: make(chan int, 64), answer: make(chan struct{})}
	take := func(ctx context.Context, jobs int) ([]*flexiqv1.EnqueueResult, error) {
		h.came <- jobs
		select {
		case <-h.answer:
		case <-ctx.Done():
			return nil, fault.Of(ctx.Err())
		}
		results := make([]*flexiqv1.EnqueueResult, jobs)
		for i := range results {
			results[i] = &flexiqv1.EnqueueResult{Job: &flexiqv1.Job{Id: "known", Status: "pending"}}
		}
		return results, nil
	}
	door := httptest.NewServer(rpc.Handler([]rpc.Method{
		rpc.Unary("Enqueue", func(ctx context.Context, _ *flexiqv1.EnqueueRequest) (*flexiqv1.EnqueueResponse, error) {
			r, err := take(ctx, 1)
			if err != nil {
				return nil, err
			}
			return &flexiqv1.EnqueueResponse{Result: r[0]}, nil
		}),
		rpc.Unary("EnqueueBatch", func(ctx context.Context, req *flexiqv1.EnqueueBatchRequest) (*flexiqv1.EnqueueBatchResponse, error) {
			r, err := take(ctx, len(req.GetJobs()))
			return &flexiqv1.EnqueueBatchResponse{Results: r}, err
		}),
		rpc.Unary("EnqueueCalls", func(ctx context.Context, req *flexiqv1.EnqueueCallsRequest) (*flexiqv1.EnqueueCallsResponse, error) {
			res := &flexiqv1.EnqueueCallsResponse{}
			r, err := take(ctx, len(req.GetCalls())) // of one job each
			for _, one := range r {
				res.Outcomes = append(res.Outcomes, &flexiqv1.EnqueueOutcome{Results: []*flexiqv1.EnqueueResult{one}})
			}
			return res, err
		}),
	}, auth.NewVerifier(oneToken{token}, time.Now), rpc.HandlerOptions{}))
	t.Cleanup(door.Close)
	h.address = door.URL
	return h
}

type oneToken struct{ t store.Token }

func (o oneToken) Token(context.Context, string) (*store.Token, error) { return &o.t, nil }

// stopped runs a command that is told to stop once its first message has come.
// With answers it gets them then, else it has little patience with them.
func (h *holding) stopped(t *testing.T, cmd *enqueueCmd, output string, answers bool, stdin io.Reader) (stdout, stderr string, err error) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var out, errs bytes.Buffer
	s := &session{
		globals: globals{Output: output}, ctx: ctx, in: stdin, out: &out, err: &errs, patience: time.Minute,
		env: func(name string) string {
			return map[string]string{"FLEXIQ_SERVER": h.address, "FLEXIQ_TOKEN": h.token}[name]
		},
	}
	if !answers {
		s.patience = 50 * time.Millisecond
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Run(s) }()
	<-h.came
	stop()
	if answers {
		close(h.answer)
	}
	err = <-ended
	return out.String(), errs.String(), err
}

type counts struct {
	Jobs, Admitted, Rejected, Shed, Failed, Unknown int
	NotSent                                         int `json:"not_sent"`
}

func TestAStoppedFloodCountsWhatIsTrue(t *testing.T) {
	t.Parallel()
	const total = 50_000
	for name, cmd := range map[string]enqueueCmd{
		"single": {Task: "t", Count: total}, "batches": {Task: "t", Count: total, Batch: 1000},
	} {
		for _, answers := range []bool{true, false} {
			t.Run(name+map[bool]string{true: " answered", false: " unanswered"}[answers], func(t *testing.T) {
				t.Parallel()
				stdout, stderr, err := hold(t).stopped(t, &cmd, "json", answers, nil)
				var got counts
				if jerr := json.Unmarshal([]byte(stdout), &got); jerr != nil || err == nil {
					t.Fatalf("%v, %v, %s%s", err, jerr, stdout, stderr)
				}
				if got.Jobs+got.NotSent != total || got.Failed+got.Rejected+got.Shed != 0 || got.Jobs > max(pipelinedJobs, leastCalls*job.MaxBatch) {
					t.Errorf("%+v", got)
				}
				if answers && (got.Admitted == 0 || got.Unknown != 0) || !answers && (got.Unknown == 0 || got.Admitted != 0) {
					t.Errorf("%+v", got)
				}
			})
		}
	}
	stdout, stderr, err := hold(t).stopped(t, &enqueueCmd{Task: "t", Count: total, Batch: 1000}, "table", false, nil)
	if err == nil || !strings.Contains(stdout, "\nunknown   ") || !strings.Contains(stdout, "\nnot sent  ") || strings.Contains(stdout, "failed") {
		t.Errorf("%v\n%s", err, stdout)
	}
	if !strings.Contains(stderr, "stopping: ") || !strings.Contains(stderr, "they may be enqueued") || strings.Contains(stderr, "CANCELED") {
		t.Error(stderr)
	}
}

func TestStoppedLinesAreSummedUp(t *testing.T) {
	t.Parallel()
	// A pipe that stays open: the command must not wait for its next line.
	input := func() io.Reader {
		r, w := io.Pipe()
		t.Cleanup(func() { _ = w.Close() })
		return io.MultiReader(strings.NewReader("a\nb\nc\n"), r)
	}
	cmd := enqueueCmd{Task: "t", Lines: "-", Batch: 3}
	stdout, stderr, err := hold(t).stopped(t, &cmd, "table", false, input())
	want := "0 admitted, 0 rejected, 0 shed, 0 failed, 3 unknown, which may be enqueued: lines 1 to 3; not sent: line 4 and what follows\n"
	if err == nil || stdout != "" || !strings.Contains(stderr, want) || strings.Count(stderr, "\n") > 3 {
		t.Errorf("%v\n%s%s", err, stdout, stderr)
	}
	stdout, _, err = hold(t).stopped(t, &cmd, "json", false, input())
	if err == nil || !json.Valid([]byte(stdout)) || !strings.Contains(stdout, `"outcome":"unknown"`) ||
		!strings.HasSuffix(stdout, `],"unknown":3,"not_sent_from_line":4}`+"\n") {
		t.Errorf("%v %s", err, stdout)
	}
	stdout, _, _ = hold(t).stopped(t, &cmd, "table", true, input())
	if stdout != strings.Repeat("known\n", 3) {
		t.Error(stdout)
	}
}

func TestAStoppedSingleEnqueueWaitsForItsAnswer(t *testing.T) {
	t.Parallel()
	stdout, stderr, err := hold(t).stopped(t, &enqueueCmd{Task: "t"}, "table", true, nil)
	if err != nil || stdout == "" {
		t.Errorf("%v %s%s", err, stdout, stderr)
	}
	_, _, err = hold(t).stopped(t, &enqueueCmd{Task: "t"}, "table", false, nil)
	if f := told(err); fateOf(err) != unknown || f.Details["outcome"] != "unknown" || !strings.Contains(f.Message, "may have been enqueued") {
		t.Errorf("%v %+v", err, f)
	}
}

func TestRangesAreJoined(t *testing.T) {
	t.Parallel()
	var r ranges
	for _, next := range [][2]int{{1, 1}, {2, 5}, {7, 7}, {9, 9}, {10, 10}} {
		r = r.and(next)
	}
	if got := r.String(); got != "lines 1 to 5, line 7, lines 9 to 10" {
		t.Error(got)
	}
}

func TestDurationsKnowDays(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{
		"90d": 90 * day, "1d12h": 36 * time.Hour, "-2d": -2 * day, "0": 0, "0d": 0, "1m30s": 90 * time.Second, "-5m": -5 * time.Minute,
	} {
		if got, err := parseDuration(text); err != nil || got != want {
			t.Errorf("%s is %s, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "-", "d", "1", "1.5d", "65536d", "1d-1h", "--1h", "1d+1h", "1h1d", "soon", "-d", "1dd"} {
		if got, err := parseDuration(text); err == nil {
			t.Errorf("%q is %s", text, got)
		}
	}
}
