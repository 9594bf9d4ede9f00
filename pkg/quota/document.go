package quota

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strconv"

	"flexiq/pkg/fault"
)

// MaxDocument bounds the stored document, in bytes.
const MaxDocument = 64 << 10

// Parse reads a document as a write does: unknown fields, duplicate keys,
// trailing data and wrong values are refused by name.
func Parse(doc []byte) (Quota, error) {
	q, _, err := parse(doc, true)
	return q, err
}

// Read reads a stored document as enforcement does: fields that it does not
// know are ignored, so that an older process does not stop a tenant over a
// newer field. Any error is a QUOTA_UNREADABLE, which stops the namespace:
// a limit that cannot be read is never taken for no limit.
func Read(doc []byte) (Quota, error) {
	q, _, err := parse(doc, false)
	if err != nil {
		return Quota{}, fault.Wrap(err, fault.QuotaUnreadable, "the stored quota cannot be read: %s", fault.Of(err).Message)
	}
	return q, nil
}

// field is one member of a document, in the order of the text.
type field struct {
	name  string
	value json.RawMessage
}

func parse(doc []byte, strict bool) (Quota, []field, error) {
	var q Quota
	fields, err := members(doc)
	if err != nil {
		return q, nil, err
	}
	seen := make(map[string]bool, len(fields))
	for _, f := range fields {
		known, err := q.set(f.name, f.value)
		switch {
		case err != nil:
			return Quota{}, nil, err
		case !known && strict:
			return Quota{}, nil, fault.Invalid(f.name, "unknown field; a quota has %v", Fields)
		case seen[f.name] && (known || strict):
			return Quota{}, nil, fault.Invalid(f.name, "the field stands twice")
		}
		seen[f.name] = true
	}
	return q, fields, nil
}

// members splits a text that must be exactly one JSON object.
func members(doc []byte) ([]field, error) {
	if len(doc) > MaxDocument {
		return nil, fault.Invalid("quota", "must be at most %d bytes, got %d", MaxDocument, len(doc))
	}
	dec := json.NewDecoder(bytes.NewReader(doc))
	open, err := dec.Token()
	if err != nil || open != json.Delim('{') {
		return nil, fault.Invalid("quota", "must be one JSON object")
	}
	var out []field
	for dec.More() {
		var f field
		key, err := dec.Token()
		if err == nil {
			f.name, _ = key.(string)
			err = dec.Decode(&f.value)
		}
		if err != nil {
			return nil, fault.Invalid("quota", "must be one JSON object: %v", err)
		}
		out = append(out, f)
	}
	if _, err := dec.Token(); err != nil {
		return nil, fault.Invalid("quota", "must be one JSON object: %v", err)
	}
	if _, err := dec.Token(); err != io.EOF {
		return nil, fault.Invalid("quota", "must be one JSON object, with nothing after it")
	}
	return out, nil
}

// set gives one field its value from JSON. It reports whether it knows the field.
func (q *Quota) set(name string, value json.RawMessage) (known bool, err error) {
	if p := q.integer(name); p != nil {
		n, err := strconv.ParseInt(string(value), 10, 64)
		if err != nil || n < 0 || strconv.FormatInt(n, 10) != string(value) {
			return true, fault.Invalid(name, "must be a whole number from 0 to 9223372036854775807, got %s", quote(string(value)))
		}
		*p = &n
		return true, nil
	}
	if name != OnExcess && name != EnqueueRate {
		return false, nil
	}
	var s string
	if err := json.Unmarshal(value, &s); err != nil || string(value) == "null" {
		return true, fault.Invalid(name, "must be a string, got %s", quote(string(value)))
	}
	if name == EnqueueRate {
		r, err := ParseRate(s)
		q.EnqueueRate = &r
		return true, err
	}
	if q.OnExcess = Excess(s); q.OnExcess != Reject && q.OnExcess != Drop {
		return true, badExcess(s)
	}
	return true, nil
}

// JSON writes the document as it is stored: set fields only, on_excess always.
func (q Quota) JSON() []byte { return write(q.fields()) }

func (q Quota) fields() []field {
	var out []field
	for _, name := range Fields {
		switch n := q.Int(name); {
		case n != nil:
			out = append(out, field{name, strconv.AppendInt(nil, *n, 10)})
		case name == OnExcess:
			out = append(out, field{name, fmt.Appendf(nil, "%q", q.Excess())})
		case name == EnqueueRate && q.EnqueueRate != nil:
			out = append(out, field{name, fmt.Appendf(nil, "%q", q.EnqueueRate.String())})
		}
	}
	return out
}

func write(fields []field) []byte {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, f := range fields {
		if i > 0 {
			b.WriteByte(',')
		}
		name, _ := json.Marshal(f.name) // a string always marshals
		b.Write(name)
		b.WriteByte(':')
		b.Write(f.value)
	}
	b.WriteByte('}')
	return b.Bytes()
}

// Edit changes the named fields of a stored document: those that are set in
// with get its values, those in unset are removed, and everything else stays,
// fields that this program does not know included. A stored document that
// cannot be read, an empty text included, is an error; set or clear repairs
// it. Nil is no document, which limits nothing.
func Edit(stored []byte, with Quota, unset []string) ([]byte, error) {
	if err := with.Check(); err != nil {
		return nil, err
	}
	var old []field
	if stored != nil {
		var err error
		if _, old, err = parse(stored, false); err != nil {
			return nil, fault.Wrap(err, fault.QuotaUnreadable, "the stored quota cannot be read: %s", fault.Of(err).Message)
		}
	}
	gone := make(map[string]bool, len(unset))
	for _, name := range unset {
		if !isField(name) {
			return nil, fault.Invalid("unset", "unknown field %s; a quota has %v", quote(name), Fields)
		}
		if with.isSet(name) {
			return nil, fault.Invalid("unset", "%s is both set and unset", name)
		}
		gone[name] = true
	}
	merged, _, err := parse(write(old), false)
	if err != nil {
		return nil, err
	}
	var strange []field
	for _, f := range old {
		if !isField(f.name) {
			strange = append(strange, f)
		}
	}
	for _, name := range Fields {
		switch {
		case gone[name]:
			merged.unset(name)
		case with.isSet(name):
			merged.take(name, with)
		}
	}
	doc := write(append(merged.fields(), strange...))
	if len(doc) > MaxDocument {
		return nil, fault.Invalid("quota", "must be at most %d bytes, would be %d", MaxDocument, len(doc))
	}
	return doc, nil
}

func isField(name string) bool {
	for _, f := range Fields {
		if f == name {
			return true
		}
	}
	return false
}

func (q Quota) isSet(name string) bool {
	switch name {
	case OnExcess:
		return q.OnExcess != ""
	case EnqueueRate:
		return q.EnqueueRate != nil
	}
	return q.Int(name) != nil
}

func (q *Quota) unset(name string) { q.take(name, Quota{}) }

func (q *Quota) take(name string, from Quota) {
	switch name {
	case OnExcess:
		q.OnExcess = from.OnExcess
	case EnqueueRate:
		q.EnqueueRate = from.EnqueueRate
	default:
		*q.integer(name) = from.Int(name)
	}
}
