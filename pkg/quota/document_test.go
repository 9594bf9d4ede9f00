package quota_test

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"flexiq/pkg/fault"
	"flexiq/pkg/quota"
)

// full has every field.
const full = `{"max_pending":1000,"on_excess":"drop","enqueue_rate":"500/s","max_running":0,"max_archived_rows":9223372036854775807,"max_dead_rows":7}`

var fullQuota = quota.Quota{
	MaxPending: new(int64(1000)), OnExcess: quota.Drop, EnqueueRate: &quota.Rate{Count: 500, Unit: quota.PerSecond},
	MaxRunning: new(int64(0)), MaxArchivedRows: new(int64(math.MaxInt64)), MaxDeadRows: new(int64(7)),
}

func TestParse(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, doc string
		want      quota.Quota
		stored    string
	}{
		{"every field", full, fullQuota, full},
		{"nothing", `{}`, quota.Quota{}, `{"on_excess":"reject"}`},
		{"zero is a limit", `{"max_pending":0}`, quota.Quota{MaxPending: new(int64(0))}, `{"max_pending":0,"on_excess":"reject"}`},
		{"white space and order", " {\n\"max_dead_rows\" : 7 , \"max_pending\" :\t1000 } ",
			quota.Quota{MaxPending: new(int64(1000)), MaxDeadRows: new(int64(7))}, `{"max_pending":1000,"on_excess":"reject","max_dead_rows":7}`},
		{"escapes in a string", `{"enqueue_rate":"\u0035\/m"}`, quota.Quota{EnqueueRate: &quota.Rate{Count: 5, Unit: quota.PerMinute}},
			`{"on_excess":"reject","enqueue_rate":"5/m"}`},
		{"reject by name", `{"on_excess":"reject"}`, quota.Quota{OnExcess: quota.Reject}, `{"on_excess":"reject"}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			for name, read := range map[string]func([]byte) (quota.Quota, error){"Parse": quota.Parse, "Read": quota.Read} {
				got, err := read([]byte(tt.doc))
				if err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				if diff := cmp.Diff(tt.want, got); diff != "" {
					t.Errorf("%s (-want +got):\n%s", name, diff)
				}
				if s := string(got.JSON()); s != tt.stored {
					t.Errorf("%s: stored as %s, want %s", name, s, tt.stored)
				}
			}
		})
	}
}

// TestRefused lists documents that a write refuses, with the field that its
// error names, and whether enforcement can read them all the same.
func TestRefused(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, doc, field string
		readable         bool
	}{
		{"a negative limit", `{"max_pending":-1}`, "max_pending", false},
		{"minus zero", `{"max_running":-0}`, "max_running", false},
		{"a fraction", `{"max_dead_rows":1.5}`, "max_dead_rows", false},
		{"a whole fraction", `{"max_dead_rows":1.0}`, "max_dead_rows", false},
		{"an exponent", `{"max_archived_rows":1e3}`, "max_archived_rows", false},
		{"one beyond the largest", `{"max_pending":9223372036854775808}`, "max_pending", false},
		{"a number as text", `{"max_pending":"5"}`, "max_pending", false},
		{"null", `{"max_pending":null}`, "max_pending", false},
		{"null for a rate", `{"enqueue_rate":null}`, "enqueue_rate", false},
		{"null for on_excess", `{"on_excess":null}`, "on_excess", false},
		{"true", `{"max_pending":true}`, "max_pending", false},
		{"an object", `{"max_pending":{}}`, "max_pending", false},
		{"a rate as a number", `{"enqueue_rate":5}`, "enqueue_rate", false},
		{"a rate of zero", `{"enqueue_rate":"0/s"}`, "enqueue_rate", false},
		{"another on_excess", `{"on_excess":"Drop"}`, "on_excess", false},
		{"an empty on_excess", `{"on_excess":""}`, "on_excess", false},
		{"a known field twice", `{"max_pending":1,"max_pending":1}`, "max_pending", false},
		{"a known field twice by an escape", `{"max_pending":1,"max_pendin\u0067":2}`, "max_pending", false},
		{"an unknown field", `{"max_pending":1,"max_bytes":5}`, "max_bytes", true},
		{"another case", `{"Max_Pending":1}`, "Max_Pending", true},
		{"an unknown field twice", `{"x":1,"x":2}`, "x", true},
		{"an empty name", `{"":1}`, "", true},
		{"nothing at all", ``, "quota", false},
		{"white space", ` `, "quota", false},
		{"a list", `[]`, "quota", false},
		{"a null document", `null`, "quota", false},
		{"a string", `"max_pending"`, "quota", false},
		{"two documents", `{}{}`, "quota", false},
		{"trailing data", `{} x`, "quota", false},
		{"a trailing comma", `{"max_pending":1,}`, "quota", false},
		{"a leading comma", `{,"max_pending":1}`, "quota", false},
		{"an end too early", `{"max_pending":1`, "quota", false},
		{"an end after the name", `{"max_pending"`, "quota", false},
		{"no colon", `{"max_pending" 1}`, "quota", false},
		{"a leading zero", `{"max_pending":007}`, "quota", false},
		{"a plus", `{"max_pending":+7}`, "quota", false},
		{"a comment", `{"max_pending":1 /* one */}`, "quota", false},
		{"single quotes", `{'max_pending':1}`, "quota", false},
		{"a NUL", "{\"max_pending\":1}\x00", "quota", false},
		{"a byte order mark", "\ufeff{}", "quota", false},
		{"too long", `{"max_pending":1` + strings.Repeat(" ", quota.MaxDocument) + `}`, "quota", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			q, err := quota.Parse([]byte(tt.doc))
			if e := fault.Of(err); e == nil || e.Reason != fault.InvalidRequest || e.Details["field"] != tt.field {
				t.Errorf("Parse: got %v with %v, want INVALID_REQUEST for %q", err, e, tt.field)
			}
			if !cmp.Equal(q, quota.Quota{}) {
				t.Errorf("Parse: a refused document gave %+v", q)
			}
			q, err = quota.Read([]byte(tt.doc))
			switch {
			case tt.readable && err != nil:
				t.Errorf("Read: %v", err)
			case !tt.readable && !fault.Is(err, fault.QuotaUnreadable):
				t.Errorf("Read: got %v, want QUOTA_UNREADABLE", err)
			case !tt.readable && !cmp.Equal(q, quota.Quota{}):
				t.Errorf("Read: an unreadable document gave %+v", q)
			}
		})
	}
}

// TestLongestDocument: the bound itself is inside.
func TestLongestDocument(t *testing.T) {
	t.Parallel()
	doc := `{"max_pending":1`
	doc += strings.Repeat(" ", quota.MaxDocument-len(doc)-1) + `}`
	if q, err := quota.Parse([]byte(doc)); err != nil || *q.MaxPending != 1 {
		t.Errorf("%d bytes: got %+v, %v", len(doc), q, err)
	}
}

// TestReadIgnoresNewFields: an older process goes on enforcing what it knows.
func TestReadIgnoresNewFields(t *testing.T) {
	t.Parallel()
	q, err := quota.Read([]byte(`{"max_bytes":{"a":[1,2]},"max_pending":3,"max_bytes":null}`))
	if err != nil || !cmp.Equal(q, quota.Quota{MaxPending: new(int64(3))}) {
		t.Errorf("got %+v, %v", q, err)
	}
}

func TestEdit(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, stored string
		with         quota.Quota
		unset        []string
		want         string
	}{
		{"one field of many", `{"max_pending":5,"on_excess":"drop","max_running":2}`, quota.Quota{MaxRunning: new(int64(0))}, nil,
			`{"max_pending":5,"on_excess":"drop","max_running":0}`},
		{"unset a field", `{"max_pending":5,"max_running":2}`, quota.Quota{}, []string{"max_pending"}, `{"on_excess":"reject","max_running":2}`},
		{"unset what is not there", `{"max_pending":5}`, quota.Quota{}, []string{"max_running"}, `{"max_pending":5,"on_excess":"reject"}`},
		{"unset on_excess", `{"max_pending":5,"on_excess":"drop"}`, quota.Quota{}, []string{"on_excess"}, `{"max_pending":5,"on_excess":"reject"}`},
		{"unset all", full, quota.Quota{}, quota.Fields, `{"on_excess":"reject"}`},
		{"every field", `{}`, fullQuota, nil, full},
		{"unknown fields stay as they were", `{"x": {"b":2, "a":1e5},"max_pending":5,"y":"é","x":3}`, quota.Quota{MaxPending: new(int64(6))}, nil,
			`{"max_pending":6,"on_excess":"reject","x":{"b":2, "a":1e5},"y":"é","x":3}`},
		{"set and unset", `{"max_pending":5}`, quota.Quota{EnqueueRate: &quota.Rate{Count: 1, Unit: quota.PerHour}}, []string{"max_pending"},
			`{"on_excess":"reject","enqueue_rate":"1/h"}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := quota.Edit([]byte(tt.stored), tt.with, tt.unset)
			if err != nil || string(got) != tt.want {
				t.Errorf("got %s, %v; want %s", got, err, tt.want)
			}
		})
	}
}

