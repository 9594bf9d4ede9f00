package retention

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rs/zerolog"

	"flexiq/pkg/events"
	"flexiq/pkg/fault"
	"flexiq/pkg/namespace"
	"flexiq/pkg/quota"
	"flexiq/pkg/store"
	"flexiq/pkg/wire"
)

// Why a leader stops leading.
var (
	errSuperseded = errors.New("a leader with a newer term exists")
	errSilent     = errors.New("the store has not answered")
)

// report is what one sweep did.
type report struct {
	store.Trimmed       // rows deleted, by kind; Superseded and More are not used
	Namespaces    int   // looked at by the ceilings' pass
	Failed        int   // skipped: a call for them failed
	Unreadable    int   // skipped by the ceilings: their quota cannot be read
	Retried       int64 // dead letters that went back to pending
	Blocked       int64 // dead letters that were to be retried and stay
	Left          bool
}

// add counts one batch.
func (r *report) add(t store.Trimmed) {
	r.Completed += t.Completed
	r.Cancelled += t.Cancelled
	r.Dead += t.Dead
	r.Shed += t.Shed
	r.Audit += t.Audit
}

// rows is everything that was deleted.
func (r *report) rows() int64 { return r.Completed + r.Cancelled + r.Dead + r.Shed + r.Audit }

// history is a table of a namespace.
type history struct {
	namespace string
	table     store.Table
}

// sweeper does the sweeps of one term.
type sweeper struct {
	store  Store
	cfg    Config
	bounds bounds
	log    zerolog.Logger
	term   int64
	pulse  *pulse
	guard  func(context.Context) error // nil only while the lease holds
	agedAt time.Time                   // start of the last age pass that left nothing; zero before

	ready     func(namespaces []string) // tells the gates of retried jobs; nil: nobody
	count     func(report []byte)       // counts them; nil: nobody
	events    *events.Publisher
	holder    string
	retryFrom map[string]string // by namespace: behind those whose keys were held

	pace    *pace
	rest    time.Duration    // before the next delete
	report  report           // of the present sweep
	account account          // of it, by namespace
	more    map[history]bool // tables that had more rows to delete when they were last at it
	began   time.Time        // when it did, by the host's clock
	failed  map[string]bool  // namespaces of the present page that are skipped
}

// ask makes one call of the store within its deadline and notes whether the
// store answered.
func ask[T any](ctx context.Context, s *sweeper, call func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, min(s.bounds.call, s.pulse.left()))
	defer cancel()
	v, err := call(ctx)
	s.pulse.heard(err)
	return v, err
}

// probe asks the store for as little as possible.
func (s *sweeper) probe(ctx context.Context) error {
	_, err := s.clock(ctx)
	return s.pulse.judge(err)
}

// clock reads the store's clock.
func (s *sweeper) clock(ctx context.Context) (time.Time, error) {
	u, err := s.usage(ctx, []string{namespace.Default})
	if err != nil {
		return time.Time{}, err
	}
	return u[0].Now, nil
}

func (s *sweeper) usage(ctx context.Context, names []string) ([]store.Usage, error) {
	return ask(ctx, s, func(ctx context.Context) ([]store.Usage, error) { return s.store.Usage(ctx, names) })
}

func (s *sweeper) quotas(ctx context.Context, names []string) ([]store.Document, error) {
	return ask(ctx, s, func(ctx context.Context) ([]store.Document, error) { return s.store.Quotas(ctx, names) })
}

// sweep deletes what is over: age windows first, then row ceilings. The report
// tells what was done also when an error ended the sweep early.
func (s *sweeper) sweep(ctx context.Context) (report, error) {
	if s.pace == nil {
		s.pace = newPace(s.bounds.rows)
	}
	s.report, s.account, s.more, s.began, s.rest = report{}, account{}, map[history]bool{}, time.Now(), 0
	defer func() {
		for at := range s.more {
			s.account.change(at.namespace, func(c *wire.SweepCounts) { c.Left = true })
		}
	}()
	for _, pass := range []func(context.Context) (bool, error){s.ages, s.ceilings, s.retries} {
		left, err := pass(ctx)
		s.report.Left = s.report.Left || left
		if err != nil {
			return s.report, s.pulse.judge(err)
		}
	}
	return s.report, nil
}

