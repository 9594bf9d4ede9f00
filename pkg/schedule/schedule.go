// Package schedule computes when a schedule fires. It is pure.
//
// A schedule is a cron expression of five fields (minute, hour, day of month,
// month, day of week), or six with seconds in front, read in a time zone. The
// slots are computed here, not by the library that parses the fields, which
// skips and doubles them where a zone's clock is moved:
//
//   - An hour field of * or */n follows elapsed time: hours are counted from the
//     beginning of the local day, so that "every twenty minutes" is three an hour
//     and "every second hour" leaves no longer gap, whatever the clock shows.
//   - With named hours, a local time that does not exist runs once, at the first
//     instant after the gap, and one that exists twice at its first occurrence only.
//
// The data of the zones are part of the program.
package schedule

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	_ "time/tzdata" // hosts may have none

	"github.com/robfig/cron/v3"
)

// horizon bounds the search: 29 February may be eight years away.
const horizon = 10 * 366

// star is the library's mark of a field that is * or ?.
const star = 1 << 63

const (
	fiveFields = cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow
	sixFields  = cron.Second | fiveFields
)

// Spec is a parsed schedule.
type Spec struct {
	fields *cron.SpecSchedule
	zone   *time.Location
	every  int // n of an hour field * or */n, else 0: the hours are named
}

// Parse reads an expression and the IANA name of its zone; empty is UTC. It
// refuses an expression that never fires.
func Parse(expression, zone string) (*Spec, error) {
	location, err := loadZone(zone)
	if err != nil {
		return nil, err
	}
	parts := strings.Fields(expression)
	options := fiveFields
	switch len(parts) {
	case 5:
	case 6:
		options = sixFields
	default:
		return nil, fmt.Errorf("cron: must have five fields, or six with seconds, got %d", len(parts))
	}
	parsed, err := cron.NewParser(options).Parse(strings.Join(parts, " "))
	if err != nil {
		return nil, fmt.Errorf("cron: %w", err)
	}
	fields, ok := parsed.(*cron.SpecSchedule)
	if !ok {
		return nil, errors.New("cron: must be fields")
	}
	s := &Spec{fields: fields, zone: location, every: everyHours(parts[len(parts)-4])}
	if s.Next(time.Unix(0, 0)).IsZero() {
		return nil, errors.New("cron: there is no such day")
	}
	return s, nil
}

// loadZone finds a zone. Local is refused: it differs from host to host.
func loadZone(name string) (*time.Location, error) {
	if name == "" {
		return time.UTC, nil
	}
	zone, err := time.LoadLocation(name)
	if err != nil || name == "Local" {
		return nil, fmt.Errorf("time_zone: %q is no IANA name such as Europe/Berlin", name)
	}
	return zone, nil
}

// everyHours is n of an hour field */n, 1 of *, and 0 when hours are named.
func everyHours(field string) int {
	if field == "*" || field == "?" {
		return 1
	}
	text, ok := strings.CutPrefix(field, "*/")
	n, err := strconv.Atoi(text)
	if !ok || err != nil || n < 1 {
		return 0
	}
	return n
}

// Next is the first slot after an instant, the zero time when there is none in
// ten years.
func (s *Spec) Next(after time.Time) time.Time {
	day := dateOf(after.In(s.zone).AddDate(0, 0, -1)) // a gap may move a slot past midnight
	for range horizon {
		if s.onDay(day) {
			if at := s.within(day, after); !at.IsZero() {
				return at.UTC()
			}
		}
		day = day.next()
	}
	return time.Time{}
}

// Last is the latest slot at or before an instant and not before another, which
// must be a slot.
func (s *Spec) Last(from, now time.Time) time.Time {
	last := from
	// Widening windows find the last slots without walking over all that were missed.
	for window := time.Minute; now.Add(-window).After(from); window *= 2 {
		if at := s.Next(now.Add(-window)); !at.IsZero() && !at.After(now) {
			last = at
			break
		}
	}
	for {
		next := s.Next(last)
		if next.IsZero() || next.After(now) {
			return last
		}
		last = next
	}
}

