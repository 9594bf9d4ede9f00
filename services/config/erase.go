package config

import (
	"context"
	"time"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/fault"
	"flexiq/pkg/namespace"
	"flexiq/pkg/store"
	"flexiq/pkg/wire"
)

// eraseRows bounds the rows of one step of the store.
const eraseRows = 500

// erasureRecord is the record of a namespace's deletion. It stands in the trail
// of the installation: the namespace's own goes.
func erasureRecord(ctx context.Context, ns string) store.Record {
	r := record(ctx, "delete-namespace")
	r.TargetKind, r.Target = targetNamespace, ns
	return r
}

// deleteNamespace deletes a namespace as far as one call's time allows. First
// its tokens end, and no process believes them any more; only then is deleted
// what they reach. It answers when none remembers the old quota either, because
// the revisions of a namespace of that name begin again.
func (s *Service) deleteNamespace(ctx context.Context, req *flexiqv1.DeleteNamespaceRequest) (*flexiqv1.DeleteNamespaceResponse, error) {
	ns := req.GetNamespace()
	if err := namespace.Check(ns); err != nil {
		return nil, fault.Invalid("namespace", "%v", err)
	}
	end := time.Now().Add(s.cfg.MaxWait)
	r := erasureRecord(ctx, ns)
	r.Outcome = outcomeOK
	if err := s.store.Audit(ctx, r); err != nil {
		return nil, err
	}
	ended, err := s.endTokens(ctx, ns)
	if err != nil {
		return nil, err
	}
	if ended {
		if err := s.settle(ctx); err != nil {
			return nil, err
		}
	}
	for {
		more, err := s.store.EraseNamespace(ctx, ns, eraseRows)
		switch {
		case err != nil:
			return nil, err
		case !more:
			s.announce(store.KindQuota, ns, 0)
			return &flexiqv1.DeleteNamespaceResponse{}, s.settle(ctx)
		case time.Now().After(end):
			return &flexiqv1.DeleteNamespaceResponse{More: true}, nil
		}
	}
}

// endTokens revokes every token of a namespace, and reports whether it had any.
func (s *Service) endTokens(ctx context.Context, ns string) (any bool, err error) {
	for after := ""; ; {
		tokens, err := s.store.ListTokens(ctx, ns, after, wire.MaxPageSize)
		if err != nil {
			return any, err
		}
		for _, t := range tokens.Items {
			any = true
			if !t.RevokedAt.IsZero() {
				continue
			}
			if err := s.store.RevokeToken(ctx, ns, t.ID, tokenRecord(ctx, "delete-namespace", ns, t.ID)); err != nil && !fault.Is(err, fault.NotFound) {
				return any, err
			}
			s.announce(store.KindToken, t.ID, 0)
			s.deps.Cut(t.ID)
		}
		if after = tokens.Next; after == "" {
			return any, nil
		}
	}
}

// settle waits until every process has noticed what was done before.
func (s *Service) settle(ctx context.Context) error {
	timer := time.NewTimer(s.cfg.Settle)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
