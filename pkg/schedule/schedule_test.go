package schedule_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"flexiq/pkg/schedule"
)

func parse(t testing.TB, expression, zone string) *schedule.Spec {
	t.Helper()
	s, err := schedule.Parse(expression, zone)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// slots lists the slots from one local time to another.
func slots(t testing.TB, expression, zone, from, to string) []string {
	t.Helper()
	s := parse(t, expression, zone)
	location, err := time.LoadLocation(zone)
	if err != nil {
		t.Fatal(err)
	}
	at := func(text string) time.Time {
		v, err := time.ParseInLocation("2006-01-02 15:04", text, location)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	var out []string
	for next := s.Next(at(from).Add(-time.Second)); next.Before(at(to)); next = s.Next(next) {
		out = append(out, next.In(location).Format("02 15:04:05 MST"))
	}
	return out
}

func TestSlots(t *testing.T) {
	const york, berlin = "America/New_York", "Europe/Berlin"
	for _, c := range []struct {
		name, cron, zone, from, to string
		want                       string
	}{
		{"a time that does not exist runs after the gap", "30 2 * * *", york, "2026-03-07 00:00", "2026-03-10 00:00",
			"07 02:30:00 EST, 08 03:00:00 EDT, 09 02:30:00 EDT"},
		{"many times that do not exist run once", "*/15 2 * * *", york, "2026-03-08 00:00", "2026-03-09 00:00", "08 03:00:00 EDT"},
		{"the hour after the gap is not doubled", "0,30 2,3 * * *", york, "2026-03-08 00:00", "2026-03-09 00:00", "08 03:00:00 EDT, 08 03:30:00 EDT"},
		{"a time that exists twice runs at the first", "30 1 * * *", york, "2026-10-31 00:00", "2026-11-03 00:00",
			"31 01:30:00 EDT, 01 01:30:00 EDT, 02 01:30:00 EST"},
		{"named hours run through the doubled hour once", "*/30 1-2 * * *", york, "2026-11-01 00:00", "2026-11-02 00:00",
			"01 01:00:00 EDT, 01 01:30:00 EDT, 01 02:00:00 EST, 01 02:30:00 EST"},
		{"every second hour follows elapsed time over the gap", "0 */2 * * *", york, "2026-03-08 00:00", "2026-03-08 08:00",
			"08 00:00:00 EST, 08 03:00:00 EDT, 08 05:00:00 EDT, 08 07:00:00 EDT"},
		{"every second hour follows elapsed time over the doubled hour", "0 */2 * * *", york, "2026-11-01 00:00", "2026-11-01 06:00",
			"01 00:00:00 EDT, 01 01:00:00 EST, 01 03:00:00 EST, 01 05:00:00 EST"},
		{"the next day is as ever", "0 */6 * * *", berlin, "2026-03-30 00:00", "2026-03-31 00:00",
			"30 00:00:00 CEST, 30 06:00:00 CEST, 30 12:00:00 CEST, 30 18:00:00 CEST"},
		{"a midnight that does not exist", "0 0 * * *", "America/Santiago", "2026-09-05 00:00", "2026-09-08 00:00",
			"05 00:00:00 -04, 06 01:00:00 -03, 07 00:00:00 -03"},
		{"a change of half an hour", "15,45 2 * * *", "Australia/Lord_Howe", "2026-10-04 00:00", "2026-10-05 00:00",
			"04 02:30:00 +11, 04 02:45:00 +11"},
		{"every twenty minutes over a change of half an hour", "*/20 * * * *", "Australia/Lord_Howe", "2026-10-04 01:30", "2026-10-04 03:30",
			"04 01:40:00 +1030, 04 02:40:00 +11, 04 03:00:00 +11, 04 03:20:00 +11"},
		{"seconds", "*/20 59 23 31 12 *", "UTC", "2026-01-01 00:00", "2027-01-01 00:00",
			"31 23:59:00 UTC, 31 23:59:20 UTC, 31 23:59:40 UTC"},
		{"leap days", "0 0 29 2 *", "UTC", "2026-01-01 00:00", "2033-01-01 00:00", "29 00:00:00 UTC, 29 00:00:00 UTC"},
		{"one of two days is enough", "0 0 13 * 5", "UTC", "2026-02-01 00:00", "2026-02-21 00:00",
			"06 00:00:00 UTC, 13 00:00:00 UTC, 20 00:00:00 UTC"},
		{"names", "0 12 * feb mon", "UTC", "2026-02-01 00:00", "2026-02-15 00:00", "02 12:00:00 UTC, 09 12:00:00 UTC"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := strings.Join(slots(t, c.cron, c.zone, c.from, c.to), ", "); got != c.want {
				t.Errorf("%s\n got %s\nwant %s", c.cron, got, c.want)
			}
		})
	}
}

// TestEveryTwentyMinutes walks over both changes of a zone's clock in a year.
func TestEveryTwentyMinutes(t *testing.T) {
	s := parse(t, "*/20 * * * *", "America/New_York")
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for end := at.AddDate(1, 0, 0); at.Before(end); {
		next := s.Next(at)
		if next.Sub(at) != 20*time.Minute {
			t.Fatalf("from %s to %s are %s", at, next, next.Sub(at))
		}
		at = next
	}
}

func TestParseRefuses(t *testing.T) {
	for _, c := range [][3]string{
		{"* * * *", "UTC", "must have five fields"}, {"", "UTC", "must have five fields"}, {"* * * * * * *", "UTC", "must have five fields"},
		{"60 * * * *", "UTC", "cron"}, {"* 24 * * *", "UTC", "cron"}, {"*/0 * * * *", "UTC", "cron"}, {"@daily", "UTC", "must have five"},
		{"0 0 30 2 *", "UTC", "no such day"}, {"* * * * *", "Mars/Olympus", "time_zone: \"Mars/Olympus\" is no IANA"}, {"* * * * *", "Local", "IANA"}, {"* * * * *", "../etc/passwd", "IANA"},
		{"TZ=UTC * * * *", "UTC", "cron"}, {"TZ=UTC * * * * *", "UTC", "cron"},
	} {
		if _, err := schedule.Parse(c[0], c[1]); err == nil || !strings.Contains(err.Error(), c[2]) {
			t.Errorf("%q in %q: got %v, want it to contain %q", c[0], c[1], err, c[2])
		}
	}
}

func TestLast(t *testing.T) {
	day := time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		cron      string
		from, now time.Time
		want      time.Time
	}{
		{"*/5 * * * * *", day, day, day},
		{"*/5 * * * * *", day, day.Add(4 * time.Second), day},
		{"*/5 * * * * *", day, day.Add(27 * time.Second), day.Add(25 * time.Second)},
		{"* * * * * *", day, day.AddDate(0, 6, 0), day.AddDate(0, 6, 0)},
		{"0 0 1 1 *", day.AddDate(0, -4, 0), day.AddDate(3, 0, 0), time.Date(2029, 1, 1, 0, 0, 0, 0, time.UTC)},
		{"0 0 1 1 *", day.AddDate(0, -4, 0), day, day.AddDate(0, -4, 0)},
	} {
		if got := parse(t, c.cron, "UTC").Last(c.from, c.now); !got.Equal(c.want) {
			t.Errorf("%s from %s, at %s: got %s, want %s", c.cron, c.from, c.now, got, c.want)
		}
	}
}

