package job_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"flexiq/pkg/fault"
	"flexiq/pkg/job"
)

func TestDefaultsFillWhatIsOpen(t *testing.T) {
	t.Parallel()
	type options struct {
		Attempts int32
		Timeout  time.Duration
		Priority int32
	}
	two, minute, low := int32(2), time.Minute, int32(-4)
	all := job.Defaults{MaxAttempts: &two, Timeout: &minute, Priority: &low}
	usual := options{25, 30 * time.Minute, 0}
	for name, tt := range map[string]struct {
		spec job.Spec
		give []job.Defaults // one after the other
		want options
	}{
		"nothing set":               {job.Spec{Open: job.OptionPriority}, []job.Defaults{{}}, usual},
		"everything open":           {job.Spec{Open: job.OptionPriority}, []job.Defaults{all}, options{2, minute, -4}},
		"everything chosen":         {job.Spec{MaxAttempts: 7, Timeout: time.Hour, Priority: 1}, []job.Defaults{all}, options{7, time.Hour, 1}},
		"a chosen zero":             {job.Spec{}, []job.Defaults{all}, options{2, minute, 0}},
		"a default that was chosen": {job.Spec{MaxAttempts: 25}, []job.Defaults{all}, options{25, minute, 0}},
		"some set":                  {job.Spec{Open: job.OptionPriority}, []job.Defaults{{Timeout: &minute}}, options{25, minute, 0}},
		"the last ones count":       {job.Spec{Open: job.OptionPriority}, []job.Defaults{all, {MaxAttempts: &two}}, options{2, 30 * time.Minute, 0}},
	} {
		tt.spec.Task = "t"
		if err := tt.spec.Normalize("job", 10); err != nil {
			t.Fatal(err)
		}
		print := tt.spec.Fingerprint
		for _, d := range tt.give {
			tt.spec.Default(d)
		}
		if diff := cmp.Diff(tt.want, options{tt.spec.MaxAttempts, tt.spec.Timeout, tt.spec.Priority}); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		if tt.spec.Fingerprint != print {
			t.Errorf("%s: the content of the call is another", name)
		}
	}
}

func TestDefaultsAreWhatJobsMayHave(t *testing.T) {
	t.Parallel()
	number := func(n int32) *int32 { return &n }
	long := func(d time.Duration) *time.Duration { return &d }
	for field, wrong := range map[string][]job.Defaults{
		"max_attempts": {{MaxAttempts: number(0)}, {MaxAttempts: number(-1)}, {MaxAttempts: number(1_000_001)}},
		"timeout":      {{Timeout: long(0)}, {Timeout: long(time.Second - 1)}, {Timeout: long(720*time.Hour + 1)}},
		"priority":     {{Priority: number(-129)}, {Priority: number(128)}},
	} {
		for _, d := range wrong {
			if err := d.Check(); !fault.Is(err, fault.InvalidRequest) || fault.Of(err).Details[fault.KeyField] != field {
				t.Errorf("%s: %v", field, err)
			}
		}
	}
	for _, d := range []job.Defaults{
		{},
		{MaxAttempts: number(1), Timeout: long(time.Second), Priority: number(-128)},
		{MaxAttempts: number(1_000_000), Timeout: long(720 * time.Hour), Priority: number(127)},
	} {
		if err := d.Check(); err != nil {
			t.Error(err)
		}
	}
}
