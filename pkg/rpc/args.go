package rpc

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
	"sync"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"

	"flexiq/pkg/fault"
	"flexiq/pkg/job"
)

// Arbitrary JSON values travel as google.protobuf.Value, whose numbers are
// doubles: an integer beyond ±2^53 would arrive changed, without a word. It is
// refused where it can still be seen, in the JSON text.
const maxSafeInteger = "9007199254740992"

// maxNesting bounds the nesting of a whole body: args at their deepest, and
// the few levels around them.
const maxNesting = job.MaxArgsDepth + 32

// The messages that hold arbitrary JSON.
const (
	valueType  protoreflect.FullName = "google.protobuf.Value"
	structType protoreflect.FullName = "google.protobuf.Struct"
	listType   protoreflect.FullName = "google.protobuf.ListValue"
)

// needsScan tells in one cheap pass whether a body could hold an integer
// beyond ±2^53 or nest too deeply: most hold neither.
func needsScan(body []byte) bool {
	depth, digits := 0, 0
	for i := 0; i < len(body); i++ {
		b := body[i]
		if b >= '0' && b <= '9' {
			if digits++; digits >= len(maxSafeInteger) {
				return true
			}
			continue
		}
		digits = 0
		switch b {
		case '"':
			i = stringEnd(body, i+1)
		case '{', '[':
			if depth++; depth > job.MaxArgsDepth {
				return true
			}
		case '}', ']':
			depth--
		}
	}
	return false
}

// stringEnd returns the index of the quote that ends a string, or the body's length.
func stringEnd(body []byte, i int) int {
	for i < len(body) {
		n := bytes.IndexByte(body[i:], '"')
		if n < 0 {
			return len(body)
		}
		end, escapes := i+n, 0
		for j := end - 1; j >= i && body[j] == '\\'; j-- {
			escapes++
		}
		if escapes%2 == 0 {
			return end
		}
		i = end + 1
	}
	return len(body)
}

// scanArgs refuses by name what needsScan suspects. Text that is not JSON
// passes: the decoder will say what is wrong with it.
func scanArgs(body []byte, d protoreflect.MessageDescriptor) error {
	s := newScanner(body)
	s.value(place{message: d})
	return s.found
}

// pathAt names the field in which a body's byte stands, as far as the text can
// be read. It is empty for the body as a whole.
func pathAt(body []byte, offset int, d protoreflect.MessageDescriptor) string {
	s := newScanner(body)
	s.until = int64(offset)
	s.value(place{message: d})
	return s.path
}

// place is where a scanner stands: in a message's object, in a list or a map,
// within an arbitrary JSON value, or somewhere else.
type place struct {
	path    string
	message protoreflect.MessageDescriptor // nil: not a message's object
	field   protoreflect.FieldDescriptor   // set: a list or a map of this field
	args    int                            // levels into an arbitrary value, 0: outside
}

type scanner struct {
	dec   *json.Decoder
	depth int
	until int64  // stop behind this byte; 0: check arbitrary values instead
	path  string // where it stopped
	found error
}

func newScanner(body []byte) *scanner {
	s := &scanner{dec: json.NewDecoder(bytes.NewReader(body))}
	s.dec.UseNumber()
	return s
}

// next reads a token of a place and reports whether to go on.
func (s *scanner) next(at place) (json.Token, bool) {
	s.path = at.path
	tok, err := s.dec.Token()
	return tok, err == nil && (s.until == 0 || s.dec.InputOffset() <= s.until)
}

// value reads one value and reports whether to go on.
func (s *scanner) value(at place) bool {
	tok, ok := s.next(at)
	if !ok {
		return false
	}
	switch t := tok.(type) {
	case json.Number:
		if at.args > 0 && tooBig(string(t)) {
			s.found = fault.Invalid(at.path, "the integer %s is beyond ±2^53 and would not arrive unchanged: use payload", quoted(string(t)))
		}
	case json.Delim:
		s.depth++
		switch {
		case at.args > job.MaxArgsDepth:
			s.found = fault.Invalid(at.path, "must be nested at most %d levels deep", job.MaxArgsDepth)
		case s.depth > maxNesting:
			s.found = fault.New(fault.InvalidRequest, "the body is nested too deeply")
		case !s.members(t, at):
			return false
		}
		s.depth--
	}
	return s.found == nil || s.until > 0
}

// members reads what is in an object or an array, and its end.
func (s *scanner) members(open json.Delim, at place) bool {
	for i := 0; s.dec.More(); i++ {
		var inner place
		if open == '{' {
			tok, ok := s.next(at)
			key, _ := tok.(string)
			inner = at.member(key)
			if !ok {
				if tok != nil {
					s.path = inner.path
				}
				return false
			}
		} else {
			inner = at.element(i)
		}
		if !s.value(inner) {
			return false
		}
	}
	_, ok := s.next(at)
	return ok
}

