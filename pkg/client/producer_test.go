package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/auth"
	"flexiq/pkg/client"
	"flexiq/pkg/fault"
)

const knownID = "01890a5d-ac96-774b-bcce-b302099a8057"

func TestEnqueueSendsWhatTheJobSays(t *testing.T) {
	t.Parallel()
	overBothDoors(t, func(t *testing.T, door string) {
		d := newDesk()
		c := d.open(t, door, client.Options{})
		at := time.Date(2030, 1, 2, 3, 4, 5, 6000, time.UTC)
		got, err := c.Enqueue(t.Context(), client.Job{
			ID: strings.ToUpper(knownID), Queue: "mail", Task: "send", Args: map[string]any{"to": "a@b"}, Priority: new(int32(0)),
			RunAt: at, MaxAttempts: 3, Timeout: time.Minute, Backoff: client.Backoff{Base: time.Second, Max: time.Hour},
			UniqueKey: "k", Metadata: map[string]string{"a": "b"},
		})
		if err != nil {
			t.Fatal(err)
		}
		if got.ID != knownID || got.Status != "pending" || got.Shed || got.Deduplicated {
			t.Errorf("result %+v", got)
		}
		s := d.jobs[knownID]
		if s.GetQueue() != "mail" || s.GetTask() != "send" || s.Priority == nil || s.GetMaxAttempts() != 3 ||
			s.GetTimeout().AsDuration() != time.Minute || s.GetBackoff().GetMax().AsDuration() != time.Hour ||
			!s.GetRunAt().AsTime().Equal(at) || s.GetUniqueKey() != "k" || s.GetMetadata()["a"] != "b" || s.Payload != nil ||
			s.GetArgs().GetStructValue().GetFields()["to"].GetStringValue() != "a@b" || s.GetDelay() != nil {
			t.Errorf("sent %v", s)
		}

		got, err = c.Enqueue(t.Context(), client.Job{Task: "bare"})
		if err != nil {
			t.Fatal(err)
		}
		want := &flexiqv1.JobSpec{Id: got.ID, Task: "bare"}
		if s := d.jobs[got.ID]; !proto.Equal(s, want) {
			t.Errorf("sent %v, want %v", s, want)
		}
		got, err = c.Enqueue(t.Context(), client.Job{Task: "empty", Payload: []byte{}})
		if err != nil {
			t.Fatal(err)
		}
		if s := d.jobs[got.ID]; s.Payload == nil || len(s.GetPayload()) != 0 {
			t.Errorf("an empty payload was sent as %v", s.Payload)
		}
	})
}

func TestEnqueueRepeatsWithTheSameIDs(t *testing.T) {
	t.Parallel()
	overBothDoors(t, func(t *testing.T, door string) {
		d := newDesk()
		d.fail, d.lose = 2, 1
		c := d.open(t, door, client.Options{})
		if _, err := c.Enqueue(t.Context(), client.Job{Task: "once"}); err != nil {
			t.Fatal(err)
		}
		if len(d.jobs) != 1 || len(d.calls) != 4 {
			t.Errorf("%d jobs after %d calls, want 1 after 4", len(d.jobs), len(d.calls))
		}
		d.mu.Lock()
		d.lose = 1
		d.mu.Unlock()
		if _, err := c.EnqueueBatch(t.Context(), []client.Job{{Task: "a"}, {Task: "b"}}); err != nil {
			t.Fatal(err)
		}
		if len(d.jobs) != 3 {
			t.Errorf("%d jobs, want 3", len(d.jobs))
		}
	})
}

func TestRepeatsHaveAnEnd(t *testing.T) {
	t.Parallel()
	d := newDesk()
	d.err = fault.New(fault.StorageUnavailable, "the database is away")
	c := d.open(t, "nats", client.Options{RetryFor: -1})
	if _, err := c.Enqueue(t.Context(), client.Job{Task: "t"}); !fault.Is(err, fault.StorageUnavailable) {
		t.Errorf("error %v", err)
	}
	if len(d.calls) != 1 {
		t.Errorf("%d calls, want 1", len(d.calls))
	}
	c = d.open(t, "nats", client.Options{RetryFor: 300 * time.Millisecond})
	if _, err := c.Enqueue(t.Context(), client.Job{Task: "t"}); !fault.Is(err, fault.StorageUnavailable) {
		t.Errorf("error %v", err)
	}
	c = d.open(t, "nats", client.Options{})
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	// The deadline may pass between two tries, or within one.
	if _, err := c.Enqueue(ctx, client.Job{Task: "t"}); !fault.Is(err, fault.StorageUnavailable) && !fault.Is(err, fault.DeadlineExceeded) {
		t.Errorf("error %v", err)
	}
}

func refusal(reason fault.Reason, details map[string]string) error {
	return fault.New(reason, "queue 'default' is full: 5 pending >= max_pending 5").WithAll(details)
}

