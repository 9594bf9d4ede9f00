package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// entrant is one side of a scenario.
type entrant struct {
	name    string
	prepare func(ctx context.Context) error // before each round, unmeasured; nil: nothing
	round   func(ctx context.Context) (float64, error)
	note    func() string // what else the last round tells; nil: nothing
}

// scenario is one comparison with its goal.
type scenario struct {
	id, title, unit string
	lower           bool    // less is better
	bar             float64 // the ratio ours/peer that is asked for
	ours, peer      entrant
	rounds          int
}

// board collects the results of a row.
type board struct {
	row     string
	results []result
	log     func(format string, args ...any)
}

// result is the outcome of one scenario, as it is reported.
type result struct {
	ID         string   `json:"id"`
	Title      string   `json:"title"`
	Unit       string   `json:"unit,omitempty"`
	Better     string   `json:"better,omitempty"` // "higher" or "lower"
	Entrants   string   `json:"entrants,omitempty"`
	Ours       float64  `json:"ours"`
	OursRange  spread   `json:"ours_spread"`
	Peer       *float64 `json:"peer"` // null: the bar is an absolute one
	PeerRange  *spread  `json:"peer_spread,omitempty"`
	Ratio      *float64 `json:"ratio"`
	RatioRange *spread  `json:"ratio_spread,omitempty"` // of the rounds, pair by pair
	Bar        *float64 `json:"bar"`                    // of the ratio, or of ours without a peer; null: for information
	Pass       bool     `json:"pass"`
	Rounds     int      `json:"rounds"`
	Notes      []string `json:"notes,omitempty"`
	Error      string   `json:"error,omitempty"`
	Time       string   `json:"time,omitempty"`   // of the run that measured it
	Commit     string   `json:"commit,omitempty"` // that it measured
}

// spread is the least and the greatest of the rounds.
type spread struct {
	Min float64 `json:"min"`
	Max float64 `json:"max"`
}

// compare runs the rounds of a scenario. The entrants take turns, and so does
// who begins.
func (b *board) compare(ctx context.Context, s scenario) (result, error) {
	var ours, peer []float64
	var notes []string
	for i := range s.rounds {
		turn := []*entrant{&s.ours, &s.peer}
		if i%2 == 1 {
			slices.Reverse(turn)
		}
		for _, who := range turn {
			v, note, err := who.measure(ctx)
			if err != nil {
				return result{}, fmt.Errorf("%s, %s: %w", s.id, who.name, err)
			}
			b.log("  %-14s %-22s %12s %s  %s", s.id, who.name, figure(v), s.unit, note)
			if who == &s.ours {
				ours = append(ours, v)
			} else {
				peer = append(peer, v)
			}
			if note != "" && i == s.rounds-1 {
				notes = append(notes, who.name+": "+note)
			}
		}
	}
	r := judge(s, ours, peer)
	r.Notes = notes
	b.results = append(b.results, r)
	return r, nil
}

// alone runs the rounds of an entrant that has no peer. A bar of NaN is none.
func (b *board) alone(ctx context.Context, s scenario) (result, error) {
	var all []float64
	r := result{ID: s.id, Title: s.title, Unit: s.unit, Better: better(s.lower), Entrants: s.ours.name, Rounds: s.rounds}
	for range s.rounds {
		v, note, err := s.ours.measure(ctx)
		if err != nil {
			return result{}, fmt.Errorf("%s, %s: %w", s.id, s.ours.name, err)
		}
		b.log("  %-14s %-22s %12s %s  %s", s.id, s.ours.name, figure(v), s.unit, note)
		all = append(all, v)
		if note != "" {
			r.Notes = []string{note}
		}
	}
	r.Ours, r.OursRange = median(all), spreadOf(all)
	r.Pass = math.IsNaN(s.bar) || reaches(r.Ours, s.bar, s.lower)
	if !math.IsNaN(s.bar) {
		r.Bar = &s.bar
	}
	b.results = append(b.results, r)
	return r, nil
}