func (p place) member(key string) place {
	if p.args > 0 {
		return place{path: p.path, args: p.args + 1}
	}
	if p.field != nil && p.field.IsMap() {
		return inside(below(p.path, quoted(key)), p.field.MapValue())
	}
	var f protoreflect.FieldDescriptor
	if p.message != nil {
		if f = p.message.Fields().ByJSONName(key); f == nil {
			f = p.message.Fields().ByTextName(key)
		}
	}
	if f == nil {
		return place{path: below(p.path, quoted(key))}
	}
	path := below(p.path, string(f.Name()))
	if f.IsList() || f.IsMap() {
		return place{path: path, field: f}
	}
	return inside(path, f)
}

func (p place) element(i int) place {
	if p.args > 0 {
		return place{path: p.path, args: p.args + 1}
	}
	path := item(p.path, i)
	if p.field != nil && p.field.IsList() {
		return inside(path, p.field)
	}
	return place{path: path}
}

// inside is the place of one value of a field.
func inside(path string, f protoreflect.FieldDescriptor) place {
	m := f.Message()
	if m != nil && isArbitrary(m) {
		return place{path: path, args: 1}
	}
	return place{path: path, message: m}
}

func isArbitrary(m protoreflect.MessageDescriptor) bool {
	n := m.FullName()
	return n == valueType || n == structType || n == listType
}

// tooBig reports whether a JSON number is an integer beyond ±2^53.
func tooBig(n string) bool {
	n = strings.TrimPrefix(n, "-")
	if strings.ContainsAny(n, ".eE") {
		return false
	}
	return len(n) > len(maxSafeInteger) || len(n) == len(maxSafeInteger) && n > maxSafeInteger
}

func quoted(s string) string {
	const most = 40
	if len(s) > most {
		return strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
}

// checkMessage refuses what the binary form lets through: unknown fields, and
// arbitrary values that nest too deeply.
func checkMessage(m protoreflect.Message) error { return checkAt(m, "", 0) }

func checkAt(m protoreflect.Message, path string, args int) error {
	d := m.Descriptor()
	if raw := m.GetUnknown(); len(raw) > 0 {
		number, _, _ := protowire.ConsumeTag(raw)
		return fault.Invalid(below(path, strconv.Itoa(int(number))), "unknown field of %s", d.Name())
	}
	if n := d.FullName(); n == structType || n == listType {
		if args++; args > job.MaxArgsDepth {
			return fault.Invalid(path, "must be nested at most %d levels deep", job.MaxArgsDepth)
		}
	}
	for _, f := range messageFields(d) {
		if !m.Has(f) {
			continue
		}
		if err := checkField(m.Get(f), f, path, args); err != nil {
			return err
		}
	}
	return nil
}

func checkField(v protoreflect.Value, f protoreflect.FieldDescriptor, path string, args int) error {
	inArgs := isArbitrary(f.ContainingMessage()) || args > 0
	at := path
	if !inArgs {
		at = below(path, string(f.Name()))
	}
	switch {
	case f.IsList():
		list := v.List()
		for i := range list.Len() {
			inner := at
			if !inArgs {
				inner = item(at, i)
			}
			if err := checkAt(list.Get(i).Message(), inner, args); err != nil {
				return err
			}
		}
		return nil
	case f.IsMap():
		var err error
		v.Map().Range(func(_ protoreflect.MapKey, item protoreflect.Value) bool {
			err = checkAt(item.Message(), at, args)
			return err == nil
		})
		return err
	}
	return checkAt(v.Message(), at, args)
}

// below names a field of what path names. A path that is already longer than
// any of ours does not grow.
func below(path, field string) string {
	switch {
	case path == "":
		return field
	case len(path) > maxQuoted:
		return path
	}
	return path + "." + field
}

// item names an element of the list that path names.
func item(path string, i int) string {
	if len(path) > maxQuoted {
		return path
	}
	return path + "[" + strconv.Itoa(i) + "]"
}

var messageFieldsOf sync.Map // protoreflect.MessageDescriptor → []protoreflect.FieldDescriptor

// messageFields are the fields of a type that hold messages.
func messageFields(d protoreflect.MessageDescriptor) []protoreflect.FieldDescriptor {
	if known, ok := messageFieldsOf.Load(d); ok {
		return known.([]protoreflect.FieldDescriptor)
	}
	var found []protoreflect.FieldDescriptor
	for i := range d.Fields().Len() {
		f := d.Fields().Get(i)
		if f.IsMap() && f.MapValue().Message() != nil || !f.IsMap() && f.Message() != nil {
			found = append(found, f)
		}
	}
	messageFieldsOf.Store(d, found)
	return found
}