// Absence is nil; an empty text is a document that cannot be read.
func TestEditOfNothing(t *testing.T) {
	t.Parallel()
	with := quota.Quota{MaxPending: new(int64(1))}
	got, err := quota.Edit(nil, with, nil)
	if want := `{"max_pending":1,"on_excess":"reject"}`; err != nil || string(got) != want {
		t.Errorf("no document: got %s, %v; want %s", got, err, want)
	}
	if got, err := quota.Edit([]byte{}, with, nil); !fault.Is(err, fault.QuotaUnreadable) {
		t.Errorf("an empty document: got %s, %v; want QUOTA_UNREADABLE", got, err)
	}
}

func TestEditRefuses(t *testing.T) {
	t.Parallel()
	near := `{"x":"` + strings.Repeat("x", quota.MaxDocument-10) + `"}`
	tests := []struct {
		name, stored string
		with         quota.Quota
		unset        []string
		want         fault.Reason
		field        string
	}{
		{"an unreadable document", `{"max_pending":-1}`, quota.Quota{MaxPending: new(int64(1))}, nil, fault.QuotaUnreadable, ""},
		{"an unreadable field that is unset", `{"max_pending":-1}`, quota.Quota{}, []string{"max_pending"}, fault.QuotaUnreadable, ""},
		{"an unknown field", `{}`, quota.Quota{}, []string{"max_bytes"}, fault.InvalidRequest, "unset"},
		{"a field both set and unset", `{}`, quota.Quota{MaxPending: new(int64(1))}, []string{"max_pending"}, fault.InvalidRequest, "unset"},
		{"a negative value", `{}`, quota.Quota{MaxPending: new(int64(-1))}, nil, fault.InvalidRequest, "max_pending"},
		{"a document grown too long", near, quota.Quota{MaxPending: new(int64(1))}, nil, fault.InvalidRequest, "quota"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := quota.Edit([]byte(tt.stored), tt.with, tt.unset)
			if e := fault.Of(err); e == nil || e.Reason != tt.want || e.Details["field"] != tt.field || got != nil {
				t.Errorf("got %d bytes, %v; want %s for %q", len(got), err, tt.want, tt.field)
			}
		})
	}
}

