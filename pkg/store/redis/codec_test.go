package redis

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"flexiq/pkg/job"
	"flexiq/pkg/store"
)

func TestCodec(t *testing.T) {
	long := strings.Repeat("é", 127)
	sp := spec(t, func(s *job.Spec) {
		s.Queue, s.Task, s.UniqueKey, s.Priority = long, long, long, -128
		s.Metadata, s.RunAt = map[string]string{"a": "\n\"", "é": ""}, time.Date(9999, 12, 31, 23, 59, 59, 999_999_000, time.UTC)
	})
	value, aside := encode(&sp, "schedule:"+long, long)
	d, err := decode("ns", sp.ID, string(value))
	if err != nil || aside != nil {
		t.Fatal(err, aside)
	}
	want := job.Job{
		ID: sp.ID, Namespace: "ns", Queue: long, Task: long, Form: job.Args, State: job.Pending, Priority: -128, MaxAttempts: 25,
		Timeout: job.DefaultTimeout, BackoffBase: time.Second, BackoffMax: time.Hour, RunAt: sp.RunAt, Metadata: sp.Metadata,
		UniqueKey: long, Origin: "schedule:" + long, EnqueuedBy: long,
	}
	if diff := cmp.Diff(want, d.job, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if got := d.payload(""); string(got) != string(sp.Payload) {
		t.Errorf("payload %q", got)
	}
	cut, err := decode("ns", sp.ID, string(value[:headSize+4*256]))
	if err != nil || cut.job.UniqueKey != long || cut.job.Timeout != job.DefaultTimeout {
		t.Errorf("a value that was cut off after its names: %+v, %v", cut, err)
	}
}

// FuzzDecode: what stands in the database must never bring the process down.
func FuzzDecode(f *testing.F) {
	sp := job.Spec{Task: "t", Payload: []byte("p"), Form: job.Bytes, Metadata: map[string]string{"a": "b"}}
	if err := sp.Normalize("job", 100); err != nil {
		f.Fatal(err)
	}
	value, _ := encode(&sp, "enqueue", "tok")
	for _, s := range []string{"", "x", string(value), string(value[:len(value)-3]), string(value[:headSize]), strings.Repeat("\xff", 300)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, value string) {
		d, err := decode("ns", "id", value)
		if (d == nil) != (err != nil) {
			t.Fatalf("%+v, %v", d, err)
		}
		if d != nil {
			d.payload("")
		}
		if _, _, err := readRecord("ns", value); err == nil && len(value) < 50 {
			t.Fatal("a record out of too few bytes")
		}
	})
}

func TestRecordCodec(t *testing.T) {
	want := store.Record{
		Time: time.UnixMicro(42).UTC(), Namespace: "ns", TokenID: "t", ActingAs: "a", Door: "http", Operation: "o", TargetKind: "k", Target: "\xff",
		Outcome: "ok", Old: strings.Repeat("x", 70_000), New: "n", Revision: 1 << 62,
	}
	n, got, err := readRecord("ns", "\x07\x00\x00\x00\x00\x00\x00\x00\x2a\x00\x00\x00\x00\x00\x00\x00"+record(&want))
	if err != nil || n != 7 || got != want {
		t.Errorf("%d, %v:\n%s", n, err, cmp.Diff(want, got))
	}
}
