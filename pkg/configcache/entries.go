package configcache

import (
	"context"
	"time"

	"flexiq/pkg/quota"
	"flexiq/pkg/store"
)

// Quota is a namespace's quota in force as the hot services need it.
type Quota struct {
	Quota     quota.Quota
	Stamp     store.Stamp
	Raw       []byte
	Inherited bool
	UpdatedAt time.Time
	Err       error // QUOTA_UNREADABLE: the document cannot be read
}

// LoadQuotas is the loader of a cache of quotas, by namespace.
func LoadQuotas(src store.Quotas) func(ctx context.Context, namespaces []string) ([]Quota, error) {
	return nil
}

// LoadTokens is the loader of a cache of tokens, by id; nil is an absent one.
func LoadTokens(src store.Tokens) func(ctx context.Context, ids []string) ([]*store.Token, error) {
	return nil
}

// Tokens finds tokens through a cache.
type Tokens struct{ Cache *Cache[*store.Token] }

// Token returns the token with the id; NOT_FOUND.
func (t Tokens) Token(ctx context.Context, id string) (*store.Token, error) {
	return t.Cache.Get(ctx, id)
}
