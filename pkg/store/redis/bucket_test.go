package redis

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"flexiq/pkg/quota"
)

// TestBucketIsExact compares the bucket in Lua, whose numbers are doubles, with
// package quota's for all legal rates.
func TestBucketIsExact(t *testing.T) {
	s := open(t, Options{})
	refill := scriptOf(source("base", "bucket") + `
		local b = { count = number(), unit = number(), tokens = number(), part = number(), at = number() }
		local r = refill(b, number(), number())
		return { r.count, r.unit, r.tokens, r.part, r.at }`)
	rates := rapid.Custom(func(t *rapid.T) quota.Rate {
		return quota.Rate{
			Count: rapid.OneOf(rapid.Int64Range(1, quota.MaxRateCount), rapid.SampledFrom([]int64{1, 7, 999_999_937, quota.MaxRateCount})).Draw(t, "count"),
			Unit:  rapid.SampledFrom([]quota.Unit{quota.PerSecond, quota.PerMinute, quota.PerHour}).Draw(t, "unit"),
		}
	})
	lengths := map[quota.Unit]int64{quota.PerSecond: 1e6, quota.PerMinute: 60e6, quota.PerHour: 3600e6}
	rapid.Check(t, func(t *rapid.T) {
		old, rate := rates.Draw(t, "old"), rates.Draw(t, "new")
		if rapid.IntRange(0, 2).Draw(t, "same") == 0 {
			rate = old
		}
		tokens := rapid.Int64Range(0, old.Count).Draw(t, "tokens")
		part := int64(0)
		if tokens < old.Count {
			part = rapid.Int64Range(0, lengths[old.Unit]-1).Draw(t, "part")
		}
		at := rapid.Int64Range(1.7e15, 1.9e15).Draw(t, "at")
		now := at + rapid.OneOf(rapid.Int64Range(-10, 10), rapid.Int64Range(0, 4e9), rapid.Int64Range(-4e9, 9e12)).Draw(t, "elapsed")
		want := quota.BucketOf(old, tokens, part, at).Refill(rate, time.UnixMicro(now))
		s.now = func() time.Time { return time.UnixMicro(now) }
		c := s.on(installation, refill, old.Count, int(old.Unit), tokens, part, at, rate.Count, int(rate.Unit))
		if err := s.run(t.Context(), again, c); err != nil {
			t.Fatal(err)
		}
		if got := readBucket(c.list()); got != want {
			t.Fatalf("got %+v, want %+v", got, want)
		}
	})
}
