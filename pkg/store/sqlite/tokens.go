package sqlite

import (
	"context"
	"encoding/json"
	"time"

	"flexiq/pkg/fault"
	"flexiq/pkg/store"
)

const (
	tokenColumns = `id, namespace, scopes, name, hash, created_at, created_by, acting_as, expires_at, revoked_at, last_used`
	insertToken  = `INSERT INTO tokens (` + tokenColumns + `) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`
)

func (r *row) token() store.Token {
	k := store.Token{ID: r.text(), Namespace: r.text()}
	// Only this package writes the column; what else stands there gives no scope.
	_ = json.Unmarshal([]byte(r.text()), &k.Scopes)
	k.Name = r.text()
	r.into(k.Hash[:])
	k.CreatedAt, k.CreatedBy, k.ActingAs = r.time(), r.text(), r.text()
	k.ExpiresAt, k.RevokedAt, k.LastUsed = r.time(), r.time(), r.time()
	return k
}

func (t *tx) insertToken(k *store.Token) error {
	scopes, _ := json.Marshal(k.Scopes) // a list of strings always marshals
	return t.exec(insertToken, k.ID, k.Namespace, string(scopes), k.Name, k.Hash[:], k.CreatedAt, k.CreatedBy,
		k.ActingAs, k.ExpiresAt, k.RevokedAt, k.LastUsed)
}

// Bootstrap implements [store.Tokens].
func (s *Store) Bootstrap(ctx context.Context, tokens []store.Token) (bool, error) {
	var first bool
	err := s.write(ctx, "bootstrap", func(t *tx) error {
		done, err := t.number("SELECT bootstrapped FROM installation")
		first = done == 0
		if err != nil || !first {
			return err
		}
		for i := range tokens {
			if err := t.insertToken(&tokens[i]); err != nil {
				return err
			}
		}
		return t.exec("UPDATE installation SET bootstrapped = 1")
	})
	return first && err == nil, err
}

// PutToken implements [store.Tokens].
func (s *Store) PutToken(ctx context.Context, k store.Token, by string, audit store.Record) error {
	return s.write(ctx, "put token", func(t *tx) error {
		live, err := t.one("SELECT 1 FROM tokens WHERE id = ? AND revoked_at = 0", func(*row) {}, by)
		switch {
		case err != nil:
			return err
		case !live && by != "":
			return fault.TokenDenied()
		}
		if err := t.insertToken(&k); err != nil {
			return err
		}
		if k.ActingAs != "" {
			if err := t.purgeTokens(k.Namespace); err != nil {
				return err
			}
		}
		audit.Outcome = "ok"
		return t.record(&audit)
	})
}

const selectPurgeable = `SELECT id FROM tokens INDEXED BY tokens_namespace
	WHERE namespace = ? AND acting_as <> '' AND expires_at < ? LIMIT ?`

// purgeTokens deletes exchanged tokens that nobody can hold any more. Their
// expiry is known wherever they are cached, so nobody needs to hear of it.
func (t *tx) purgeTokens(ns string) error {
	var ids []string
	err := t.each(selectPurgeable, func(r *row) bool {
		ids = append(ids, r.text())
		return true
	}, ns, t.now.Add(-store.PurgeAfter), store.PurgeTokens)
	for _, id := range ids {
		if err == nil {
			err = t.exec("DELETE FROM tokens WHERE id = ?", id)
		}
		if err == nil {
			err = t.exec("DELETE FROM changes WHERE kind = 'token' AND key = ?", id)
		}
	}
	return err
}

// Token implements [store.Tokens].
func (s *Store) Token(ctx context.Context, id string) (*store.Token, error) {
	var k store.Token
	var found bool
	err := s.read(ctx, "token", func(t *tx) (err error) {
		found, err = t.one("SELECT "+tokenColumns+" FROM tokens WHERE id = ?", func(r *row) { k = r.token() }, id)
		return err
	})
	switch {
	case err != nil:
		return nil, err
	case !found:
		return nil, fault.Missing("token")
	}
	return &k, nil
}

const selectTokens = "SELECT " + tokenColumns + " FROM tokens INDEXED BY tokens_namespace WHERE namespace = ? AND id > ? ORDER BY id LIMIT ?"

// ListTokens implements [store.Tokens].
func (s *Store) ListTokens(ctx context.Context, ns, after string, limit int) (store.Page[store.Token], error) {
	var page store.Page[store.Token]
	limit = max(limit, 1)
	err := s.read(ctx, "list tokens", func(t *tx) error {
		page = store.Page[store.Token]{}
		return t.each(selectTokens, func(r *row) bool {
			if len(page.Items) == limit {
				page.Next = page.Items[limit-1].ID
				return false
			}
			page.Items = append(page.Items, r.token())
			return true
		}, ns, after, limit+1)
	})
	return page, err
}

// RevokeToken implements [store.Tokens].
func (s *Store) RevokeToken(ctx context.Context, ns, id string, audit store.Record) error {
	return s.write(ctx, "revoke token", func(t *tx) error {
		var revoked time.Time
		found, err := t.one("SELECT revoked_at FROM tokens WHERE id = ? AND namespace = ?", func(r *row) { revoked = r.time() }, id, ns)
		switch {
		case err != nil:
			return err
		case !found:
			return fault.Missing("token")
		case !revoked.IsZero():
			return nil
		}
		if err := t.exec("UPDATE tokens SET revoked_at = ? WHERE id = ?", t.now, id); err != nil {
			return err
		}
		audit.Outcome = "ok"
		return t.record(&audit)
	})
}

// TouchTokens implements [store.Tokens].
func (s *Store) TouchTokens(ctx context.Context, used map[string]time.Time) error {
	if len(used) == 0 {
		return nil
	}
	return s.write(ctx, "touch tokens", func(t *tx) error {
		for id, at := range used {
			if err := t.exec("UPDATE tokens SET last_used = ?1 WHERE id = ?2 AND last_used < ?1", at, id); err != nil {
				return err
			}
		}
		return nil
	})
}
