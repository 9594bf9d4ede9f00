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

// inForce reads the document that a namespace goes by: its own, else the
// default, else what its own row tells of the last clear.
func (t *tx) inForce(sp *space) (store.Document, error) {
	doc, err := t.document(namespace.QuotaKey(sp.name))
	if err != nil {
		return doc, err
	}
	if !sp.hasDocument {
		standard, err := t.defaultQuota()
		if err != nil {
			return doc, err
		}
		if standard.Raw != nil {
			doc, doc.Inherited = standard, true
		}
	}
	doc.Stamp = sp.stamp
	return doc, nil
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

// target is the document that PutQuota changes.
type target struct {
	key      string
	space    *space         // nil: the default quota
	inForce  store.Document // what is answered
	own      store.Document
	revision int64 // of the document itself
}

func (t *tx) target(c *store.QuotaChange) (*target, error) {
	on := &target{key: defaultQuotaKey}
	var err error
	if c.Default {
		on.own, err = t.defaultQuota()
		on.inForce, on.revision = on.own, on.own.Stamp.Default
		return on, err
	}
	on.key = namespace.QuotaKey(c.Namespace)
	if on.space, err = t.space(c.Namespace); err != nil {
		return nil, err
	}
	on.revision = on.space.stamp.Revision
	if on.own, err = t.document(on.key); err != nil {
		return nil, err
	}
	on.inForce, err = t.inForce(on.space)
	return on, err
}

// is reports whether the document is at a revision, 0 meaning that there is none.
func (on *target) is(revision int64) bool {
	if revision == 0 {
		return on.own.Raw == nil
	}
	return on.revision == revision
}

// PutQuota implements [store.Quotas].
func (s *Store) PutQuota(ctx context.Context, c store.QuotaChange) (store.Document, error) {
	var doc store.Document
	var refusal error
	err := s.write(ctx, "put quota", func(t *tx) error {
		refusal = nil
		on, err := t.target(&c)
		if err != nil {
			return err
		}
		record := c.Audit
		record.Old, record.New, record.Outcome = string(on.own.Raw), string(c.Raw), "ok"
		if c.IfRevision != nil && !on.is(*c.IfRevision) {
			refusal = fault.New(fault.RevisionMismatch, "the quota is at revision %d", on.revision)
			record.Outcome = string(fault.RevisionMismatch)
		} else if on, err = t.put(on, &c); err != nil {
			return err
		}
		doc, record.Revision = on.inForce, on.revision
		return t.record(&record)
	})
	if err != nil {
		return store.Document{}, err
	}
	return doc, refusal
}

// put writes a document, or an empty row that clears it, and reads it again.
// Triggers raise its revision and tell of the change.
func (t *tx) put(on *target, c *store.QuotaChange) (*target, error) {
	if on.space != nil {
		if err := t.create(on.space); err != nil {
			return nil, err
		}
	}
	var value any
	if c.Raw != nil {
		value = string(c.Raw)
	}
	if err := t.exec(upsertDocument, on.key, value, on.revision+1, t.now, c.Audit.TokenID); err != nil {
		return nil, err
	}
	if on.space != nil && c.Rate != nil {
		if err := t.saveBucket(on.space, on.space.bucket.Refill(*c.Rate, t.now)); err != nil {
			return nil, err
		}
	}
	t.defaultStamp = nil // read before the change
	return t.target(c)
}

const selectChanges = `SELECT kind, key, seq FROM changes WHERE seq > ? ORDER BY seq LIMIT ?`

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
		return t.each(selectChanges, func(r *row) bool {
			out.Items = append(out.Items, store.Change{Kind: store.Kind(r.text()), Key: r.text()})
			if len(out.Items) == limit {
				out.Latest = r.int()
			}
			return true
		}, since, limit)
	})
	return out, err
}
