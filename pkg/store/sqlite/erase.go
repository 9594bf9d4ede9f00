package sqlite

import (
	"context"

	"flexiq/pkg/namespace"
	"flexiq/pkg/store"
)

// erasable are the deletions of a namespace's rows, in order: each deletes at
// most ?2 rows of the namespace with the number or the name ?1. Triggers keep
// the counts, delete payloads and tell of changes.
var erasable = []struct {
	byName bool
	sql    string
}{
	{true, `DELETE FROM tokens WHERE id IN (SELECT id FROM tokens INDEXED BY tokens_namespace WHERE namespace = ?1 LIMIT ?2)`},
	{true, `DELETE FROM schedules WHERE rowid IN (SELECT rowid FROM schedules WHERE namespace = ?1 LIMIT ?2)`},
	{true, `DELETE FROM triggers WHERE rowid IN (SELECT rowid FROM triggers WHERE namespace = ?1 LIMIT ?2)`},
	{false, `DELETE FROM jobs WHERE rowid IN (SELECT rowid FROM jobs WHERE ns = ?1 LIMIT ?2)`},
	{false, `DELETE FROM archive WHERE rowid IN (SELECT rowid FROM archive WHERE ns = ?1 LIMIT ?2)`},
	{false, `DELETE FROM dead_letters WHERE rowid IN (SELECT rowid FROM dead_letters WHERE ns = ?1 LIMIT ?2)`},
	{false, `DELETE FROM payloads WHERE rowid IN (SELECT rowid FROM payloads WHERE ns = ?1 LIMIT ?2)`},
	{true, `DELETE FROM signatures WHERE namespace = ?1 AND signature IN (SELECT signature FROM signatures WHERE namespace = ?1 LIMIT ?2)`},
	{true, `DELETE FROM settings WHERE rowid IN (SELECT rowid FROM settings WHERE scope = ?1 LIMIT ?2)`},
	{false, `DELETE FROM overrides WHERE ns = ?1 AND (kind, name) IN (SELECT kind, name FROM overrides WHERE ns = ?1 LIMIT ?2)`},
	{true, `DELETE FROM audit WHERE id IN (SELECT id FROM audit INDEXED BY audit_namespace WHERE namespace = ?1 LIMIT ?2)`},
}

// lastErased end a namespace that has no other rows.
var lastErased = []string{
	`DELETE FROM lanes WHERE ns = ?1`,
	`DELETE FROM usage WHERE ns = ?1`,
	`DELETE FROM history WHERE ns = ?1`,
	// Tells every process, also when there was no document.
	`UPDATE namespaces SET quota_revision = quota_revision + 1 WHERE id = ?1`,
	`DELETE FROM namespaces WHERE id = ?1`,
}

// EraseNamespace implements [store.Upkeep].
func (s *Store) EraseNamespace(ctx context.Context, ns string, limit int) (out store.Erased, err error) {
	if namespace.Check(ns) != nil {
		return out, nil
	}
	limit = max(limit, 1)
	err = s.write(ctx, "erase namespace", func(t *tx) error {
		out = store.Erased{}
		sp, err := t.space(ns)
		if err != nil {
			return err
		}
		left := limit
		for _, e := range erasable {
			whose := any(sp.id)
			if e.byName {
				whose = ns
			}
			if err := t.exec(e.sql, whose, left); err != nil {
				return err
			}
			left -= t.conn.Changes()
			out.Any = left < limit || sp.id != 0
			if left <= 0 {
				out.More = true
				return nil
			}
		}
		if err := t.exec(`DELETE FROM settings WHERE scope = '' AND key = ?`, namespace.QuotaKey(ns)); err != nil || sp.id == 0 {
			return err
		}
		for _, sql := range lastErased {
			if err := t.exec(sql, sp.id); err != nil {
				return err
			}
		}
		return nil
	})
	return out, err
}
