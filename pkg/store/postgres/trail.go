package postgres

import (
	"context"
	"strconv"
	"strings"
	"time"

	"flexiq/pkg/fault"
	"flexiq/pkg/store"
)

const recordColumns = `at, namespace, token_id, acting_as, door, operation, target_kind, target, outcome, old, new, revision`

var (
	insertRecord = statement(`with n as (update flexiq.change_counter set record = record + 1 where single returning record)
		insert into flexiq.audit (number, ` + recordColumns + `)
		select n.record, $1::bigint, $2::text, $3::text, $4::text, $5::text, $6::text, $7::text, $8::text, $9::text, $10::text, $11::text, $12::bigint from n`)
	selectRecords = statement(`select number, ` + recordColumns + ` from flexiq.audit
		where namespace = $1 and number > $2 order by namespace, number limit $3`)
)

// storable makes a text from outside one that PostgreSQL can hold and compare:
// valid UTF-8 without NUL.
func storable(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}

// done is record for what is done with the transaction, unless the record says otherwise.
func (b *batch) done(r *store.Record, now time.Time) {
	if r.Outcome == "" {
		r.Outcome = "ok"
	}
	b.record(r, now)
}

// record queues one line of the trail, in the transaction of what it tells.
func (b *batch) record(r *store.Record, now time.Time) {
	b.exec(insertRecord, micros(now), r.Namespace, r.TokenID, r.ActingAs, r.Door, r.Operation, r.TargetKind, storable(r.Target),
		storable(r.Outcome), storable(r.Old), storable(r.New), r.Revision)
}

// Audit implements [store.Trail].
func (s *Store) Audit(ctx context.Context, r store.Record) error {
	return s.write(ctx, "audit", func(ctx context.Context, t *tx) error {
		var now time.Time
		if err := t.read(ctx, func(b *batch) { s.time(b, &now) }); err != nil {
			return err
		}
		return t.commit(ctx, func(b *batch) { b.record(&r, now) })
	})
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
	rows := examined
	if f == (store.AuditFilter{}) {
		rows = min(rows, limit) // each record matches
	}
	err = s.query(ctx, "list audit", func(b *batch) {
		page = store.Page[store.Record]{}
		seen, last := 0, int64(0)
		b.each(selectRecords, func(scan func(...any) error) error {
			if page.Next != "" {
				return nil
			}
			if len(page.Items) == limit || seen == rows {
				page.Next = strconv.FormatInt(last, 10)
				return nil
			}
			var r store.Record
			var at int64
			err := scan(&last, &at, &r.Namespace, &r.TokenID, &r.ActingAs, &r.Door, &r.Operation, &r.TargetKind, &r.Target,
				&r.Outcome, &r.Old, &r.New, &r.Revision)
			r.Time = instant(at)
			seen++
			if (f.Kind == "" || f.Kind == r.TargetKind) && !r.Time.Before(f.Since) {
				page.Items = append(page.Items, r)
			}
			return err
		}, ns, from, rows+1)
	})
	return page, err
}
