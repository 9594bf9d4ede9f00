package main

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestMedianAndPercentile(t *testing.T) {
	if got := median([]float64{3, 1, 2}); got != 2 {
		t.Errorf("median of three = %v", got)
	}
	if got := median([]float64{4, 1, 2, 3}); got != 2.5 {
		t.Errorf("median of four = %v", got)
	}
	hundred := make([]float64, 100)
	for i := range hundred {
		hundred[i] = float64(100 - i)
	}
	for p, want := range map[float64]float64{0.5: 50, 0.99: 99, 1: 100} {
		if got := percentile(hundred, p); got != want {
			t.Errorf("percentile %v = %v, want %v", p, got, want)
		}
	}
	if !math.IsNaN(median(nil)) || !math.IsNaN(percentile(nil, 0.5)) {
		t.Error("of nothing there is neither")
	}
}

func TestFigure(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 0.456: "0.46", 2: "2", 12.34: "12.3", 999: "999", 1234: "1 234", 1234567: "1 234 567", -4321: "-4 321"} {
		if got := figure(v); got != want {
			t.Errorf("figure(%v) = %q, want %q", v, got, want)
		}
	}
}

func TestChoose(t *testing.T) {
	all := []row{{id: "long", limit: 2 * longRow}, {id: "A", quick: true}, {id: "B"}}
	for _, c := range []struct {
		ids   string
		quick bool
		want  string
	}{{"", false, "A B long"}, {"", true, "A"}, {"b", true, "B"}, {"B, A", false, "B A"}} {
		got, err := choose(all, c.ids, c.quick)
		if err != nil {
			t.Fatal(err)
		}
		var ids []string
		for _, r := range got {
			ids = append(ids, r.id)
		}
		if s := strings.Join(ids, " "); s != c.want {
			t.Errorf("choose(%q, %v) = %q, want %q", c.ids, c.quick, s, c.want)
		}
	}
	if _, err := choose(all, "A,C", false); err == nil {
		t.Error("an unknown row was accepted")
	}
}

// constant is an entrant whose rounds give figures in turn.
func constant(name string, turns *[]string, figures ...float64) entrant {
	i := 0
	return entrant{name: name, round: func(context.Context) (float64, error) {
		*turns = append(*turns, name)
		i++
		return figures[i-1], nil
	}}
}

func newBoard() *board { return &board{log: func(string, ...any) {}} }

func TestCompareTakesTurnsAndJudgesTheMedians(t *testing.T) {
	var turns []string
	b := newBoard()
	r, err := b.compare(t.Context(), scenario{
		id: "X", bar: 2, rounds: 3,
		ours: constant("ours", &turns, 100, 300, 200), peer: constant("peer", &turns, 90, 100, 50),
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(turns, " "); got != "ours peer peer ours ours peer" {
		t.Errorf("turns: %s", got)
	}
	if r.Ours != 200 || *r.Peer != 90 || r.Pass != true || r.OursRange != (spread{100, 300}) || *r.PeerRange != (spread{50, 100}) {
		t.Errorf("result: %+v", r)
	}
	if rr := *r.RatioRange; rr.Max != 4 || rr.Min >= 1.2 {
		t.Errorf("spread of the ratio: %+v", rr)
	}
}

func TestLessIsBetterWhereTheScenarioSaysSo(t *testing.T) {
	var turns []string
	s := scenario{lower: true, bar: 1, ours: constant("ours", &turns), peer: constant("peer", &turns)}
	if r := judge(s, []float64{2}, []float64{4}); !r.Pass {
		t.Errorf("half the latency does not pass: %+v", r)
	}
	if r := judge(s, []float64{4}, []float64{2}); r.Pass || r.verdict() != "GAP 2x" {
		t.Errorf("twice the latency passes: %+v, %s", r, r.verdict())
	}
}

func TestARowThatFailsIsReportedAndStopsNoOther(t *testing.T) {
	var undone atomic.Bool
	ran := func(ctx context.Context, e *env, b *board) error {
		var turns []string
		_, err := b.alone(ctx, scenario{id: "good", bar: none, rounds: 1, ours: constant("ours", &turns, 1)})
		return err
	}
	e := &env{log: func(string, ...any) {}}
	results := e.runRows(t.Context(), []row{
		{id: "bad", limit: time.Minute, run: func(_ context.Context, e *env, _ *board) error {
			e.later(func() error { undone.Store(true); return nil })
			return errors.New("no server")
		}},
		{id: "panics", limit: time.Minute, run: func(context.Context, *env, *board) error { panic("out of ideas") }},
		{id: "good", limit: time.Minute, run: ran},
	})
	if len(results) != 3 || results[0].Error != "no server" || !strings.Contains(results[1].Error, "out of ideas") || results[2].Error != "" {
		t.Fatalf("results: %+v", results)
	}
	if !undone.Load() {
		t.Error("what the failed row had opened is still open")
	}
	if err := failures(results); err == nil || err.Error() != "not measured: bad, panics" {
		t.Errorf("failures: %v", err)
	}
	var table bytes.Buffer
	writeTable(&table, results)
	for _, want := range []string{"ERROR", "no server", "told"} {
		if !strings.Contains(table.String(), want) {
			t.Errorf("the table lacks %q:\n%s", want, table.String())
		}
	}
}

func TestARowThatHangsIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &env{log: func(string, ...any) {}}
		hung := make(chan struct{})
		results := e.runRows(t.Context(), []row{{id: "slow", limit: time.Second, run: func(context.Context, *env, *board) error {
			<-hung
			return nil
		}}})
		close(hung)
		if len(results) != 1 || !strings.Contains(results[0].Error, "did not end") {
			t.Errorf("results: %+v", results)
		}
	})
}

func TestLoadCountsTheMeasuredPartOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := false
		rate, jobs, err := load(t.Context(), 4, 2*time.Second, func() { began = true }, func(context.Context, int) (int, error) {
			time.Sleep(10 * time.Millisecond) // of the test's own clock
			return 3, nil
		})
		if err != nil || !began {
			t.Fatal(began, err)
		}
		if math.Abs(rate-1200) > 30 || math.Abs(float64(jobs)-2400) > 60 {
			t.Errorf("4 callers with 3 jobs every 10 ms: %v a second, %d in all", rate, jobs)
		}
	})
}

func TestLoadEndsWithTheFirstError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		_, _, err := load(t.Context(), 4, time.Hour, nil, func(context.Context, int) (int, error) { return 0, errors.New("refused") })
		if err == nil || time.Since(start) > time.Minute {
			t.Errorf("after %s: %v", time.Since(start), err)
		}
	})
}

func TestReportIsWritten(t *testing.T) {
	var turns []string
	b := newBoard()
	if _, err := b.compare(t.Context(), scenario{
		id: "X", title: "a <scenario> & more", unit: "jobs/s", bar: 5, rounds: 1,
		ours: constant("ours", &turns, 100), peer: constant("peer", &turns, 50),
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := b.alone(t.Context(), scenario{id: "Y", bar: 80, lower: true, rounds: 1, ours: constant("ours", &turns, 60)}); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "results")
	if err := newReport(t.Context(), options{source: ".."}, b.results).write(dir); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(filepath.Join(dir, "latest.json"))
	if err != nil {
		t.Fatal(err)
	}
	var got struct{ Results []map[string]any }
	if err := json.Unmarshal(raw, &got); err != nil {
		t.Fatal(err)
	}
	first, second := got.Results[0], got.Results[1]
	if first["id"] != "X" || first["ours"] != 100.0 || first["peer"] != 50.0 || first["ratio"] != 2.0 || first["bar"] != 5.0 || first["pass"] != false {
		t.Errorf("first: %v", first)
	}
	if second["peer"] != nil || second["ratio"] != nil || second["bar"] != 80.0 || second["pass"] != true {
		t.Errorf("second: %v", second)
	}
	svg, err := os.ReadFile(filepath.Join(dir, "latest.svg"))
	if err != nil {
		t.Fatal(err)
	}
	for d := xml.NewDecoder(bytes.NewReader(svg)); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("the chart is not XML: %v", err)
		}
	}
	table, err := os.ReadFile(filepath.Join(dir, "latest.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"| X | a <scenario> & more | 100 (100 to 100) jobs/s | 50.0 (50.0 to 50.0) | 2 | ≥ 5 | GAP 2.50x |", "| Y |"} {
		if !strings.Contains(string(table), want) {
			t.Errorf("the table lacks %q:\n%s", want, table)
		}
	}
	if !strings.Contains(string(svg), "a &lt;scenario&gt; &amp; more") {
		t.Error("the chart does not name the scenario")
	}
}

// Every entrant that needs no server of its own works, in both roles.
func TestBothSidesOnSQLite(t *testing.T) {
	e, err := newEnv(t.Context(), options{source: "..", dir: t.TempDir(), length: 100 * time.Millisecond, jobs: 1000})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := e.close(); err != nil {
			t.Error(err)
		}
	}()
	chosen, err := choose(rows, "B6", false)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range e.runRows(t.Context(), chosen) {
		if r.Error != "" || r.Ours <= 0 || r.Peer == nil || *r.Peer <= 0 || r.Rounds != 3 {
			t.Errorf("%s: %+v", r.ID, r)
		}
	}
	left, err := filepath.Glob(filepath.Join(e.dir, "flexiqd-*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
}

// TestSomeRowsKeepTheOthers measures one row anew beside a report of two.
func TestSomeRowsKeepTheOthers(t *testing.T) {
	dir := t.TempDir()
	m := machine{OS: "os", Cores: 2}
	write := func(at time.Time, commit string, measured []row, results ...result) report {
		r := report{Time: at, Commit: commit, Machine: m, Results: results}
		if err := errors.Join(r.keep(dir, measured), r.write(dir)); err != nil {
			t.Fatal(err)
		}
		return r
	}
	first := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	write(first, "old", rows[:2], result{ID: "B1", Ours: 1}, result{ID: "B2.1", Ours: 2}, result{ID: "B2.4", Ours: 3})
	r := write(first.Add(time.Hour), "new", rows[:1], result{ID: "B1", Ours: 4})
	var got []string
	for _, x := range r.Results {
		got = append(got, x.ID+" "+x.Commit+" "+figure(x.Ours))
	}
	if want := "B1 new 4, B2.1 old 2, B2.4 old 3"; strings.Join(got, ", ") != want {
		t.Errorf("results %q, want %q", got, want)
	}
	if text := markdown(r); !strings.Contains(text, "B2 was measured at 2026-01-02T03:04:05Z from commit old.") || strings.Contains(text, "B1 was measured") {
		t.Errorf("the table does not tell which rows are older:\n%s", text)
	}
	m.Cores = 64
	if r := write(first, "other", rows[:1], result{ID: "B1"}); len(r.Results) != 1 {
		t.Errorf("figures of another machine were kept: %v", r.Results)
	}
}
