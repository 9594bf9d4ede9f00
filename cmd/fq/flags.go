package main

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kong"
)

// many is a whole number of at least 1. The zero value is a flag that was not
// given, which is something else than 0.
type many int

func (m *many) UnmarshalText(text []byte) error {
	n, err := strconv.ParseInt(string(text), 10, 32)
	if err != nil || n < 1 {
		return fmt.Errorf("must be at least 1 and at most 2147483647, got %q", text)
	}
	*m = many(n)
	return nil
}

// durations reads every flag that is a duration, in Go's spelling and with
// days. The tag positive:"" refuses 0 where that would mean "not given".
func durations() kong.Option {
	return kong.TypeMapper(reflect.TypeFor[time.Duration](), kong.MapperFunc(func(ctx *kong.DecodeContext, target reflect.Value) error {
		var text string
		if err := ctx.Scan.PopValueInto("duration", &text); err != nil {
			return err
		}
		d, err := parseDuration(text)
		if err != nil {
			return err
		}
		if d <= 0 && ctx.Value.Tag.Has("positive") {
			return fmt.Errorf("must be more than 0, got %q", text)
		}
		target.SetInt(int64(d))
		return nil
	}))
}

const day = 24 * time.Hour

// parseDuration reads Go's spelling, before which whole days may stand: 90d,
// 1d12h, -2d.
func parseDuration(text string) (time.Duration, error) {
	wrong := fmt.Errorf("must be a duration such as 90d, 36h or 1m30s, got %q", text)
	rest, negative := strings.CutPrefix(text, "-")
	var d time.Duration
	if days, after, ok := strings.Cut(rest, "d"); ok {
		n, err := strconv.ParseUint(days, 10, 16) // no overflow: 65 535 days are 180 years
		if err != nil || strings.HasPrefix(after, "-") || strings.HasPrefix(after, "+") {
			return 0, wrong
		}
		if d, rest = time.Duration(n)*day, after; rest == "" {
			rest = "0"
		}
	}
	part, err := time.ParseDuration(rest)
	if err != nil || strings.HasPrefix(rest, "-") || d+part < d {
		return 0, wrong
	}
	if d += part; negative {
		d = -d
	}
	return d, nil
}
