package model

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"time"

	"flexiq/pkg/fault"
	"flexiq/pkg/job"
	"flexiq/pkg/store"
)

// Quotas implements [store.Quotas].
func (s *Store) Quotas(_ context.Context, namespaces []string) ([]store.Document, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]store.Document, len(namespaces))
	for i, ns := range namespaces {
		out[i] = s.document(ns)
	}
	return out, nil
}

func (s *Store) document(ns string) store.Document {
	d, inherited := s.standard, true
	if sp := s.spaces[ns]; sp != nil && (sp.doc.raw != nil || s.standard.raw == nil) {
		d, inherited = sp.doc, false
	}
	return store.Document{Raw: d.raw, Stamp: s.stamp(ns), Inherited: inherited && d.raw != nil, UpdatedAt: d.at, UpdatedBy: d.by}
}

// DefaultQuota implements [store.Quotas].
func (s *Store) DefaultQuota(context.Context) (store.Document, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.defaultDocument(), nil
}

func (s *Store) defaultDocument() store.Document {
	d := s.standard
	return store.Document{Raw: d.raw, Stamp: store.Stamp{Default: d.revision}, UpdatedAt: d.at, UpdatedBy: d.by}
}

// PutQuota implements [store.Quotas].
func (s *Store) PutQuota(_ context.Context, c store.QuotaChange) (store.Document, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, d := s.clock(), &s.standard
	if !c.Default {
		d = &s.space(c.Namespace).doc
	}
	r := c.Audit
	r.Time, r.Old, r.New, r.Outcome = now, string(d.raw), string(c.Raw), "ok"
	current := func() store.Document {
		if c.Default {
			return s.defaultDocument()
		}
		return s.document(c.Namespace)
	}
	if want := c.IfRevision; want != nil && (*want == 0 && d.raw != nil || *want != 0 && *want != d.revision) {
		r.Outcome, r.Revision = string(fault.RevisionMismatch), d.revision
		s.keep(r)
		return current(), fault.New(fault.RevisionMismatch, "the quota has revision %d", d.revision)
	}
	d.raw, d.revision, d.at, d.by = slices.Clone(c.Raw), d.revision+1, now, c.Audit.TokenID
	r.Revision = d.revision
	s.keep(r)
	if c.Default {
		s.changes = append(s.changes, store.Change{Kind: store.KindDefaultQuota})
		return current(), nil
	}
	if c.Rate != nil {
		sp := s.space(c.Namespace)
		sp.bucket = bucketOf(sp.bucket).under(*c.Rate, now).stored()
	}
	s.changes = append(s.changes, store.Change{Kind: store.KindQuota, Key: c.Namespace})
	return current(), nil
}

// Scribble overwrites a stored document past the door.
func (w *World) Scribble(ns string, raw []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	d := &w.space(ns).doc
	d.raw, d.revision = raw, d.revision+1
	w.changes = append(w.changes, store.Change{Kind: store.KindQuota, Key: ns})
}

// Changes implements [store.Quotas].
func (s *Store) Changes(_ context.Context, since int64, limit int) (store.Changes, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := store.Changes{Latest: since}
	for i := since; i < int64(len(s.changes)); i++ {
		c := s.changes[i]
		if c.Kind != "" && !slices.Contains(s.changes[i+1:], c) {
			if len(out.Items) == limit {
				return out, nil
			}
			out.Items = append(out.Items, c)
		}
		out.Latest = i + 1
	}
	return out, nil
}

// Bootstrap implements [store.Tokens].
func (s *Store) Bootstrap(_ context.Context, tokens []store.Token) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.minted {
		return false, nil
	}
	for _, t := range tokens {
		s.putToken(t)
	}
	return true, nil
}

func (s *Store) putToken(t store.Token) {
	s.minted = true
	s.tokens[t.ID] = &t
	s.changes = append(s.changes, store.Change{Kind: store.KindToken, Key: t.ID})
}

// PutToken implements [store.Tokens].
func (s *Store) PutToken(_ context.Context, t store.Token, by string, audit store.Record) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if maker, found := s.tokens[by]; by != "" && (!found || !maker.RevokedAt.IsZero()) {
		return fault.TokenDenied()
	}
	s.putToken(t)
	if t.ActingAs != "" {
		s.purgeTokens(t.Namespace)
	}
	audit.Outcome = "ok"
	s.record(audit)
	return nil
}

func (s *Store) purgeTokens(ns string) {
	left := store.PurgeTokens
	for id, t := range s.tokens {
		if left > 0 && t.Namespace == ns && t.ActingAs != "" && t.ExpiresAt.Before(s.clock().Add(-store.PurgeAfter)) {
			left--
			delete(s.tokens, id)
			for i, c := range s.changes { // the number stays, without an object
				if c.Key == id && c.Kind == store.KindToken {
					s.changes[i] = store.Change{}
				}
			}
		}
	}
}