func TestRefusalsAreTyped(t *testing.T) {
	t.Parallel()
	overBothDoors(t, func(t *testing.T, door string) {
		d := newDesk()
		d.refuse = func(*flexiqv1.JobSpec) error {
			return refusal(fault.QueueFull, map[string]string{
				"namespace": "acme", "limit": "max_pending", "cap": "5", "current": "4", "asked": "2", "fits": "1",
				"revision": "7", "retry_after_ms": "1000", "estimate": "true",
			})
		}
		c := d.open(t, door, client.Options{})
		_, err := c.EnqueueBatch(t.Context(), []client.Job{{Task: "a"}, {Task: "b"}})
		got, ok := client.AsRefusal(err)
		want := client.Refusal{
			Reason: fault.QueueFull, Namespace: "acme", Limit: "max_pending", Cap: 5, Current: 4, Asked: 2, Fits: 1,
			Revision: 7, RetryAfter: time.Second, Estimate: true,
		}
		if !ok || got != want {
			t.Errorf("refusal %+v, want %+v", got, want)
		}
		if len(d.calls) != 1 {
			t.Errorf("a refused call was sent %d times", len(d.calls))
		}
	})
	if _, ok := client.AsRefusal(errors.New("other")); ok {
		t.Error("another error is taken for a refusal")
	}
}

func TestRefusalsAreRepeatedWhenAsked(t *testing.T) {
	t.Parallel()
	d := newDesk()
	left := 2
	d.refuse = func(s *flexiqv1.JobSpec) error {
		if s.GetTask() == "never" {
			return refusal(fault.RateLimited, map[string]string{"retry": "never"})
		}
		if left--; left >= 0 {
			return refusal(fault.RateLimited, map[string]string{"retry_after_ms": "5"})
		}
		return nil
	}
	c := d.open(t, "nats", client.Options{RetryRefusals: true})
	if _, err := c.Enqueue(t.Context(), client.Job{Task: "patient"}); err != nil {
		t.Error(err)
	}
	_, err := c.Enqueue(t.Context(), client.Job{Task: "never"})
	if r, ok := client.AsRefusal(err); !ok || !r.Never || r.RetryAfter != 0 {
		t.Errorf("error %v", err)
	}
	if len(d.calls) != 4 {
		t.Errorf("%d calls, want 4", len(d.calls))
	}
}

func TestConcurrentCallsShareMessages(t *testing.T) {
	t.Parallel()
	overBothDoors(t, func(t *testing.T, door string) {
		const calls = 500
		d := newDesk()
		d.hold = make(chan struct{})
		d.refuse = func(s *flexiqv1.JobSpec) error {
			if s.GetTask() == "bad" {
				return fault.Invalid("calls[17].jobs[0].queue", "is closed")
			}
			return nil
		}
		c := d.open(t, door, client.Options{})
		var wg sync.WaitGroup
		errs := make(chan error, calls)
		for i := range calls {
			wg.Go(func() {
				task := "good"
				if i%100 == 0 {
					task = "bad"
				}
				_, err := c.Enqueue(t.Context(), client.Job{Task: task})
				if (err != nil) != (task == "bad") {
					errs <- fmt.Errorf("%s: %w", task, err)
				}
			})
		}
		close(d.hold)
		wg.Wait()
		close(errs)
		for err := range errs {
			t.Error(err)
		}
		if len(d.jobs) != calls-calls/100 {
			t.Errorf("%d jobs", len(d.jobs))
		}
		if len(d.calls) > calls/2 {
			t.Errorf("%d calls took %d messages", calls, len(d.calls))
		}
		for i, n := range d.sizes {
			if n > 1000 {
				t.Errorf("message %d has %d jobs", i, n)
			}
		}
	})
}

func TestErrorsOfACallDoNotTellOfItsNeighbours(t *testing.T) {
	t.Parallel()
	d := newDesk()
	// True of the second call of each message that has several.
	d.refuse = func(*flexiqv1.JobSpec) error { return fault.Invalid("calls[1].jobs[0].queue", "is closed") }
	c := d.open(t, "nats", client.Options{})
	grouped := func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return slices.ContainsFunc(d.sizes, func(n int) bool { return n > 1 })
	}
	var alone atomic.Int32
	for !grouped() {
		var wg sync.WaitGroup
		for range 64 {
			wg.Go(func() {
				_, err := c.Enqueue(t.Context(), client.Job{Task: "t"})
				if f := fault.Of(err); f.Details[fault.KeyField] == "job.queue" && f.Message == "job.queue: is closed" {
					alone.Add(1)
				}
			})
		}
		wg.Wait()
	}
	if alone.Load() == 0 {
		t.Error("no error was told as the call's own")
	}
}

