package sqlite

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"flexiq/pkg/fault"
	"flexiq/pkg/job"
	"flexiq/pkg/store"
	"flexiq/pkg/store/admit"
)

// Replay implements [store.Letters].
func (s *Store) Replay(ctx context.Context, r store.Replay) ([]store.Replayed, error) {
	n := len(r.Letters)
	out := make([]store.Replayed, n+1)
	err := s.units(ctx, "replay", n+1, func(t *tx) func(int) error {
		return func(i int) (err error) {
			if i == n { // what all of them come to
				return t.replayed(&r, moved(out[:n]))
			}
			out[i], err = t.replay(&r, i, moved(out[:i]))
			return err
		}
	}, func(i int, err error) { out[i] = store.Replayed{Err: err} })
	if err != nil {
		return nil, err
	}
	return out[:n], nil
}

// moved counts the letters that moved.
func moved(out []store.Replayed) (n int64) {
	for i := range out {
		if out[i].Job != nil {
			n++
		}
	}
	return n
}

// replayed writes the record of those that moved.
func (t *tx) replayed(r *store.Replay, moved int64) error {
	if r.Audit == nil || moved == 0 {
		return nil
	}
	return t.record(r.Audit.Counted("moved", moved))
}

const selectLetter = `SELECT ` + deadColumns + payloadColumns + ` FROM dead_letters WHERE ns = ? AND id = ?`

// replay decides the i-th letter, after some moved, and carries it out.
func (t *tx) replay(r *store.Replay, i int, made int64) (store.Replayed, error) {
	sp, err := t.space(r.Namespace)
	if err != nil {
		return store.Replayed{}, err
	}
	snapshot := &admit.Snapshot{
		Now: t.now, Stamp: sp.stamp, Pending: sp.pending, Made: made, Bucket: sp.bucket,
		Known: map[string]admit.Known{}, Unique: map[string]*job.Job{}, Waiting: map[string]*job.Job{},
	}
	letter := r.Letters[i]
	_, err = t.one(selectLetter, func(row *row) {
		k := row.known(r.Namespace)
		k.Aside, k.Job.Payload = row.int(), row.bytes()
		snapshot.Known[letter.ID] = k
	}, sp.id, letter.ID)
	if err != nil {
		return store.Replayed{}, err
	}
	if k, found := snapshot.Known[letter.ID]; found {
		if err := t.holder(selectUnique, sp, k.Job.UniqueKey, snapshot.Unique); err != nil {
			return store.Replayed{}, err
		}
		if err := t.holder(selectWaiting, sp, k.Job.Debounce.Key, snapshot.Waiting); err != nil {
			return store.Replayed{}, err
		}
	}
	moves := admit.Replay(snapshot, r, r.Letters[i:i+1])
	return moves.Outcomes[0], t.move(sp, moves)
}

// move writes what a replay moves.
func (t *tx) move(sp *space, m *admit.Moves) error {
	if err := t.insert(insertLive, sp.id, m.Live); err != nil {
		return err
	}
	for i, row := range m.Live {
		if n := row.Job.AutoRetries; n > 0 {
			if err := t.exec("UPDATE OR ROLLBACK jobs SET auto_retries = ? WHERE ns = ? AND id = ?", n, sp.id, row.Job.ID); err != nil {
				return err
			}
		}
		if row.Aside > 0 {
			if err := t.exec("UPDATE OR ROLLBACK payloads SET id = ? WHERE ns = ? AND id = ?", row.Job.ID, sp.id, m.From[i]); err != nil {
				return err
			}
		}
		if err := t.exec(histories[store.DeadLetters].deleteRow, sp.id, m.From[i]); err != nil {
			return err
		}
	}
	if m.Bucket == nil {
		return nil
	}
	return t.saveBucket(sp, *m.Bucket)
}

// DeleteDead implements [store.Letters]. Triggers delete the payloads.
func (s *Store) DeleteDead(ctx context.Context, ns string, ids []string, audit store.Record) (int64, error) {
	n := int64(0)
	err := s.write(ctx, "delete dead letters", func(t *tx) error {
		n = 0
		sp, err := t.space(ns)
		if err != nil {
			return err
		}
		for _, id := range ids {
			if err := t.exec(histories[store.DeadLetters].deleteRow, sp.id, id); err != nil {
				return err
			}
			n += int64(t.conn.Changes())
		}
		if n > 0 {
			return t.record(audit.Counted("deleted", n))
		}
		return nil
	})
	return n, err
}

const selectRetryable = `SELECT id, finished_at, auto_retries FROM dead_letters INDEXED BY dead_letters_retry
	WHERE ns = (SELECT id FROM namespaces WHERE name = ?) AND shed = 0 AND (finished_at, id) > (?, ?) AND finished_at < ?
	ORDER BY finished_at, id LIMIT ?`

// Retryable implements [store.Letters].
func (s *Store) Retryable(ctx context.Context, q store.Retryable) (store.Page[string], error) {
	var page store.Page[string]
	at, id, err := ageCursor(q.After)
	if err != nil {
		return page, err
	}
	limit := max(q.Limit, 1)
	err = s.read(ctx, "retryable dead letters", func(t *tx) error {
		page = store.Page[string]{}
		rows, last := 0, ""
		// One row more than may be examined tells whether the listing goes on.
		return t.each(selectRetryable, func(r *row) bool {
			if len(page.Items) == limit || rows == examined {
				page.Next = last
				return false
			}
			id, died := r.text(), r.int()
			rows, last = rows+1, strconv.FormatInt(died, 10)+":"+id
			if int32(r.int()) < q.Most {
				page.Items = append(page.Items, id)
			}
			return true
		}, q.Namespace, at, id, q.Before, examined+1)
	})
	return page, err
}

// ageCursor reads where a listing by (finished time, id) goes on.
func ageCursor(after string) (at int64, id string, err error) {
	if after == "" {
		return -1, "", nil
	}
	micros, id, _ := strings.Cut(after, ":")
	if at, err = strconv.ParseInt(micros, 10, 64); err != nil {
		return 0, "", fault.Wrap(fmt.Errorf("sqlite: cursor %q: %w", after, err), fault.InvalidRequest, "the listing cannot go on from there")
	}
	return at, id, nil
}
