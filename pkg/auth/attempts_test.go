package auth_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"flexiq/pkg/auth"
	"flexiq/pkg/fault"
	"flexiq/pkg/testkit"
)

// exhaust fails from an address until it is over its limit.
func exhaust(t *testing.T, f *fixture, from string) {
	t.Helper()
	for range 1000 {
		if f.v.Attempts().Over(from) {
			return
		}
		if _, err := f.v.Verify(t.Context(), "fqt.lark.aaaa.bbbb", from); !fault.Is(err, fault.Unauthenticated) {
			t.Fatalf("a wrong token: %v", err)
		}
	}
	t.Fatal("a thousand failures at once are under the limit")
}

func TestFailuresAreLimitedByAddress(t *testing.T) {
	f := newFixture()
	f.v = auth.NewVerifier(auth.Cached(f.source), func() time.Time { return f.now })
	f.source.cold = true
	text, _ := f.mint(t, "lark", auth.Produce)
	const from = "192.0.2.1:1000"
	exhaust(t, f, from)

	_, err := f.v.Verify(t.Context(), text, "192.0.2.1:2000")
	if _, wrong := f.v.Verify(t.Context(), "fqt.lark.aaaa.bbbb", "198.51.100.1:1"); err == nil || err.Error() != wrong.Error() {
		t.Errorf("a token that must be looked up: %v, want the answer of any other failure, %v", err, wrong)
	}
	if _, err := f.v.Verify(t.Context(), text, "192.0.2.2:1000"); err != nil {
		t.Errorf("from another address: %v", err)
	}
	if _, err := f.v.Verify(t.Context(), text, from); err != nil {
		t.Errorf("a token that was let in before: %v", err)
	}
	f.source.cold = false
	if _, err := f.v.Verify(t.Context(), text, from); err != nil {
		t.Errorf("a token that is known already: %v", err)
	}
	if _, err := f.v.Verify(t.Context(), text+"x", from); !fault.Is(err, fault.Unauthenticated) {
		t.Errorf("a wrong secret of a token that is known already: %v", err)
	}
	reg := prometheus.NewRegistry()
	reg.MustRegister(f.v.Attempts())
	if n := testkit.Metric(t, reg, "flexiq_auth_failures_total"); n < 100 {
		t.Errorf("%g failures are counted", n)
	}
	if n := testkit.Metric(t, reg, "flexiq_auth_refused_total"); n < 3 {
		t.Errorf("%g refused attempts are counted", n)
	}

	f.source.cold = true
	f.now = f.now.Add(time.Second)
	if _, err := f.v.Verify(t.Context(), text, from); err != nil {
		t.Errorf("a second later: %v", err)
	}
}

func TestAttemptsOverTheLimitDoNotProlongIt(t *testing.T) {
	f := newFixture()
	const from = "192.0.2.1:1000"
	exhaust(t, f, from)
	for range 10_000 {
		_, _ = f.v.Verify(t.Context(), "fqt.lark.aaaa.bbbb", from)
	}
	f.now = f.now.Add(time.Second)
	if f.v.Attempts().Over(from) {
		t.Error("a flood over the limit has prolonged it")
	}
}

func TestWhatCountsAsOneAddress(t *testing.T) {
	for _, tc := range []struct {
		a, b string
		one  bool
	}{
		{"192.0.2.1:1", "192.0.2.1:2", true},
		{"192.0.2.1", "[::ffff:192.0.2.1]:5", true},
		{"192.0.2.1", "192.0.2.2", false},
		{"[2001:db8:1:2::1]:1", "2001:db8:1:2:ffff::9", true},
		{"2001:db8:1:2::1", "2001:db8:1:3::1", false},
		{"[fe80::1%eth0]:4", "fe80::1", true},
		{"", "pipe", true},
		{"", "192.0.2.1", false},
	} {
		now := now
		a := auth.NewAttempts(func() time.Time { return now })
		for !a.Over(tc.a) {
			a.Fail(tc.a)
		}
		if got := a.Over(tc.b); got != tc.one {
			t.Errorf("%q and %q count as one: %t, want %t", tc.a, tc.b, got, tc.one)
		}
	}
}

// A flood from very many addresses takes bounded memory, and does not free an
// address that is over its limit.
func TestAttemptsAreBounded(t *testing.T) {
	now := now
	a := auth.NewAttempts(func() time.Time { return now })
	const guilty = "192.0.2.1:1"
	for !a.Over(guilty) {
		a.Fail(guilty)
	}
	addr := netip.MustParseAddr("10.0.0.0")
	for range 100_000 {
		addr = addr.Next()
		a.Fail(addr.String())
	}
	if n := a.Remembered(); n > auth.MaxAddresses {
		t.Errorf("%d addresses are remembered, at most %d may be", n, auth.MaxAddresses)
	}
	if !a.Over(guilty) {
		t.Error("the flood has freed the address that was over its limit")
	}
	now = now.Add(time.Hour)
	for i := range 1000 {
		a.Fail(fmt.Sprintf("10.200.%d.%d", i>>8, i&255))
	}
	if n := a.Remembered(); n > auth.MaxAddresses*3/4 {
		t.Errorf("%d addresses are remembered an hour later", n)
	}
}
