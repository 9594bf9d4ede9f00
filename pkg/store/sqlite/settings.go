package sqlite

import (
	"context"

	"flexiq/pkg/fault"
	"flexiq/pkg/store"
)

const (
	settingColumns = `key, value, revision, updated_at, updated_by`
	selectSetting  = `SELECT ` + settingColumns + ` FROM settings WHERE scope = ? AND key = ?`
	selectSettings = `SELECT ` + settingColumns + ` FROM settings WHERE scope = ? AND key > ? ORDER BY key LIMIT ?`
	upsertSetting  = `INSERT INTO settings (scope, key, value, revision, updated_at, updated_by) VALUES (?, ?, ?, ?, ?, ?)
		ON CONFLICT (scope, key) DO UPDATE SET value = excluded.value, revision = excluded.revision,
			updated_at = excluded.updated_at, updated_by = excluded.updated_by`
	deleteSetting = `DELETE FROM settings WHERE scope = ? AND key = ?`
)

func (r *row) setting(ns string) store.Setting {
	return store.Setting{Namespace: ns, Key: r.text(), Value: r.text(), Revision: r.int(), UpdatedAt: r.time(), UpdatedBy: r.text()}
}

// setting reads one, nil when there is none. The empty scope is that of
// reserved keys and never a namespace.
func (t *tx) setting(ns, key string) (*store.Setting, error) {
	if ns == "" {
		return nil, nil
	}
	var v store.Setting
	found, err := t.one(selectSetting, func(r *row) { v = r.setting(ns) }, ns, key)
	if err != nil || !found {
		return nil, err
	}
	return &v, nil
}

// Setting implements [store.Settings].
func (s *Store) Setting(ctx context.Context, ns, key string) (v store.Setting, err error) {
	err = s.read(ctx, "setting", func(t *tx) error {
		found, err := t.setting(ns, key)
		if err == nil && found == nil {
			return fault.Missing("setting")
		}
		if err == nil {
			v = *found
		}
		return err
	})
	return v, err
}

// PutSetting implements [store.Settings].
func (s *Store) PutSetting(ctx context.Context, v store.Setting, audit store.Record) (store.Setting, error) {
	err := s.write(ctx, "put setting", func(t *tx) error {
		sp, err := t.space(v.Namespace)
		if err != nil {
			return err
		}
		if err := t.create(sp); err != nil {
			return err
		}
		old, err := t.setting(v.Namespace, v.Key)
		if err != nil {
			return err
		}
		r := audit
		r.New, r.Outcome, v.Revision = v.Value, "ok", 1
		if old != nil {
			r.Old, v.Revision = old.Value, old.Revision+1
		}
		v.UpdatedAt, v.UpdatedBy, r.Revision = t.now, audit.TokenID, v.Revision
		if err := t.exec(upsertSetting, v.Namespace, v.Key, v.Value, v.Revision, t.now, v.UpdatedBy); err != nil {
			return err
		}
		return t.record(&r)
	})
	if err != nil {
		return store.Setting{}, err
	}
	return v, nil
}

// DeleteSetting implements [store.Settings].
func (s *Store) DeleteSetting(ctx context.Context, ns, key string, audit store.Record) error {
	return s.write(ctx, "delete setting", func(t *tx) error {
		old, err := t.setting(ns, key)
		switch {
		case err != nil:
			return err
		case old == nil:
			return fault.Missing("setting")
		}
		if err := t.exec(deleteSetting, ns, key); err != nil {
			return err
		}
		r := audit
		r.Old, r.Outcome, r.Revision = old.Value, "ok", old.Revision
		return t.record(&r)
	})
}

// ListSettings implements [store.Settings].
func (s *Store) ListSettings(ctx context.Context, ns, after string, limit int) (store.Page[store.Setting], error) {
	var page store.Page[store.Setting]
	if ns == "" {
		return page, nil
	}
	limit = max(limit, 1)
	err := s.read(ctx, "list settings", func(t *tx) error {
		page = store.Page[store.Setting]{}
		return t.each(selectSettings, func(r *row) bool {
			if len(page.Items) == limit {
				page.Next = page.Items[limit-1].Key
				return false
			}
			page.Items = append(page.Items, r.setting(ns))
			return true
		}, ns, after, limit+1)
	})
	return page, err
}
