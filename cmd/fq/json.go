package main

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"flexiq/pkg/fault"
)

// writeJSON prints a response body on one line, in the interface's own JSON
// (proto names, defaults emitted, unset presence left out) except that 64-bit
// integers are numbers.
func writeJSON(w io.Writer, m proto.Message) error {
	b, err := appendMessage(nil, m.ProtoReflect())
	if err != nil {
		return err
	}
	_, err = w.Write(append(b, '\n'))
	return err
}

func appendMessage(b []byte, m protoreflect.Message) ([]byte, error) {
	if strings.HasPrefix(string(m.Descriptor().FullName()), "google.protobuf.") {
		return appendWellKnown(b, m)
	}
	b = append(b, '{')
	first := true
	for i := range m.Descriptor().Fields().Len() {
		f := m.Descriptor().Fields().Get(i)
		if f.HasPresence() && !m.Has(f) {
			continue
		}
		if !first {
			b = append(b, ',')
		}
		first = false
		b = append(appendString(b, string(f.Name())), ':')
		var err error
		if b, err = appendField(b, f, m.Get(f)); err != nil {
			return nil, fmt.Errorf("%s: %w", f.Name(), err)
		}
	}
	return append(b, '}'), nil
}

func appendField(b []byte, f protoreflect.FieldDescriptor, v protoreflect.Value) ([]byte, error) {
	switch {
	case f.IsList():
		return appendList(b, f, v.List())
	case f.IsMap():
		return appendMap(b, f, v.Map())
	}
	return appendValue(b, f, v)
}

func appendList(b []byte, f protoreflect.FieldDescriptor, list protoreflect.List) ([]byte, error) {
	b = append(b, '[')
	for i := range list.Len() {
		if i > 0 {
			b = append(b, ',')
		}
		var err error
		if b, err = appendValue(b, f, list.Get(i)); err != nil {
			return nil, err
		}
	}
	return append(b, ']'), nil
}

func appendMap(b []byte, f protoreflect.FieldDescriptor, m protoreflect.Map) ([]byte, error) {
	var keys []protoreflect.MapKey
	m.Range(func(k protoreflect.MapKey, _ protoreflect.Value) bool {
		keys = append(keys, k)
		return true
	})
	slices.SortFunc(keys, func(x, y protoreflect.MapKey) int { return strings.Compare(x.String(), y.String()) })
	b = append(b, '{')
	for i, k := range keys {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(appendString(b, k.String()), ':')
		var err error
		if b, err = appendValue(b, f.MapValue(), m.Get(k)); err != nil {
			return nil, err
		}
	}
	return append(b, '}'), nil
}

func appendValue(b []byte, f protoreflect.FieldDescriptor, v protoreflect.Value) ([]byte, error) {
	switch x := v.Interface().(type) {
	case protoreflect.Message:
		return appendMessage(b, x)
	case string:
		return appendString(b, x), nil
	case []byte:
		return appendString(b, base64.StdEncoding.EncodeToString(x)), nil
	case bool:
		return strconv.AppendBool(b, x), nil
	case int32:
		return strconv.AppendInt(b, int64(x), 10), nil
	case int64:
		return strconv.AppendInt(b, x, 10), nil
	}
	return nil, fmt.Errorf("a field of kind %s has no JSON form here", f.Kind())
}

// appendWellKnown leaves times, durations and JSON values to protobuf's own
// encoder, whose spaces are random on purpose.
func appendWellKnown(b []byte, m protoreflect.Message) ([]byte, error) {
	text, err := protojson.Marshal(m.Interface())
	if err != nil {
		return nil, err
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, text); err != nil {
		return nil, err
	}
	return append(b, escapeControls(compact.Bytes())...), nil
}

func appendString(b []byte, s string) []byte {
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(s) // a string always encodes
	return append(b, escapeControls(bytes.TrimSuffix(text.Bytes(), []byte{'\n'}))...)
}

// escapeControls escapes what JSON allows in strings and terminals obey: DEL
// and the C1 controls.
func escapeControls(b []byte) []byte {
	isControl := func(r rune) bool { return r >= 0x7f && r <= 0x9f }
	if !bytes.ContainsFunc(b, isControl) {
		return b
	}
	var out []byte
	for _, r := range string(b) {
		if isControl(r) {
			out = fmt.Appendf(out, `\u%04x`, r)
		} else {
			out = append(out, string(r)...)
		}
	}
	return out
}

// writeFault prints an error as NATS callers get it.
func writeFault(w io.Writer, f *fault.Error) {
	b := append([]byte(`{"error":{"code":`), appendString(nil, string(codeOf(f.Reason)))...)
	b = append(append(b, `,"reason":`...), appendString(nil, string(f.Reason))...)
	b = append(append(b, `,"message":`...), appendString(nil, f.Message)...)
	b = append(b, `,"details":{`...)
	for i, k := range detailKeys(f.Details) {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(append(appendString(b, k), ':'), appendString(nil, f.Details[k])...)
	}
	_, _ = w.Write(append(b, "}}}\n"...)) // nobody is left to be told of a broken standard error
}