// ages applies the windows. A follow-up sweep, which comes a second after one
// that left rows over a ceiling, skips them: the windows have hardly moved and
// each costs every namespace a delete.
func (s *sweeper) ages(ctx context.Context) (left bool, err error) {
	started := time.Now()
	if !s.agedAt.IsZero() && started.Sub(s.agedAt) < s.cfg.Tick {
		return false, nil
	}
	windows := map[store.Table]time.Duration{store.Archive: s.cfg.ArchiveAge, store.DeadLetters: s.cfg.DeadAge}
	if s.cfg.ArchiveAge > 0 || s.cfg.DeadAge > 0 {
		left, err = walk(ctx, s, func(ctx context.Context, names []string) ([]task, error) {
			usages, err := s.usage(ctx, names)
			var tasks []task
			for _, u := range usages {
				tasks = append(tasks, overAge(u, windows)...)
			}
			return tasks, err
		}, func(t task) (*task, error) { return s.batch(ctx, t) })
	}
	if err == nil && s.cfg.AuditAge > 0 {
		var more bool
		more, err = s.auditAge(ctx)
		left = left || more
	}
	if err == nil && !left {
		s.agedAt = started
	}
	return left, err
}

// auditAge applies the window of the audit trail.
func (s *sweeper) auditAge(ctx context.Context) (left bool, err error) {
	now, err := s.clock(ctx)
	if err != nil {
		return false, err
	}
	for range s.bounds.batches {
		if err := s.guard(ctx); err != nil {
			return true, err
		}
		done, err := ask(ctx, s, func(ctx context.Context) (store.Trimmed, error) {
			return s.store.TrimAudit(ctx, s.term, now.Add(-s.cfg.AuditAge), s.bounds.rows)
		})
		switch {
		case err != nil:
			return true, fmt.Errorf("trim the audit trail: %w", err)
		case done.Superseded:
			return true, errSuperseded
		}
		s.report.add(done)
		if !done.More {
			return false, nil
		}
	}
	return true, nil
}

// ceilings applies the row limits of the quotas.
func (s *sweeper) ceilings(ctx context.Context) (left bool, err error) {
	return walk(ctx, s, func(ctx context.Context, names []string) ([]task, error) {
		s.report.Namespaces += len(names)
		usages, err := s.usage(ctx, names)
		if err != nil {
			return nil, err
		}
		var filled []string
		kept := usages[:0]
		for _, u := range usages {
			if u.Archived > 0 || u.Dead > 0 {
				filled = append(filled, u.Namespace)
				kept = append(kept, u)
			}
		}
		if len(filled) == 0 {
			return nil, nil
		}
		docs, err := s.quotas(ctx, filled)
		if err != nil {
			return nil, err
		}
		var tasks []task
		for i, doc := range docs {
			if q, ok := s.read(filled[i], doc); ok {
				tasks = append(tasks, overCeiling(kept[i], q, doc.Stamp)...)
			}
		}
		return tasks, nil
	}, func(t task) (*task, error) { return s.batch(ctx, t) })
}

// walk goes through all namespaces, a page in memory at a time, and works on
// what plan finds in each page by turns.
func walk[T any](ctx context.Context, s *sweeper, plan func(ctx context.Context, names []string) ([]T, error), batch func(T) (*T, error)) (left bool, err error) {
	for after := ""; ; {
		page, err := ask(ctx, s, func(ctx context.Context) (store.Page[string], error) {
			return s.store.Namespaces(ctx, after, s.bounds.page)
		})
		if err != nil {
			return left, fmt.Errorf("list namespaces: %w", err)
		}
		s.failed = map[string]bool{}
		tasks, err := plan(ctx, page.Items)
		if err != nil {
			return left, fmt.Errorf("read usage and quotas: %w", err)
		}
		more, err := takeTurns(tasks, s.bounds.batches, batch)
		left = left || more
		if err != nil {
			return left, err
		}
		if page.Next == "" {
			return left, nil
		}
		after = page.Next
	}
}

