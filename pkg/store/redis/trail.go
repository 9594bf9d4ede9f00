package redis

import (
	"context"
	"crypto/rand"
	"strconv"

	"flexiq/pkg/fault"
	"flexiq/pkg/store"
)

// Audit implements [store.Trail].
func (s *Store) Audit(ctx context.Context, r store.Record) error {
	_, _, err := s.register(ctx, []string{r.Namespace}, false, true)
	if err == nil {
		err = s.run(ctx, again, s.on(tag(r.Namespace), recordScript, rand.Text(), 0, record(&r)))
	}
	return s.fail(ctx, "audit", err)
}

// deliver brings the records of tokens from the outbox into the trails of their
// namespaces. Any number of processes may do it at once.
func (s *Store) deliver(ctx context.Context) error {
	outbox := s.key(installation, "outbox")
	c := plain("hgetall", outbox)
	if err := s.run(ctx, again, c); err != nil {
		return err
	}
	var posts []*command
	var ids []string
	for r := c.list(); r.more(); {
		id, letter := r.text(), &reader{rest: r.text()}
		at := letter.uint(8)
		ns := letter.text(1)
		posts, ids = append(posts, s.on(tag(ns), recordScript, id, at, letter.rest)), append(ids, id)
	}
	err := s.run(ctx, again, posts...)
	done := []any{"hdel", outbox}
	for i, p := range posts {
		if p.err == nil {
			done = append(done, ids[i])
		}
	}
	if len(done) > 2 {
		if gone := s.run(ctx, again, plain(done...)); err == nil {
			err = gone
		}
	}
	return err
}

// deliverLogged is deliver where the record is safe in the outbox, and whoever
// looks next brings it on.
func (s *Store) deliverLogged(ctx context.Context) {
	if err := s.deliver(ctx); err != nil {
		s.log.Warn().Err(err).Msg("an audit record waits in the outbox")
	}
}

// ListAudit implements [store.Trail]. A page starts after a record's number in decimal.
func (s *Store) ListAudit(ctx context.Context, ns string, f store.AuditFilter, after string, limit int) (store.Page[store.Record], error) {
	var page store.Page[store.Record]
	from := int64(0)
	if after != "" {
		var err error
		if from, err = strconv.ParseInt(after, 10, 64); err != nil || from < 0 {
			return page, fault.Invalid("page_token", "is not one that a listing gave")
		}
	}
	if err := s.emptyOutbox(ctx); err != nil {
		return page, s.fail(ctx, "list audit", err)
	}
	limit = max(limit, 1)
	for seen := 0; ; {
		n := min(pageRows, limit+1)
		c := plain("zrange", s.key(tag(ns), "trail"), "("+strconv.FormatInt(from, 10), "+inf", "byscore", "limit", 0, n)
		if err := s.run(ctx, again, c); err != nil {
			return store.Page[store.Record]{}, s.fail(ctx, "list audit", err)
		}
		rows := 0
		for r := c.list(); r.more(); rows++ {
			number, rec, err := readRecord(ns, r.text())
			if err != nil {
				return store.Page[store.Record]{}, s.fail(ctx, "list audit", err)
			}
			if len(page.Items) == limit || seen == examined {
				page.Next = strconv.FormatInt(from, 10)
				return page, nil
			}
			from, seen = number, seen+1
			if (f.Kind == "" || f.Kind == rec.TargetKind) && !rec.Time.Before(f.Since) {
				page.Items = append(page.Items, rec)
			}
		}
		if rows < n {
			return page, nil
		}
	}
}

// emptyOutbox delivers what waits, if anything does.
func (s *Store) emptyOutbox(ctx context.Context) error {
	c := plain("hlen", s.key(installation, "outbox"))
	if err := s.run(ctx, again, c); err != nil || c.int() == 0 {
		return err
	}
	return s.deliver(ctx)
}