func TestCheck(t *testing.T) {
	t.Parallel()
	tests := []struct {
		q     quota.Quota
		field string
	}{
		{quota.Quota{}, ""},
		{fullQuota, ""},
		{quota.Quota{MaxPending: new(int64(-1))}, "max_pending"},
		{quota.Quota{MaxRunning: new(int64(math.MinInt64))}, "max_running"},
		{quota.Quota{MaxArchivedRows: new(int64(-1))}, "max_archived_rows"},
		{quota.Quota{MaxDeadRows: new(int64(-1))}, "max_dead_rows"},
		{quota.Quota{OnExcess: "delay"}, "on_excess"},
		{quota.Quota{EnqueueRate: &quota.Rate{Count: 0, Unit: quota.PerSecond}}, "enqueue_rate"},
		{quota.Quota{EnqueueRate: &quota.Rate{Count: 1}}, "enqueue_rate"},
		{quota.Quota{EnqueueRate: &quota.Rate{Count: 1, Unit: 'd'}}, "enqueue_rate"},
	}
	for _, tt := range tests {
		err := tt.q.Check()
		if tt.field == "" && err == nil {
			continue
		}
		if e := fault.Of(err); e == nil || e.Details["field"] != tt.field {
			t.Errorf("%+v: got %v, want an error for %q", tt.q, err, tt.field)
		}
	}
}

