package wire

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"

	"flexiq/pkg/job"
)

// encodeArgs writes a value as compact JSON with sorted keys: one value has one
// text, so that a repeated call is recognised by its content.
func encodeArgs(v *structpb.Value) ([]byte, error) {
	e := &argsEncoder{}
	e.text = json.NewEncoder(&e.out)
	e.text.SetEscapeHTML(false)
	if err := e.value(v, 0); err != nil {
		return nil, err
	}
	return e.out.Bytes(), nil
}

type argsEncoder struct {
	out  bytes.Buffer
	text *json.Encoder
}

// value writes one value that stands below depth open brackets.
func (e *argsEncoder) value(v *structpb.Value, depth int) error {
	switch k := v.GetKind().(type) {
	case *structpb.Value_NullValue:
		e.out.WriteString("null")
	case *structpb.Value_BoolValue:
		fmt.Fprintf(&e.out, "%t", k.BoolValue)
	case *structpb.Value_NumberValue:
		if math.IsNaN(k.NumberValue) || math.IsInf(k.NumberValue, 0) {
			return fmt.Errorf("must not contain %v, which JSON cannot write", k.NumberValue)
		}
		return e.scalar(k.NumberValue)
	case *structpb.Value_StringValue:
		return e.scalar(k.StringValue)
	case *structpb.Value_ListValue:
		return e.list(k.ListValue.GetValues(), depth+1)
	case *structpb.Value_StructValue:
		return e.object(k.StructValue.GetFields(), depth+1)
	default:
		return fmt.Errorf("must be a JSON value")
	}
	return nil
}

func (e *argsEncoder) list(values []*structpb.Value, depth int) error {
	if depth > job.MaxArgsDepth {
		return tooDeep()
	}
	e.out.WriteByte('[')
	for i, v := range values {
		if i > 0 {
			e.out.WriteByte(',')
		}
		if err := e.value(v, depth); err != nil {
			return err
		}
	}
	e.out.WriteByte(']')
	return nil
}

func (e *argsEncoder) object(fields map[string]*structpb.Value, depth int) error {
	if depth > job.MaxArgsDepth {
		return tooDeep()
	}
	e.out.WriteByte('{')
	for i, name := range slices.Sorted(maps.Keys(fields)) {
		if i > 0 {
			e.out.WriteByte(',')
		}
		if err := e.scalar(name); err != nil {
			return err
		}
		e.out.WriteByte(':')
		if err := e.value(fields[name], depth); err != nil {
			return err
		}
	}
	e.out.WriteByte('}')
	return nil
}

func (e *argsEncoder) scalar(v any) error {
	if err := e.text.Encode(v); err != nil {
		return err
	}
	e.out.Truncate(e.out.Len() - 1) // the encoder's line feed
	return nil
}

func tooDeep() error {
	return fmt.Errorf("must be nested at most %d levels deep", job.MaxArgsDepth)
}

// decodeArgs reads what encodeArgs wrote.
func decodeArgs(text []byte) (*structpb.Value, error) {
	v := &structpb.Value{}
	if err := protojson.Unmarshal(text, v); err != nil {
		return nil, err
	}
	return v, nil
}
