package redis

import (
	"context"

	"flexiq/pkg/fault"
	"flexiq/pkg/namespace"
	"flexiq/pkg/store"
)

// quotaField is the settings key of a space's quota document; the empty name is
// the installation.
func quotaField(ns string) string {
	if ns == "" {
		return defaultQuotaKey
	}
	return namespace.QuotaKey(ns)
}

// document is a space's own document as it was read.
type document struct {
	store.Document
	fallback int64 // default revision that the space knows of
	past     bool  // it was written past the door since it last got a revision
}

// documents reads the own documents of spaces.
func (s *Store) documents(ctx context.Context, names ...string) ([]document, error) {
	cmds := make([]*command, len(names))
	for i, ns := range names {
		cmds[i] = s.on(tag(ns), quotaScript, quotaField(ns))
	}
	if err := s.run(ctx, again, cmds...); err != nil {
		return nil, err
	}
	out := make([]document, len(names))
	var past []int
	for i, c := range cmds {
		r := c.list()
		out[i] = readDocument(r, r.bool())
		out[i].past = r.bool()
		out[i].UpdatedAt, out[i].UpdatedBy = r.time(), r.text()
		if out[i].past {
			past = append(past, i)
		}
	}
	for _, i := range past {
		if err := s.adopt(ctx, names[i]); err != nil {
			return nil, err
		}
		c := s.on(tag(names[i]), quotaScript, quotaField(names[i]))
		if err := s.run(ctx, again, c); err != nil {
			return nil, err
		}
		r := c.list()
		out[i] = readDocument(r, r.bool())
		r.bool()
		out[i].UpdatedAt, out[i].UpdatedBy = r.time(), r.text()
	}
	return out, nil
}

// readDocument reads document, revision and default revision.
func readDocument(r *list, has bool) document {
	var d document
	raw := r.text()
	if has {
		d.Raw = []byte(raw)
	}
	d.Stamp.Revision, d.fallback = r.int(), r.int()
	return d
}

// Quotas implements [store.Quotas].
func (s *Store) Quotas(ctx context.Context, namespaces []string) ([]store.Document, error) {
	own, err := s.documents(ctx, namespaces...)
	if err != nil {
		return nil, s.fail(ctx, "quotas", err)
	}
	out := make([]store.Document, len(own))
	var standard *store.Document
	for i := range own {
		s.watch.saw(namespaces[i], own[i].Raw)
		if own[i].Raw == nil && standard == nil {
			// After the namespaces: they never know of a later one.
			d, err := s.defaultQuota(ctx)
			if err != nil {
				return nil, s.fail(ctx, "quotas", err)
			}
			standard = &d
		}
		if out[i], err = s.inForce(ctx, own[i], standard); err != nil {
			return nil, s.fail(ctx, "quotas", err)
		}
	}
	return out, nil
}

// inForce is what a namespace goes by: its own document, else the default, else
// what its own record tells of the last clear.
func (s *Store) inForce(ctx context.Context, own document, standard *store.Document) (store.Document, error) {
	doc := own.Document
	if doc.Raw != nil {
		return doc, nil
	}
	stamp := store.Stamp{Revision: own.Stamp.Revision, Default: standard.Stamp.Default}
	if own.fallback > stamp.Default {
		var err error
		if stamp.Default, err = s.fallback(ctx, own.fallback); err != nil {
			return doc, err
		}
	}
	if standard.Raw != nil {
		doc, doc.Inherited = *standard, true
	}
	doc.Stamp = stamp
	return doc, nil
}

// DefaultQuota implements [store.Quotas].
func (s *Store) DefaultQuota(ctx context.Context) (store.Document, error) {
	doc, err := s.defaultQuota(ctx)
	return doc, s.fail(ctx, "default quota", err)
}

func (s *Store) defaultQuota(ctx context.Context) (store.Document, error) {
	own, err := s.documents(ctx, "")
	if err != nil {
		return store.Document{}, err
	}
	s.watch.saw("", own[0].Raw)
	doc := own[0].Document
	doc.Stamp = store.Stamp{Default: doc.Stamp.Revision}
	return doc, nil
}

// PutQuota implements [store.Quotas].
func (s *Store) PutQuota(ctx context.Context, c store.QuotaChange) (store.Document, error) {
	ns := c.Namespace
	if c.Default {
		ns = ""
	}
	doc, err := s.putQuota(ctx, ns, &c)
	return doc, s.fail(ctx, "put quota", err)
}

func (s *Store) putQuota(ctx context.Context, ns string, c *store.QuotaChange) (store.Document, error) {
	a, err := s.announce(ctx, quotaChange(ns), ns)
	if err != nil {
		return store.Document{}, err
	}
	own, done, err := s.putDocument(ctx, ns, c, a.standing)
	if err != nil {
		return store.Document{}, err // what was announced stands for a minute: nobody knows whether it was done
	}
	if ns == "" {
		if done {
			if err := s.raise(ctx, standing{revision: own.Stamp.Revision, term: a.term}); err != nil {
				return store.Document{}, err
			}
		}
		own.Stamp = store.Stamp{Default: own.Stamp.Revision}
	}
	if err := s.finish(ctx, a, done); err != nil {
		return store.Document{}, err
	}
	doc, revision := own.Document, own.Stamp.InForce()
	if ns != "" && doc.Raw == nil {
		standard, err := s.defaultQuota(ctx)
		if err != nil {
			return store.Document{}, err
		}
		if doc, err = s.inForce(ctx, own, &standard); err != nil {
			return store.Document{}, err
		}
	}
	s.watch.saw(ns, own.Raw)
	if !done {
		return doc, fault.New(fault.RevisionMismatch, "the quota is at revision %d", revision)
	}
	return doc, nil
}

// putDocument writes a space's own document. It reports whether the document
// had the revision that it must have.
func (s *Store) putDocument(ctx context.Context, ns string, c *store.QuotaChange, st standing) (document, bool, error) {
	count, unit := int64(0), 0
	if c.Rate != nil && ns != "" {
		count, unit = c.Rate.Count, int(c.Rate.Unit)
	}
	must := any("")
	if c.IfRevision != nil {
		must = *c.IfRevision
	}
	cmd := s.on(tag(ns), putScript, quotaField(ns), st.revision, st.term, must, flag(c.Raw != nil), c.Raw, c.Audit.TokenID, count, unit,
		"ok", string(fault.RevisionMismatch), fixed(&c.Audit))
	if ns == "" {
		cmd.args[2] = 0 // the installation has no default to fall back to
	}
	if err := s.run(ctx, once, cmd); err != nil {
		return document{}, false, err
	}
	r := cmd.list()
	done := r.bool()
	d := readDocument(r, r.bool())
	d.UpdatedAt, d.UpdatedBy = r.time(), r.text()
	return d, done, nil
}

// adopt gives a document that was written past the door its revision.
func (s *Store) adopt(ctx context.Context, ns string) error {
	a, err := s.announce(ctx, quotaChange(ns), ns)
	if err != nil {
		return err
	}
	c := s.on(tag(ns), adoptScript, quotaField(ns), a.revision, a.term)
	if ns == "" {
		c.args[2] = 0
	}
	if err := s.run(ctx, once, c); err != nil {
		return err
	}
	if ns == "" && c.int() == 1 {
		st, err := s.standing(ctx)
		if err != nil {
			return err
		}
		if err := s.raise(ctx, st); err != nil {
			return err
		}
	}
	return s.finish(ctx, a, c.int() == 1)
}
