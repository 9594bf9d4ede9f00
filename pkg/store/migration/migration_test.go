package migration

import (
	"strings"
	"testing"
	"testing/fstest"
)

const head = "-- Reason: it must be\n-- tested.\n--\n-- oldest program: 1\n"

func files(texts map[string]string) fstest.MapFS {
	out := fstest.MapFS{}
	for name, text := range texts {
		out["m/"+name] = &fstest.MapFile{Data: []byte(text)}
	}
	return out
}

func TestLoad(t *testing.T) {
	steps, err := Load(files(map[string]string{
		"0001_initial.sql": head + "create", "0002_more.sql": head + "alter", "0002_more.down.sql": "undo",
	}), "m")
	if err != nil {
		t.Fatal(err)
	}
	want := Step{Version: 2, Name: "more", Reason: "it must be tested.", Oldest: 1, SQL: head + "alter", Down: "undo"}
	if len(steps) != 2 || steps[1] != want || steps[0].Down != "" {
		t.Errorf("got %+v, want the second to be %+v", steps, want)
	}
}

func TestLoadRefuses(t *testing.T) {
	for want, texts := range map[string]map[string]string{
		"the number must be 0002":             {"0001_a.sql": head, "0003_b.sql": head},
		"the number must be 0001":             {"0002_a.sql": head},
		"the name must be like":               {"1_a.sql": head},
		"no step of this name":                {"0001_a.sql": head, "0001_b.down.sql": "undo"},
		"the head must have lines":            {"0001_a.sql": "-- oldest program: 1\n"},
		"the oldest program 2 does not exist": {"0001_a.sql": "-- Reason: r\n-- oldest program: 2\n"},
		"file does not exist":                 {},
	} {
		if _, err := Load(files(texts), "m"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: got %v, want %q", texts, err, want)
		}
	}
}

var three = Steps{{Version: 1, Name: "a"}, {Version: 2, Name: "b"}, {Version: 3, Name: "c", Down: "undo"}}

func TestCheck(t *testing.T) {
	for _, c := range []struct {
		version, oldest int64
		migrating       bool
		migrate         bool
		err             string
	}{
		{0, 0, true, true, ""},
		{0, 0, false, false, "has no schema and migrations are off"},
		{2, 1, true, true, ""},
		{2, 1, false, false, "this program needs 3"},
		{3, 1, false, false, ""},
		{9, 3, true, false, ""},
		{9, 4, true, false, "needs a program of version 4 or newer"},
	} {
		migrate, err := three.Check(c.version, c.oldest, c.migrating)
		if migrate != c.migrate || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%+v: got %t, %v", c, migrate, err)
		}
	}
}

func TestLastAndAfter(t *testing.T) {
	for version, want := range map[int64]string{0: "no step to take back", 1: "would delete every job", 2: "has no way back", 3: "", 4: "use the program"} {
		step, err := three.Last(version)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) || err == nil && step.Version != version {
			t.Errorf("version %d: got %+v, %v", version, step, err)
		}
	}
	for version, want := range map[int64]int{0: 3, 2: 1, 3: 0, 99: 0} {
		if got := len(three.After(version)); got != want {
			t.Errorf("after %d: %d steps, want %d", version, got, want)
		}
	}
	s := three.Status(2, 1)
	if !s.Applied(three[1]) || s.Applied(three[2]) || s.Program != 3 {
		t.Errorf("status %+v", s)
	}
}
