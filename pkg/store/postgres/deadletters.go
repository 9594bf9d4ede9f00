package postgres

import (
	"context"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"flexiq/pkg/fault"
	"flexiq/pkg/job"
	"flexiq/pkg/store"
	"flexiq/pkg/store/admit"
)

// Replay implements [store.Letters].
func (s *Store) Replay(ctx context.Context, r store.Replay) ([]store.Replayed, error) {
	if len(r.Letters) == 0 {
		return nil, nil
	}
	out := make([]store.Replayed, len(r.Letters))
	g := &group{s: s, op: "replay", names: same(r.Namespace, len(r.Letters))}
	g.try = func(ctx context.Context, t *tx, units []int, l locking) ([]int, error) {
		return nil, (&replay{tx: t, Replay: &r, units: units, out: out}).run(ctx, l)
	}
	g.failed = func(unit int, err error) { out[unit] = store.Replayed{Err: err} }
	if err := g.run(ctx); err != nil {
		return nil, s.fail(ctx, "replay", err)
	}
	return out, nil
}

// same is a namespace as often as a statement needs it.
func same(ns string, n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = ns
	}
	return out
}

// replay is one transaction of Replay.
type replay struct {
	*tx
	*store.Replay
	units []int // of the letters
	out   []store.Replayed
}

var (
	selectLetters = statement(`select k.* from unnest($1::text[], $2::uuid[]) u(ns, id) cross join lateral (
		select ` + deadColumns + payloadColumns + ` from flexiq.dead_letters where ns = u.ns and id = u.id limit 1) k`)
	countRetries = statement(`update flexiq.jobs set auto_retries = u.retries from (
		select j.ctid as tid, u.retries from unnest($1::text[], $2::uuid[], $3::int[]) u(ns, id, retries)
		cross join lateral (select ctid from flexiq.jobs where ns = u.ns and id = u.id limit 1) j) u where jobs.ctid = u.tid`)
	moveLetters = statement(`delete from flexiq.dead_letters using (
		select k.ctid as tid from unnest($1::text[], $2::uuid[]) u(ns, id)
		cross join lateral (select ctid from flexiq.dead_letters where ns = u.ns and id = u.id limit 1) k) u where dead_letters.ctid = u.tid`)
	movePayloads = statement(`update flexiq.payloads set id = u.new_id from (
		select p.ctid as tid, u.new_id from unnest($1::text[], $2::uuid[], $3::uuid[]) u(ns, id, new_id)
		cross join lateral (select ctid from flexiq.payloads where ns = u.ns and id = u.id limit 1) p) u where payloads.ctid = u.tid`)
)

// run decides the letters and writes what moves. It commits to the disk before
// it is answered.
func (r *replay) run(ctx context.Context, l locking) error {
	letters := make([]store.Letter, len(r.units))
	ids := make([][16]byte, 0, len(letters))
	for i, u := range r.units {
		letters[i] = r.Letters[u]
		if id, ok := key(letters[i].ID); ok {
			ids = append(ids, id)
		}
	}
	held, spaces := make(map[string]bool), make(map[string]*space)
	snapshot := &admit.Snapshot{Known: make(map[string]admit.Known)}
	err := r.read(ctx, func(b *batch) {
		b.lock([]string{r.Namespace}, l, held)
		r.s.spaces(b, []string{r.Namespace}, spaces, &snapshot.Now)
		b.each(selectLetters, func(scan func(...any) error) error {
			var row jobRow
			var aside int32
			var inline []byte
			err := scan(row.dests(&aside, &inline)...)
			j := row.take()
			j.Payload = inline
			snapshot.Known[j.ID] = admit.Known{Job: j, Fingerprint: row.fingerprint, Aside: int64(aside)}
			return err
		}, same(r.Namespace, len(ids)), ids)
	})
	if err != nil {
		return err
	}
	if err := r.holders(ctx, snapshot); err != nil {
		return err
	}
	sp := spaces[r.Namespace]
	snapshot.Stamp, snapshot.Pending, snapshot.Bucket = sp.stamp, sp.pending, sp.bucket
	moves := admit.Replay(snapshot, r.Replay, letters)
	for i, u := range r.units {
		r.out[u] = moves.Outcomes[i]
	}
	if !moves.Writes() {
		return nil
	}
	return r.carryOut(ctx, moves, sp.laned, snapshot.Now)
}

// holders reads who has the keys of the letters.
func (r *replay) holders(ctx context.Context, s *admit.Snapshot) error {
	var unique, waiting pairs
	for _, k := range s.Known {
		unique.addKey(r.Namespace, k.Job.UniqueKey)
		waiting.addKey(r.Namespace, k.Job.Debounce.Key)
	}
	if len(unique.ns)+len(waiting.ns) == 0 {
		return nil
	}
	s.Unique, s.Waiting = make(map[string]*job.Job), make(map[string]*job.Job)
	return r.read(ctx, func(b *batch) {
		holder := func(st stmt, p *pairs, put func(*job.Job)) {
			if len(p.ns) == 0 {
				return
			}
			b.each(st, func(scan func(...any) error) error {
				var row jobRow
				err := scan(row.dests()...)
				put(row.take())
				return err
			}, p.ns, p.key)
		}
		holder(selectUnique, &unique, func(j *job.Job) { s.Unique[j.UniqueKey] = j })
		holder(selectWaiting, &waiting, func(j *job.Job) { s.Waiting[j.Debounce.Key] = j })
	})
}

