package postgres

import (
	"context"
	"time"

	"flexiq/pkg/fault"
	"flexiq/pkg/store"
)

const tokenColumns = `id, namespace, scopes, name, hash, created_at, created_by, acting_as, expires_at, revoked_at, last_used`

var (
	insertToken  = statement(`insert into flexiq.tokens (` + tokenColumns + `) values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)`)
	selectToken  = statement(`select ` + tokenColumns + ` from flexiq.tokens where id = $1`)
	selectTokens = statement(`select ` + tokenColumns + ` from flexiq.tokens where namespace = $1 and id > $2 order by namespace, id limit $3`)
	lockToken    = statement(`select revoked_at from flexiq.tokens where id = $1 and namespace = $2 for update`)
	holdToken    = statement(`select true from flexiq.tokens where id = $1 and revoked_at = 0 for share`)
	revokeToken  = statement(`update flexiq.tokens set revoked_at = $2 where id = $1`)
	touchTokens  = statement(`update flexiq.tokens set last_used = u.at
		from (
			select k.ctid as tid, u.at from unnest($1::text[], $2::bigint[]) u(id, at)
			cross join lateral (select ctid from flexiq.tokens where id = u.id limit 1) k
		) u where tokens.ctid = u.tid and last_used < u.at`)
	purgeTokens = statement(`with gone as (
			delete from flexiq.tokens using (
				select ctid as tid from flexiq.tokens where namespace = $1 and id > '' and acting_as <> '' and expires_at < $2 limit $3
			) k where tokens.ctid = k.tid returning id
		) select id from gone`)
	forgetTokens = statement(`delete from flexiq.changes using (
			select c.ctid as tid from unnest($1::text[]) u(id)
			cross join lateral (select ctid from flexiq.changes where kind = 'token' and key = u.id limit 1) c
		) c where changes.ctid = c.tid`)
	lockBootstrap = statement(`select bootstrapped from flexiq.installation where single for update`)
	bootstrapped  = statement(`update flexiq.installation set bootstrapped = true where single`)
)

func (b *batch) insertToken(k *store.Token) {
	scopes := k.Scopes
	if scopes == nil {
		scopes = []string{}
	}
	b.exec(insertToken, k.ID, k.Namespace, scopes, storable(k.Name), k.Hash[:], micros(k.CreatedAt), k.CreatedBy, k.ActingAs,
		micros(k.ExpiresAt), micros(k.RevokedAt), micros(k.LastUsed))
}

func scanToken(scan func(...any) error) (store.Token, error) {
	var k store.Token
	var hash []byte
	var created, expires, revoked, used int64
	err := scan(&k.ID, &k.Namespace, &k.Scopes, &k.Name, &hash, &created, &k.CreatedBy, &k.ActingAs, &expires, &revoked, &used)
	copy(k.Hash[:], hash)
	k.CreatedAt, k.ExpiresAt, k.RevokedAt, k.LastUsed = instant(created), instant(expires), instant(revoked), instant(used)
	return k, err
}

// Bootstrap implements [store.Tokens].
func (s *Store) Bootstrap(ctx context.Context, tokens []store.Token) (bool, error) {
	var done bool
	err := s.write(ctx, "bootstrap", func(ctx context.Context, t *tx) error {
		err := t.read(ctx, func(b *batch) {
			b.each(lockBootstrap, func(scan func(...any) error) error { return scan(&done) })
		})
		if err != nil || done {
			return err
		}
		return t.commit(ctx, func(b *batch) {
			for i := range tokens {
				b.insertToken(&tokens[i])
			}
			b.exec(bootstrapped)
		})
	})
	return !done && err == nil, err
}

// PutToken implements [store.Tokens].
func (s *Store) PutToken(ctx context.Context, k store.Token, by string, audit store.Record) error {
	return s.write(ctx, "put token", func(ctx context.Context, t *tx) error {
		var now time.Time
		live := by == ""
		err := t.read(ctx, func(b *batch) {
			s.time(b, &now)
			if by != "" {
				b.each(holdToken, func(scan func(...any) error) error { return scan(&live) }, storable(by))
			}
		})
		switch {
		case err != nil:
			return err
		case !live:
			return fault.TokenDenied()
		}
		var gone []string
		if k.ActingAs != "" {
			err := t.read(ctx, func(b *batch) {
				b.each(purgeTokens, func(scan func(...any) error) error {
					var id string
					err := scan(&id)
					gone = append(gone, id)
					return err
				}, k.Namespace, micros(now.Add(-store.PurgeAfter)), store.PurgeTokens)
			})
			if err != nil {
				return err
			}
		}
		return t.commit(ctx, func(b *batch) {
			if len(gone) > 0 { // their expiry is known wherever they are cached
				b.exec(forgetTokens, gone)
			}
			b.insertToken(&k)
			b.done(&audit, now)
		})
	})
}

// Token implements [store.Tokens].
func (s *Store) Token(ctx context.Context, id string) (*store.Token, error) {
	var found *store.Token
	err := s.query(ctx, "token", func(b *batch) {
		found = nil
		b.each(selectToken, func(scan func(...any) error) error {
			k, err := scanToken(scan)
			found = &k
			return err
		}, storable(id))
	})
	if err == nil && found == nil {
		err = fault.Missing("token")
	}
	return found, err
}

// ListTokens implements [store.Tokens].
func (s *Store) ListTokens(ctx context.Context, ns, after string, limit int) (store.Page[store.Token], error) {
	var page store.Page[store.Token]
	limit = max(limit, 1)
	err := s.query(ctx, "list tokens", func(b *batch) {
		page = store.Page[store.Token]{}
		b.each(selectTokens, func(scan func(...any) error) error {
			k, err := scanToken(scan)
			switch {
			case err != nil:
				return err
			case len(page.Items) == limit:
				page.Next = page.Items[limit-1].ID
			default:
				page.Items = append(page.Items, k)
			}
			return nil
		}, ns, storable(after), limit+1)
	})
	return page, err
}

// RevokeToken implements [store.Tokens].
func (s *Store) RevokeToken(ctx context.Context, ns, id string, audit store.Record) error {
	return s.write(ctx, "revoke token", func(ctx context.Context, t *tx) error {
		var now time.Time
		revoked := int64(-1)
		err := t.read(ctx, func(b *batch) {
			s.time(b, &now)
			b.each(lockToken, func(scan func(...any) error) error { return scan(&revoked) }, storable(id), ns)
		})
		switch {
		case err != nil:
			return err
		case revoked < 0:
			return fault.Missing("token")
		case revoked > 0:
			return nil
		}
		return t.commit(ctx, func(b *batch) {
			b.exec(revokeToken, id, micros(now))
			b.done(&audit, now)
		})
	})
}

// TouchTokens implements [store.Tokens].
func (s *Store) TouchTokens(ctx context.Context, used map[string]time.Time) error {
	if len(used) == 0 {
		return nil
	}
	return s.write(ctx, "touch tokens", func(ctx context.Context, t *tx) error {
		t.repeatable = true
		var ids []string
		var at []int64
		for id, when := range used {
			ids, at = append(ids, storable(id)), append(at, micros(when))
		}
		return t.commit(ctx, func(b *batch) { b.exec(touchTokens, ids, at) })
	})
}
