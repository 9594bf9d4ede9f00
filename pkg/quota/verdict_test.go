package quota_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"flexiq/pkg/fault"
	"flexiq/pkg/quota"
)

func mustParse(t testing.TB, doc string) quota.Quota {
	t.Helper()
	q, err := quota.Parse([]byte(doc))
	if err != nil {
		t.Fatal(err)
	}
	return q
}

// holding is a bucket under rate that holds n tokens at start.
func holding(rate quota.Rate, n int64) quota.Bucket {
	return quota.Bucket{}.Refill(rate, start).Take(rate.Count - n)
}

// TestRefusals fixes the texts and details, which are interfaces.
func TestRefusals(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		doc     string
		usage   quota.Usage
		jobs    int64
		reason  fault.Reason
		message string
		details map[string]string
	}{
		{
			"depth", `{"max_pending":5}`, quota.Usage{Pending: 4}, 2, fault.QueueFull, "queue 'mail' is full: 4 pending >= max_pending 5",
			map[string]string{"namespace": "it's:a", "limit": "max_pending", "cap": "5", "current": "4", "asked": "2", "fits": "1",
				"revision": "7", "retry_after_ms": "1000", "estimate": "true"},
		},
		{
			"depth for ever", `{"max_pending":5}`, quota.Usage{}, 6, fault.QueueFull, "queue 'mail' is full: 0 pending >= max_pending 5",
			map[string]string{"namespace": "it's:a", "limit": "max_pending", "cap": "5", "current": "0", "asked": "6", "fits": "5",
				"revision": "7", "retry": "never"},
		},
		{
			"depth zero", `{"max_pending":0}`, quota.Usage{}, 1, fault.QueueFull, "queue 'mail' is full: 0 pending >= max_pending 0",
			map[string]string{"namespace": "it's:a", "limit": "max_pending", "cap": "0", "current": "0", "asked": "1", "fits": "0",
				"revision": "7", "retry": "never"},
		},
		{
			"far over a lowered cap", `{"max_pending":100}`, quota.Usage{Pending: 800}, 1, fault.QueueFull, "queue 'mail' is full: 800 pending >= max_pending 100",
			map[string]string{"namespace": "it's:a", "limit": "max_pending", "cap": "100", "current": "800", "asked": "1", "fits": "0",
				"revision": "7", "retry_after_ms": "1000", "estimate": "true"},
		},
		{
			"rate", `{"enqueue_rate":"50/s"}`, quota.Usage{Bucket: holding(perSecond(50), 0)}, 1, fault.RateLimited,
			"rate limit exceeded for: namespace 'it's:a' enqueue_rate 50/s",
			map[string]string{"namespace": "it's:a", "limit": "enqueue_rate", "cap": "50", "current": "0", "asked": "1", "fits": "0",
				"revision": "7", "retry_after_ms": "20"},
		},
		{
			"rate rounded up", `{"enqueue_rate":"3/m"}`, quota.Usage{Bucket: holding(perMinute(3), 1)}, 2, fault.RateLimited,
			"rate limit exceeded for: namespace 'it's:a' enqueue_rate 3/m",
			map[string]string{"namespace": "it's:a", "limit": "enqueue_rate", "cap": "3", "current": "1", "asked": "2", "fits": "1",
				"revision": "7", "retry_after_ms": "20000"},
		},
		{
			"rate for ever", `{"enqueue_rate":"50/s"}`, quota.Usage{}, 51, fault.RateLimited,
			"rate limit exceeded for: namespace 'it's:a' enqueue_rate 50/s",
			map[string]string{"namespace": "it's:a", "limit": "enqueue_rate", "cap": "50", "current": "50", "asked": "51", "fits": "50",
				"revision": "7", "retry": "never"},
		},
		{
			"both limits, depth first", `{"max_pending":5,"enqueue_rate":"2/h"}`,
			quota.Usage{Pending: 5, Bucket: holding(quota.Rate{Count: 2, Unit: quota.PerHour}, 0)}, 1, fault.QueueFull,
			"queue 'mail' is full: 5 pending >= max_pending 5",
			map[string]string{"namespace": "it's:a", "limit": "max_pending", "cap": "5", "current": "5", "asked": "1", "fits": "0",
				"revision": "7", "retry_after_ms": "1000", "estimate": "true"},
		},
		{
			"fits is the smaller room", `{"max_pending":100,"enqueue_rate":"10/s"}`,
			quota.Usage{Pending: 95, Bucket: holding(perSecond(10), 3)}, 4, fault.RateLimited,
			"rate limit exceeded for: namespace 'it's:a' enqueue_rate 10/s",
			map[string]string{"namespace": "it's:a", "limit": "enqueue_rate", "cap": "10", "current": "3", "asked": "4", "fits": "3",
				"revision": "7", "retry_after_ms": "100"},
		},
		{
			"depth may pass but the rate never", `{"max_pending":100,"enqueue_rate":"10/s"}`, quota.Usage{Pending: 95}, 11, fault.QueueFull,
			"queue 'mail' is full: 95 pending >= max_pending 100",
			map[string]string{"namespace": "it's:a", "limit": "max_pending", "cap": "100", "current": "95", "asked": "11", "fits": "5",
				"revision": "7", "retry": "never"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			v := mustParse(t, tt.doc).Decide(tt.usage, quota.Ask{Namespace: "it's:a", Queue: "mail", Jobs: tt.jobs, Revision: 7}, start)
			if v.Decision != quota.Refuse || v.Error != "" {
				t.Fatalf("got %+v, want a refusal", v)
			}
			if v.Fault.Reason != tt.reason || v.Fault.Message != tt.message {
				t.Errorf("got %s %q, want %s %q", v.Fault.Reason, v.Fault.Message, tt.reason, tt.message)
			}
			if diff := cmp.Diff(tt.details, v.Fault.Details); diff != "" {
				t.Errorf("details (-want +got):\n%s", diff)
			}
		})
	}
}

