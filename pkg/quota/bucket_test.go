package quota_test

import (
	"math/big"
	"testing"
	"time"

	"pgregory.net/rapid"

	"flexiq/pkg/quota"
)

var start = time.Date(2026, 3, 8, 6, 30, 0, 0, time.UTC)

func perSecond(n int64) quota.Rate { return quota.Rate{Count: n, Unit: quota.PerSecond} }
func perMinute(n int64) quota.Rate { return quota.Rate{Count: n, Unit: quota.PerMinute} }

// unit is a unit's length in microseconds.
func unit(u quota.Unit) int64 {
	return map[quota.Unit]int64{quota.PerSecond: 1e6, quota.PerMinute: 60e6, quota.PerHour: 3600e6}[u]
}

// TestBucket walks one bucket through a life: at each step time passes, the
// rate may change, and tokens are looked at and taken.
func TestBucket(t *testing.T) {
	t.Parallel()
	type step struct {
		pass   time.Duration
		rate   quota.Rate
		tokens int64 // expected before taking
		take   int64
	}
	tests := []struct {
		name  string
		steps []step
	}{
		{"full at the start", []step{{0, perSecond(5), 5, 5}, {0, perSecond(5), 0, 0}}},
		{"continuous refill", []step{{0, perSecond(5), 5, 5}, {199 * time.Millisecond, perSecond(5), 0, 0}, {time.Millisecond, perSecond(5), 1, 1}, {time.Second, perSecond(5), 5, 0}}},
		{"idle time gives one capacity", []step{{0, perSecond(5), 5, 5}, {10 * time.Minute, perSecond(5), 5, 5}, {time.Second, perSecond(5), 5, 0}}},
		{"a step back gains nothing", []step{{0, perSecond(5), 5, 5}, {-time.Hour, perSecond(5), 0, 0}, {400 * time.Millisecond, perSecond(5), 2, 0}}},
		{"a step forward gains one capacity", []step{{0, perSecond(5), 5, 5}, {time.Hour, perSecond(5), 5, 0}}},
		{"a raise adds the difference", []step{{0, perSecond(10), 10, 7}, {0, perSecond(200), 193, 0}}},
		{"a raise of an empty bucket", []step{{0, perSecond(10), 10, 10}, {0, perSecond(15), 5, 0}}},
		{"a cut clamps", []step{{0, perSecond(200), 200, 50}, {0, perSecond(10), 10, 0}}},
		{"a cut keeps less than the new capacity", []step{{0, perSecond(200), 200, 197}, {0, perSecond(10), 3, 0}}},
		{"the same count per another unit", []step{{0, perSecond(60), 60, 20}, {0, perMinute(60), 40, 0}, {time.Second, perMinute(60), 41, 0}}},
		{"time before a change counts at the old rate", []step{{0, perSecond(60), 60, 60}, {500 * time.Millisecond, perMinute(60), 30, 0}}},
		{"there and back", []step{{0, perSecond(10), 10, 10}, {0, perSecond(20), 10, 10}, {0, perSecond(10), 0, 0}, {0, perSecond(20), 10, 0}}},
		{"per hour", []step{{0, quota.Rate{Count: 1, Unit: quota.PerHour}, 1, 1}, {time.Hour - time.Microsecond, quota.Rate{Count: 1, Unit: quota.PerHour}, 0, 0}, {time.Microsecond, quota.Rate{Count: 1, Unit: quota.PerHour}, 1, 0}}},
		{"the largest", []step{{0, quota.Rate{Count: quota.MaxRateCount, Unit: quota.PerHour}, quota.MaxRateCount, quota.MaxRateCount}, {1e6 * time.Hour, quota.Rate{Count: quota.MaxRateCount, Unit: quota.PerHour}, quota.MaxRateCount, 1}, {0, perSecond(quota.MaxRateCount), quota.MaxRateCount - 1, 0}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var b quota.Bucket
			now := start
			for i, s := range tt.steps {
				now = now.Add(s.pass)
				b = b.Refill(s.rate, now)
				if got := b.Tokens(); got != s.tokens {
					t.Fatalf("step %d: %d tokens, want %d", i, got, s.tokens)
				}
				b = b.Take(s.take)
			}
		})
	}
}

func TestZeroBucketHasNoTokens(t *testing.T) {
	t.Parallel()
	if n := (quota.Bucket{}).Tokens(); n != 0 {
		t.Errorf("a bucket that was never used holds %d tokens", n)
	}
}

// fraction is the same bucket in exact arithmetic.
type fraction struct {
	rate   quota.Rate
	tokens *big.Rat
	at     int64
}

func (f *fraction) refill(rate quota.Rate, now time.Time) {
	at := now.UnixMicro()
	if f.tokens == nil {
		f.rate, f.tokens, f.at = rate, big.NewRat(rate.Count, 1), at
		return
	}
	if at > f.at {
		gain := big.NewRat(at-f.at, unit(f.rate.Unit))
		f.tokens.Add(f.tokens, gain.Mul(gain, big.NewRat(f.rate.Count, 1)))
	}
	f.clamp(f.rate.Count)
	f.at = at
	if rate == f.rate {
		return
	}
	if rate.Count > f.rate.Count {
		f.tokens.Add(f.tokens, big.NewRat(rate.Count-f.rate.Count, 1))
	}
	f.clamp(rate.Count)
	// What is kept is whole token-microseconds of the new unit.
	level := new(big.Rat).Mul(f.tokens, big.NewRat(unit(rate.Unit), 1))
	f.tokens = new(big.Rat).SetFrac(new(big.Int).Div(level.Num(), level.Denom()), big.NewInt(unit(rate.Unit)))
	f.rate = rate
}

