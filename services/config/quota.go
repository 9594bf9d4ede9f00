package config

import (
	"context"
	"strconv"
	"strings"

	"google.golang.org/protobuf/types/known/timestamppb"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/auth"
	"flexiq/pkg/fault"
	"flexiq/pkg/quota"
	"flexiq/pkg/store"
	"flexiq/pkg/wire"
)

// subject is whose quota a call is about: a namespace's, or with an empty name
// the installation's default quota.
type subject struct{ namespace string }

func (t subject) standard() bool { return t.namespace == "" }

// about tells whose quota the caller means. The namespace is the token's; the
// default quota is for platform tokens, and nothing else of a quota is.
func about(ctx context.Context, standard bool) (subject, error) {
	if !standard {
		ns, err := tenant(ctx)
		return subject{ns}, err
	}
	if !auth.From(ctx).Has(auth.Platform) {
		return subject{}, fault.New(fault.PermissionDenied, "default: the installation's default quota needs the scope platform").
			With(fault.KeyField, "default")
	}
	return subject{}, nil
}

// document reads the document in force.
func (s *Service) document(ctx context.Context, t subject) (store.Document, error) {
	if t.standard() {
		return s.store.DefaultQuota(ctx)
	}
	docs, err := s.store.Quotas(ctx, []string{t.namespace})
	if err != nil {
		return store.Document{}, err
	}
	return docs[0], nil
}

// revision is the number of the subject's own document, 0 before the first.
func (t subject) revision(d store.Document) int64 {
	if t.standard() {
		return d.Stamp.InForce()
	}
	return d.Stamp.Revision
}

// matches reports whether a caller's if_revision fits the document, by the
// rule of [store.Quotas.PutQuota].
func (t subject) matches(d store.Document, want *int64) bool {
	switch {
	case want == nil:
		return true
	case *want == 0:
		return d.Raw == nil || d.Inherited
	}
	return *want == t.revision(d)
}

// conflict is a REVISION_MISMATCH and the document that stands in the way.
type conflict struct {
	fault    *fault.Error
	raw      []byte // nil: there is none
	revision int64
}

func (c conflict) Error() string { return c.fault.Error() }
func (c conflict) Unwrap() error { return c.fault }

// mismatch is the answer to an if_revision that does not fit: the conflict
// returns the current document.
func (t subject) mismatch(d store.Document) conflict {
	c := conflict{revision: t.revision(d)}
	current := "{}"
	if d.Raw != nil && !d.Inherited {
		c.raw = d.Raw
		current = strings.ToValidUTF8(string(d.Raw), "\uFFFD")
	}
	revision := strconv.FormatInt(c.revision, 10)
	c.fault = fault.New(fault.RevisionMismatch, "if_revision: the quota has changed and is now at revision %s", revision).
		With(fault.KeyField, "if_revision").With("current", current).With("current_revision", revision)
	return c
}

// answer is what all quota methods answer.
type answer struct {
	quota     *flexiqv1.NamespaceQuota
	inherited bool
	revision  int64
	updatedAt *timestamppb.Timestamp
	updatedBy string
	enforced  *flexiqv1.EnforcedBy
	would     *flexiqv1.QuotaPreview
}

// answer describes a document. The error is QUOTA_UNREADABLE; the rest of the
// answer is there all the same.
func (t subject) answer(d store.Document) (answer, error) {
	a := answer{
		inherited: d.Inherited,
		revision:  t.revision(d),
		updatedAt: wire.Stamp(d.UpdatedAt),
		updatedBy: d.UpdatedBy,
	}
	q, err := readDocument(d)
	if err != nil {
		return a, err
	}
	a.quota = toProto(q)
	return a, nil
}

func (s *Service) getQuota(ctx context.Context, req *flexiqv1.GetQuotaRequest) (*flexiqv1.GetQuotaResponse, error) {
	t, err := about(ctx, req.GetDefault())
	if err != nil {
		return nil, err
	}
	d, err := s.document(ctx, t)
	if err != nil {
		return nil, err
	}
	a, err := t.answer(d)
	if err != nil {
		return nil, err
	}
	return &flexiqv1.GetQuotaResponse{
		Quota: a.quota, Inherited: a.inherited, Revision: a.revision, UpdatedAt: a.updatedAt, UpdatedBy: a.updatedBy,
	}, nil
}

func (s *Service) setQuota(ctx context.Context, req *flexiqv1.SetQuotaRequest) (*flexiqv1.SetQuotaResponse, error) {
	a, err := s.change(ctx, change{
		operation: "set-quota", standard: req.GetDefault(), ifRevision: req.IfRevision, wait: req.GetWait(), dryRun: req.GetDryRun(),
		next: func(store.Document) ([]byte, error) { return replaced(req.GetQuota()) },
	})
	if err != nil {
		return nil, err
	}
	return &flexiqv1.SetQuotaResponse{
		Quota: a.quota, Inherited: a.inherited, Revision: a.revision, UpdatedAt: a.updatedAt, UpdatedBy: a.updatedBy,
		EnforcedBy: a.enforced, Would: a.would,
	}, nil
}

func (s *Service) editQuota(ctx context.Context, req *flexiqv1.EditQuotaRequest) (*flexiqv1.EditQuotaResponse, error) {
	a, err := s.change(ctx, change{
		operation: "edit-quota", standard: req.GetDefault(), ifRevision: req.IfRevision, wait: req.GetWait(), dryRun: req.GetDryRun(),
		edits: true,
		next:  func(current store.Document) ([]byte, error) { return edited(current, req.GetQuota(), req.GetUnset()) },
	})
	if err != nil {
		return nil, err
	}
	return &flexiqv1.EditQuotaResponse{
		Quota: a.quota, Inherited: a.inherited, Revision: a.revision, UpdatedAt: a.updatedAt, UpdatedBy: a.updatedBy,
		EnforcedBy: a.enforced, Would: a.would,
	}, nil
}

func (s *Service) clearQuota(ctx context.Context, req *flexiqv1.ClearQuotaRequest) (*flexiqv1.ClearQuotaResponse, error) {
	a, err := s.change(ctx, change{
		operation: "clear-quota", standard: req.GetDefault(), ifRevision: req.IfRevision, wait: req.GetWait(), dryRun: req.GetDryRun(),
		next: func(store.Document) ([]byte, error) { return nil, nil },
	})
	if err != nil {
		return nil, err
	}
	return &flexiqv1.ClearQuotaResponse{
		Quota: a.quota, Inherited: a.inherited, Revision: a.revision, UpdatedAt: a.updatedAt, UpdatedBy: a.updatedBy,
		EnforcedBy: a.enforced, Would: a.would,
	}, nil
}

// replaced is the document that a set stores: nil, a clear, when it has no limit.
func replaced(p *flexiqv1.NamespaceQuota) ([]byte, error) {
	if p == nil {
		return nil, fault.Invalid("quota", "must be given; an empty one clears the quota")
	}
	q, err := fromProto(p)
	if err != nil || !q.Limits() {
		return nil, err
	}
	return q.JSON(), nil
}

// edited is the document that an edit stores. It starts from the quota in
// force: in a namespace that inherits the default quota, fields that are not
// named keep the default's values, so that naming one limit lifts no other.
func edited(current store.Document, p *flexiqv1.NamespaceQuota, unset []string) ([]byte, error) {
	with, err := fromProto(p)
	if err != nil {
		return nil, err
	}
	if len(unset) == 0 && with == (quota.Quota{}) {
		return nil, fault.Invalid("quota", "must name a field to change, or unset one")
	}
	return quota.Edit(current.Raw, with, unset)
}
