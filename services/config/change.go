package config

import (
	"context"

	"flexiq/pkg/fault"
	"flexiq/pkg/store"
)

// change is a quota write, whichever method asks for it.
type change struct {
	operation  string
	standard   bool // of the installation's default quota
	ifRevision *int64
	wait       bool
	dryRun     bool
	edits      bool // next depends on the current document, and so on its revision
	next       func(current store.Document) (raw []byte, err error)
}

func (c change) check() error {
	switch {
	case c.ifRevision != nil && *c.ifRevision < 0:
		return fault.Invalid("if_revision", "must not be negative, got %d", *c.ifRevision)
	case c.dryRun && c.wait:
		return fault.Invalid("wait", "must not be given together with dry_run")
	case c.dryRun && c.standard:
		return fault.Invalid("dry_run", "tells of one namespace, and cannot be given together with default")
	}
	return nil
}

// change carries out a quota write, or with a dry run tells what it would do.
func (s *Service) change(ctx context.Context, c change) (answer, error) {
	t, err := about(ctx, c.standard)
	if err != nil {
		return answer{}, err
	}
	if err := c.check(); err != nil {
		return answer{}, err
	}
	var current store.Document
	if c.edits || c.dryRun {
		if current, err = s.document(ctx, t); err != nil {
			return answer{}, err
		}
		if !t.matches(current, c.ifRevision) {
			return answer{}, t.mismatch(current)
		}
	}
	raw, err := c.next(current)
	if err != nil {
		return answer{}, err
	}
	if c.dryRun {
		return s.rehearse(ctx, t, current, raw)
	}
	if c.edits && c.ifRevision == nil {
		c.ifRevision = t.asRead(current)
	}
	return s.put(ctx, t, c, raw)
}

// asRead is the if_revision of a write over the document that was read.
func (t subject) asRead(d store.Document) *int64 {
	var revision int64 // no document of its own: none may appear
	if d.Raw != nil && !d.Inherited {
		revision = t.revision(d)
	}
	return &revision
}

// put writes a document and answers when it is in force: at once where the
// store decides, within two seconds elsewhere, and with wait everywhere.
func (s *Service) put(ctx context.Context, t subject, c change, raw []byte) (answer, error) {
	q, err := readDocument(store.Document{Raw: raw})
	if err != nil {
		return answer{}, err
	}
	d, err := s.store.PutQuota(ctx, store.QuotaChange{
		Namespace: t.namespace, Default: t.standard(), Raw: raw, Rate: q.EnqueueRate, IfRevision: c.ifRevision,
		Audit: quotaRecord(ctx, c.operation),
	})
	if fault.Is(err, fault.RevisionMismatch) {
		return answer{}, recorded{t.mismatch(d)}
	}
	if err != nil {
		return answer{}, err
	}
	kind := store.KindQuota
	if t.standard() {
		kind = store.KindDefaultQuota
	}
	s.announce(kind, t.namespace, t.revision(d))
	s.board.moved(t.namespace)
	s.tellQuota(t, c.operation, d)
	a, err := t.answer(d)
	if err != nil {
		// The write stands; what it uncovered, the default quota, is unreadable.
		s.deps.Log.Warn().Err(err).Str("namespace", t.namespace).Msg("quota in force after a write is unreadable")
	}
	if c.wait {
		a.enforced = s.awaitEnforced(ctx)
	}
	return a, nil
}

// rehearse answers a dry run: the quota in force, the one that would be, and what
// it would do.
func (s *Service) rehearse(ctx context.Context, t subject, current store.Document, raw []byte) (answer, error) {
	next := store.Document{Raw: raw}
	if raw == nil { // cleared: the default quota takes over
		var err error
		if next, err = s.store.DefaultQuota(ctx); err != nil {
			return answer{}, err
		}
	}
	q, err := readDocument(next)
	if err != nil {
		return answer{}, err
	}
	usage, err := s.store.Usage(ctx, []string{t.namespace})
	if err != nil {
		return answer{}, err
	}
	a, _ := t.answer(current) // one that cannot be read is what a write would repair
	a.would = preview(q, usage[0])
	a.would.Quota, a.would.Inherited = toProto(q), raw == nil && next.Raw != nil
	return a, nil
}