func TestBadJobsAreNotSent(t *testing.T) {
	t.Parallel()
	d := newDesk()
	c := d.open(t, "nats", client.Options{})
	deep := json.RawMessage(strings.Repeat("[", 1001) + strings.Repeat("]", 1001))
	for name, tc := range map[string]struct {
		job   client.Job
		field string
	}{
		"both":      {client.Job{Task: "t", Payload: []byte("x"), Args: 1}, "job.args"},
		"big":       {client.Job{Task: "t", Args: int64(1)<<53 + 1}, "job.args"},
		"negative":  {client.Job{Task: "t", Args: json.RawMessage(`{"n":[-9007199254740993]}`)}, "job.args"},
		"huge":      {client.Job{Task: "t", Args: json.RawMessage(`1e999`)}, "job.args"},
		"deep":      {client.Job{Task: "t", Args: deep}, "job.args"},
		"broken":    {client.Job{Task: "t", Args: json.RawMessage(`{"a"`)}, "job.args"},
		"surrogate": {client.Job{Task: "t", Args: json.RawMessage(`"\ud800"`)}, "job.args"},
		"function":  {client.Job{Task: "t", Args: func() {}}, "job.args"},
		"not text":  {client.Job{Task: "t\xff"}, "job.task"},
		"metadata":  {client.Job{Task: "t", Metadata: map[string]string{"a": "\xff"}}, "job.metadata"},
	} {
		_, err := c.Enqueue(t.Context(), tc.job)
		if f := fault.Of(err); err == nil || f.Reason != fault.InvalidRequest || f.Details[fault.KeyField] != tc.field {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := c.EnqueueBatch(t.Context(), nil); !fault.Is(err, fault.InvalidRequest) {
		t.Errorf("an empty batch: %v", err)
	}
	if _, err := c.EnqueueBatch(t.Context(), make([]client.Job, 1001)); !fault.Is(err, fault.InvalidRequest) {
		t.Errorf("a batch of 1001: %v", err)
	}
	_, err := c.Enqueue(t.Context(), client.Job{Task: "t", Payload: make([]byte, 9<<20)})
	if !fault.Is(err, fault.PayloadTooLarge) {
		t.Errorf("9 MiB: %v", err)
	}
	if len(d.calls) != 0 {
		t.Errorf("%d calls were sent", len(d.calls))
	}
	for _, good := range []any{1 << 53, -(1 << 53), 1.5, nil, "x", []int{}, json.RawMessage(`null`)} {
		if _, err := c.Enqueue(t.Context(), client.Job{Task: "t", Args: good}); err != nil {
			t.Errorf("args %v: %v", good, err)
		}
	}
}

func TestPagesAreReadToTheEnd(t *testing.T) {
	t.Parallel()
	overBothDoors(t, func(t *testing.T, door string) {
		d := newDesk()
		c := d.open(t, door, client.Options{RetryFor: -1})
		var ids []string
		req := &flexiqv1.ListJobsRequest{Queue: "q"}
		for j, err := range c.Jobs(t.Context(), req) {
			if err != nil {
				t.Fatal(err)
			}
			ids = append(ids, j.GetId()+j.GetQueue())
		}
		if got := fmt.Sprint(ids); got != "[1 2 3q]" {
			t.Errorf("ids %s", got)
		}
		if req.GetPageToken() != "" {
			t.Error("the caller's request was changed")
		}
		for range c.Jobs(t.Context(), req) {
			break // ends the reading
		}
		d.mu.Lock()
		d.err = fault.New(fault.StorageUnavailable, "away")
		d.mu.Unlock()
		var last error
		n := 0
		for _, err := range c.Jobs(t.Context(), req) {
			last = err
			n++
		}
		if n != 3 || !fault.Is(last, fault.StorageUnavailable) {
			t.Errorf("%d items, then %v", n, last)
		}
	})
}

func TestDialRefusesWhatCannotWork(t *testing.T) {
	t.Parallel()
	in := install(t)
	good := in.token("acme", auth.Produce)
	for name, tc := range map[string]struct {
		o      client.Options
		reason fault.Reason
	}{
		"no token":     {client.Options{Server: in.nats.ClientURL()}, fault.InvalidRequest},
		"odd token":    {client.Options{Server: in.nats.ClientURL(), Token: "hush"}, fault.InvalidRequest},
		"wrong token":  {client.Options{Server: in.nats.ClientURL(), Token: good + "x"}, fault.Unauthenticated},
		"odd scheme":   {client.Options{Server: "ftp://127.0.0.1", Token: good}, fault.InvalidRequest},
		"no address":   {client.Options{Server: "::", Token: good}, fault.InvalidRequest},
		"nobody there": {client.Options{Server: "nats://127.0.0.1:1", Token: good}, client.Unreachable},
	} {
		c, err := client.Dial(t.Context(), tc.o)
		if !fault.Is(err, tc.reason) {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil && strings.Contains(err.Error(), tc.o.Token) && tc.o.Token != "" {
			t.Errorf("%s: the token stands in the error", name)
		}
		if c != nil {
			_ = c.Close(t.Context())
		}
	}
	c := in.dial(client.Options{Server: in.http.URL, Token: good + "x"})
	if _, err := c.Job(t.Context(), knownID); !fault.Is(err, fault.Unauthenticated) {
		t.Errorf("a wrong token over HTTP: %v", err)
	}
}
