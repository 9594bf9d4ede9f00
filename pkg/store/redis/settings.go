package redis

import (
	"context"

	"flexiq/pkg/fault"
	"flexiq/pkg/store"
)

func (l *list) setting(ns string) store.Setting {
	return store.Setting{Namespace: ns, Key: l.text(), Value: l.text(), Revision: l.int(), UpdatedAt: l.time(), UpdatedBy: l.text()}
}

// Setting implements [store.Settings].
func (s *Store) Setting(ctx context.Context, ns, key string) (store.Setting, error) {
	c := s.on(tag(ns), settingScript, key)
	if err := s.run(ctx, again, c); err != nil {
		return store.Setting{}, s.fail(ctx, "setting", err)
	}
	r := c.list()
	if !r.more() {
		return store.Setting{}, fault.Missing("setting")
	}
	return r.setting(ns), nil
}

// PutSetting implements [store.Settings].
func (s *Store) PutSetting(ctx context.Context, v store.Setting, audit store.Record) (store.Setting, error) {
	st, _, err := s.register(ctx, []string{v.Namespace}, false, true)
	if err != nil {
		return store.Setting{}, s.fail(ctx, "put setting", err)
	}
	c := s.on(tag(v.Namespace), putSetting, v.Key, st.revision, st.term, v.Value, audit.TokenID, "ok", fixed(&audit))
	if err := s.run(ctx, once, c); err != nil {
		return store.Setting{}, s.fail(ctx, "put setting", err)
	}
	r := c.list()
	v.Revision, v.UpdatedAt, v.UpdatedBy = r.int(), r.time(), audit.TokenID
	return v, nil
}

// DeleteSetting implements [store.Settings].
func (s *Store) DeleteSetting(ctx context.Context, ns, key string, audit store.Record) error {
	c := s.on(tag(ns), deleteSetting, key, "ok", fixed(&audit))
	if err := s.run(ctx, once, c); err != nil {
		return s.fail(ctx, "delete setting", err)
	}
	if c.int() == 0 {
		return fault.Missing("setting")
	}
	return nil
}

// ListSettings implements [store.Settings].
func (s *Store) ListSettings(ctx context.Context, ns, after string, limit int) (store.Page[store.Setting], error) {
	var page store.Page[store.Setting]
	limit = max(limit, 1)
	c := s.on(tag(ns), settingsScript, after, limit+1)
	if err := s.run(ctx, again, c); err != nil {
		return page, s.fail(ctx, "list settings", err)
	}
	for r := c.list(); r.more(); {
		v := r.setting(ns)
		if len(page.Items) == limit {
			page.Next = page.Items[limit-1].Key
			break
		}
		page.Items = append(page.Items, v)
	}
	return page, nil
}
