package config

import (
	"context"
	"time"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/auth"
	"flexiq/pkg/fault"
	"flexiq/pkg/namespace"
	"flexiq/pkg/store"
	"flexiq/pkg/wire"
)

// exchangeTTL is the life of a token that a platform token was exchanged for.
const exchangeTTL = 5 * time.Minute

// tenantScopes is everything that a token of a namespace can hold.
var tenantScopes = []auth.Scope{auth.Produce, auth.Work, auth.Inspect, auth.Admin}

// tokenNamespace is the namespace whose tokens the caller means. Only a
// platform token names one; its own, the empty one, has the platform tokens.
func tokenNamespace(ctx context.Context, asked string) (string, error) {
	id := auth.From(ctx)
	switch {
	case !id.Has(auth.Platform):
		if asked != "" && asked != id.Namespace {
			return "", fault.New(fault.PermissionDenied, "namespace: only a platform token may name another namespace than its own").
				With(fault.KeyField, "namespace")
		}
		return tenant(ctx)
	case asked == "":
		return "", nil
	}
	if err := namespace.Check(asked); err != nil {
		return "", fault.Invalid("namespace", "%v", err)
	}
	return asked, nil
}

func (s *Service) createToken(ctx context.Context, req *flexiqv1.CreateTokenRequest) (*flexiqv1.CreateTokenResponse, error) {
	id := auth.From(ctx)
	ns, err := tokenNamespace(ctx, req.GetNamespace())
	if err != nil {
		return nil, err
	}
	scopes, err := grantable(id, req.GetScopes())
	if err != nil {
		return nil, err
	}
	var ttl time.Duration // 0: the default
	if req.Ttl != nil {
		if ttl, err = wire.Duration("ttl", req.Ttl); err != nil {
			return nil, err
		}
		if ttl < time.Second || ttl > auth.MaxTTL {
			return nil, fault.Invalid("ttl", "must be from 1s to 365 days, got %s", ttl)
		}
	}
	text, t, err := auth.Mint(ns, scopes, req.GetName(), ttl, id.AuditTokenID(), instant())
	if err != nil {
		return nil, err
	}
	if err := s.putToken(ctx, "create-token", t); err != nil {
		return nil, err
	}
	return &flexiqv1.CreateTokenResponse{Token: text, Id: t.ID, ExpiresAt: wire.Stamp(t.ExpiresAt)}, nil
}

// grantable reads the scopes of a new token. A token gives only what it holds
// itself; a platform token, whose whole right is over tokens, gives any, and
// [auth.Mint] keeps the scope platform to tokens without a namespace.
func grantable(id auth.Identity, names []string) ([]auth.Scope, error) {
	scopes := make([]auth.Scope, len(names))
	for i, name := range names {
		scopes[i] = auth.Scope(name)
		if scopes[i].Valid() && !id.Has(scopes[i], auth.Platform) {
			return nil, fault.New(fault.PermissionDenied, "scopes: a token gives only scopes that it holds itself, and %q is not one", name).
				With(fault.KeyField, "scopes")
		}
	}
	return scopes, nil
}

// instant is now as stores keep it.
func instant() time.Time { return time.Now().UTC().Truncate(time.Microsecond) }

func (s *Service) putToken(ctx context.Context, operation string, t store.Token) error {
	r := tokenRecord(ctx, operation, t.Namespace, t.ID)
	r.New = tokenValue(t.Namespace, t.Scopes, t.Name, t.ExpiresAt)
	if t.ActingAs != "" {
		r.ActingAs = t.Namespace
	}
	return s.store.PutToken(ctx, t, auth.From(ctx).TokenID, r)
}

func (s *Service) exchangeToken(ctx context.Context, req *flexiqv1.ExchangeTokenRequest) (*flexiqv1.ExchangeTokenResponse, error) {
	id := auth.From(ctx)
	if !id.Has(auth.Platform) {
		return nil, fault.New(fault.PermissionDenied, "only a platform token can be exchanged")
	}
	if err := namespace.Check(req.GetNamespace()); err != nil {
		return nil, fault.Invalid("namespace", "%v", err)
	}
	text, t, err := auth.Mint(req.GetNamespace(), tenantScopes, "", exchangeTTL, id.TokenID, instant())
	if err != nil {
		return nil, err
	}
	t.ActingAs = id.TokenID
	if err := s.putToken(ctx, "exchange-token", t); err != nil {
		return nil, err
	}
	return &flexiqv1.ExchangeTokenResponse{Token: text, Id: t.ID, ExpiresAt: wire.Stamp(t.ExpiresAt)}, nil
}

func (s *Service) listTokens(ctx context.Context, req *flexiqv1.ListTokensRequest) (*flexiqv1.ListTokensResponse, error) {
	ns, err := tokenNamespace(ctx, req.GetNamespace())
	if err != nil {
		return nil, err
	}
	size, after, err := page("tokens", req)
	if err != nil {
		return nil, err
	}
	tokens, err := s.store.ListTokens(ctx, ns, after, size)
	if err != nil {
		return nil, err
	}
	res := &flexiqv1.ListTokensResponse{NextPageToken: wire.PageToken("tokens", tokens.Next)}
	for _, t := range tokens.Items {
		res.Tokens = append(res.Tokens, &flexiqv1.TokenInfo{
			Id: t.ID, Namespace: t.Namespace, Name: t.Name, Scopes: t.Scopes,
			CreatedAt: wire.Stamp(t.CreatedAt), CreatedBy: t.CreatedBy, ExpiresAt: wire.Stamp(t.ExpiresAt),
			RevokedAt: wire.Stamp(t.RevokedAt), LastUsedAt: wire.Stamp(t.LastUsed),
		})
	}
	return res, nil
}

func (s *Service) revokeToken(ctx context.Context, req *flexiqv1.RevokeTokenRequest) (*flexiqv1.RevokeTokenResponse, error) {
	ns, err := tokenNamespace(ctx, req.GetNamespace())
	if err != nil {
		return nil, err
	}
	id := req.GetId()
	if id == "" {
		return nil, fault.Invalid("id", "must be given")
	}
	if err := s.store.RevokeToken(ctx, ns, id, tokenRecord(ctx, "revoke-token", ns, id)); err != nil {
		return nil, err
	}
	s.announce(store.KindToken, id, 0)
	s.deps.Cut(id)
	return &flexiqv1.RevokeTokenResponse{}, nil
}