func (r *replay) carryOut(ctx context.Context, m *admit.Moves, laned []string, now time.Time) error {
	var live inserts
	var retries []int32 // of those that have some
	var retried [][16]byte
	var from, asideFrom, asideTo [][16]byte
	for i := range m.Live {
		row := &m.Live[i]
		live.addLive(row, laned)
		if n := row.Job.AutoRetries; n > 0 {
			retried, retries = append(retried, live.id[i]), append(retries, n)
		}
		old, _ := key(m.From[i]) // it was found by it
		from = append(from, old)
		if row.Aside > 0 {
			asideFrom, asideTo = append(asideFrom, old), append(asideTo, live.id[i])
		}
	}
	var tokens buckets
	if m.Bucket != nil {
		tokens.add(r.Namespace, *m.Bucket)
	}
	return r.commit(ctx, func(b *batch) {
		if len(from) > 0 {
			live.insert(b)
			b.exec(moveLetters, same(r.Namespace, len(from)), from)
		}
		if len(retried) > 0 {
			b.exec(countRetries, same(r.Namespace, len(retried)), retried, retries)
		}
		if len(asideFrom) > 0 {
			b.exec(movePayloads, same(r.Namespace, len(asideFrom)), asideFrom, asideTo)
		}
		tokens.save(b)
		if r.Audit != nil && len(from) > 0 {
			b.record(r.Audit.Counted("moved", int64(len(from))), now)
		}
	})
}

// deleteDead deletes dead letters by id, with their payloads.
var deleteDead = statement(`with gone as (
		delete from flexiq.dead_letters using (
			select k.ctid as tid from unnest($1::text[], $2::uuid[]) u(ns, id)
			cross join lateral (select ctid from flexiq.dead_letters where ns = u.ns and id = u.id limit 1) k
		) o where dead_letters.ctid = o.tid
		returning ns, id, aside
	), bodies as (
		delete from flexiq.payloads using (
			select p.ctid as tid from gone
			cross join lateral (select ctid from flexiq.payloads where ns = gone.ns and id = gone.id limit 1) p where gone.aside > 0
		) p where payloads.ctid = p.tid
	)
	select count(*) from gone`)

// DeleteDead implements [store.Letters].
func (s *Store) DeleteDead(ctx context.Context, ns string, ids []string, audit store.Record) (int64, error) {
	seen := make(map[[16]byte]bool, len(ids))
	var keys [][16]byte
	for _, text := range ids {
		if id, ok := key(text); ok && !seen[id] {
			seen[id] = true
			keys = append(keys, id)
		}
	}
	if len(keys) == 0 {
		return 0, nil
	}
	n := int64(0)
	err := s.write(ctx, "delete dead letters", func(ctx context.Context, t *tx) error {
		n = 0
		var now time.Time
		err := t.read(ctx, func(b *batch) {
			b.lock([]string{ns}, locking{}, map[string]bool{})
			s.time(b, &now)
			b.each(deleteDead, func(scan func(...any) error) error { return scan(&n) }, same(ns, len(keys)), keys)
		})
		if err != nil || n == 0 {
			return err
		}
		return t.commit(ctx, func(b *batch) { b.record(audit.Counted("deleted", n), now) })
	})
	return n, err
}

var selectRetryable = statement(`select id, finished_at, auto_retries from flexiq.dead_letters
	where ns = $1 and not shed and (finished_at, id) > ($2, $3) and finished_at < $4 order by finished_at, id limit $5`)

// Retryable implements [store.Letters].
func (s *Store) Retryable(ctx context.Context, q store.Retryable) (store.Page[string], error) {
	var page store.Page[string]
	at, from, err := ageCursor(q.After)
	if err != nil {
		return page, err
	}
	limit := max(q.Limit, 1)
	err = s.query(ctx, "retryable dead letters", func(b *batch) {
		page = store.Page[string]{}
		rows, last := 0, ""
		// One row more than may be examined tells whether the listing goes on.
		b.each(selectRetryable, func(scan func(...any) error) error {
			if page.Next != "" {
				return nil
			}
			if len(page.Items) == limit || rows == examined {
				page.Next = last
				return nil
			}
			var id uuid.UUID
			var died int64
			var retries int32
			if err := scan(&id, &died, &retries); err != nil {
				return err
			}
			rows, last = rows+1, strconv.FormatInt(died, 10)+":"+hex.EncodeToString(id[:])
			if retries < q.Most {
				page.Items = append(page.Items, id.String())
			}
			return nil
		}, q.Namespace, at, from, micros(q.Before), examined+1)
	})
	return page, err
}

// ageCursor reads where a listing by (finished time, id) goes on.
func ageCursor(after string) (at int64, id [16]byte, err error) {
	if after == "" {
		return -1, id, nil
	}
	micros, text, _ := strings.Cut(after, ":")
	at, err = strconv.ParseInt(micros, 10, 64)
	raw, bad := hex.DecodeString(text)
	if err != nil || bad != nil || copy(id[:], raw) != len(id) {
		return 0, id, fault.Wrap(fmt.Errorf("postgres: cursor %q", after), fault.InvalidRequest, "the listing cannot go on from there")
	}
	return at, id, nil
}
