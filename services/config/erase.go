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

const (
	// eraseRows bounds the rows of one step of the store.
	eraseRows = 500
	// settleMargin is for a request that was let in at the last moment at which
	// its token was believed.
	settleMargin = 500 * time.Millisecond
)

// erasureRecord is the record of a namespace's deletion. It stands in the trail
// of the installation: the namespace's own goes.
func erasureRecord(ctx context.Context, ns string) store.Record {
	r := record(ctx, "delete-namespace")
	r.TargetKind, r.Target = targetNamespace, ns
	return r
}

// deleteNamespace deletes a namespace as far as one call's time allows. First
// its tokens end, and no process believes them any more; only then is deleted
// what they reach. Whoever was let in before, or fires a trigger that it still
// believes, may write until then, so it is done again until nothing was there:
// then none remembers the old quota either, and the revisions of a namespace of
// that name begin again.
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
	for first := true; ; first = false {
		out, err := s.erase(ctx, ns, end)
		switch {
		case err != nil:
			return nil, err
		case out.More, out.Any && !first && time.Now().After(end):
			return &flexiqv1.DeleteNamespaceResponse{More: true}, nil
		case !out.Any && !first:
			return &flexiqv1.DeleteNamespaceResponse{}, nil
		}
		s.announce(store.KindQuota, ns, 0)
		if err := s.settle(ctx); err != nil {
			return nil, err
		}
	}
}

// erase ends the tokens of a namespace and deletes it, until the given time.
func (s *Service) erase(ctx context.Context, ns string, end time.Time) (store.Erased, error) {
	any, err := s.endTokens(ctx, ns)
	if err != nil {
		return store.Erased{}, err
	}
	if any {
		if err := s.settle(ctx); err != nil {
			return store.Erased{}, err
		}
	}
	for {
		out, err := s.store.EraseNamespace(ctx, ns, eraseRows)
		any = any || out.Any
		out.Any = any
		if err != nil || !out.More || time.Now().After(end) {
			return out, err
		}
	}
}

// endTokens revokes every token of a namespace, and reports whether it had any.
// It looks until none is left that is not revoked: while it looks, one that is
// not yet may make another.
func (s *Service) endTokens(ctx context.Context, ns string) (any bool, err error) {
	for again := true; again; {
		again = false
		for after, more := "", true; more; more = after != "" {
			tokens, err := s.store.ListTokens(ctx, ns, after, wire.MaxPageSize)
			if err != nil {
				return any, err
			}
			after = tokens.Next
			for _, t := range tokens.Items {
				any = true
				if !t.RevokedAt.IsZero() {
					continue
				}
				again = true
				if err := s.endToken(ctx, ns, t.ID); err != nil {
					return any, err
				}
			}
		}
	}
	return any, nil
}

func (s *Service) endToken(ctx context.Context, ns, id string) error {
	err := s.store.RevokeToken(ctx, ns, id, tokenRecord(ctx, "delete-namespace", ns, id))
	if err != nil && !fault.Is(err, fault.NotFound) {
		return err
	}
	s.announce(store.KindToken, id, 0)
	s.deps.Cut(id)
	return nil
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
