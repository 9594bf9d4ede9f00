package redis

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"flexiq/pkg/fault"
	"flexiq/pkg/store"
)

// storedTrigger is a trigger's value, after the time of its change.
type storedTrigger struct {
	Secret    []byte `json:"secret,omitempty"`
	Stream    string `json:"stream,omitempty"`
	Job       []byte `json:"job"`
	UpdatedBy string `json:"updated_by"`
}

// PutTrigger implements [store.Triggers].
func (s *Store) PutTrigger(ctx context.Context, t store.Trigger, audit store.Record) error {
	list := ""
	if t.Stream != "" {
		list = streamedList
	}
	st, err := s.enlist(ctx, list, t.Namespace)
	if err == nil {
		value, _ := json.Marshal(storedTrigger{t.Secret, t.Stream, t.Job, t.UpdatedBy}) // it always marshals
		err = s.run(ctx, once, s.on(tag(t.Namespace), putTriggerScript, st.revision, st.term, t.Name, value, flag(t.Stream != ""), done(audit)))
	}
	return s.fail(ctx, "put trigger", err)
}

// DeleteTrigger implements [store.Triggers].
func (s *Store) DeleteTrigger(ctx context.Context, ns, name string, audit store.Record) error {
	c := s.on(tag(ns), putTriggerScript, "", "", name, "", 0, done(audit))
	if err := s.run(ctx, once, c); err != nil {
		return s.fail(ctx, "delete trigger", err)
	}
	if c.int() == 0 {
		return fault.Missing("trigger")
	}
	return nil
}

func readTrigger(ns, name, value string) (store.Trigger, error) {
	r := &reader{rest: value}
	at := int64(r.uint(8))
	var v storedTrigger
	if r.bad || json.Unmarshal([]byte(r.rest), &v) != nil { // the error may show the secret
		return store.Trigger{}, fmt.Errorf("redis: the value of trigger %q cannot be read", name)
	}
	return store.Trigger{Namespace: ns, Name: name, Secret: v.Secret, Stream: v.Stream, Job: v.Job, UpdatedAt: instant(at), UpdatedBy: v.UpdatedBy}, nil
}

// Trigger implements [store.Triggers].
func (s *Store) Trigger(ctx context.Context, ns, name string) (*store.Trigger, error) {
	c := plain("get", s.key(tag(ns), "t:"+name))
	if err := s.run(ctx, again, c); err != nil {
		return nil, s.fail(ctx, "trigger", err)
	}
	if c.reply == nil {
		return nil, fault.Missing("trigger")
	}
	t, err := readTrigger(ns, name, c.text())
	return &t, s.fail(ctx, "trigger", err)
}

// ListTriggers implements [store.Triggers].
func (s *Store) ListTriggers(ctx context.Context, ns, after string, limit int) (store.Page[store.Trigger], error) {
	limit = max(limit, 1)
	items, err := s.triggersOf(ctx, ns, "triggers", after, limit+1)
	if err != nil {
		return store.Page[store.Trigger]{}, s.fail(ctx, "list triggers", err)
	}
	page := store.Page[store.Trigger]{Items: items}
	if len(items) > limit {
		page.Items, page.Next = items[:limit], items[limit-1].Name
	}
	return page, nil
}

func (s *Store) triggersOf(ctx context.Context, ns, of, after string, limit int) ([]store.Trigger, error) {
	c := s.on(tag(ns), listTriggersScript, of, after, limit)
	if err := s.run(ctx, again, c); err != nil {
		return nil, err
	}
	var out []store.Trigger
	for r := c.list(); r.more(); {
		t, err := readTrigger(ns, r.text(), r.text())
		if err != nil {
			return nil, err
		}
		out = append(out, t)
	}
	return out, nil
}

// StreamTriggers implements [store.Triggers]. A page starts after a namespace, a
// NUL and a name; without a name after the whole namespace.
func (s *Store) StreamTriggers(ctx context.Context, after string, limit int) (store.Page[store.Trigger], error) {
	limit = max(limit, 1)
	var page store.Page[store.Trigger]
	ns, name, _ := strings.Cut(after, "\x00")
	if name != "" { // the rest of the namespace
		items, err := s.triggersOf(ctx, ns, "streamed", name, limit)
		if err != nil {
			return page, s.fail(ctx, "stream triggers", err)
		}
		page.Items = items
	}
	for len(page.Items) < limit {
		names, err := s.enlisted(ctx, streamedList, ns)
		if err != nil {
			return store.Page[store.Trigger]{}, s.fail(ctx, "stream triggers", err)
		}
		if len(names) == 0 {
			return page, nil
		}
		for _, ns = range names {
			items, err := s.triggersOf(ctx, ns, "streamed", "", limit-len(page.Items))
			if err != nil {
				return store.Page[store.Trigger]{}, s.fail(ctx, "stream triggers", err)
			}
			if page.Items = append(page.Items, items...); len(page.Items) == limit {
				break
			}
		}
	}
	last := page.Items[limit-1]
	page.Next = last.Namespace + "\x00" + last.Name
	return page, nil
}
