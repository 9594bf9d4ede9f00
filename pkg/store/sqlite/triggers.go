package sqlite

import (
	"context"
	"strings"

	"flexiq/pkg/fault"
	"flexiq/pkg/store"
	"flexiq/pkg/store/admit"
)

// forgottenAtOnce bounds the outlived signatures that a new one takes away.
const forgottenAtOnce = 100

const (
	triggerColumns       = `namespace, name, secret, stream, job, updated_at, updated_by`
	selectTrigger        = `SELECT ` + triggerColumns + ` FROM triggers WHERE namespace = ? AND name = ?`
	selectTriggers       = `SELECT ` + triggerColumns + ` FROM triggers WHERE namespace = ? AND name > ? ORDER BY name LIMIT ?`
	selectStreamTriggers = `SELECT ` + triggerColumns + ` FROM triggers INDEXED BY triggers_stream
		WHERE stream <> '' AND (namespace, name) > (?, ?) ORDER BY namespace, name LIMIT ?`
	upsertTrigger = `INSERT INTO triggers (` + triggerColumns + `) VALUES (?, ?, ?, ?, ?, ?, ?)
		ON CONFLICT (namespace, name) DO UPDATE SET secret = excluded.secret, stream = excluded.stream, job = excluded.job,
			updated_at = excluded.updated_at, updated_by = excluded.updated_by`
	selectSignature = `SELECT 1 FROM signatures WHERE namespace = ? AND signature = ? AND until >= ?`
	upsertSignature = `INSERT INTO signatures (namespace, signature, until) VALUES (?, ?, ?)
		ON CONFLICT (namespace, signature) DO UPDATE SET until = excluded.until`
	forgetSignatures = `DELETE FROM signatures WHERE (namespace, signature) IN
		(SELECT namespace, signature FROM signatures INDEXED BY signatures_until WHERE until < ? LIMIT ?)`
)

func (r *row) trigger() store.Trigger {
	return store.Trigger{Namespace: r.text(), Name: r.text(), Secret: r.bytes(), Stream: r.text(), Job: r.bytes(), UpdatedAt: r.time(), UpdatedBy: r.text()}
}

// PutTrigger implements [store.Triggers].
func (s *Store) PutTrigger(ctx context.Context, k store.Trigger, audit store.Record) error {
	return s.write(ctx, "put trigger", func(t *tx) error {
		sp, err := t.space(k.Namespace)
		if err != nil {
			return err
		}
		if err := t.create(sp); err != nil {
			return err
		}
		if err := t.exec(upsertTrigger, k.Namespace, k.Name, k.Secret, k.Stream, k.Job, t.now, k.UpdatedBy); err != nil {
			return err
		}
		return t.recordDone(audit)
	})
}

// DeleteTrigger implements [store.Triggers].
func (s *Store) DeleteTrigger(ctx context.Context, ns, name string, audit store.Record) error {
	return s.write(ctx, "delete trigger", func(t *tx) error {
		if err := t.exec("DELETE FROM triggers WHERE namespace = ? AND name = ?", ns, name); err != nil {
			return err
		}
		if t.Changes() == 0 {
			return fault.Missing("trigger")
		}
		return t.recordDone(audit)
	})
}

// Trigger implements [store.Triggers].
func (s *Store) Trigger(ctx context.Context, ns, name string) (*store.Trigger, error) {
	var found *store.Trigger
	err := s.read(ctx, "trigger", func(t *tx) error {
		found = nil
		_, err := t.one(selectTrigger, func(r *row) {
			k := r.trigger()
			found = &k
		}, ns, name)
		return err
	})
	if err == nil && found == nil {
		err = fault.Missing("trigger")
	}
	return found, err
}

// ListTriggers implements [store.Triggers].
func (s *Store) ListTriggers(ctx context.Context, ns, after string, limit int) (store.Page[store.Trigger], error) {
	limit = max(limit, 1)
	return s.triggers(ctx, limit, func(last store.Trigger) string { return last.Name }, selectTriggers, ns, after, limit+1)
}

// StreamTriggers implements [store.Triggers]. A page starts after a namespace, a
// NUL and a name.
func (s *Store) StreamTriggers(ctx context.Context, after string, limit int) (store.Page[store.Trigger], error) {
	limit = max(limit, 1)
	ns, name, _ := strings.Cut(after, "\x00")
	return s.triggers(ctx, limit, func(last store.Trigger) string { return last.Namespace + "\x00" + last.Name },
		selectStreamTriggers, ns, name, limit+1)
}

func (s *Store) triggers(ctx context.Context, limit int, key func(store.Trigger) string, query string, args ...any) (store.Page[store.Trigger], error) {
	var page store.Page[store.Trigger]
	err := s.read(ctx, "list triggers", func(t *tx) error {
		page = store.Page[store.Trigger]{}
		return t.each(query, func(r *row) bool {
			if len(page.Items) == limit {
				page.Next = key(page.Items[limit-1])
				return false
			}
			page.Items = append(page.Items, r.trigger())
			return true
		}, args...)
	})
	return page, err
}

// used reads which of the calls' signatures are remembered.
func (t *tx) used(calls []store.Call, into *admit.Snapshot) error {
	for i := range calls {
		sig := calls[i].Signature
		if sig == nil {
			continue
		}
		found, err := t.one(selectSignature, func(*row) {}, calls[i].Namespace, sig.Sum[:], t.now)
		if err != nil {
			return err
		}
		if found {
			into.Use(sig.Sum)
		}
	}
	return nil
}

// sign remembers signatures, and forgets some that are outlived.
func (t *tx) sign(ns string, all []*store.Signature) error {
	if len(all) == 0 {
		return nil
	}
	if err := t.exec(forgetSignatures, t.now, forgottenAtOnce); err != nil {
		return err
	}
	for _, sig := range all {
		if err := t.exec(upsertSignature, ns, sig.Sum[:], sig.Until); err != nil {
			return err
		}
	}
	return nil
}
