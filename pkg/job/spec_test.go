package job_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"flexiq/pkg/fault"
	"flexiq/pkg/job"
)

const id7 = "01890a5d-ac96-774b-bcce-b302099a8057"

func TestDefaults(t *testing.T) {
	t.Parallel()
	s := job.Spec{Task: "t"}
	if err := s.Normalize("job", job.DefaultMaxPayload); err != nil {
		t.Fatal(err)
	}
	want := job.Spec{
		Task: "t", Queue: "default", MaxAttempts: 25, Timeout: 30 * time.Minute, BackoffBase: time.Second, BackoffMax: time.Hour,
		Open: job.OptionMaxAttempts | job.OptionTimeout, // the doors tell of the priority: 0 may be a choice
	}
	if diff := cmp.Diff(want, s, cmpopts.IgnoreFields(job.Spec{}, "ID", "Fingerprint")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if err := job.CheckID("id", s.ID); err != nil {
		t.Errorf("the id that was made: %v", err)
	}
	if s.Fingerprint == [16]byte{} {
		t.Error("no fingerprint")
	}
}

// TestNormalized covers what is filled in beside the plain defaults.
func TestNormalized(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 3, 8, 1, 2, 3, 4567, time.FixedZone("x", 3600))
	tests := []struct {
		name     string
		in, want job.Spec
	}{
		{"an upper-case id", job.Spec{ID: strings.ToUpper(id7)}, job.Spec{ID: id7}},
		{"run_at in microseconds and UTC", job.Spec{RunAt: at}, job.Spec{RunAt: time.Date(2026, 3, 8, 0, 2, 3, 4000, time.UTC)}},
		{"durations in microseconds", job.Spec{Delay: 1999, Timeout: time.Second + 1, BackoffBase: time.Millisecond + 999},
			job.Spec{Delay: 1000, Timeout: time.Second, BackoffBase: time.Millisecond}},
		{"a base beyond the default cap", job.Spec{BackoffBase: 2 * time.Hour}, job.Spec{BackoffBase: 2 * time.Hour, BackoffMax: 2 * time.Hour}},
		{"a cap below the default base", job.Spec{BackoffMax: 10 * time.Millisecond}, job.Spec{BackoffBase: 10 * time.Millisecond, BackoffMax: 10 * time.Millisecond}},
		{"ten windows", job.Spec{Debounce: job.Debounce{Key: "k", Window: time.Second}},
			job.Spec{Debounce: job.Debounce{Key: "k", Window: time.Second, MaxWait: 10 * time.Second}}},
		{"max_wait of one window", job.Spec{Debounce: job.Debounce{Key: "k", Window: time.Second, MaxWait: time.Second}},
			job.Spec{Debounce: job.Debounce{Key: "k", Window: time.Second, MaxWait: time.Second}}},
		{"every bound at its least", job.Spec{Priority: -128, MaxAttempts: 1, Timeout: time.Second, BackoffBase: time.Millisecond, BackoffMax: time.Millisecond, RunAt: time.Unix(0, 0).UTC()},
			job.Spec{Priority: -128, MaxAttempts: 1, Timeout: time.Second, BackoffBase: time.Millisecond, BackoffMax: time.Millisecond, RunAt: time.Unix(0, 0).UTC()}},
		{"every bound at its most", job.Spec{Priority: 127, MaxAttempts: 1_000_000, Timeout: 720 * time.Hour, BackoffBase: job.MaxDelay, BackoffMax: job.MaxDelay, Delay: job.MaxDelay},
			job.Spec{Priority: 127, MaxAttempts: 1_000_000, Timeout: 720 * time.Hour, BackoffBase: job.MaxDelay, BackoffMax: job.MaxDelay, Delay: job.MaxDelay}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, want := tt.in, tt.want
			got.Task, want.Task, want.Queue = "t", "t", "default"
			if want.MaxAttempts == 0 {
				want.MaxAttempts, want.Open = 25, want.Open|job.OptionMaxAttempts
			}
			if want.Timeout == 0 {
				want.Timeout, want.Open = 30*time.Minute, want.Open|job.OptionTimeout
			}
			if want.BackoffBase == 0 {
				want.BackoffBase = time.Second
			}
			if want.BackoffMax == 0 {
				want.BackoffMax = time.Hour
			}
			if err := got.Normalize("job", 10); err != nil {
				t.Fatal(err)
			}
			ignored := []string{"Fingerprint"}
			if tt.in.ID == "" {
				ignored = append(ignored, "ID")
			}
			if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(job.Spec{}, ignored...)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestSpecRefused: each bound names its field.
func TestSpecRefused(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 256)
	tests := []struct {
		field string
		spec  job.Spec
	}{
		{"task", job.Spec{}},
		{"task", job.Spec{Task: long}},
		{"task", job.Spec{Task: "a\x00"}},
		{"queue", job.Spec{Task: "t", Queue: " q"}},
		{"queue", job.Spec{Task: "t", Queue: "\xff"}},
		{"unique_key", job.Spec{Task: "t", UniqueKey: long}},
		{"unique_key", job.Spec{Task: "t", UniqueKey: "k\n"}},
		{"id", job.Spec{Task: "t", ID: "1"}},
		{"id", job.Spec{Task: "t", ID: "f47ac10b-58cc-4372-a567-0e02b2c3d479"}}, // version 4
		{"id", job.Spec{Task: "t", ID: "01890a5d-ac96-774b-0cce-b302099a8057"}}, // of another variant
		{"id", job.Spec{Task: "t", ID: "01890a5d-ac96-774b-ccce-b302099a8057"}},
		{"id", job.Spec{Task: "t", ID: "01890a5dac96774bbcceb302099a8057"}},
		{"id", job.Spec{Task: "t", ID: "urn:uuid:" + id7}},
		{"id", job.Spec{Task: "t", ID: "{" + id7 + "}"}},
		{"priority", job.Spec{Task: "t", Priority: -129}},
		{"priority", job.Spec{Task: "t", Priority: 128}},
		{"max_attempts", job.Spec{Task: "t", MaxAttempts: -1}},
		{"max_attempts", job.Spec{Task: "t", MaxAttempts: 1_000_001}},
		{"timeout", job.Spec{Task: "t", Timeout: time.Second - time.Microsecond}},
		{"timeout", job.Spec{Task: "t", Timeout: -time.Second}},
		{"timeout", job.Spec{Task: "t", Timeout: 1}},
		{"timeout", job.Spec{Task: "t", Timeout: job.MaxTimeout + time.Microsecond}},
		{"delay", job.Spec{Task: "t", Delay: -time.Microsecond}},
		{"delay", job.Spec{Task: "t", Delay: job.MaxDelay + time.Microsecond}},
		{"delay", job.Spec{Task: "t", Delay: time.Second, RunAt: time.Now()}},
		{"run_at", job.Spec{Task: "t", RunAt: time.Date(1969, 12, 31, 23, 59, 59, 0, time.UTC)}},
		{"run_at", job.Spec{Task: "t", RunAt: time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)}},
		{"backoff.base", job.Spec{Task: "t", BackoffBase: time.Millisecond - time.Microsecond}},
		{"backoff.base", job.Spec{Task: "t", BackoffBase: -1}},
		{"backoff.base", job.Spec{Task: "t", BackoffBase: job.MaxDelay + time.Microsecond}},
		{"backoff.max", job.Spec{Task: "t", BackoffBase: time.Second, BackoffMax: time.Second - time.Microsecond}},
		{"backoff.max", job.Spec{Task: "t", BackoffMax: job.MaxDelay + time.Microsecond}},
		{"backoff.max", job.Spec{Task: "t", BackoffMax: -time.Second}},
		{"debounce.key", job.Spec{Task: "t", Debounce: job.Debounce{Window: time.Second}}},
		{"debounce.key", job.Spec{Task: "t", Debounce: job.Debounce{Key: " k", Window: time.Second}}},
		{"debounce", job.Spec{Task: "t", UniqueKey: "u", Debounce: job.Debounce{Key: "k", Window: time.Second}}},
		{"debounce", job.Spec{Task: "t", Delay: time.Second, Debounce: job.Debounce{Key: "k", Window: time.Second}}},
		{"debounce", job.Spec{Task: "t", RunAt: time.Now(), Debounce: job.Debounce{Key: "k", Window: time.Second}}},
		{"debounce.window", job.Spec{Task: "t", Debounce: job.Debounce{Key: "k"}}},
		{"debounce.window", job.Spec{Task: "t", Debounce: job.Debounce{Key: "k", Window: -time.Second}}},
		{"debounce.window", job.Spec{Task: "t", Debounce: job.Debounce{Key: "k", Window: job.MaxDelay + time.Microsecond}}},
		{"debounce.max_wait", job.Spec{Task: "t", Debounce: job.Debounce{Key: "k", Window: time.Second, MaxWait: time.Millisecond}}},
		{"debounce.max_wait", job.Spec{Task: "t", Debounce: job.Debounce{Key: "k", Window: time.Second, MaxWait: 11 * job.MaxDelay}}},
		{"metadata", job.Spec{Task: "t", Metadata: map[string]string{"": "v"}}},
		{"metadata", job.Spec{Task: "t", Metadata: map[string]string{"k": "a\x00b"}}},
		{"metadata", job.Spec{Task: "t", Metadata: map[string]string{"k\x00": "a"}}},
		{"metadata", job.Spec{Task: "t", Metadata: map[string]string{"k": "\xff"}}},
		{"metadata", job.Spec{Task: "t", Metadata: map[string]string{"k": strings.Repeat("v", job.MaxMetadata)}}},
	}
	for i, tt := range tests {
		t.Run(fmt.Sprintf("%s %d", tt.field, i), func(t *testing.T) {
			t.Parallel()
			err := tt.spec.Normalize("jobs[3]", 10)
			e := fault.Of(err)
			if e == nil || e.Reason != fault.InvalidRequest || e.Details["field"] != "jobs[3]."+tt.field {
				t.Fatalf("got %v, want INVALID_REQUEST for jobs[3].%s", err, tt.field)
			}
			if !strings.HasPrefix(e.Message, "jobs[3]."+tt.field+": must ") && tt.field != "metadata" {
				t.Errorf("message %q", e.Message)
			}
		})
	}
}

func TestPayloadBound(t *testing.T) {
	t.Parallel()
	for form, field := range map[job.Form]string{job.Bytes: "job.payload", job.Args: "job.args"} {
		s := job.Spec{Task: "t", Form: form, Payload: make([]byte, 10)}
		if err := s.Normalize("job", 10); err != nil {
			t.Errorf("exactly the limit: %v", err)
		}
		s = job.Spec{Task: "t", Form: form, Payload: make([]byte, 11)}
		e := fault.Of(s.Normalize("job", 10))
		if e == nil || e.Reason != fault.PayloadTooLarge || e.Details["field"] != field || e.Message != field+": must be at most 10 bytes, got 11" {
			t.Errorf("one byte more: %v", e)
		}
	}
}

// TestMetadataBound: the limit counts keys and values, and is inside.
func TestMetadataBound(t *testing.T) {
	t.Parallel()
	s := job.Spec{Task: "t", Metadata: map[string]string{"key": strings.Repeat("v", job.MaxMetadata-3)}}
	if err := s.Normalize("job", 10); err != nil {
		t.Error(err)
	}
}

// TestFingerprint: it is that of the options as sent, all of them, without the id.
func TestFingerprint(t *testing.T) {
	t.Parallel()
	base := func() job.Spec {
		return job.Spec{
			ID: id7, Queue: "q", Task: "t", Payload: []byte("p"), Form: job.Bytes, Priority: 1, Delay: time.Second, MaxAttempts: 2,
			Timeout: time.Minute, BackoffBase: time.Second, BackoffMax: time.Minute, UniqueKey: "u", Metadata: map[string]string{"a": "b", "c": "d"},
		}
	}
	of := func(change func(*job.Spec)) [16]byte {
		s := base()
		change(&s)
		if err := s.Normalize("job", 1000); err != nil {
			t.Fatal(err)
		}
		return s.Fingerprint
	}
	same := of(func(*job.Spec) {})
	if of(func(s *job.Spec) { s.ID = "" }) != same {
		t.Error("the id counts")
	}
	changes := map[string]func(*job.Spec){
		"queue": func(s *job.Spec) { s.Queue = "r" }, "task": func(s *job.Spec) { s.Task = "u" },
		"bytes moved": func(s *job.Spec) { s.Queue, s.Task = "qt", "x" },
		"payload":     func(s *job.Spec) { s.Payload = []byte("P") }, "form": func(s *job.Spec) { s.Form = job.Args },
		"priority": func(s *job.Spec) { s.Priority = 2 }, "delay": func(s *job.Spec) { s.Delay = 2 * time.Second },
		"run_at":       func(s *job.Spec) { s.Delay, s.RunAt = 0, time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC) },
		"max_attempts": func(s *job.Spec) { s.MaxAttempts = 3 }, "timeout": func(s *job.Spec) { s.Timeout = time.Hour },
		"base": func(s *job.Spec) { s.BackoffBase = 2 * time.Second }, "max": func(s *job.Spec) { s.BackoffMax = time.Hour },
		"unique key": func(s *job.Spec) { s.UniqueKey = "v" }, "no unique key": func(s *job.Spec) { s.UniqueKey = "" },
		"debounce": func(s *job.Spec) {
			s.UniqueKey, s.Delay, s.Debounce = "", 0, job.Debounce{Key: "u", Window: time.Second}
		},
		"window": func(s *job.Spec) {
			s.UniqueKey, s.Delay, s.Debounce = "", 0, job.Debounce{Key: "u", Window: 2 * time.Second}
		},
		"max_wait": func(s *job.Spec) {
			s.UniqueKey, s.Delay, s.Debounce = "", 0, job.Debounce{Key: "u", Window: time.Second, MaxWait: 10 * time.Second}
		},
		"metadata value": func(s *job.Spec) { s.Metadata["a"] = "x" }, "metadata key": func(s *job.Spec) { s.Metadata["e"] = "" },
		"metadata moved": func(s *job.Spec) { s.Metadata = map[string]string{"ab": "", "c": "d"} },
	}
	seen := map[[16]byte]string{same: "the base"}
	for name, change := range changes {
		p := of(change)
		if other, ok := seen[p]; ok {
			t.Errorf("%s has the fingerprint of %s", name, other)
		}
		seen[p] = name
	}
}

