package redis

import (
	"fmt"
	"strconv"
	"time"
)

// list reads the parts of a reply one after the other. A part that is missing
// or of another kind reads as the zero value: a server that answers nonsense
// must not bring the process down.
type list struct{ items []any }

func (c *command) list() *list {
	items, _ := c.reply.([]any)
	return &list{items: items}
}

func (l *list) more() bool { return len(l.items) > 0 }

func (l *list) next() any {
	if len(l.items) == 0 {
		return nil
	}
	v := l.items[0]
	l.items = l.items[1:]
	return v
}

func (l *list) int() int64 { return integer(l.next()) }

func (l *list) bool() bool { return l.int() == 1 }

func (l *list) text() string {
	s, _ := l.next().(string)
	return s
}

func (l *list) time() time.Time { return instant(l.int()) }

func (l *list) list() *list {
	items, _ := l.next().([]any)
	return &list{items: items}
}

// integer reads a number of a reply, which plain commands send as text.
func integer(v any) int64 {
	switch v := v.(type) {
	case int64:
		return v
	case string:
		n, err := strconv.ParseInt(v, 10, 64)
		if err != nil {
			f, _ := strconv.ParseFloat(v, 64) // a score beyond 10^17 comes as 1e+17
			return int64(f)
		}
		return n
	}
	return 0
}

func (c *command) int() int64 { return integer(c.reply) }

func (c *command) text() string {
	s, _ := c.reply.(string)
	return s
}

// strange is an error about a reply that no script gives.
func (c *command) strange() error { return fmt.Errorf("redis: unexpected reply %.200v", c.reply) }

func micros(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMicro()
}

func instant(us int64) time.Time {
	if us == 0 {
		return time.Time{}
	}
	return time.UnixMicro(us).UTC()
}

// flag is a bool as scripts read it.
func flag(b bool) int {
	if b {
		return 1
	}
	return 0
}

// maybe is an optional number as scripts read it.
func maybe(n *int64) any {
	if n == nil {
		return ""
	}
	return *n
}
