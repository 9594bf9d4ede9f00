package postgres

import (
	"context"
	"time"

	"flexiq/pkg/fault"
	"flexiq/pkg/store"
)

const settingColumns = `key, value, revision, updated_at, updated_by`

var (
	selectSetting  = statement(`select ` + settingColumns + ` from flexiq.settings where scope = $1 and key = $2`)
	lockSetting    = statement(`select ` + settingColumns + ` from flexiq.settings where scope = $1 and key = $2 for update`)
	selectSettings = statement(`select ` + settingColumns + ` from flexiq.settings where scope = $1 and key > $2 order by scope, key limit $3`)
	writeSetting   = statement(`insert into flexiq.settings (scope, key, value, revision, updated_at, updated_by) values ($1, $2, $3, $4, $5, $6)
		on conflict (scope, key) do update set value = excluded.value, revision = excluded.revision,
			updated_at = excluded.updated_at, updated_by = excluded.updated_by`)
	deleteSetting = statement(`delete from flexiq.settings where scope = $1 and key = $2`)
)

func scanSetting(ns string, scan func(...any) error) (store.Setting, error) {
	v := store.Setting{Namespace: ns}
	var at int64
	err := scan(&v.Key, &v.Value, &v.Revision, &at, &v.UpdatedBy)
	v.UpdatedAt = instant(at)
	return v, err
}

// setting queues the reading of one. The empty scope is that of reserved keys
// and never a namespace: no setting is found there.
func (b *batch) setting(st stmt, ns, key string, into **store.Setting) {
	*into = nil
	if ns == "" {
		return
	}
	b.each(st, func(scan func(...any) error) error {
		v, err := scanSetting(ns, scan)
		*into = &v
		return err
	}, ns, storable(key))
}

// Setting implements [store.Settings].
func (s *Store) Setting(ctx context.Context, ns, key string) (store.Setting, error) {
	var found *store.Setting
	err := s.query(ctx, "setting", func(b *batch) { b.setting(selectSetting, ns, key, &found) })
	switch {
	case err != nil:
		return store.Setting{}, err
	case found == nil:
		return store.Setting{}, fault.Missing("setting")
	}
	return *found, nil
}

// PutSetting implements [store.Settings]. The namespace's lock keeps the
// revisions of a setting that is new to two writers apart.
func (s *Store) PutSetting(ctx context.Context, v store.Setting, audit store.Record) (store.Setting, error) {
	err := s.write(ctx, "put setting", func(ctx context.Context, t *tx) error {
		t.repeatable = true
		return t.commit(ctx, func(b *batch) { b.exec(createNamespaces, []string{v.Namespace}) })
	})
	if err != nil {
		return store.Setting{}, err
	}
	err = s.write(ctx, "put setting", func(ctx context.Context, t *tx) error {
		var old *store.Setting
		var now time.Time
		err := t.read(ctx, func(b *batch) {
			b.lock([]string{v.Namespace}, locking{}, map[string]bool{})
			s.time(b, &now)
			b.setting(selectSetting, v.Namespace, v.Key, &old)
		})
		if err != nil {
			return err
		}
		r := audit
		r.New, v.Revision, v.UpdatedAt, v.UpdatedBy = v.Value, 1, now, audit.TokenID
		if old != nil {
			r.Old, v.Revision = old.Value, old.Revision+1
		}
		r.Revision = v.Revision
		return t.commit(ctx, func(b *batch) {
			b.exec(writeSetting, v.Namespace, v.Key, v.Value, v.Revision, micros(now), v.UpdatedBy)
			b.done(&r, now)
		})
	})
	if err != nil {
		return store.Setting{}, err
	}
	return v, nil
}

// DeleteSetting implements [store.Settings].
func (s *Store) DeleteSetting(ctx context.Context, ns, key string, audit store.Record) error {
	return s.write(ctx, "delete setting", func(ctx context.Context, t *tx) error {
		var old *store.Setting
		var now time.Time
		err := t.read(ctx, func(b *batch) {
			b.setting(lockSetting, ns, key, &old)
			s.time(b, &now)
		})
		switch {
		case err != nil:
			return err
		case old == nil:
			return fault.Missing("setting")
		}
		r := audit
		r.Old, r.Revision = old.Value, old.Revision
		return t.commit(ctx, func(b *batch) {
			b.exec(deleteSetting, ns, key)
			b.done(&r, now)
		})
	})
}

// ListSettings implements [store.Settings].
func (s *Store) ListSettings(ctx context.Context, ns, after string, limit int) (store.Page[store.Setting], error) {
	var page store.Page[store.Setting]
	if ns == "" {
		return page, nil
	}
	limit = max(limit, 1)
	err := s.query(ctx, "list settings", func(b *batch) {
		page = store.Page[store.Setting]{}
		b.each(selectSettings, func(scan func(...any) error) error {
			v, err := scanSetting(ns, scan)
			switch {
			case err != nil:
				return err
			case len(page.Items) == limit:
				page.Next = page.Items[limit-1].Key
			default:
				page.Items = append(page.Items, v)
			}
			return nil
		}, ns, storable(after), limit+1)
	})
	return page, err
}
