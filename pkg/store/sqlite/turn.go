package sqlite

import (
	"context"

	"flexiq/pkg/fault"
	"flexiq/pkg/store"
)

// Turn implements [store.Dispatch].
func (s *Store) Turn(ctx context.Context, settlements []store.Settlement, wants []store.Want) ([]store.Settled, []store.Grant, error) {
	if len(settlements)+len(wants) == 0 {
		return nil, nil, nil
	}
	settled, grants := make([]store.Settled, len(settlements)), make([]store.Grant, len(wants))
	err := s.write(ctx, "turn", func(t *tx) error {
		d := newDispatch(t)
		for i := range settlements {
			if err := d.settle(&settlements[i], &settled[i]); err != nil {
				return err
			}
		}
		for i := range wants {
			if err := d.grant(&wants[i], &grants[i]); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil && !unavailable(err) {
		// Something about one unit. Find out which, and let the others pass.
		clear(settled)
		clear(grants)
		err = s.turnApart(ctx, settlements, wants, settled, grants)
	}
	if err != nil {
		return nil, nil, err
	}
	return settled, grants, nil
}

// turnApart is Turn with every unit kept apart from the others.
func (s *Store) turnApart(ctx context.Context, settlements []store.Settlement, wants []store.Want,
	settled []store.Settled, grants []store.Grant) error {
	return s.write(ctx, "turn", func(t *tx) error {
		t.apart = true
		for i := range settlements {
			d := newDispatch(t) // what it remembers would outlive an undone unit
			err := t.savepoint(func() error { return d.settle(&settlements[i], &settled[i]) })
			if unavailable(err) {
				return err
			}
			if err != nil {
				s.log.Error().Err(err).Str("namespace", settlements[i].Namespace).Msg("settlement failed alone")
				settled[i] = store.Settled{}
			}
		}
		for i := range wants {
			d := newDispatch(t)
			err := t.savepoint(func() error { return d.grant(&wants[i], &grants[i]) })
			if unavailable(err) {
				return err
			}
			if err != nil {
				s.log.Error().Err(err).Str("namespace", wants[i].Namespace).Msg("claim failed alone")
				grants[i] = store.Grant{Err: fault.Wrap(err, fault.Internal, "internal error of the store")}
			}
		}
		return nil
	})
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
	lanes map[string][]*lane // by queue, once read
	all   bool               // lanes has every queue
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
