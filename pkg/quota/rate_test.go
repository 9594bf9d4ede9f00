package quota_test

import (
	"strings"
	"testing"

	"flexiq/pkg/fault"
	"flexiq/pkg/quota"
)

func TestParseRate(t *testing.T) {
	t.Parallel()
	good := map[string]quota.Rate{
		"500/s":        {Count: 500, Unit: quota.PerSecond},
		"1/m":          {Count: 1, Unit: quota.PerMinute},
		"1000000000/h": {Count: 1_000_000_000, Unit: quota.PerHour},
	}
	for text, want := range good {
		got, err := quota.ParseRate(text)
		if err != nil || got != want {
			t.Errorf("%s: got %v, %v; want %v", text, got, err, want)
		}
		if got.String() != text {
			t.Errorf("%s is shown as %s", text, got)
		}
	}
	bad := []string{
		"0/s", "1.5/s", "007/s", "+5/s", "500/sec", " 500/s", "500/S", "5e2/s", "500/d", // spellings that people try
		"", "/", "500", "500/", "/s", "-5/s", "500/s ", "500 /s", "500/ s", "500//s", "500/s/s", "1000000001/s",
		"9223372036854775808/s", "٥/s", "500/s\x00", "0x10/s", "1_000/s", "500/M", "500/H", "unlimited",
	}
	for _, text := range bad {
		_, err := quota.ParseRate(text)
		e := fault.Of(err)
		if e == nil || e.Reason != fault.InvalidRequest || e.Details["field"] != "enqueue_rate" {
			t.Errorf("%q: got %v, want INVALID_REQUEST for enqueue_rate", text, err)
		}
	}
}

func TestRateErrorIsShort(t *testing.T) {
	t.Parallel()
	_, err := quota.ParseRate(strings.Repeat("9", 10_000))
	if e := fault.Of(err); e == nil || len(e.Message) > 300 {
		t.Errorf("the message repeats what was sent: %d bytes", len(e.Message))
	}
}

func FuzzParseRate(f *testing.F) {
	for _, s := range []string{"500/s", "0/s", "007/s", "1/m", "1000000001/h", "+5/s", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		r, err := quota.ParseRate(text)
		if err != nil {
			return
		}
		if r.String() != text {
			t.Fatalf("%q is shown as %q", text, r)
		}
		if r.Count < 1 || r.Count > quota.MaxRateCount || !strings.ContainsRune("smh", rune(r.Unit)) {
			t.Fatalf("%q gave %+v", text, r)
		}
	})
}