// batch does one delete of a task and returns what is left of the task. An
// error ends the sweep.
func (s *sweeper) batch(ctx context.Context, t task) (*task, error) {
	if s.failed[t.namespace] {
		return nil, nil
	}
	if !wait(ctx, s.rest) {
		return nil, ctx.Err()
	}
	if err := s.guard(ctx); err != nil {
		return nil, err
	}
	started := time.Now()
	done, err := ask(ctx, s, func(ctx context.Context) (store.Trimmed, error) {
		return s.store.Trim(ctx, t.trim(s.term, s.pace.rows))
	})
	s.rest = s.pace.took(time.Since(started), err != nil && !errors.Is(err, store.ErrStale))
	switch {
	case errors.Is(err, store.ErrStale):
		return s.reload(ctx, t)
	case err != nil:
		return nil, s.skip(ctx, t.namespace, err)
	case done.Superseded:
		return nil, errSuperseded
	}
	s.report.add(done)
	s.account.trimmed(t.namespace, done)
	at := history{t.namespace, t.table}
	if !done.More {
		delete(s.more, at)
		return nil, nil
	}
	s.more[at] = true
	return &t, nil
}

// reload gives a task the ceiling that is in force by now. Its turn is over.
func (s *sweeper) reload(ctx context.Context, t task) (*task, error) {
	docs, err := s.quotas(ctx, []string{t.namespace})
	if err != nil {
		return nil, s.skip(ctx, t.namespace, err)
	}
	q, ok := s.read(t.namespace, docs[0])
	keep := ceiling(q, t.table)
	if !ok || keep == nil {
		return nil, nil
	}
	t.keep, t.stamp = keep, docs[0].Stamp
	return &t, nil
}

// read decodes a quota. One that cannot be read is no reason to delete anything.
func (s *sweeper) read(ns string, doc store.Document) (quota.Quota, bool) {
	if doc.Raw == nil {
		return quota.Quota{}, true
	}
	q, err := quota.Read(doc.Raw)
	if err != nil {
		s.report.Unreadable++
		s.account.change(ns, func(c *wire.SweepCounts) { c.Skipped = skippedUnreadable })
		s.log.Warn().Err(err).Str("namespace", ns).Msg("quota unreadable: row ceilings skipped")
		return quota.Quota{}, false
	}
	return q, true
}

// skip leaves a namespace out for the rest of its page, unless the failure is
// not the namespace's own.
func (s *sweeper) skip(ctx context.Context, ns string, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if errors.Is(s.pulse.judge(err), errSilent) {
		return errSilent
	}
	s.failed[ns] = true
	s.report.Failed++
	s.account.change(ns, func(c *wire.SweepCounts) { c.Skipped = skippedFailed })
	s.log.Warn().Err(err).Str("namespace", ns).Msg("namespace skipped by the sweep")
	return nil
}

// pulse remembers when the store last answered. It belongs to one goroutine.
type pulse struct {
	last     time.Time
	patience time.Duration
}

// heard notes the end of a call. A refusal is an answer too.
func (p *pulse) heard(err error) {
	if err == nil || !fault.Is(err, fault.StorageUnavailable) && !fault.Is(err, fault.DeadlineExceeded) &&
		!errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled) {
		p.last = time.Now()
	}
}

// left is how long the store may still stay silent.
func (p *pulse) left() time.Duration { return time.Until(p.last.Add(p.patience)) }

// judge turns the error of a store that was silent for too long into errSilent.
func (p *pulse) judge(err error) error {
	if err != nil && p.left() <= 0 {
		return errSilent
	}
	return err
}
