package postgres

import (
	"context"
	"slices"

	"flexiq/pkg/namespace"
	"flexiq/pkg/store"
)

// defaultQuotaKey is the settings key of the installation's default quota.
const defaultQuotaKey = "installation:quota"

// document is a stored document and the revision that it is at.
type document struct {
	raw       *string
	updatedAt int64
	updatedBy string
}

func (d *document) dests() []any { return []any{&d.raw, &d.updatedAt, &d.updatedBy} }

func (d *document) take() store.Document {
	doc := store.Document{UpdatedAt: instant(d.updatedAt), UpdatedBy: d.updatedBy}
	if d.raw != nil {
		doc.Raw = []byte(*d.raw)
	}
	return doc
}

// selectDocuments reads namespaces with their own documents, and the default one.
var selectDocuments = statement(`select ` + spaceColumns + `,
		d.value, coalesce(d.updated_at, 0), coalesce(d.updated_by, ''), s.value, coalesce(s.updated_at, 0), coalesce(s.updated_by, '')
	from unnest($1::text[], $2::text[]) with ordinality u(name, key, at)` + joinSpaces + `
	left join lateral (select value, updated_at, updated_by from flexiq.settings where scope = '' and key = u.key limit 1) d on true
	left join lateral (select value, updated_at, updated_by from flexiq.settings where scope = '' and key = '` + defaultQuotaKey + `' limit 1) s on true
	order by u.at`)

// documents is a namespace with what quotas are stored for it.
type documents struct {
	spaceRow
	own, standard document
}

// inForce is the document that the namespace goes by: its own, else the
// default, else what its own row tells of the last clear.
func (d *documents) inForce() store.Document {
	doc := d.own.take()
	if !d.hasDocument && d.standard.raw != nil {
		doc = d.standard.take()
		doc.Inherited = true
	}
	doc.Stamp = d.stamp
	return doc
}

// documents queues the reading of what quotas are stored for namespaces.
func (b *batch) documents(names []string, read func(*documents)) {
	keys := make([]string, len(names))
	for i, name := range names {
		keys[i] = namespace.QuotaKey(name)
	}
	b.each(selectDocuments, func(scan func(...any) error) error {
		var d documents
		err := scan(d.spaceRow.dests(append(d.own.dests(), d.standard.dests()...)...)...)
		d.take()
		if err == nil {
			read(&d)
		}
		return err
	}, names, keys)
}

// Quotas implements [store.Quotas].
func (s *Store) Quotas(ctx context.Context, namespaces []string) ([]store.Document, error) {
	out := make([]store.Document, 0, len(namespaces))
	for part := range slices.Chunk(namespaces, interestsAtOnce) {
		done := len(out)
		err := s.query(ctx, "quotas", func(b *batch) {
			out = out[:done]
			b.documents(part, func(d *documents) { out = append(out, d.inForce()) })
		})
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

var selectDefault = statement(`select i.default_revision, s.value, coalesce(s.updated_at, 0), coalesce(s.updated_by, '')
	from (select default_revision from flexiq.installation where single) i
	left join lateral (select value, updated_at, updated_by from flexiq.settings where scope = '' and key = '` + defaultQuotaKey + `' limit 1) s on true`)

// standard queues the reading of the default quota.
func (b *batch) standard(read func(store.Document)) {
	b.each(selectDefault, func(scan func(...any) error) error {
		var d document
		var revision int64
		err := scan(append([]any{&revision}, d.dests()...)...)
		doc := d.take()
		doc.Stamp = store.Stamp{Default: revision}
		read(doc)
		return err
	})
}

// DefaultQuota implements [store.Quotas].
func (s *Store) DefaultQuota(ctx context.Context) (doc store.Document, err error) {
	err = s.query(ctx, "default quota", func(b *batch) {
		b.standard(func(d store.Document) { doc = d })
	})
	return doc, err
}