// TestShed fixes the error texts of shed jobs.
func TestShed(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, doc string
		usage     quota.Usage
		jobs      int64
		want      string
	}{
		{"depth", `{"max_pending":5,"on_excess":"drop"}`, quota.Usage{Pending: 4}, 2, "quota: namespace 'hasp' is over max_pending 5 with 4 pending"},
		{"depth zero", `{"max_pending":0,"on_excess":"drop"}`, quota.Usage{}, 1, "quota: namespace 'hasp' is over max_pending 0 with 0 pending"},
		{"rate", `{"enqueue_rate":"50/s","on_excess":"drop"}`, quota.Usage{}, 51, "quota: namespace 'hasp' is over enqueue_rate 50/s"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			v := mustParse(t, tt.doc).Decide(tt.usage, quota.Ask{Namespace: "hasp", Queue: "q", Jobs: tt.jobs}, start)
			if v.Decision != quota.Shed || v.Fault != nil || v.Error != tt.want {
				t.Errorf("got %+v, want a shed call with %q", v, tt.want)
			}
		})
	}
}

// TestBatchAgainstBucket: a call larger than the bucket can never pass.
func TestBatchAgainstBucket(t *testing.T) {
	t.Parallel()
	q := mustParse(t, `{"max_pending":1000,"enqueue_rate":"50/s"}`)
	decide := func(pending int64, b quota.Bucket, jobs int64) quota.Verdict {
		return q.Decide(quota.Usage{Pending: pending, Bucket: b}, quota.Ask{Namespace: "bodkin", Queue: "default", Jobs: jobs}, start)
	}
	if v := decide(990, quota.Bucket{}, 20); v.Decision != quota.Refuse || v.Fault.Reason != fault.QueueFull {
		t.Errorf("20 onto 990: %+v", v)
	}
	if v := decide(990, quota.Bucket{}, 10); v.Decision != quota.Admit {
		t.Errorf("10 onto 990: %+v", v)
	}
	v := decide(0, quota.Bucket{}, 51)
	if _, has := v.Fault.RetryAfter(); v.Fault.Details[fault.KeyRetry] != "never" || has {
		t.Errorf("51 of 50: %v", v.Fault.Details)
	}
	if v = decide(0, quota.Bucket{}, 50); v.Decision != quota.Admit || v.Bucket.Tokens() != 0 {
		t.Errorf("50 of 50: %+v", v)
	}
	v = decide(50, v.Bucket, 1)
	if d, ok := v.Fault.RetryAfter(); !ok || d < time.Millisecond || d > 20*time.Millisecond {
		t.Errorf("the next single: retry after %s, want 1 to 20 ms", d)
	}
}

// TestNoLimits: a quota without limits admits everything and leaves the bucket.
func TestNoLimits(t *testing.T) {
	t.Parallel()
	used := holding(perSecond(10), 0)
	v := quota.Quota{OnExcess: quota.Drop}.Decide(quota.Usage{Pending: 1 << 60, Bucket: used}, quota.Ask{Jobs: 1000}, start.Add(time.Hour))
	if v.Decision != quota.Admit || v.Bucket != used {
		t.Errorf("got %+v", v)
	}
}

