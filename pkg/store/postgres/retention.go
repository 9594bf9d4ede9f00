package postgres

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"flexiq/pkg/store"
)

var (
	nextTerm  = statement(`update flexiq.term set term = term + 1, holder = $2, issued_at = ` + nowOr1 + ` where single returning term`)
	shareTerm = statement(`select term from flexiq.term where single for share`)
	trimAudit = statement(`delete from flexiq.audit using (
		select ctid as tid from flexiq.audit where at < $1 order by at, number limit $2) a where audit.ctid = a.tid`)
	auditLeft = statement(`select coalesce((select true from flexiq.audit where at < $1 order by at, number limit 1), false)`)
)

// NewTerm implements [store.Retention]. It waits for the batches of the older
// term that have begun.
func (s *Store) NewTerm(ctx context.Context, holder string) (int64, error) {
	var term int64
	err := s.write(ctx, "new term", func(ctx context.Context, t *tx) error {
		return t.commit(ctx, func(b *batch) {
			b.each(nextTerm, func(scan func(...any) error) error { return scan(&term) }, s.override(), storable(holder))
		})
	})
	return term, err
}

// oldest deletes the oldest rows of a table of history, with their payloads, and
// tells what each was.
func oldest(table, kind string) stmt {
	return statement(`with gone as (
			delete from flexiq.` + table + ` using (
				select ctid as tid from flexiq.` + table + ` where ns = $1 and finished_at < $2 order by finished_at, id limit $3
			) o where ` + table + `.ctid = o.tid
			returning ns, id, aside, ` + kind + ` as kind
		), bodies as (
			delete from flexiq.payloads using (
				select p.ctid as tid from gone
				cross join lateral (select ctid from flexiq.payloads where ns = gone.ns and id = gone.id limit 1) p where gone.aside > 0
			) p where payloads.ctid = p.tid
		)
		select kind, count(*) from gone group by kind`)
}

func anyOlder(table string) stmt {
	return statement(`select coalesce((select true from flexiq.` + table + ` where ns = $1 and finished_at < $2 order by finished_at, id limit 1), false)`)
}

// history is a table of history as Trim uses it.
type history struct {
	trim, left stmt
	rows       func(*store.Usage) int64
	count      func(*store.Trimmed, bool) *int64 // kind: cancelled, or shed
}

var histories = map[store.Table]*history{
	store.Archive: {
		trim: oldest("archive", fmt.Sprintf("state = %d", stateCancelled)), left: anyOlder("archive"),
		rows: func(u *store.Usage) int64 { return u.Archived },
		count: func(out *store.Trimmed, cancelled bool) *int64 {
			if cancelled {
				return &out.Cancelled
			}
			return &out.Completed
		},
	},
	store.DeadLetters: {
		trim: oldest("dead_letters", "shed"), left: anyOlder("dead_letters"),
		rows: func(u *store.Usage) int64 { return u.Dead },
		count: func(out *store.Trimmed, shed bool) *int64 {
			if shed {
				return &out.Shed
			}
			return &out.Dead
		},
	},
}

// Trim implements [store.Retention].
func (s *Store) Trim(ctx context.Context, w store.Trim) (store.Trimmed, error) {
	h, known := histories[w.Table]
	if !known || (w.Keep == nil) == w.Before.IsZero() || w.Limit < 1 {
		return store.Trimmed{}, fmt.Errorf("postgres: trim of %q must have a limit and exactly one of keep and before", w.Table)
	}
	var out store.Trimmed
	err := s.write(ctx, "trim", func(ctx context.Context, t *tx) (err error) {
		out, err = s.trim(ctx, t, h, &w)
		return err
	})
	return out, err
}

func (s *Store) trim(ctx context.Context, t *tx, h *history, w *store.Trim) (out store.Trimmed, err error) {
	var term int64
	var usage []store.Usage
	err = t.read(ctx, func(b *batch) {
		b.each(shareTerm, func(scan func(...any) error) error { return scan(&term) })
		b.lock([]string{w.Namespace}, locking{}, map[string]bool{})
		s.usage(b, []string{w.Namespace}, &usage)
	})
	switch {
	case err != nil:
		return out, err
	case term != w.Term:
		out.Superseded = true
		return out, nil
	case w.Stamp != nil && *w.Stamp != usage[0].Stamp:
		return out, store.ErrStale
	}
	limit, before, rows := int64(w.Limit), micros(w.Before), h.rows(&usage[0])
	if w.Keep != nil {
		limit, before = min(limit, rows-*w.Keep), math.MaxInt64
	}
	if limit <= 0 {
		return out, nil
	}
	err = t.commit(ctx, func(b *batch) {
		b.each(h.trim, func(scan func(...any) error) error {
			var kind bool
			var n int64
			err := scan(&kind, &n)
			*h.count(&out, kind) += n
			return err
		}, w.Namespace, before, limit)
		if w.Keep != nil {
			out.More = rows-limit > *w.Keep
			return
		}
		b.each(h.left, func(scan func(...any) error) error { return scan(&out.More) }, w.Namespace, before)
	})
	return out, err
}

// TrimAudit implements [store.Retention].
func (s *Store) TrimAudit(ctx context.Context, term int64, before time.Time, limit int) (store.Trimmed, error) {
	var out store.Trimmed
	err := s.write(ctx, "trim audit", func(ctx context.Context, t *tx) error {
		out = store.Trimmed{}
		var latest int64
		err := t.read(ctx, func(b *batch) {
			b.each(shareTerm, func(scan func(...any) error) error { return scan(&latest) })
		})
		if err != nil || latest != term {
			out.Superseded = latest != term
			return err
		}
		return t.commit(ctx, func(b *batch) {
			b.exec(trimAudit, micros(before), max(limit, 1)).Exec(func(tag pgconn.CommandTag) error {
				out.Audit = tag.RowsAffected()
				return nil
			})
			b.each(auditLeft, func(scan func(...any) error) error { return scan(&out.More) }, micros(before))
		})
	})
	return out, err
}
