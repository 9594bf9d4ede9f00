package wire

import (
	"flexiq/pkg/fault"
	"flexiq/pkg/namespace"
)

// FilterName checks a name by which a listing is filtered; an empty one matches
// any. Nothing can have a name that the rules forbid, so such a filter is a
// mistake: an INVALID_REQUEST for the field, and not an empty listing.
func FilterName(field, name string) error {
	if name == "" {
		return nil
	}
	if err := namespace.Check(name); err != nil {
		return fault.Invalid(field, "%v", err)
	}
	return nil
}

// FilterNames checks the queue and the task of a filter; prefix is where it
// stands in the request ("" or "filter.").
func FilterNames(prefix, queue, task string) error {
	if err := FilterName(prefix+"queue", queue); err != nil {
		return err
	}
	return FilterName(prefix+"task", task)
}
