package sqlite

import (
	"context"
	"fmt"
	"time"

	"flexiq/pkg/store"
)

// termsKept is how many past terms stay on record.
const termsKept = 1000

// NewTerm implements [store.Retention].
func (s *Store) NewTerm(ctx context.Context, holder string) (int64, error) {
	var term int64
	err := s.write(ctx, "new term", func(t *tx) error {
		latest, err := t.term()
		if err != nil {
			return err
		}
		term = latest + 1
		if err := t.exec("INSERT INTO terms (term, holder, issued_at) VALUES (?, ?, ?)", term, holder, t.now); err != nil {
			return err
		}
		return t.exec("DELETE FROM terms WHERE term <= ?", term-termsKept)
	})
	return term, err
}

// term is the latest term, 0 before the first.
func (t *tx) term() (int64, error) { return t.number("SELECT max(term) FROM terms") }

// Trim implements [store.Retention].
func (s *Store) Trim(ctx context.Context, w store.Trim) (store.Trimmed, error) {
	h, known := histories[w.Table]
	if !known || (w.Keep == nil) == w.Before.IsZero() || w.Limit < 1 {
		return store.Trimmed{}, fmt.Errorf("sqlite: trim of %q must have a limit and exactly one of keep and before", w.Table)
	}
	var out store.Trimmed
	err := s.write(ctx, "trim", func(t *tx) error {
		out = store.Trimmed{}
		term, err := t.term()
		if err != nil || term != w.Term {
			out.Superseded = term != w.Term
			return err
		}
		u, sp, err := t.usage(w.Namespace)
		switch {
		case err != nil:
			return err
		case w.Stamp != nil && *w.Stamp != sp.stamp:
			return store.ErrStale
		}
		limit, before := int64(w.Limit), w.Before
		if w.Keep != nil {
			limit, before = min(limit, h.rows(&u)-*w.Keep), endOfTime
		}
		if limit <= 0 {
			return nil
		}
		if err := t.trim(h, sp.id, before, limit, &out); err != nil {
			return err
		}
		if w.Keep != nil {
			out.More = h.rows(&u)-limit > *w.Keep
			return nil
		}
		out.More, err = t.one(h.selectOldest, func(*row) {}, sp.id, before, 1)
		return err
	})
	return out, err
}

// endOfTime is later than any time that is stored.
var endOfTime = time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)

// history is a table of history as Trim uses it.
type history struct {
	rows         func(*store.Usage) int64
	selectOldest string // ids and kinds, oldest first
	deleteRow    string
	count        func(out *store.Trimmed, kind int64)
}

var histories = map[store.Table]*history{
	store.Archive: {
		rows: func(u *store.Usage) int64 { return u.Archived },
		selectOldest: `SELECT id, state FROM archive INDEXED BY archive_age
			WHERE ns = ? AND finished_at < ? ORDER BY finished_at, id LIMIT ?`,
		deleteRow: `DELETE FROM archive WHERE ns = ? AND id = ?`,
		count: func(out *store.Trimmed, state int64) {
			if state == stateCancelled {
				out.Cancelled++
			} else {
				out.Completed++
			}
		},
	},
	store.DeadLetters: {
		rows: func(u *store.Usage) int64 { return u.Dead },
		selectOldest: `SELECT id, shed FROM dead_letters INDEXED BY dead_letters_age
			WHERE ns = ? AND finished_at < ? ORDER BY finished_at, id LIMIT ?`,
		deleteRow: `DELETE FROM dead_letters WHERE ns = ? AND id = ?`,
		count: func(out *store.Trimmed, shed int64) {
			if shed != 0 {
				out.Shed++
			} else {
				out.Dead++
			}
		},
	},
}

// trim deletes the oldest rows. Triggers delete their payloads.
func (t *tx) trim(h *history, ns int64, before time.Time, limit int64, out *store.Trimmed) error {
	var ids []string
	err := t.each(h.selectOldest, func(r *row) bool {
		ids = append(ids, r.text())
		h.count(out, r.int())
		return true
	}, ns, before, limit)
	if err != nil {
		return err
	}
	for _, id := range ids {
		if err := t.exec(h.deleteRow, ns, id); err != nil {
			return err
		}
	}
	return nil
}

const deleteRecords = `DELETE FROM audit WHERE id IN
	(SELECT id FROM audit INDEXED BY audit_age WHERE at < ? ORDER BY at, id LIMIT ?)`

// TrimAudit implements [store.Retention].
func (s *Store) TrimAudit(ctx context.Context, term int64, before time.Time, limit int) (store.Trimmed, error) {
	var out store.Trimmed
	err := s.write(ctx, "trim audit", func(t *tx) error {
		out = store.Trimmed{}
		latest, err := t.term()
		if err != nil || latest != term {
			out.Superseded = latest != term
			return err
		}
		if err := t.exec(deleteRecords, before, max(limit, 1)); err != nil {
			return err
		}
		out.Audit = int64(t.conn.Changes())
		out.More, err = t.one("SELECT 1 FROM audit INDEXED BY audit_age WHERE at < ? LIMIT 1", func(*row) {}, before)
		return err
	})
	return out, err
}
