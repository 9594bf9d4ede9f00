package rpc

import (
	"strconv"
	"sync"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"

	"flexiq/pkg/fault"
	"flexiq/pkg/job"
)

const notUTF8 = "must be valid UTF-8"

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

// wireFault says what is wrong with a body that protobuf could not read: the
// field that is not UTF-8 or nests too deeply, else that it is no such message.
func wireFault(err error, body []byte, d protoreflect.MessageDescriptor) error {
	if found := checkWire(body, d, place{}); found != nil {
		return found
	}
	return fault.Wrap(err, fault.InvalidRequest, "the body is not a valid protobuf message of the type %s", d.FullName())
}

// checkWire reads a message at a place as far as it can be read. It goes no
// deeper than args may.
func checkWire(body []byte, d protoreflect.MessageDescriptor, at place) error {
	if n := d.FullName(); n == structType || n == listType {
		if at.args++; at.args > job.MaxArgsDepth {
			return fault.Invalid(at.path, "must be nested at most %d levels deep", job.MaxArgsDepth)
		}
	}
	items := map[protowire.Number]int{}
	for len(body) > 0 {
		number, kind, n := protowire.ConsumeTag(body)
		if n < 0 {
			return nil
		}
		body = body[n:]
		if n = protowire.ConsumeFieldValue(number, kind, body); n < 0 {
			return nil
		}
		field := d.Fields().ByNumber(number)
		if field != nil && kind == protowire.BytesType {
			value, _ := protowire.ConsumeBytes(body[:n])
			if err := checkWireField(value, field, at.inField(field, items[number])); err != nil {
				return err
			}
			items[number]++
		}
		body = body[n:]
	}
	return nil
}

func checkWireField(value []byte, f protoreflect.FieldDescriptor, at place) error {
	switch {
	case f.Message() != nil:
		return checkWire(value, f.Message(), at)
	case f.Kind() == protoreflect.StringKind && !utf8.Valid(value):
		return fault.Invalid(at.path, notUTF8)
	}
	return nil
}

// inField is the place of a field's value, the i-th one when it is a list. What
// is in an arbitrary value has the value's name, and an entry of a map the map's.
func (p place) inField(f protoreflect.FieldDescriptor, i int) place {
	of := f.ContainingMessage()
	if isArbitrary(of) || of.IsMapEntry() {
		return p
	}
	p.path = below(p.path, string(f.Name()))
	if f.IsList() {
		p.path = item(p.path, i)
	}
	return p
}
