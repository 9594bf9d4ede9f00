package redis

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"flexiq/pkg/fault"
	"flexiq/pkg/store"
)

var errTaken = errors.New("a token with this id exists")

// stored is a token's value. What changes later is kept beside it.
type stored struct {
	Namespace string   `json:"ns"`
	Scopes    []string `json:"scopes"`
	Name      string   `json:"name"`
	Hash      []byte   `json:"hash"`
	CreatedAt int64    `json:"created_at"` // µs, as all times
	CreatedBy string   `json:"created_by"`
	ActingAs  string   `json:"acting_as"`
	ExpiresAt int64    `json:"expires_at"`
}

func tokenArgs(t *store.Token) []any {
	value, _ := json.Marshal(stored{t.Namespace, t.Scopes, t.Name, t.Hash[:], micros(t.CreatedAt), t.CreatedBy, t.ActingAs, micros(t.ExpiresAt)}) // it always marshals
	exchanged := int64(0)
	if t.ActingAs != "" {
		exchanged = micros(t.ExpiresAt)
	}
	return []any{t.ID, t.Namespace, value, exchanged}
}

func readToken(id, value string, revoked, touched any) (store.Token, error) {
	var v stored
	if err := json.Unmarshal([]byte(value), &v); err != nil {
		return store.Token{}, fmt.Errorf("redis: the value of token %s cannot be read", id) // the error may show the hash
	}
	t := store.Token{ID: id, Namespace: v.Namespace, Scopes: v.Scopes, Name: v.Name, CreatedAt: instant(v.CreatedAt), CreatedBy: v.CreatedBy,
		ActingAs: v.ActingAs, ExpiresAt: instant(v.ExpiresAt), RevokedAt: instant(integer(revoked)), LastUsed: instant(integer(touched))}
	copy(t.Hash[:], v.Hash)
	return t, nil
}

// Bootstrap implements [store.Tokens].
func (s *Store) Bootstrap(ctx context.Context, tokens []store.Token) (bool, error) {
	first, err := s.storeTokens(ctx, true, tokens, "", nil)
	return first, s.fail(ctx, "bootstrap", err)
}

// PutToken implements [store.Tokens].
func (s *Store) PutToken(ctx context.Context, t store.Token, by string, audit store.Record) error {
	audit.Outcome = "ok"
	if by != "" {
		// The script decides this in the step that writes. Asked before, it keeps an
		// erased namespace off the lists that it would be put on for its record.
		found, err := s.tokens(ctx, by)
		if err != nil {
			return s.fail(ctx, "put token", err)
		}
		if len(found) == 0 {
			return fault.TokenDenied()
		}
	}
	_, err := s.storeTokens(ctx, false, []store.Token{t}, by, &audit)
	return s.fail(ctx, "put token", err)
}

func (s *Store) storeTokens(ctx context.Context, first bool, tokens []store.Token, by string, audit *store.Record) (bool, error) {
	args := []any{flag(first), "", "", ""}
	if audit != nil {
		if _, _, err := s.register(ctx, []string{audit.Namespace}, false, true); err != nil {
			return false, err
		}
		args = []any{flag(first), rand.Text(), audit.Namespace, record(audit)}
	}
	args = append(args, store.PurgeAfter.Microseconds(), store.PurgeTokens, by, len(tokens))
	for i := range tokens {
		args = append(args, tokenArgs(&tokens[i])...)
	}
	c := s.on(installation, tokensScript, args...)
	if err := s.run(ctx, once, c); err != nil {
		return false, err
	}
	switch c.int() {
	case -1:
		return false, errTaken
	case -2:
		return false, fault.TokenDenied()
	}
	if audit != nil && audit.Namespace != "" {
		s.deliverLogged(ctx)
	}
	return c.int() == 1, nil
}

// Token implements [store.Tokens].
func (s *Store) Token(ctx context.Context, id string) (*store.Token, error) {
	found, err := s.tokens(ctx, id)
	switch {
	case err != nil:
		return nil, s.fail(ctx, "token", err)
	case len(found) == 0:
		return nil, fault.Missing("token")
	}
	return &found[0], nil
}

// tokens reads tokens by id; missing ones are left out.
func (s *Store) tokens(ctx context.Context, ids ...string) ([]store.Token, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	values, revoked, touched := []any{"mget"}, []any{"hmget", s.key(installation, "revoked")}, []any{"hmget", s.key(installation, "touched")}
	for _, id := range ids {
		values, revoked, touched = append(values, s.key(installation, "token:"+id)), append(revoked, id), append(touched, id)
	}
	v, r, u := plain(values...), plain(revoked...), plain(touched...)
	if err := s.run(ctx, again, v, r, u); err != nil {
		return nil, err
	}
	var out []store.Token
	vs, rs, us := v.list(), r.list(), u.list()
	for _, id := range ids {
		value, ok := vs.next().(string)
		revokedAt, touchedAt := rs.next(), us.next()
		if !ok {
			continue
		}
		t, err := readToken(id, value, revokedAt, touchedAt)
		if err != nil {
			return nil, err
		}
		out = append(out, t)
	}
	return out, nil
}

// ListTokens implements [store.Tokens].
func (s *Store) ListTokens(ctx context.Context, ns, after string, limit int) (store.Page[store.Token], error) {
	var page store.Page[store.Token]
	limit = max(limit, 1)
	from := "-"
	if after != "" {
		from = "(" + after
	}
	c := plain("zrange", s.key(installation, "tokens:"+ns), from, "+", "bylex", "limit", 0, limit+1)
	if err := s.run(ctx, again, c); err != nil {
		return page, s.fail(ctx, "list tokens", err)
	}
	var ids []string
	for r := c.list(); r.more(); {
		ids = append(ids, r.text())
	}
	if len(ids) > limit {
		ids = ids[:limit]
		page.Next = ids[limit-1]
	}
	var err error
	if page.Items, err = s.tokens(ctx, ids...); err != nil {
		return store.Page[store.Token]{}, s.fail(ctx, "list tokens", err)
	}
	return page, nil
}

// RevokeToken implements [store.Tokens].
func (s *Store) RevokeToken(ctx context.Context, ns, id string, audit store.Record) error {
	audit.Outcome = "ok"
	if _, _, err := s.register(ctx, []string{audit.Namespace}, false, true); err != nil {
		return s.fail(ctx, "revoke token", err)
	}
	c := s.on(installation, revokeScript, id, ns, rand.Text(), audit.Namespace, record(&audit))
	if err := s.run(ctx, once, c); err != nil {
		return s.fail(ctx, "revoke token", err)
	}
	if c.int() < 0 {
		return fault.Missing("token")
	}
	if c.int() == 1 && audit.Namespace != "" {
		s.deliverLogged(ctx)
	}
	return nil
}

// TouchTokens implements [store.Tokens].
func (s *Store) TouchTokens(ctx context.Context, used map[string]time.Time) error {
	if len(used) == 0 {
		return nil
	}
	args := []any{len(used)}
	for id, at := range used {
		args = append(args, id, micros(at))
	}
	return s.fail(ctx, "touch tokens", s.run(ctx, again, s.on(installation, touchScript, args...)))
}