// TestDecideProperties: a call passes exactly when both limits have room for
// all its jobs; a refusal spends nothing; after the advised delay the call
// passes, and a millisecond earlier it does not.
func TestDecideProperties(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var q quota.Quota
		if rapid.Bool().Draw(t, "depth limited") {
			q.MaxPending = new(rapid.Int64Range(0, 20).Draw(t, "max_pending"))
		}
		u := quota.Usage{Pending: rapid.Int64Range(0, 25).Draw(t, "pending")}
		if rapid.Bool().Draw(t, "rate limited") {
			rate := quota.Rate{Count: rapid.Int64Range(1, 20).Draw(t, "count"), Unit: rapid.SampledFrom([]quota.Unit{'s', 'm', 'h'}).Draw(t, "unit")}
			q.EnqueueRate = &rate
			u.Bucket = holding(rate, rapid.Int64Range(0, rate.Count).Draw(t, "tokens"))
			u.Bucket.Level = max(0, u.Bucket.Level-rapid.Int64Range(0, 999_999).Draw(t, "part of a token"))
		}
		ask := quota.Ask{Namespace: "n", Queue: "q", Jobs: rapid.Int64Range(1, 25).Draw(t, "jobs")}
		deep := q.MaxPending == nil || u.Pending+ask.Jobs <= *q.MaxPending
		fast := q.EnqueueRate == nil || ask.Jobs <= u.Bucket.Tokens()

		v := q.Decide(u, ask, start)
		if (v.Decision == quota.Admit) != (deep && fast) {
			t.Fatalf("room by depth: %t, by rate: %t, but %+v", deep, fast, v)
		}
		if v.Decision == quota.Admit {
			if q.EnqueueRate != nil && v.Bucket != u.Bucket.Take(ask.Jobs) {
				t.Fatalf("spent %+v of %+v for %d", v.Bucket, u.Bucket, ask.Jobs)
			}
			return
		}
		if v.Bucket.Level != u.Bucket.Level {
			t.Fatalf("a refusal spent tokens: %+v of %+v", v.Bucket, u.Bucket)
		}
		if want := fault.QueueFull; !deep && v.Fault.Reason != want || deep && v.Fault.Reason != fault.RateLimited {
			t.Fatalf("reason %s", v.Fault.Reason)
		}
		never := q.MaxPending != nil && ask.Jobs > *q.MaxPending || q.EnqueueRate != nil && ask.Jobs > q.EnqueueRate.Count
		wait, has := v.Fault.RetryAfter()
		if never == has || never != (v.Fault.Details[fault.KeyRetry] == "never") {
			t.Fatalf("can never pass: %t, details %v", never, v.Fault.Details)
		}
		if !never && deep {
			if again := q.Decide(u, ask, start.Add(wait)); again.Decision != quota.Admit {
				t.Fatalf("refused again after the advised %s", wait)
			}
			if early := q.Decide(u, ask, start.Add(wait-time.Millisecond)); early.Decision == quota.Admit {
				t.Fatalf("%s is too long an advice", wait)
			}
		}
		shed := q
		shed.OnExcess = quota.Drop
		if s := shed.Decide(u, ask, start); s.Decision != quota.Shed || s.Bucket.Level != u.Bucket.Level {
			t.Fatalf("with drop: %+v", s)
		}
	})
}

// A store that decides inside the database puts the text together itself.
func TestShedTexts(t *testing.T) {
	q := quota.Quota{MaxPending: new(int64(5)), EnqueueRate: &quota.Rate{Count: 7, Unit: quota.PerMinute}, OnExcess: quota.Drop}
	before, after := q.ShedOverDepth("it's")
	deep := q.Decide(quota.Usage{Pending: 42, Bucket: quota.Bucket{}}, quota.Ask{Namespace: "it's", Jobs: 1}, time.UnixMicro(1))
	if got, want := before+"42"+after, "quota: namespace 'it's' is over max_pending 5 with 42 pending"; got != want || deep.Error != want {
		t.Errorf("over depth: %q and %q, want %q", got, deep.Error, want)
	}
	q.MaxPending = nil
	fast := q.Decide(quota.Usage{}, quota.Ask{Namespace: "it's", Jobs: 8}, time.UnixMicro(1))
	if got, want := q.ShedOverRate("it's"), "quota: namespace 'it's' is over enqueue_rate 7/m"; got != want || fast.Error != want {
		t.Errorf("over rate: %q and %q, want %q", got, fast.Error, want)
	}
	if before, after := (quota.Quota{}).ShedOverDepth("n"); before+after+(quota.Quota{}).ShedOverRate("n") != "" {
		t.Error("a quota without limits has a text")
	}
}