// Token implements [store.Tokens].
func (s *Store) Token(_ context.Context, id string) (*store.Token, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.tokens[id]; t != nil {
		c := *t
		return &c, nil
	}
	return nil, fault.Missing("token")
}

// ListTokens implements [store.Tokens].
func (s *Store) ListTokens(_ context.Context, ns, after string, limit int) (store.Page[store.Token], error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var page store.Page[store.Token]
	for _, t := range s.tokens {
		if t.Namespace == ns && t.ID > after {
			page.Items = append(page.Items, *t)
		}
	}
	slices.SortFunc(page.Items, func(a, b store.Token) int { return cmp.Compare(a.ID, b.ID) })
	if len(page.Items) > limit {
		page.Items = page.Items[:limit]
		page.Next = page.Items[limit-1].ID
	}
	return page, nil
}

// RevokeToken implements [store.Tokens].
func (s *Store) RevokeToken(_ context.Context, ns, id string, audit store.Record) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.tokens[id]
	if t == nil || t.Namespace != ns {
		return fault.Missing("token")
	}
	if !t.RevokedAt.IsZero() {
		return nil
	}
	t.RevokedAt = s.clock()
	audit.Outcome = "ok"
	s.record(audit)
	s.changes = append(s.changes, store.Change{Kind: store.KindToken, Key: id})
	return nil
}

// TouchTokens implements [store.Tokens].
func (s *Store) TouchTokens(_ context.Context, used map[string]time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, at := range used {
		if t := s.tokens[id]; t != nil {
			t.LastUsed = at
		}
	}
	return nil
}

func (s *Store) record(r store.Record) {
	r.Time = s.clock()
	s.keep(r)
}

func (w *World) keep(r store.Record) {
	w.records++
	w.audit = append(w.audit, record{seq: w.records, Record: r})
}

// Audit implements [store.Trail].
func (s *Store) Audit(_ context.Context, r store.Record) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.record(r)
	return nil
}

// ListAudit implements [store.Trail].
func (s *Store) ListAudit(_ context.Context, ns string, f store.AuditFilter, after string, limit int) (store.Page[store.Record], error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	from, _ := strconv.Atoi(after) // an empty cursor is the beginning
	var page store.Page[store.Record]
	for _, r := range s.audit {
		if r.seq < from || r.Namespace != ns || f.Kind != "" && r.TargetKind != f.Kind || r.Time.Before(f.Since) {
			continue
		}
		if len(page.Items) == limit {
			page.Next = strconv.Itoa(r.seq)
			break
		}
		page.Items = append(page.Items, r.Record)
	}
	return page, nil
}

// NewTerm implements [store.Retention].
func (s *Store) NewTerm(context.Context, string) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.term++
	return s.term, nil
}

// Trim implements [store.Retention].
func (s *Store) Trim(_ context.Context, t store.Trim) (store.Trimmed, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case t.Term < s.term:
		return store.Trimmed{Superseded: true}, nil
	case t.Stamp != nil && *t.Stamp != s.stamp(t.Namespace):
		return store.Trimmed{}, store.ErrStale
	}
	sp, states := s.spaces[t.Namespace], []job.State{job.Complete, job.Cancelled}
	if t.Table == store.DeadLetters {
		states = []job.State{job.Dead}
	}
	rows := sp.sorted(in(states...))
	slices.SortStableFunc(rows, func(a, b *row) int { return a.job.FinishedAt.Compare(b.job.FinishedAt) })
	if t.Keep != nil {
		rows = rows[:max(0, int64(len(rows))-*t.Keep)]
	} else {
		rows = slices.DeleteFunc(rows, func(r *row) bool { return !r.job.FinishedAt.Before(t.Before) })
	}
	var out store.Trimmed
	if len(rows) > t.Limit {
		rows, out.More = rows[:t.Limit], true
	}
	for _, r := range rows {
		switch {
		case r.job.State == job.Complete:
			out.Completed++
		case r.job.State == job.Cancelled:
			out.Cancelled++
		case r.job.Shed():
			out.Shed++
		default:
			out.Dead++
		}
		delete(sp.rows, r.job.ID)
	}
	return out, nil
}

// TrimAudit implements [store.Retention].
func (s *Store) TrimAudit(_ context.Context, term int64, before time.Time, limit int) (store.Trimmed, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if term < s.term {
		return store.Trimmed{Superseded: true}, nil
	}
	var out store.Trimmed
	kept := s.audit[:0:0]
	for _, r := range s.audit {
		if r.Time.Before(before) {
			if out.Audit < int64(limit) {
				out.Audit++
				continue
			}
			out.More = true
		}
		kept = append(kept, r)
	}
	s.audit = kept
	return out, nil
}
