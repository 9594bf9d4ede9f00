package model

import (
	"cmp"
	"context"
	"maps"
	"slices"

	"flexiq/pkg/fault"
	"flexiq/pkg/store"
)

// Setting implements [store.Settings].
func (s *Store) Setting(_ context.Context, ns, key string) (store.Setting, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sp := s.spaces[ns]; sp != nil {
		if v, ok := sp.settings[key]; ok {
			return v, nil
		}
	}
	return store.Setting{}, fault.Missing("setting")
}

// PutSetting implements [store.Settings].
func (s *Store) PutSetting(_ context.Context, v store.Setting, audit store.Record) (store.Setting, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sp := s.space(v.Namespace)
	old := sp.settings[v.Key]
	v.Revision, v.UpdatedAt, v.UpdatedBy = old.Revision+1, s.clock(), audit.TokenID
	sp.settings[v.Key] = v
	audit.Old, audit.New, audit.Outcome, audit.Revision = old.Value, v.Value, "ok", v.Revision
	s.record(audit)
	return v, nil
}

// DeleteSetting implements [store.Settings].
func (s *Store) DeleteSetting(_ context.Context, ns, key string, audit store.Record) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	sp := s.spaces[ns]
	if sp == nil || sp.settings[key].Revision == 0 {
		return fault.Missing("setting")
	}
	audit.Old, audit.Outcome, audit.Revision = sp.settings[key].Value, "ok", sp.settings[key].Revision
	delete(sp.settings, key)
	s.record(audit)
	return nil
}

// ListSettings implements [store.Settings].
func (s *Store) ListSettings(_ context.Context, ns, after string, limit int) (store.Page[store.Setting], error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var page store.Page[store.Setting]
	sp := s.spaces[ns]
	if sp == nil {
		return page, nil
	}
	for _, key := range slices.Sorted(maps.Keys(sp.settings)) {
		if key <= after {
			continue
		}
		if len(page.Items) == limit {
			page.Next = page.Items[limit-1].Key
			break
		}
		page.Items = append(page.Items, sp.settings[key])
	}
	return page, nil
}

// EraseNamespace implements [store.Upkeep].
func (s *Store) EraseNamespace(_ context.Context, ns string, limit int) (out store.Erased, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, t := range s.tokens {
		if t.Namespace == ns && ns != "" {
			out.Any = true
			if limit--; limit < 0 {
				out.More = true
				return out, nil
			}
			delete(s.tokens, id)
			s.changes = append(s.changes, store.Change{Kind: store.KindToken, Key: id})
		}
	}
	before := len(s.schedules) + len(s.triggers) + len(s.audit)
	mine := func(n name) bool { return n.ns == ns }
	maps.DeleteFunc(s.schedules, func(n name, _ *store.Schedule) bool { return mine(n) })
	maps.DeleteFunc(s.triggers, func(n name, _ *store.Trigger) bool { return mine(n) })
	sp := s.spaces[ns]
	rows := sp.sorted(func(*row) bool { return true })
	slices.SortStableFunc(rows, func(a, b *row) int { return cmp.Compare(b2i(b.live()), b2i(a.live())) })
	for _, r := range rows {
		out.Any = true
		if limit--; limit < 0 {
			out.More = true
			return out, nil
		}
		delete(sp.rows, r.job.ID)
	}
	if limit <= 0 || ns == "" {
		out.More = ns != ""
		return out, nil
	}
	s.audit = slices.DeleteFunc(s.audit, func(r record) bool { return r.Namespace == ns })
	out.Any = out.Any || sp != nil || len(s.schedules)+len(s.triggers)+len(s.audit) < before
	if sp != nil {
		delete(s.spaces, ns)
		delete(s.skew, ns)
		s.changes = append(s.changes, store.Change{Kind: store.KindQuota, Key: ns})
	}
	return out, nil
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}
