package postgres

import (
	"context"
	"time"

	"flexiq/pkg/fault"
	"flexiq/pkg/namespace"
	"flexiq/pkg/quota"
	"flexiq/pkg/store"
)

// PutQuota implements [store.Quotas].
func (s *Store) PutQuota(ctx context.Context, c store.QuotaChange) (store.Document, error) {
	p := &change{QuotaChange: &c, s: s, key: defaultQuotaKey}
	if !c.Default {
		p.key = namespace.QuotaKey(c.Namespace)
		err := s.write(ctx, "put quota", func(ctx context.Context, t *tx) error {
			t.repeatable = true
			return t.commit(ctx, func(b *batch) { b.exec(createNamespaces, []string{c.Namespace}) })
		})
		if err != nil {
			return store.Document{}, err
		}
	}
	err := s.write(ctx, "put quota", p.try)
	if err == nil && c.Default && p.refusal == nil {
		err = s.outlive(ctx)
	}
	if err != nil {
		return store.Document{}, err
	}
	return p.after.inForce, p.refusal
}

// change is one PutQuota.
type change struct {
	*store.QuotaChange
	s       *Store
	key     string // of the settings
	after   target
	refusal error
}

// target is the document that a change is about.
type target struct {
	inForce  store.Document // what is answered
	own      []byte
	revision int64 // of the document itself
	bucket   quota.Bucket
}

// is reports whether the document is at a revision, 0 meaning that there is none.
func (t *target) is(revision int64) bool {
	if revision == 0 {
		return t.own == nil
	}
	return t.revision == revision
}

var (
	lockDefault   = statement(`select 1 from flexiq.installation where single for update`)
	writeDocument = statement(`insert into flexiq.settings (key, value, revision, updated_at, updated_by) values ($1, $2, $3, $4, $5)
		on conflict (scope, key) do update set value = excluded.value, revision = excluded.revision,
			updated_at = excluded.updated_at, updated_by = excluded.updated_by`)
)

func (p *change) try(ctx context.Context, t *tx) error {
	p.after, p.refusal = target{}, nil
	var before target
	var now time.Time
	err := t.read(ctx, func(b *batch) {
		if p.Default {
			b.exec(lockDefault)
		} else {
			b.lock([]string{p.Namespace}, locking{}, map[string]bool{})
		}
		p.s.time(b, &now)
		p.read(b, &before)
	})
	if err != nil {
		return err
	}
	r := p.Audit
	r.Old, r.New, r.Outcome = string(before.own), string(p.Raw), "ok"
	if p.IfRevision != nil && !before.is(*p.IfRevision) {
		p.after, p.refusal = before, fault.New(fault.RevisionMismatch, "the quota is at revision %d", before.revision)
		r.Outcome, r.Revision = string(fault.RevisionMismatch), before.revision
		return t.commit(ctx, func(b *batch) { b.record(&r, now) })
	}
	// The triggers raise the revision at least to this one, and to no other,
	// because the lock is held.
	r.Revision = before.revision + 1
	var value *string
	if p.Raw != nil {
		text := string(p.Raw)
		value = &text
	}
	return t.commit(ctx, func(b *batch) {
		b.exec(writeDocument, p.key, value, r.Revision, micros(now), p.Audit.TokenID)
		if !p.Default && p.Rate != nil {
			var k buckets
			k.add(p.Namespace, before.bucket.Refill(*p.Rate, now))
			k.save(b)
		}
		b.record(&r, now)
		p.read(b, &p.after)
	})
}

// read queues the reading of the document.
func (p *change) read(b *batch, into *target) {
	if p.Default {
		b.standard(func(doc store.Document) {
			*into = target{inForce: doc, own: doc.Raw, revision: doc.Stamp.Default}
		})
		return
	}
	b.documents([]string{p.Namespace}, func(d *documents) {
		*into = target{inForce: d.inForce(), own: d.own.take().Raw, revision: d.stamp.Revision, bucket: d.bucket}
	})
}

const (
	deciding = ` from pg_locks where locktype = 'relation' and relation = 'flexiq.namespaces'::regclass
		and database = (select oid from pg_database where datname = current_database()) and mode in ('RowShareLock', 'RowExclusiveLock')`
	firstLook = time.Millisecond
	mostLook  = 50 * time.Millisecond
)

var (
	selectDeciders = statement(`select coalesce(array_agg(distinct virtualtransaction), '{}')` + deciding)
	countDeciders  = statement(`select count(*)` + deciding + ` and virtualtransaction = any($1)`)
)

// outlive waits until every transaction is over that may have decided by what
// was committed before. A change of a namespace's own quota holds the
// namespace's lock, so nobody decides meanwhile; a change of the default quota
// cannot hold everybody's. What another has not finished in twice the time that the
// server gives it is not FlexiQ's.
func (s *Store) outlive(ctx context.Context) error {
	var others []string
	err := s.query(ctx, "put quota", func(b *batch) {
		b.each(selectDeciders, func(scan func(...any) error) error { return scan(&others) })
	})
	deadline := time.Now().Add(2 * s.timeout)
	for pause := firstLook; err == nil && len(others) > 0; pause = min(2*pause, mostLook) {
		var left int
		err = s.query(ctx, "put quota", func(b *batch) {
			b.each(countDeciders, func(scan func(...any) error) error { return scan(&left) }, others)
		})
		switch {
		case err != nil:
		case left == 0:
			return nil
		case time.Now().After(deadline):
			s.log.Warn().Int("transactions", left).Msg("transactions older than the new default quota are still open")
			return nil
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return err
}
