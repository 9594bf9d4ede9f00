package postgres

import (
	"context"
	"strings"
	"time"

	"flexiq/pkg/fault"
	"flexiq/pkg/store"
)

// forgottenAtOnce bounds the outlived signatures that a new one takes away.
const forgottenAtOnce = 100

const triggerColumns = `namespace, name, secret, stream, job, updated_at, updated_by`

var (
	selectTrigger  = statement(`select ` + triggerColumns + ` from flexiq.triggers where namespace = $1 and name = $2`)
	selectTriggers = statement(`select ` + triggerColumns + ` from flexiq.triggers
		where namespace = $1 and name > $2 order by namespace, name limit $3`)
	selectStreamTriggers = statement(`select ` + triggerColumns + ` from flexiq.triggers
		where stream <> '' and (namespace, name) > ($1, $2) order by namespace, name limit $3`)
	upsertTrigger = statement(`insert into flexiq.triggers (` + triggerColumns + `) values ($1, $2, $3, $4, $5, $6, $7)
		on conflict (namespace, name) do update set secret = excluded.secret, stream = excluded.stream, job = excluded.job,
			updated_at = excluded.updated_at, updated_by = excluded.updated_by`)
	deleteTrigger    = statement(`delete from flexiq.triggers where namespace = $1 and name = $2`)
	selectSignatures = statement(`select s.namespace, s.signature, s.until from unnest($1::text[], $2::bytea[]) u(ns, sum)
		cross join lateral (select * from flexiq.signatures where namespace = u.ns and signature = u.sum limit 1) s`)
	upsertSignatures = statement(`insert into flexiq.signatures (namespace, signature, until)
		select * from unnest($1::text[], $2::bytea[], $3::bigint[])
		on conflict (namespace, signature) do update set until = excluded.until`)
	forgetSignatures = statement(`delete from flexiq.signatures using (
		select ctid as tid from flexiq.signatures where until < $1 order by until limit $2 for update skip locked) u
		where signatures.ctid = u.tid`)
)

func scanTrigger(scan func(...any) error) (store.Trigger, error) {
	var k store.Trigger
	var updated int64
	err := scan(&k.Namespace, &k.Name, &k.Secret, &k.Stream, &k.Job, &updated, &k.UpdatedBy)
	k.UpdatedAt = instant(updated)
	return k, err
}

func (b *batch) trigger(ns, name string, into **store.Trigger) {
	*into = nil
	b.each(selectTrigger, func(scan func(...any) error) error {
		k, err := scanTrigger(scan)
		*into = &k
		return err
	}, ns, storable(name))
}

// PutTrigger implements [store.Triggers].
func (s *Store) PutTrigger(ctx context.Context, k store.Trigger, audit store.Record) error {
	if err := s.create(ctx, "put trigger", k.Namespace); err != nil {
		return err
	}
	return s.locked(ctx, "put trigger", k.Namespace, func(*batch) {}, func(now time.Time) (func(*batch), error) {
		return func(b *batch) {
			b.exec(upsertTrigger, k.Namespace, k.Name, k.Secret, k.Stream, k.Job, micros(now), k.UpdatedBy)
			b.done(&audit, now)
		}, nil
	})
}

// DeleteTrigger implements [store.Triggers].
func (s *Store) DeleteTrigger(ctx context.Context, ns, name string, audit store.Record) error {
	var before *store.Trigger
	return s.locked(ctx, "delete trigger", ns, func(b *batch) { b.trigger(ns, name, &before) }, func(now time.Time) (func(*batch), error) {
		if before == nil {
			return nil, fault.Missing("trigger")
		}
		return func(b *batch) {
			b.exec(deleteTrigger, ns, name)
			b.done(&audit, now)
		}, nil
	})
}

// Trigger implements [store.Triggers].
func (s *Store) Trigger(ctx context.Context, ns, name string) (*store.Trigger, error) {
	var found *store.Trigger
	err := s.query(ctx, "trigger", func(b *batch) { b.trigger(ns, name, &found) })
	if err == nil && found == nil {
		err = fault.Missing("trigger")
	}
	return found, err
}

// ListTriggers implements [store.Triggers].
func (s *Store) ListTriggers(ctx context.Context, ns, after string, limit int) (store.Page[store.Trigger], error) {
	limit = max(limit, 1)
	return s.triggers(ctx, limit, func(last store.Trigger) string { return last.Name }, selectTriggers, ns, storable(after), limit+1)
}

// StreamTriggers implements [store.Triggers]. A page starts after a namespace, a
// NUL and a name.
func (s *Store) StreamTriggers(ctx context.Context, after string, limit int) (store.Page[store.Trigger], error) {
	limit = max(limit, 1)
	ns, name, _ := strings.Cut(after, "\x00")
	return s.triggers(ctx, limit, func(last store.Trigger) string { return last.Namespace + "\x00" + last.Name },
		selectStreamTriggers, ns, name, limit+1)
}

func (s *Store) triggers(ctx context.Context, limit int, key func(store.Trigger) string, st stmt, args ...any) (store.Page[store.Trigger], error) {
	var page store.Page[store.Trigger]
	err := s.query(ctx, "list triggers", func(b *batch) {
		page = store.Page[store.Trigger]{}
		b.each(st, func(scan func(...any) error) error {
			k, err := scanTrigger(scan)
			if err == nil && len(page.Items) < limit {
				page.Items = append(page.Items, k)
			} else if err == nil {
				page.Next = key(page.Items[limit-1])
			}
			return err
		}, args...)
	})
	return page, err
}

// used queues the reading of until when the calls' signatures are remembered.
func (a *admission) used(b *batch, into map[string]map[string]int64) {
	var ns []string
	var sums [][]byte
	for _, u := range a.units {
		if sig := a.calls[u].Signature; sig != nil {
			ns, sums = append(ns, a.calls[u].Namespace), append(sums, sig.Sum[:])
		}
	}
	if len(ns) == 0 {
		return
	}
	b.each(selectSignatures, func(scan func(...any) error) error {
		var space string
		var sum []byte
		var until int64
		err := scan(&space, &sum, &until)
		put(into, space, string(sum), until)
		return err
	}, ns, sums)
}

// outstanding are the signatures that are remembered now.
func outstanding(until map[string]int64, now time.Time) map[[32]byte]bool {
	if len(until) == 0 {
		return nil
	}
	out := make(map[[32]byte]bool, len(until))
	for sum, end := range until {
		if end >= micros(now) && len(sum) == 32 {
			out[[32]byte([]byte(sum))] = true
		}
	}
	return out
}

// signed are signatures to remember.
type signed struct {
	ns    []string
	sums  [][]byte
	until []int64
}

func (s *signed) add(ns string, all []*store.Signature) {
	for _, sig := range all {
		s.ns, s.sums, s.until = append(s.ns, ns), append(s.sums, sig.Sum[:]), append(s.until, micros(sig.Until))
	}
}

// write remembers them, and forgets some that are outlived.
func (s *signed) write(b *batch, now time.Time) {
	if len(s.ns) > 0 {
		b.exec(forgetSignatures, micros(now), forgottenAtOnce)
		b.exec(upsertSignatures, s.ns, s.sums, s.until)
	}
}