func (f *fraction) clamp(most int64) {
	if m := big.NewRat(most, 1); f.tokens.Cmp(m) > 0 {
		f.tokens.Set(m)
	}
}

func genRate(t *rapid.T, label string) quota.Rate {
	return quota.Rate{
		Count: rapid.OneOf(rapid.Int64Range(1, 10), rapid.Int64Range(1, quota.MaxRateCount), rapid.Just[int64](quota.MaxRateCount)).Draw(t, label),
		Unit:  rapid.SampledFrom([]quota.Unit{quota.PerSecond, quota.PerMinute, quota.PerHour}).Draw(t, label+" unit"),
	}
}

func genPass(t *rapid.T) time.Duration {
	micros := rapid.OneOf(rapid.Int64Range(0, 1000), rapid.Int64Range(0, 7_200_000_000), rapid.Int64Range(-7_200_000_000, 0), rapid.Just[int64](1e15))
	return time.Duration(micros.Draw(t, "µs that pass")) * time.Microsecond
}

// TestBucketIsExact compares the bucket with fractions, over any order of
// time, rate changes and takes.
func TestBucketIsExact(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var b quota.Bucket
		var f fraction
		now, rate := start, genRate(t, "rate")
		for range rapid.IntRange(1, 20).Draw(t, "steps") {
			now = now.Add(genPass(t))
			if rapid.IntRange(0, 3).Draw(t, "change") == 0 {
				rate = genRate(t, "new rate")
			}
			b = b.Refill(rate, now)
			f.refill(rate, now)
			if got := big.NewRat(b.Level, unit(rate.Unit)); got.Cmp(f.tokens) != 0 {
				t.Fatalf("%s tokens under %s, want %s", got.RatString(), rate, f.tokens.RatString())
			}
			if n := b.Tokens(); n < 0 || n > rate.Count {
				t.Fatalf("%d tokens in a bucket of %d", n, rate.Count)
			}
			n := rapid.Int64Range(0, b.Tokens()).Draw(t, "take")
			b = b.Take(n)
			f.tokens.Sub(f.tokens, big.NewRat(n, 1))
		}
	})
}

// TestRefillProperties: monotone in time, the same in one step as in many,
// nothing from a step back, and a change of the rate by its rule.
func TestRefillProperties(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		rate := genRate(t, "rate")
		b := quota.Bucket{}.Refill(rate, start)
		b = b.Take(rapid.Int64Range(0, b.Tokens()).Draw(t, "taken"))
		first := time.Duration(rapid.Int64Range(0, 1e10).Draw(t, "first")) * time.Microsecond
		second := time.Duration(rapid.Int64Range(0, 1e10).Draw(t, "second")) * time.Microsecond
		one := b.Refill(rate, start.Add(first))
		two := one.Refill(rate, start.Add(first+second))
		if one.Level < b.Level || two.Level < one.Level {
			t.Fatalf("time took tokens away: %d, %d, %d", b.Level, one.Level, two.Level)
		}
		if at := b.Refill(rate, start.Add(first+second)); at != two {
			t.Fatalf("in one step %+v, in two %+v", at, two)
		}
		if back := b.Refill(rate, start.Add(-first)); back.Level != b.Level {
			t.Fatalf("a step back by %s changed %d to %d", first, b.Level, back.Level)
		}
		other := genRate(t, "other rate")
		changed := b.Refill(other, start)
		want := b.Tokens()
		if other.Count > rate.Count {
			want += other.Count - rate.Count
		}
		if got := changed.Tokens(); got != min(want, other.Count) {
			t.Fatalf("%d tokens of %s became %d of %s, want %d", b.Tokens(), rate, got, other, min(want, other.Count))
		}
		if again := changed.Refill(other, start); again != changed {
			t.Fatalf("the change acted twice: %+v, %+v", changed, again)
		}
	})
}

// TestRateBound: however calls are spaced, no window admits more than the
// capacity and what arrived in it.
func TestRateBound(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		rate := quota.Rate{Count: rapid.Int64Range(1, 50).Draw(t, "count"), Unit: quota.PerSecond}
		var b quota.Bucket
		admitted, passed := int64(0), time.Duration(0)
		for range rapid.IntRange(1, 60).Draw(t, "calls") {
			passed += time.Duration(rapid.Int64Range(0, 300_000).Draw(t, "µs")) * time.Microsecond
			b = b.Refill(rate, start.Add(passed))
			n := rapid.Int64Range(1, 5).Draw(t, "jobs")
			if n <= b.Tokens() {
				b = b.Take(n)
				admitted += n
			}
			if most := rate.Count + rate.Count*passed.Microseconds()/1e6; admitted > most {
				t.Fatalf("%d admitted in %s at %s, at most %d are lawful", admitted, passed, rate, most)
			}
		}
	})
}

func TestBucketOf(t *testing.T) {
	rate := quota.Rate{Count: quota.MaxRateCount, Unit: quota.PerHour}
	full := quota.Bucket{}.Refill(rate, time.UnixMicro(7))
	if got := quota.BucketOf(rate, quota.MaxRateCount, 0, 7); got != full {
		t.Errorf("a full bucket is %+v, want %+v", got, full)
	}
	if got := quota.BucketOf(rate, 3, 42, 7); got.Tokens() != 3 || got.Level != 3*3_600_000_000+42 {
		t.Errorf("got %+v", got)
	}
	if got := quota.BucketOf(quota.Rate{}, 3, 42, 7); got != (quota.Bucket{}) {
		t.Errorf("a bucket without a rate is %+v", got)
	}
}
