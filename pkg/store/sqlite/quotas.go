package sqlite

import (
	"context"
	"slices"

	"flexiq/pkg/fault"
	"flexiq/pkg/namespace"
	"flexiq/pkg/store"
)

// defaultQuotaKey is the settings key of the installation's default quota.
const defaultQuotaKey = "installation:quota"

const (
	selectDocument = `SELECT value, updated_at, updated_by FROM settings WHERE scope = '' AND key = ?`
	upsertDocument = `INSERT INTO settings (key, value, revision, updated_at, updated_by) VALUES (?, ?, ?, ?, ?)
		ON CONFLICT (scope, key) DO UPDATE SET value = excluded.value, revision = excluded.revision,
			updated_at = excluded.updated_at, updated_by = excluded.updated_by`
	deleteDocument = `DELETE FROM settings WHERE scope = '' AND key = ?`
)

// Quotas implements [store.Quotas].
func (s *Store) Quotas(ctx context.Context, namespaces []string) ([]store.Document, error) {
	out := make([]store.Document, 0, len(namespaces))
	for part := range slices.Chunk(namespaces, interestsAtOnce) {
		err := s.read(ctx, "quotas", func(t *tx) error {
			for _, name := range part {
				sp, err := t.space(name)
				if err != nil {
					return err
				}
				doc, err := t.inForce(sp)
				if err != nil {
					return err
				}
				out = append(out, doc)
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

// DefaultQuota implements [store.Quotas].
func (s *Store) DefaultQuota(ctx context.Context) (doc store.Document, err error) {
	err = s.read(ctx, "default quota", func(t *tx) error {
		doc, err = t.defaultQuota()
		return err
	})
	return doc, err
}

// inForce reads the document that a namespace goes by.
func (t *tx) inForce(sp *space) (store.Document, error) {
	if sp.hasDocument {
		doc, err := t.document(namespace.QuotaKey(sp.name))
		doc.Stamp = sp.stamp
		return doc, err
	}
	doc, err := t.defaultQuota()
	doc.Inherited = doc.Raw != nil
	doc.Stamp = sp.stamp
	return doc, err
}

func (t *tx) defaultQuota() (store.Document, error) {
	revision, err := t.defaultRevision()
	if err != nil {
		return store.Document{}, err
	}
	doc, err := t.document(defaultQuotaKey)
	doc.Stamp = store.Stamp{Default: revision}
	return doc, err
}

func (t *tx) document(key string) (doc store.Document, err error) {
	_, err = t.one(selectDocument, func(r *row) {
		doc = store.Document{Raw: r.bytes(), UpdatedAt: r.time(), UpdatedBy: r.text()}
	}, key)
	return doc, err
}

// target is one document that PutQuota changes.
type target struct {
	key      string
	space    *space // nil: the default quota
	old      store.Document
	exists   bool
	revision int64 // of the document itself
}

func (t *tx) target(c *store.QuotaChange) (*target, error) {
	if c.Default {
		old, err := t.defaultQuota()
		return &target{key: defaultQuotaKey, old: old, exists: old.Raw != nil, revision: old.Stamp.Default}, err
	}
	sp, err := t.space(c.Namespace)
	if err != nil {
		return nil, err
	}
	old, err := t.inForce(sp)
	return &target{key: namespace.QuotaKey(c.Namespace), space: sp, old: old, exists: sp.hasDocument, revision: sp.stamp.Revision}, err
}

// PutQuota implements [store.Quotas].
func (s *Store) PutQuota(ctx context.Context, c store.QuotaChange) (store.Document, error) {
	var doc store.Document
	var refusal error
	err := s.write(ctx, "put quota", func(t *tx) error {
		doc, refusal = store.Document{}, nil
		on, err := t.target(&c)
		if err != nil {
			return err
		}
		record := c.Audit
		if on.exists {
			record.Old = string(on.old.Raw)
		}
		record.New, record.Outcome = string(c.Raw), "ok"
		if c.IfRevision != nil && !on.is(*c.IfRevision) {
			doc = on.old
			refusal = fault.New(fault.RevisionMismatch, "the quota is at revision %d, not at %d", on.present(), *c.IfRevision)
			record.Outcome, record.Revision = string(fault.RevisionMismatch), on.present()
			return t.record(&record)
		}
		if err := t.put(on, &c); err != nil {
			return err
		}
		now, err := t.target(&c)
		if err != nil {
			return err
		}
		doc, record.Revision = now.old, now.revision
		return t.record(&record)
	})
	if err != nil {
		return store.Document{}, err
	}
	return doc, refusal
}

// present is the revision of the document that exists, 0 for none.
func (on *target) present() int64 {
	if on.exists {
		return on.revision
	}
	return 0
}

func (on *target) is(revision int64) bool { return on.present() == revision }

// put writes or deletes a document. Triggers raise its revision and tell of the change.
func (t *tx) put(on *target, c *store.QuotaChange) error {
	t.defaultStamp = nil // may change
	if on.space != nil {
		if err := t.create(on.space); err != nil {
			return err
		}
	}
	switch {
	case c.Raw != nil:
		if err := t.exec(upsertDocument, on.key, string(c.Raw), on.revision+1, t.now, c.Audit.TokenID); err != nil {
			return err
		}
	case on.exists:
		if err := t.exec(deleteDocument, on.key); err != nil {
			return err
		}
	}
	if on.space == nil || c.Rate == nil || on.space.bucket.Rate.Count == 0 {
		return nil
	}
	return t.saveBucket(on.space, on.space.bucket.Refill(*c.Rate, t.now))
}

// Changes implements [store.Quotas].
func (s *Store) Changes(ctx context.Context, since int64, limit int) (store.Changes, error) {
	var out store.Changes
	limit = max(limit, 1)
	err := s.read(ctx, "changes", func(t *tx) error {
		out = store.Changes{}
		latest, err := t.number("SELECT change_seq FROM installation")
		if err != nil {
			return err
		}
		if since > latest {
			since = 0 // the file was replaced by an older one: anything may have changed
		}
		out.Latest = latest
		return t.each("SELECT kind, key, seq FROM changes WHERE seq > ? ORDER BY seq LIMIT ?", func(r *row) bool {
			out.Items = append(out.Items, store.Change{Kind: store.Kind(r.text()), Key: r.text()})
			if len(out.Items) == limit {
				out.Latest = r.int()
			}
			return true
		}, since, limit)
	})
	return out, err
}
