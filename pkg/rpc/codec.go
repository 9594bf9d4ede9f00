package rpc

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"flexiq/pkg/fault"
)

// Codec is one form of a body. It implements connect.Codec and is strict: a
// request with unknown fields is refused. Its zero value is [JSON].
type Codec struct{ binary bool }

// The forms of a body.
var (
	// JSON is proto3 JSON with the field names of the .proto files. Default
	// values and empty lists are written, unset presence fields are not, and
	// the output is compact. Integers beyond ±2^53 within arbitrary JSON values
	// ("args") are refused however they are spelled, and so is nesting beyond
	// job.MaxArgsDepth. Integers of 64 bits are plain decimals.
	JSON = Codec{}
	// Binary is the protobuf wire form.
	Binary = Codec{binary: true}
)

var (
	jsonOut = protojson.MarshalOptions{UseProtoNames: true, EmitDefaultValues: true}
	jsonIn  = protojson.UnmarshalOptions{}
)

// Name implements connect.Codec.
func (c Codec) Name() string {
	if c.binary {
		return "proto"
	}
	return "json"
}

// Marshal implements connect.Codec. It fails for anything but a protobuf
// message, and for text that is not UTF-8.
func (c Codec) Marshal(v any) ([]byte, error) {
	m, ok := v.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("%T is not a protobuf message", v)
	}
	if c.binary {
		return proto.Marshal(m)
	}
	raw, err := jsonOut.Marshal(m)
	if err != nil {
		return nil, err
	}
	// protojson puts in white space at random.
	out := bytes.NewBuffer(make([]byte, 0, len(raw)))
	if err := json.Compact(out, raw); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// Unmarshal implements connect.Codec. Its errors are INVALID_REQUEST and name
// the field where that is known. An empty body is an empty message.
func (c Codec) Unmarshal(body []byte, v any) error {
	m, ok := v.(proto.Message)
	if !ok {
		return fmt.Errorf("%T is not a protobuf message", v)
	}
	return c.decode(body, m)
}

func (c Codec) decode(body []byte, m proto.Message) error {
	if c.binary {
		if err := proto.Unmarshal(body, m); err != nil {
			return wireFault(err, body, m.ProtoReflect().Descriptor())
		}
		return checkMessage(m.ProtoReflect())
	}
	if len(body) == 0 {
		return nil
	}
	d := m.ProtoReflect().Descriptor()
	if needsScan(body, d) {
		if err := scan(body, d); err != nil {
			return err
		}
	}
	if err := jsonIn.Unmarshal(body, m); err != nil {
		return jsonFault(err, body, d)
	}
	return nil
}

// maxQuoted bounds how much of a foreign text an error repeats, in bytes.
const maxQuoted = 200

var (
	position   = regexp.MustCompile(`^\(line (\d+):(\d+)\): `)
	wrongValue = regexp.MustCompile(`^invalid value for \S+ (?:type|field) \S+?:? (.*)$`)
)

// jsonFault turns protojson's error into ours. Its texts are not an interface,
// so what cannot be recognised is passed on as it is; the field is found by the
// position that it tells.
func jsonFault(err error, body []byte, d protoreflect.MessageDescriptor) error {
	text := err.Error() // it may repeat much of the body
	if len(text) > 2*maxQuoted {
		text = text[:2*maxQuoted]
	}
	text = strings.ReplaceAll(text, "\u00a0", " ") // protojson varies its blanks
	text = strings.TrimPrefix(strings.TrimPrefix(text, "proto: "), "syntax error ")
	at, field := "", ""
	if m := position.FindStringSubmatchIndex(text); m != nil {
		line, _ := strconv.Atoi(text[m[2]:m[3]])
		column, _ := strconv.Atoi(text[m[4]:m[5]])
		at = " (line " + strconv.Itoa(line) + ":" + strconv.Itoa(column) + ")"
		field = pathAt(body, byteOffset(body, line, column), d)
		text = text[m[1]:]
	}
	half := -1
	if text == "unexpected EOF" || strings.HasPrefix(text, "invalid escape code ") {
		half = halfPair(body) // protojson looks for the other half, as far as the end
	}
	switch {
	case half >= 0:
		at, field = "", pathAt(body, half, d)
		text = "must not contain half a surrogate pair"
	case text == "invalid UTF-8 in string", text == "invalid UTF-8":
		text = notUTF8
	case strings.HasPrefix(text, "unknown field "):
		text = "unknown field"
	case strings.HasPrefix(text, "duplicate field "), strings.HasPrefix(text, "duplicate map key "):
		text = "given twice"
	default:
		text = wrongValue.ReplaceAllString(text, "invalid value $1")
	}
	if len(text) > maxQuoted {
		text = text[:maxQuoted] + "…"
	}
	text = strings.ToValidUTF8(text, "")
	if field != "" {
		return fault.Invalid(field, "%s%s", text, at)
	}
	return fault.New(fault.InvalidRequest, "the body is not valid JSON for this method: %s%s", text, at)
}

// halfPair finds the first escape of half a surrogate pair in the strings of a
// body, -1 when there is none.
func halfPair(body []byte) int {
	for i := 0; i < len(body); i++ {
		if body[i] != '\\' {
			continue
		}
		r := escaped(body[i:])
		switch {
		case r < 0:
			i++ // a short escape: the next byte is no backslash of its own
		case !utf16.IsSurrogate(r):
			i += 5
		case utf16.DecodeRune(r, escaped(body[i+6:])) == utf8.RuneError:
			return i
		default:
			i += 11
		}
	}
	return -1
}

// escaped reads an escape such as \u00e9, -1 when the text starts with none.
func escaped(text []byte) rune {
	if len(text) < 6 || text[0] != '\\' || text[1] != 'u' {
		return -1
	}
	v, err := strconv.ParseUint(string(text[2:6]), 16, 16)
	if err != nil {
		return -1
	}
	return rune(v)
}

// byteOffset finds the byte of a line and a column, both counted from 1, the
// column in characters.
func byteOffset(body []byte, line, column int) int {
	offset := 0
	for ; line > 1; line-- {
		n := bytes.IndexByte(body[offset:], '\n')
		if n < 0 {
			return len(body)
		}
		offset += n + 1
	}
	for ; column > 1 && offset < len(body); column-- {
		_, size := utf8.DecodeRune(body[offset:])
		offset += size
	}
	return offset
}
