package rpc

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

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
	// ("args") are refused, and so is nesting beyond job.MaxArgsDepth.
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
			return fault.Wrap(err, fault.InvalidRequest, "the body is not a valid protobuf message of the type %s",
				m.ProtoReflect().Descriptor().FullName())
		}
		return checkMessage(m.ProtoReflect())
	}
	if len(body) == 0 {
		return nil
	}
	if needsScan(body) {
		if err := scanArgs(body, m.ProtoReflect().Descriptor()); err != nil {
			return err
		}
	}
	if err := jsonIn.Unmarshal(body, m); err != nil {
		return jsonFault(err)
	}
	return nil
}

var (
	unknownField   = regexp.MustCompile(`unknown field "([^"]*)"`)
	duplicateField = regexp.MustCompile(`duplicate field "([^"]*)"`)
	wrongValue     = regexp.MustCompile(`^invalid value for \S+ (?:type|field) (\S+?):? (.*)$`)
	position       = regexp.MustCompile(`^\(line \d+:\d+\): `)
)

// jsonFault turns protojson's error into ours. Its texts are not an interface,
// so what cannot be recognised is passed on as it is.
func jsonFault(err error) error {
	text := strings.ReplaceAll(err.Error(), "\u00a0", " ") // protojson varies its blanks
	text = strings.TrimPrefix(text, "proto: ")
	text = strings.TrimPrefix(text, "syntax error ")
	at := strings.TrimSuffix(position.FindString(text), ": ")
	text = text[len(position.FindString(text)):]
	if len(text) > maxQuoted {
		text = strings.ToValidUTF8(text[:maxQuoted], "") + "…"
	}
	if at != "" {
		at = " " + at
	}
	if m := unknownField.FindStringSubmatch(text); m != nil {
		return fault.Invalid(m[1], "unknown field%s", at)
	}
	if m := duplicateField.FindStringSubmatch(text); m != nil {
		return fault.Invalid(m[1], "given twice%s", at)
	}
	if m := wrongValue.FindStringSubmatch(text); m != nil {
		return fault.Invalid(m[1], "invalid value %s%s", m[2], at)
	}
	return fault.New(fault.InvalidRequest, "the body is not valid JSON for this method: %s%s", text, at)
}

// maxQuoted bounds how much of a foreign text an error repeats, in bytes.
const maxQuoted = 200