func TestLimits(t *testing.T) {
	t.Parallel()
	if (quota.Quota{OnExcess: quota.Drop}).Limits() {
		t.Error("on_excess alone counts as a limit")
	}
	for _, name := range quota.Fields {
		if name == quota.OnExcess {
			continue
		}
		value := `0`
		if name == quota.EnqueueRate {
			value = `"1/h"`
		}
		q, err := quota.Parse(fmt.Appendf(nil, `{%q:%s}`, name, value))
		if err != nil || !q.Limits() {
			t.Errorf("%s alone does not count as a limit (%v)", name, err)
		}
		if n := q.Int(name); (n == nil) != (name == quota.EnqueueRate) {
			t.Errorf("Int(%s) = %v", name, n)
		}
	}
}

// FuzzParse: what a write accepts is valid JSON, reads the same, and is a
// fixed point once stored.
func FuzzParse(f *testing.F) {
	for _, s := range []string{full, `{}`, `{"max_pending":-1}`, `{"x":1}`, `{"max_pending":1,}`, `[]`, ``, `{"max_pending" 1}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, doc []byte) {
		q, err := quota.Parse(doc)
		lenient, lerr := quota.Read(doc)
		if lerr == nil && !json.Valid(doc) {
			t.Fatalf("%q is read, but it is no JSON", doc)
		}
		if lerr != nil && !fault.Is(lerr, fault.QuotaUnreadable) {
			t.Fatalf("%q: Read gives %v", doc, lerr)
		}
		if err != nil {
			if !fault.Is(err, fault.InvalidRequest) {
				t.Fatalf("%q: Parse gives %v", doc, err)
			}
			return
		}
		if lerr != nil || !cmp.Equal(q, lenient) {
			t.Fatalf("%q: strict %+v, lenient %+v, %v", doc, q, lenient, lerr)
		}
		if err := q.Check(); err != nil {
			t.Fatalf("%q: accepted, but %v", doc, err)
		}
		stored := q.JSON()
		again, err := quota.Parse(stored)
		if err != nil || string(again.JSON()) != string(stored) {
			t.Fatalf("%q is stored as %s, which is %+v, %v", doc, stored, again, err)
		}
	})
}

// FuzzEdit: an edit of what can be read gives what can be read, with the
// fields that nobody named as they were.
func FuzzEdit(f *testing.F) {
	for _, s := range []string{full, `{}`, `{"x":[1, 2]}`, `{"x":1,"x":2,"max_running":3}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, doc []byte) {
		before, err := quota.Read(doc)
		edited, eerr := quota.Edit(doc, quota.Quota{MaxPending: new(int64(42))}, []string{quota.MaxDeadRows})
		if err != nil && len(doc) > 0 {
			if !fault.Is(eerr, fault.QuotaUnreadable) {
				t.Fatalf("%q cannot be read, but the edit gives %q, %v", doc, edited, eerr)
			}
			return
		}
		if eerr != nil {
			if len(doc) < quota.MaxDocument/8 { // names can grow sixfold by escapes
				t.Fatalf("%q: %v", doc, eerr)
			}
			return
		}
		after, err := quota.Read(edited)
		before.MaxPending, before.MaxDeadRows, before.OnExcess = new(int64(42)), nil, before.Excess()
		if err != nil || !cmp.Equal(after, before) {
			t.Fatalf("%q became %s: %+v, %v", doc, edited, after, err)
		}
	})
}
