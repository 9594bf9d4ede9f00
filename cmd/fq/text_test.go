package main

import (
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"flexiq/pkg/client"
)

func TestCleanEscapesWhatTerminalsObey(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"plain Ünïcode 日本": "plain Ünïcode 日本",
		"a\nb\tc":          `a\nb\tc`,
		"\x1b[31m\x07":     `\x1b[31m\a`,
		"\u009b1m":         `\u009b1m`,
		"a\u202eb\u200bc":  `a\u202eb\u200bc`,
		"bad \xff\xc3":     `bad \xff\xc3`,
		"it's \"quoted\"":  `it's "quoted"`,
		"replaced \ufffd":  "replaced \ufffd",
		"":                 "",
	} {
		if got := clean(in); got != want {
			t.Errorf("clean(%q) = %q, want %q", in, got, want)
		}
	}
}

func FuzzClean(f *testing.F) {
	f.Add("a\x1b\xff\u202e")
	f.Fuzz(func(t *testing.T, s string) {
		got := clean(s)
		if strings.ContainsFunc(got, unsafe) {
			t.Errorf("clean(%q) = %q", s, got)
		}
		if clean(got) != got {
			t.Errorf("clean(%q) is not stable", s)
		}
	})
}

func TestTablesAreAligned(t *testing.T) {
	t.Parallel()
	var tab table
	tab.row("NAME", "N", "LAST")
	tab.row("日本", 10, "x")
	tab.row("a\nb", 5, "")
	var b strings.Builder
	if err := tab.write(&b); err != nil {
		t.Fatal(err)
	}
	want := "NAME  N   LAST\n日本    10  x\na\\nb  5   \n"
	if b.String() != want {
		t.Errorf("got\n%s\nwant\n%s", b.String(), want)
	}
}

func TestHeadIsOneShortLine(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"": "-", "short": "short", "two\nlines": "two …", "ends\n": "ends",
		strings.Repeat("é", 61): strings.Repeat("é", 59) + "…",
		strings.Repeat("é", 60): strings.Repeat("é", 60),
	} {
		if got := head(in); got != want {
			t.Errorf("head(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestBuffersKeepTheirEnds(t *testing.T) {
	t.Parallel()
	var h headBuffer
	var tail tailBuffer
	for _, w := range []io.Writer{&h, &tail} {
		for range 100 {
			if n, err := w.Write([]byte(strings.Repeat("x", 999) + "y")); n != 1000 || err != nil {
				t.Fatal(n, err)
			}
		}
		if n, err := w.Write([]byte(strings.Repeat("z", 5000) + "\n\n")); n != 5002 || err != nil {
			t.Fatal(n, err)
		}
	}
	if len(h.bytes) != 64<<10 || strings.ContainsAny(string(h.bytes), "z\n") {
		t.Errorf("the head is %d bytes", len(h.bytes))
	}
	if got := tail.or(nil); got != strings.Repeat("z", 4094) {
		t.Errorf("the tail is %q", got)
	}
	if got := new(tailBuffer).or(errors.New("exit status 3")); got != "exit status 3" {
		t.Errorf("nothing was written: %q", got)
	}
}

func TestEachLineIsAJob(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("l", 100_000)
	for in, want := range map[string][]string{
		"":                    nil,
		"\n":                  {""},
		"a":                   {"a"},
		"a\r\n\n b \n":        {"a\r", "", " b "},
		"\x00\xff\n" + long:   {"\x00\xff", long},
		"a\nb\n":              {"a", "b"},
		long + "\n" + "x\n":   {long, "x"},
		"no end\nof the line": {"no end", "of the line"},
	} {
		next := eachLine(strings.NewReader(in), client.Job{Task: "t"})
		var got []string
		for {
			j, err := next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil || j.Task != "t" || j.Payload == nil {
				t.Fatalf("%.20q: %+v %v", in, j, err)
			}
			got = append(got, string(j.Payload))
		}
		if strings.Join(got, "|") != strings.Join(want, "|") || len(got) != len(want) {
			t.Errorf("%.20q: %d lines, want %d", in, len(got), len(want))
		}
	}
	broken := eachLine(io.MultiReader(strings.NewReader("a\nb"), failing{}), client.Job{})
	if _, err := broken(); err != nil {
		t.Fatal(err)
	}
	if _, err := broken(); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("a broken source: %v", err)
	}
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errors.New("the disk is on fire") }

func TestTheBarShowsHowFarItIs(t *testing.T) {
	t.Parallel()
	got := bar(tally{admitted: 40, rejected: 10}, 100, 5*time.Second)
	if got != "[===============               ]  50% 50 jobs, 10/s, 10 rejected, 0 shed" {
		t.Errorf("got %q", got)
	}
	if got := bar(tally{}, 0, 0); got != "0 jobs, 0/s, 0 rejected, 0 shed" {
		t.Errorf("got %q", got)
	}
}

func TestASteadyTableKeepsItsColumns(t *testing.T) {
	var out strings.Builder
	steady := table{steady: true}
	steady.row("ID", "QUEUE", "ERROR")
	steady.row("1", "a-long-queue", "x")
	if err := steady.write(&out); err != nil {
		t.Fatal(err)
	}
	steady.row("2", "q", "y")
	if err := steady.write(&out); err != nil {
		t.Fatal(err)
	}
	want := "ID  QUEUE         ERROR\n1   a-long-queue  x\n2   q             y\n"
	if out.String() != want {
		t.Errorf("two pages of one table:\n%s\nwant\n%s", &out, want)
	}
}
