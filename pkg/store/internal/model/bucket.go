package model

import (
	"math/big"
	"time"

	"flexiq/pkg/quota"
)

// bucket is a token bucket as a fraction.
type bucket struct {
	rate   quota.Rate
	tokens *big.Rat
	at     int64 // microseconds
}

// length is a unit in microseconds.
func length(u quota.Unit) int64 {
	return map[quota.Unit]int64{quota.PerSecond: 1e6, quota.PerMinute: 60e6, quota.PerHour: 3600e6}[u]
}

func bucketOf(b quota.Bucket) bucket {
	if b.Rate.Count == 0 {
		return bucket{tokens: new(big.Rat)}
	}
	return bucket{rate: b.Rate, tokens: big.NewRat(b.Level, length(b.Rate.Unit)), at: b.At}
}

// stored is the bucket in the form of package quota.
func (b bucket) stored() quota.Bucket {
	if b.rate.Count == 0 {
		return quota.Bucket{}
	}
	level := new(big.Rat).Mul(b.tokens, big.NewRat(length(b.rate.Unit), 1))
	return quota.Bucket{Rate: b.rate, Level: floor(level), At: b.at}
}

// under is the bucket at now under a rate.
func (b bucket) under(rate quota.Rate, now time.Time) bucket {
	at := now.UnixMicro()
	if b.rate.Count == 0 {
		return bucket{rate: rate, tokens: big.NewRat(rate.Count, 1), at: at}
	}
	tokens := new(big.Rat).Set(b.tokens)
	if at > b.at {
		tokens.Add(tokens, big.NewRat(at-b.at, 1).Mul(big.NewRat(at-b.at, 1), big.NewRat(b.rate.Count, length(b.rate.Unit))))
	}
	tokens = least(tokens, b.rate.Count)
	if rate.Count > b.rate.Count {
		tokens.Add(tokens, big.NewRat(rate.Count-b.rate.Count, 1))
	}
	out := bucket{rate: rate, tokens: least(tokens, rate.Count), at: at}
	if rate.Unit != b.rate.Unit { // what is stored is whole parts of a token
		out = bucketOf(out.stored())
	}
	return out
}

func least(r *big.Rat, most int64) *big.Rat {
	if m := big.NewRat(most, 1); r.Cmp(m) > 0 {
		return m
	}
	return r
}

func floor(r *big.Rat) int64 { return new(big.Int).Div(r.Num(), r.Denom()).Int64() }

func (b bucket) whole() int64 { return floor(b.tokens) }

func (b *bucket) take(n int64) { b.tokens = new(big.Rat).Sub(b.tokens, big.NewRat(n, 1)) }

// millisUntil is when the bucket holds n tokens, in whole milliseconds from
// now, rounded up as the microseconds before are.
func (b bucket) millisUntil(n int64) int64 {
	missing := new(big.Rat).Sub(big.NewRat(n, 1), b.tokens)
	micros := missing.Mul(missing, big.NewRat(length(b.rate.Unit), b.rate.Count))
	return ceil(new(big.Rat).SetFrac64(ceil(micros), 1000))
}

func ceil(r *big.Rat) int64 { return -floor(new(big.Rat).Neg(r)) }
