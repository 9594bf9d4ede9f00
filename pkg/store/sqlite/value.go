package sqlite

import (
	"encoding/json"
	"fmt"
	"time"

	"zombiezen.com/go/sqlite"
)

// bind gives a statement its parameters in order.
func (c *conn) bind(query string, args []any) (*sqlite.Stmt, error) {
	st, err := c.statement(query)
	if err != nil {
		return nil, err
	}
	p := params{st: st}
	for _, a := range args {
		p.any(a)
	}
	return st, nil
}

// params binds parameters one after the other. A parameter that is passed over
// stays NULL.
type params struct {
	st *sqlite.Stmt
	n  int
}

func (p *params) int(v int64)              { p.n++; p.st.BindInt64(p.n, v) }
func (p *params) text(v string)            { p.n++; p.st.BindText(p.n, v) }
func (p *params) time(t time.Time)         { p.int(micros(t)) }
func (p *params) duration(d time.Duration) { p.int(d.Microseconds()) }

// maybe binds NULL for an empty text.
func (p *params) maybe(v string) {
	p.n++
	if v != "" {
		p.st.BindText(p.n, v)
	}
}

// bytes binds NULL for nil.
func (p *params) bytes(v []byte) {
	p.n++
	if v != nil {
		p.st.BindBytes(p.n, v)
	}
}

func (p *params) any(a any) {
	switch v := a.(type) {
	case nil:
		p.n++
	case int64:
		p.int(v)
	case int32:
		p.int(int64(v))
	case int:
		p.int(int64(v))
	case bool:
		p.n++
		p.st.BindBool(p.n, v)
	case string:
		p.text(v)
	case []byte:
		p.bytes(v)
	case time.Time:
		p.time(v)
	case time.Duration:
		p.duration(v)
	default:
		panic(fmt.Sprintf("sqlite: a parameter of type %T", a))
	}
}

// null is an empty text as NULL.
func null(s string) any {
	if s == "" {
		return nil
	}
	return s
}

// row reads a row's columns one after the other. It is valid until the next step.
type row struct {
	st *sqlite.Stmt
	n  int
}

func (r *row) next() int { r.n++; return r.n - 1 }

func (r *row) int() int64 { return r.st.ColumnInt64(r.next()) }
func (r *row) bool() bool { return r.int() != 0 }

// maybe is nil for NULL.
func (r *row) maybe() *int64 {
	i := r.next()
	if r.st.ColumnIsNull(i) {
		return nil
	}
	return new(r.st.ColumnInt64(i))
}

func (r *row) text() string            { return r.st.ColumnText(r.next()) }
func (r *row) time() time.Time         { return instant(r.int()) }
func (r *row) duration() time.Duration { return time.Duration(r.int()) * time.Microsecond }

// bytes is nil for NULL.
func (r *row) bytes() []byte {
	i := r.next()
	n := r.st.ColumnLen(i)
	if n == 0 && r.st.ColumnIsNull(i) {
		return nil
	}
	b := make([]byte, n)
	r.st.ColumnBytes(i, b)
	return b
}

// into reads bytes of a fixed length.
func (r *row) into(b []byte) { r.st.ColumnBytes(r.next(), b) }

// strings reads a JSON object of strings, nil for NULL.
func (r *row) strings() map[string]string {
	i := r.next()
	if r.st.ColumnIsNull(i) {
		return nil
	}
	var m map[string]string
	// Only this package writes the column. What else stands there is shown as
	// nothing, so that it cannot keep a job from running.
	if json.Unmarshal([]byte(r.st.ColumnText(i)), &m) != nil {
		return nil
	}
	return m
}

// object writes a map of strings for [row.strings], empty for none.
func object(m map[string]string) string {
	if len(m) == 0 {
		return ""
	}
	b, _ := json.Marshal(m) // a map of strings always marshals
	return string(b)
}

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