func (w *entrant) measure(ctx context.Context) (float64, string, error) {
	if w.prepare != nil {
		if err := w.prepare(ctx); err != nil {
			return 0, "", fmt.Errorf("prepare: %w", err)
		}
	}
	v, err := w.round(ctx)
	if err != nil || w.note == nil {
		return v, "", err
	}
	return v, w.note(), nil
}

// judge makes the result of the rounds of both sides.
func judge(s scenario, ours, peer []float64) result {
	r := result{
		ID: s.id, Title: s.title, Unit: s.unit, Better: better(s.lower), Entrants: s.ours.name + " / " + s.peer.name, Rounds: len(ours),
		Ours: median(ours), OursRange: spreadOf(ours),
	}
	p, pr := median(peer), spreadOf(peer)
	ratio := r.Ours / p
	pairs := make([]float64, len(ours))
	for i := range ours {
		pairs[i] = ours[i] / peer[i]
	}
	rr := spreadOf(pairs)
	r.Peer, r.PeerRange, r.Ratio, r.RatioRange = &p, &pr, &ratio, &rr
	if math.IsNaN(s.bar) {
		r.Pass = true
		return r
	}
	r.Bar, r.Pass = &s.bar, reaches(ratio, s.bar, s.lower)
	return r
}

func reaches(v, bar float64, lower bool) bool {
	if lower {
		return v <= bar
	}
	return v >= bar
}

func better(lower bool) string {
	if lower {
		return "lower"
	}
	return "higher"
}

// none is the bar of a scenario that is only told.
var none = math.NaN()

func median(v []float64) float64 {
	if len(v) == 0 {
		return math.NaN()
	}
	s := slices.Sorted(slices.Values(v))
	if n := len(s); n%2 == 0 {
		return (s[n/2-1] + s[n/2]) / 2
	}
	return s[len(s)/2]
}

func spreadOf(v []float64) spread { return spread{Min: slices.Min(v), Max: slices.Max(v)} }

// percentile is the value that the share p of all do not exceed.
func percentile(v []float64, p float64) float64 {
	if len(v) == 0 {
		return math.NaN()
	}
	s := slices.Sorted(slices.Values(v))
	return s[min(len(s)-1, int(math.Ceil(p*float64(len(s))))-1)]
}

// figure writes a number with as many digits as it deserves.
func figure(v float64) string {
	switch a := math.Abs(v); {
	case a >= 100:
		s := fmt.Sprintf("%.0f", v)
		for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
			s = s[:i] + " " + s[i:]
		}
		return s
	case a >= 10:
		return fmt.Sprintf("%.1f", v)
	default:
		return strings.TrimSuffix(fmt.Sprintf("%.2f", v), ".00")
	}
}

// warmUp comes before the measured part of a load, and is never longer than it.
const warmUp = time.Second

// load makes calls from many goroutines for a while and returns how many jobs a
// second they made, leaving out the warm-up. begin is called when the measured
// part begins.
func load(ctx context.Context, callers int, length time.Duration, begin func(), call func(ctx context.Context, caller int) (int, error)) (float64, int64, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, warmUp+length+20*time.Second, errors.New("calls hang"))
	defer cancel()
	var done atomic.Int64
	var over atomic.Bool
	errs := make(chan error, callers)
	var all sync.WaitGroup
	for i := range callers {
		all.Go(func() {
			for !over.Load() {
				n, err := call(ctx, i)
				if err != nil {
					errs <- err
					over.Store(true)
					return
				}
				done.Add(int64(n))
			}
		})
	}
	pause(ctx, min(warmUp, length), &over)
	if begin != nil {
		begin()
	}
	start, before := time.Now(), done.Load()
	pause(ctx, length, &over)
	n, took := done.Load()-before, time.Since(start)
	over.Store(true)
	all.Wait()
	select {
	case err := <-errs:
		return 0, 0, err
	default:
	}
	return float64(n) / took.Seconds(), n, context.Cause(ctx)
}

// pause waits, unless the load is over before.
func pause(ctx context.Context, d time.Duration, over *atomic.Bool) {
	for end := time.Now().Add(d); time.Now().Before(end) && !over.Load() && ctx.Err() == nil; {
		time.Sleep(min(20*time.Millisecond, time.Until(end)))
	}
}
