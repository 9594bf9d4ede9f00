package rpc

import (
	"bytes"
	"encoding/json"
	"regexp"
	"strconv"
	"strings"
	"sync"

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

// needsScan tells whether a body could hold something that only the scan
// finds. For most it is one cheap pass: they hold neither an integer beyond
// ±2^53, which takes as many digits or an exponent, nor nest too deeply.
func needsScan(body []byte, d protoreflect.MessageDescriptor) bool {
	if holdsInt64(d) {
		return true
	}
	depth, digits := 0, 0
	for i := 0; i < len(body); i++ {
		b := body[i]
		if b >= '0' && b <= '9' {
			if digits++; digits >= len(maxSafeInteger) {
				return true
			}
			continue
		}
		if digits > 0 && b|0x20 == 'e' {
			return true
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

// scan refuses by name what needsScan suspects, and integers of 64 bits that
// are not plain decimals: protojson reads 1e2 and "1.0", which no quota
// document may hold. Text that is not JSON passes: the decoder will say what is
// wrong with it.
func scan(body []byte, d protoreflect.MessageDescriptor) error {
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
	int64   bool                           // an integer of 64 bits
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
		s.plain(at, string(t))
	case string:
		s.plain(at, t)
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

// plain refuses an integer of 64 bits in a spelling that only protojson knows.
func (s *scanner) plain(at place, text string) {
	if at.int64 && s.until == 0 && !plainDecimal.MatchString(text) {
		s.found = fault.Invalid(at.path, "must be a plain decimal integer, got %s", quoted(text))
	}
}

var plainDecimal = regexp.MustCompile(`^(0|-?[1-9][0-9]*)$`)

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
	return place{path: path, message: m, int64: isInt64(f.Kind())}
}

func isInt64(k protoreflect.Kind) bool {
	switch k {
	case protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Uint64Kind, protoreflect.Fixed64Kind, protoreflect.Sfixed64Kind:
		return true
	}
	return false
}

var holdsInt64Of sync.Map // protoreflect.FullName → bool

// holdsInt64 reports whether JSON of a type may hold an integer of 64 bits.
func holdsInt64(d protoreflect.MessageDescriptor) bool {
	if known, ok := holdsInt64Of.Load(d.FullName()); ok {
		return known.(bool)
	}
	found := searchInt64(d, map[protoreflect.FullName]bool{})
	holdsInt64Of.Store(d.FullName(), found)
	return found
}

func searchInt64(d protoreflect.MessageDescriptor, seen map[protoreflect.FullName]bool) bool {
	if seen[d.FullName()] || d.FullName().Parent() == "google.protobuf" { // whose JSON is a text, or arbitrary
		return false
	}
	seen[d.FullName()] = true
	for i := range d.Fields().Len() {
		f := d.Fields().Get(i)
		if isInt64(f.Kind()) || f.Message() != nil && searchInt64(f.Message(), seen) {
			return true
		}
	}
	return false
}

func isArbitrary(m protoreflect.MessageDescriptor) bool {
	n := m.FullName()
	return n == valueType || n == structType || n == listType
}

// tooBig reports whether a JSON number, however it is spelled, denotes an
// integer beyond ±2^53.
func tooBig(n string) bool {
	mantissa, power := strings.TrimPrefix(n, "-"), ""
	if i := strings.IndexAny(mantissa, "eE"); i >= 0 {
		mantissa, power = mantissa[:i], mantissa[i+1:]
	}
	whole, fraction, _ := strings.Cut(mantissa, ".")
	digits := strings.TrimLeft(whole+fraction, "0")
	significant := strings.TrimRight(digits, "0")
	if significant == "" {
		return false // zero
	}
	exponent := 0
	if power != "" {
		var err error
		if exponent, err = strconv.Atoi(power); err != nil { // of more digits than a body has
			return power[0] != '-'
		}
	}
	zeros := exponent - len(fraction) + len(digits) - len(significant)
	switch length := len(significant) + zeros; {
	case zeros < 0 || length < len(maxSafeInteger):
		return false // a fraction, or small
	case length > len(maxSafeInteger):
		return true
	}
	return significant+strings.Repeat("0", zeros) > maxSafeInteger
}

func quoted(s string) string {
	const most = 40
	if len(s) > most {
		return strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
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
