package sqlite

import (
	"context"

	"flexiq/pkg/store"
)

// Turn implements [store.Dispatch].
func (s *Store) Turn(ctx context.Context, settlements []store.Settlement, wants []store.Want) ([]store.Settled, []store.Grant, error) {
	if len(settlements)+len(wants) == 0 {
		return nil, nil, nil
	}
	settled, grants := make([]store.Settled, len(settlements)), make([]store.Grant, len(wants))
	err := s.units(ctx, "turn", len(settlements)+len(wants), func(t *tx) func(int) error {
		d := newDispatch(t)
		return func(i int) error {
			if w := i - len(settlements); w >= 0 {
				grants[w] = store.Grant{}
				return d.grant(&wants[w], &grants[w])
			}
			settled[i] = store.Settled{}
			return d.settle(&settlements[i], &settled[i])
		}
	}, func(i int, err error) {
		if w := i - len(settlements); w >= 0 {
			grants[w] = store.Grant{Err: err}
		} else {
			settled[i] = store.Settled{Err: err}
		}
	})
	if err != nil {
		return nil, nil, err
	}
	return settled, grants, nil
}

// dispatch is what one turn remembers of the namespaces that it meets. It is
// right because the turn holds the write lock.
type dispatch struct {
	*tx
	spaces map[string]*floor
}

// floor is a namespace's part of a turn.
type floor struct {
	*space
	lanes  map[string][]*lane // by queue, once read
	limits *limits            // once read, which is after the settlements
	all    bool               // lanes has every queue
}

func newDispatch(t *tx) *dispatch { return &dispatch{tx: t, spaces: make(map[string]*floor)} }

func (d *dispatch) floor(name string) (*floor, error) {
	if f := d.spaces[name]; f != nil {
		return f, nil
	}
	sp, err := d.space(name)
	if err != nil {
		return nil, err
	}
	f := &floor{space: sp, lanes: make(map[string][]*lane)}
	d.spaces[name] = f
	return f, nil
}

// settle applies a settlement. All of them come before the first want, which
// reads its lanes afterwards.
func (d *dispatch) settle(s *store.Settlement, out *store.Settled) error {
	f, err := d.floor(s.Namespace)
	if err != nil || f.id == 0 {
		return err
	}
	*out, err = d.tx.settle(f.id, s)
	if err == nil && out.Accepted && !out.Repeat {
		f.running--
	}
	return err
}
