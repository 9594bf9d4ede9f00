package sqlite

import (
	"context"
	"strconv"

	"flexiq/pkg/fault"
	"flexiq/pkg/store"
)

const (
	insertRecord = `INSERT INTO audit (at, namespace, token_id, acting_as, door, operation, target_kind, target, outcome, old, new, revision)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`
	selectRecords = `SELECT id, at, namespace, token_id, acting_as, door, operation, target_kind, target, outcome, old, new, revision
		FROM audit INDEXED BY audit_namespace WHERE namespace = ? AND id > ? ORDER BY id LIMIT ?`
)

// record writes one line of the trail in the transaction of what it tells.
func (t *tx) record(r *store.Record) error {
	return t.exec(insertRecord, t.now, r.Namespace, r.TokenID, r.ActingAs, r.Door, r.Operation, r.TargetKind, r.Target,
		r.Outcome, r.Old, r.New, r.Revision)
}

// Audit implements [store.Trail].
func (s *Store) Audit(ctx context.Context, r store.Record) error {
	return s.write(ctx, "audit", func(t *tx) error { return t.record(&r) })
}

// ListAudit implements [store.Trail]. A page starts after a record's number in decimal.
func (s *Store) ListAudit(ctx context.Context, ns string, f store.AuditFilter, after string, limit int) (store.Page[store.Record], error) {
	var page store.Page[store.Record]
	from, err := int64(0), error(nil)
	if after != "" {
		if from, err = strconv.ParseInt(after, 10, 64); err != nil || from < 0 {
			return page, fault.Invalid("page_token", "is not one that a listing gave")
		}
	}
	limit = max(limit, 1)
	err = s.read(ctx, "list audit", func(t *tx) error {
		page = store.Page[store.Record]{}
		rows, last := 0, int64(0)
		return t.each(selectRecords, func(r *row) bool {
			if len(page.Items) == limit || rows == examined {
				page.Next = strconv.FormatInt(last, 10)
				return false
			}
			last, rows = r.int(), rows+1
			rec := store.Record{Time: r.time(), Namespace: r.text(), TokenID: r.text(), ActingAs: r.text(), Door: r.text(),
				Operation: r.text(), TargetKind: r.text(), Target: r.text(), Outcome: r.text(), Old: r.text(), New: r.text(), Revision: r.int()}
			if (f.Kind == "" || f.Kind == rec.TargetKind) && !rec.Time.Before(f.Since) {
				page.Items = append(page.Items, rec)
			}
			return true
		}, ns, from, examined+1)
	})
	return page, err
}