// TestSlotsRise: whatever the fields, the zone and the instant, the next slot is
// after it, no slot lies between, and the last one at a slot is the slot.
func TestSlotsRise(t *testing.T) {
	zones := []string{"UTC", "America/New_York", "Europe/Berlin", "Australia/Lord_Howe", "America/Santiago", "Asia/Kathmandu", "Pacific/Apia"}
	rapid.Check(t, func(t *rapid.T) {
		field := func(name string, lowest, highest int) string {
			return rapid.OneOf(
				rapid.Just("*"),
				rapid.Map(rapid.IntRange(1, highest), func(n int) string { return fmt.Sprintf("*/%d", n) }),
				rapid.Map(rapid.IntRange(lowest, highest), func(n int) string { return fmt.Sprint(n) }),
			).Draw(t, name)
		}
		cron := field("minute", 0, 59) + " " + field("hour", 0, 23) + " " + field("day", 1, 28) + " * " + field("weekday", 0, 6)
		s, err := schedule.Parse(cron, rapid.SampledFrom(zones).Draw(t, "zone"))
		if err != nil {
			t.Fatal(err)
		}
		at := time.Unix(rapid.Int64Range(1_700_000_000, 1_900_000_000).Draw(t, "at"), 0)
		next := s.Next(at)
		if !next.After(at) {
			t.Fatalf("%s: after %s comes %s", cron, at, next)
		}
		middle := at.Add(next.Sub(at) / 2)
		if again := s.Next(middle); !again.Equal(next) {
			t.Fatalf("%s: after %s comes %s, but after %s comes %s", cron, at, next, middle, again)
		}
		if last := s.Last(next, next.Add(time.Nanosecond)); !last.Equal(next) {
			t.Fatalf("%s: the last slot at %s is %s", cron, next, last)
		}
	})
}

func TestPause(t *testing.T) {
	var got []time.Duration
	for tries := range int64(8) {
		got = append(got, schedule.Pause(tries+1)/time.Second)
	}
	if want := "[1ns 2ns 4ns 8ns 16ns 30ns 30ns 30ns]"; fmt.Sprint(got) != want {
		t.Errorf("got %v, want %s", got, want)
	}
}

func FuzzParse(f *testing.F) {
	f.Add("*/5 * * * *", "UTC")
	f.Add("0 0 29 2 MON", "Europe/Berlin")
	f.Fuzz(func(t *testing.T, cron, zone string) {
		s, err := schedule.Parse(cron, zone)
		if err != nil {
			return
		}
		now := time.Date(2026, 3, 8, 6, 59, 0, 0, time.UTC)
		if next := s.Next(now); !next.IsZero() && !next.After(now) {
			t.Fatalf("%q in %q: after %s comes %s", cron, zone, now, next)
		}
	})
}