// onDay reports whether a local day has slots. As cron has it, of day of month
// and day of week one is enough when both are restricted.
func (s *Spec) onDay(d date) bool {
	if !has(s.fields.Month, int(d.month)) {
		return false
	}
	dom, dow := has(s.fields.Dom, d.day), has(s.fields.Dow, int(d.weekday()))
	if s.fields.Dom&star != 0 || s.fields.Dow&star != 0 {
		return dom && dow
	}
	return dom || dow
}

// within is the first slot of a local day after an instant, zero for none.
func (s *Spec) within(d date, after time.Time) time.Time {
	if s.every > 0 {
		return s.elapsed(d, after)
	}
	for h := range 24 {
		if !has(s.fields.Hour, h) || !s.resolve(d, h, 59, 59).After(after) {
			continue
		}
		for m := range 60 {
			if !has(s.fields.Minute, m) || !s.resolve(d, h, m, 59).After(after) {
				continue
			}
			for sec := range 60 {
				if !has(s.fields.Second, sec) {
					continue
				}
				if at := s.resolve(d, h, m, sec); at.After(after) {
					return at
				}
			}
		}
	}
	return time.Time{}
}

// elapsed is within by hours since the beginning of the day.
func (s *Spec) elapsed(d date, after time.Time) time.Time {
	begin, end := s.resolve(d, 0, 0, 0), s.resolve(d.next(), 0, 0, 0)
	for hour := begin; hour.Before(end); hour = hour.Add(time.Duration(s.every) * time.Hour) {
		stop := hour.Add(time.Hour)
		if stop.After(end) {
			stop = end
		}
		if !stop.After(after) {
			continue
		}
		for at := hour; at.Before(stop); at = at.Add(time.Minute) {
			if !at.Add(time.Minute).After(after) || !has(s.fields.Minute, at.In(s.zone).Minute()) {
				continue
			}
			for sec := range 60 {
				if slot := at.Add(time.Duration(sec) * time.Second); has(s.fields.Second, sec) && slot.After(after) {
					return slot
				}
			}
		}
	}
	return time.Time{}
}

// resolve is the instant of a local time: of one that exists twice the first, of
// one that does not exist the first instant after the gap.
func (s *Spec) resolve(d date, hour, minute, second int) time.Time {
	wall := time.Date(d.year, d.month, d.day, hour, minute, second, 0, time.UTC).Unix()
	before := s.offset(wall - 26*3600) // no zone is further from UTC, nor moves its clock by more
	after := s.offset(wall + 26*3600)
	early, late := max(before, after), min(before, after)
	for _, offset := range []int64{early, late} {
		if s.offset(wall-offset) == offset {
			return time.Unix(wall-offset, 0)
		}
	}
	begin, _ := time.Unix(wall-before, 0).In(s.zone).ZoneBounds()
	if begin.IsZero() {
		return time.Unix(wall-before, 0)
	}
	return begin
}

// offset is the zone's distance from UTC at an instant, in seconds.
func (s *Spec) offset(unix int64) int64 {
	_, offset := time.Unix(unix, 0).In(s.zone).Zone()
	return int64(offset)
}

func has(set uint64, n int) bool { return set&(1<<uint(n)) != 0 }

// date is a day of the calendar, in no zone.
type date struct {
	year  int
	month time.Month
	day   int
}

func dateOf(t time.Time) date {
	y, m, d := t.Date()
	return date{y, m, d}
}

func (d date) utc() time.Time        { return time.Date(d.year, d.month, d.day, 0, 0, 0, 0, time.UTC) }
func (d date) next() date            { return dateOf(d.utc().AddDate(0, 0, 1)) }
func (d date) weekday() time.Weekday { return d.utc().Weekday() }

// The pauses between tries of a refused slot.
const (
	firstPause = time.Second
	mostPause  = 30 * time.Second
)

// Pause is how long to wait after a slot was refused so many times.
func Pause(tries int64) time.Duration {
	if tries > 5 {
		return mostPause
	}
	return min(firstPause<<max(tries-1, 0), mostPause)
}