// TestFingerprintOfRepeats: the same content sent twice has one fingerprint,
// whatever ids were made for it.
func TestFingerprintOfRepeats(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.StringMatching(`[a-z]{1,3}`)
		gen := job.Spec{
			Task: name.Draw(t, "task"), Queue: name.Draw(t, "queue"), Payload: rapid.SliceOf(rapid.Byte()).Draw(t, "payload"),
			Priority: rapid.Int32Range(-128, 127).Draw(t, "priority"), Delay: time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(t, "delay")),
			Metadata: rapid.MapOf(name, name).Draw(t, "metadata"),
		}
		a, b := gen, gen
		if a.Normalize("a", 1<<20) != nil || b.Normalize("b", 1<<20) != nil {
			t.Fatal("a valid spec is refused")
		}
		if a.Fingerprint != b.Fingerprint || a.ID == b.ID {
			t.Fatalf("two of the same: fingerprints %x and %x, ids %s and %s", a.Fingerprint, b.Fingerprint, a.ID, b.ID)
		}
	})
}

func TestWords(t *testing.T) {
	t.Parallel()
	want := []job.State{"pending", "running", "complete", "dead", "cancelled"}
	if !cmp.Equal(job.States, want) {
		t.Errorf("states %v, want %v", job.States, want)
	}
	for _, s := range job.States {
		if !s.Valid() {
			t.Errorf("%s is not valid", s)
		}
	}
	for _, o := range []job.Outcome{"complete", "fail", "dead", "release"} {
		if !o.Valid() {
			t.Errorf("outcome %s is not valid", o)
		}
	}
	if job.State("").Valid() || job.State("Pending").Valid() || job.Outcome("").Valid() || job.Outcome("cancel").Valid() {
		t.Error("a word that is none is valid")
	}
	shed := job.Job{DeadMetadata: job.ShedMetadata()}
	if !shed.Shed() || (&job.Job{}).Shed() || !cmp.Equal(shed.DeadMetadata, map[string]string{"shed": "quota"}) {
		t.Error("shed jobs are not told apart")
	}
}
