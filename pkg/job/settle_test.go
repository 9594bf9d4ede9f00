package job_test

import (
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"flexiq/pkg/job"
)

// TestAfter goes through every ending, with and without a requested
// cancellation, before and at the last attempt.
func TestAfter(t *testing.T) {
	t.Parallel()
	const (
		lost     = "worker lost: the lease of attempt %d ended without a heartbeat or a settlement"
		timedOut = "timeout: attempt %d ran longer than 2s"
	)
	text := func(s, attempt string) string { return strings.Replace(s, "%d", attempt, 1) }
	type moves struct{ open, last, cancelled job.Move } // attempt 2 of 3, 3 of 3, 2 of 3 with a cancellation
	tests := []struct {
		name   string
		ending job.Ending
		want   moves
	}{
		{"complete", job.Ending{Outcome: job.Completed}, moves{
			open:      job.Move{State: job.Complete, Attempt: 2},
			last:      job.Move{State: job.Complete, Attempt: 3},
			cancelled: job.Move{State: job.Complete, Attempt: 2},
		}},
		{"complete with an error text", job.Ending{Outcome: job.Completed, Error: "ignored"}, moves{
			open:      job.Move{State: job.Complete, Attempt: 2},
			last:      job.Move{State: job.Complete, Attempt: 3},
			cancelled: job.Move{State: job.Complete, Attempt: 2},
		}},
		{"fail", job.Ending{Outcome: job.Failed, Error: "boom\x00"}, moves{
			open:      job.Move{State: job.Pending, Attempt: 2, Error: "boom\ufffd", Delay: 15 * time.Second},
			last:      job.Move{State: job.Dead, Attempt: 3, Error: "boom\ufffd"},
			cancelled: job.Move{State: job.Cancelled, Attempt: 2, Error: "boom\ufffd"},
		}},
		{"fail with a delay", job.Ending{Outcome: job.Failed, RetryAfter: new(7 * time.Second)}, moves{
			open:      job.Move{State: job.Pending, Attempt: 2, Delay: 7 * time.Second},
			last:      job.Move{State: job.Dead, Attempt: 3},
			cancelled: job.Move{State: job.Cancelled, Attempt: 2},
		}},
		{"fail with no delay", job.Ending{Outcome: job.Failed, RetryAfter: new(time.Duration(0))}, moves{
			open:      job.Move{State: job.Pending, Attempt: 2},
			last:      job.Move{State: job.Dead, Attempt: 3},
			cancelled: job.Move{State: job.Cancelled, Attempt: 2},
		}},
		{"dead", job.Ending{Outcome: job.GivenUp, Error: "no"}, moves{
			open:      job.Move{State: job.Dead, Attempt: 2, Error: "no"},
			last:      job.Move{State: job.Dead, Attempt: 3, Error: "no"},
			cancelled: job.Move{State: job.Cancelled, Attempt: 2, Error: "no"},
		}},
		{"release", job.Ending{Outcome: job.Released, Error: "ignored"}, moves{
			open:      job.Move{State: job.Pending, Attempt: 1, KeepsTurn: true},
			last:      job.Move{State: job.Pending, Attempt: 2, KeepsTurn: true},
			cancelled: job.Move{State: job.Cancelled, Attempt: 2, Error: "ignored"},
		}},
		{"release for later", job.Ending{Outcome: job.Released, RetryAfter: new(time.Minute)}, moves{
			open:      job.Move{State: job.Pending, Attempt: 1, Delay: time.Minute},
			last:      job.Move{State: job.Pending, Attempt: 2, Delay: time.Minute},
			cancelled: job.Move{State: job.Cancelled, Attempt: 2},
		}},
		{"lost", job.Ending{Lost: true}, moves{
			open:      job.Move{State: job.Pending, Attempt: 2, Error: text(lost, "2"), KeepsTurn: true},
			last:      job.Move{State: job.Dead, Attempt: 3, Error: text(lost, "3")},
			cancelled: job.Move{State: job.Cancelled, Attempt: 2, Error: text(lost, "2")},
		}},
		{"timed out", job.Ending{TimedOut: true}, moves{
			open:      job.Move{State: job.Pending, Attempt: 2, Error: text(timedOut, "2"), Delay: 15 * time.Second},
			last:      job.Move{State: job.Dead, Attempt: 3, Error: text(timedOut, "3")},
			cancelled: job.Move{State: job.Cancelled, Attempt: 2, Error: text(timedOut, "2")},
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			after := func(attempt int32, cancelled bool) job.Move {
				j := job.Job{Attempt: attempt, MaxAttempts: 3, Timeout: 2 * time.Second, BackoffBase: 10 * time.Second, BackoffMax: time.Minute}
				return j.After(tt.ending, cancelled, 0.5)
			}
			got := moves{open: after(2, false), last: after(3, false), cancelled: after(2, true)}
			if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(moves{})); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestReleaseOfAFirstClaim: the count never goes below zero.
func TestReleaseOfAFirstClaim(t *testing.T) {
	t.Parallel()
	for attempt, want := range map[int32]int32{0: 0, 1: 0, 2: 1} {
		j := job.Job{Attempt: attempt, MaxAttempts: 1}
		if m := j.After(job.Ending{Outcome: job.Released}, false, 0); m.Attempt != want || m.State != job.Pending {
			t.Errorf("attempt %d released: %+v", attempt, m)
		}
	}
}

func TestBackoff(t *testing.T) {
	t.Parallel()
	tests := []struct {
		base, most time.Duration
		attempt    int32
		jitter     float64
		want       time.Duration
	}{
		{time.Second, time.Hour, 1, 0, 500 * time.Millisecond},
		{time.Second, time.Hour, 1, 0.5, 750 * time.Millisecond},
		{time.Second, time.Hour, 3, 0, 2 * time.Second},
		{time.Second, 3 * time.Second, 3, 0, 1500 * time.Millisecond},
		{time.Second, time.Second, 1_000_000, 0, 500 * time.Millisecond},
		{job.MaxDelay, job.MaxDelay, 25, 0, job.MaxDelay / 2},
		{time.Millisecond, job.MaxDelay, 1_000_000, 0, job.MaxDelay / 2},
	}
	for _, tt := range tests {
		if got := job.Backoff(tt.base, tt.most, tt.attempt, tt.jitter); got != tt.want {
			t.Errorf("Backoff(%s, %s, %d, %g) = %s, want %s", tt.base, tt.most, tt.attempt, tt.jitter, got, tt.want)
		}
	}
}

func TestBackoffBounds(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		base := time.Duration(rapid.Int64Range(int64(time.Millisecond), int64(job.MaxDelay)).Draw(t, "base"))
		most := time.Duration(rapid.Int64Range(int64(base), int64(job.MaxDelay)).Draw(t, "most"))
		attempt := rapid.Int32Range(1, job.MaxMaxAttempts).Draw(t, "attempt")
		jitter := rapid.Float64Range(0, 0.999999).Draw(t, "jitter")
		d, next := job.Backoff(base, most, attempt, jitter), job.Backoff(base, most, attempt+1, jitter)
		// Each of the two halves of a wait is rounded down.
		if d < base/2 || d > most || next < d || next > 2*d+3 {
			t.Fatalf("attempts %d and %d wait %s and %s", attempt, attempt+1, d, next)
		}
	})
}

func TestJitter(t *testing.T) {
	t.Parallel()
	for range 1000 {
		if j := job.Jitter(); j < 0 || j >= 1 {
			t.Fatalf("jitter %g", j)
		}
	}
}

func TestCleanError(t *testing.T) {
	t.Parallel()
	tests := []struct{ in, want string }{
		{"", ""},
		{"line one\n\tline two", "line one\n\tline two"},
		{"a\x00b\x1b[31mc\r\x7f\u009b", "a\ufffdb\ufffd[31mc\ufffd\ufffd\ufffd"},
		{"a\xff\xfeb", "a\ufffdb"},
		{"\xed\xa0\x80", "\ufffd"},
		{strings.Repeat("x", job.MaxError), strings.Repeat("x", job.MaxError)},
		{strings.Repeat("x", job.MaxError+1), strings.Repeat("x", job.MaxError)},
		{strings.Repeat("x", job.MaxError-1) + "é", strings.Repeat("x", job.MaxError-1)},
		{strings.Repeat("x", job.MaxError-3) + "🐳", strings.Repeat("x", job.MaxError-3)},
	}
	for _, tt := range tests {
		if got := job.CleanError(tt.in); got != tt.want {
			t.Errorf("CleanError(%.40q) = %.40q, want %.40q", tt.in, got, tt.want)
		}
	}
}

func FuzzCleanError(f *testing.F) {
	for _, s := range []string{"boom", "a\x00b", "\xff", strings.Repeat("é", job.MaxError)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got := job.CleanError(s)
		if len(got) > job.MaxError || !utf8.ValidString(got) {
			t.Fatalf("%q became %d bytes, valid: %t", s, len(got), utf8.ValidString(got))
		}
		if i := strings.IndexFunc(got, func(r rune) bool { return unicode.IsControl(r) && r != '\n' && r != '\t' }); i >= 0 {
			t.Fatalf("%q keeps a control character at %d", s, i)
		}
		if again := job.CleanError(got); again != got {
			t.Fatalf("%q became %q and then %q", s, got, again)
		}
	})
}
