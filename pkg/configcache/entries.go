package configcache

import (
	"context"
	"time"

	"flexiq/pkg/fault"
	"flexiq/pkg/job"
	"flexiq/pkg/quota"
	"flexiq/pkg/store"
)

// Quota is a namespace's quota in force, as the hot services need it. The zero
// value is a namespace that never had one: nothing is limited.
type Quota struct {
	Quota     quota.Quota
	Stamp     store.Stamp
	Raw       []byte // as stored; nil when there is none
	Inherited bool   // it is the installation's default quota
	UpdatedAt time.Time
	// Err is a QUOTA_UNREADABLE: there is a document and it cannot be read. It
	// stands in the entry and not for the load, so that it stops its namespace
	// alone; the rest of the entry but Quota is set.
	Err error
}

// LoadQuotas is the loader of a cache of quotas by namespace.
func LoadQuotas(src interface {
	Quotas(ctx context.Context, namespaces []string) ([]store.Document, error)
}) func(ctx context.Context, namespaces []string) ([]Quota, error) {
	return func(ctx context.Context, namespaces []string) ([]Quota, error) {
		docs, err := src.Quotas(ctx, namespaces)
		if err != nil {
			return nil, err
		}
		quotas := make([]Quota, len(docs))
		for i, d := range docs {
			quotas[i] = Quota{Stamp: d.Stamp, Raw: d.Raw, Inherited: d.Inherited, UpdatedAt: d.UpdatedAt}
			if d.Raw != nil {
				quotas[i].Quota, quotas[i].Err = quota.Read(d.Raw)
			}
		}
		return quotas, nil
	}
}

// Overrides are what an operator set for queues and tasks of a namespace, as
// admission needs it. The zero value sets nothing.
type Overrides struct {
	queues, tasks map[string]job.Defaults
	setAt         time.Time // when the last of them was set, zero: there is none
}

// Defaults are those of a job of a queue and a task: what is set for the task goes
// before what is set for the queue.
func (o Overrides) Defaults(queue, task string) job.Defaults {
	if o.queues == nil && o.tasks == nil {
		return job.Defaults{}
	}
	return o.tasks[task].Or(o.queues[queue])
}

// OverridesOf keeps the defaults of a namespace's overrides.
func OverridesOf(all []store.Override) (out Overrides) {
	for _, o := range all {
		if o.UpdatedAt.After(out.setAt) {
			out.setAt = o.UpdatedAt
		}
		d := job.Defaults{MaxAttempts: o.MaxAttempts, Timeout: o.Timeout, Priority: o.Priority}
		if d == (job.Defaults{}) {
			continue
		}
		into := &out.queues
		if o.Kind == store.OverrideTask {
			into = &out.tasks
		}
		if *into == nil {
			*into = make(map[string]job.Defaults)
		}
		(*into)[o.Name] = d
	}
	return out
}

// LoadOverrides is the loader of a cache of overrides by namespace.
func LoadOverrides(src interface {
	Overrides(ctx context.Context, namespaces []string) ([][]store.Override, error)
}) func(ctx context.Context, namespaces []string) ([]Overrides, error) {
	return func(ctx context.Context, namespaces []string) ([]Overrides, error) {
		all, err := src.Overrides(ctx, namespaces)
		if err != nil {
			return nil, err
		}
		out := make([]Overrides, len(all))
		for i := range all {
			out[i] = OverridesOf(all[i])
		}
		return out, nil
	}
}

// LoadTokens is the loader of a cache of tokens by id; nil is an absent one.
// Tokens are shared and must not be changed.
func LoadTokens(src interface {
	Token(ctx context.Context, id string) (*store.Token, error)
}) func(ctx context.Context, ids []string) ([]*store.Token, error) {
	return func(ctx context.Context, ids []string) ([]*store.Token, error) {
		tokens := make([]*store.Token, len(ids))
		for i, id := range ids {
			t, err := src.Token(ctx, id)
			if err != nil && !fault.Is(err, fault.NotFound) {
				return nil, err
			}
			if err == nil {
				tokens[i] = t
			}
		}
		return tokens, nil
	}
}

// Caches are the caches of a process, as one audience for changes.
type Caches struct {
	Quotas    *Cache[Quota]
	Overrides *Cache[Overrides]
	Tokens    *Cache[*store.Token]
}

// NewCaches makes the caches of a store. fresh is the [Poller.Fresh] of the
// poller whose changes they are told of; metrics may be nil.
func NewCaches(src interface {
	Quotas(ctx context.Context, namespaces []string) ([]store.Document, error)
	Overrides(ctx context.Context, namespaces []string) ([][]store.Override, error)
	Token(ctx context.Context, id string) (*store.Token, error)
}, fresh func() bool, metrics *Metrics) Caches {
	return Caches{
		Quotas: New(Options[Quota]{
			Name:      "quota",
			Load:      LoadQuotas(src),
			Revision:  func(q Quota) int64 { return q.Stamp.Revision },
			ChangedAt: func(q Quota) time.Time { return q.UpdatedAt },
			Fresh:     fresh,
			Metrics:   metrics,
		}),
		Overrides: New(Options[Overrides]{
			Name:      "override",
			Load:      LoadOverrides(src),
			Revision:  func(o Overrides) int64 { return o.setAt.UnixMicro() }, // they have none, and hints tell none
			ChangedAt: func(o Overrides) time.Time { return o.setAt },
			Fresh:     fresh,
			Metrics:   metrics,
		}),
		Tokens: New(Options[*store.Token]{
			Name:    "token",
			Load:    LoadTokens(src),
			Fresh:   fresh,
			Metrics: metrics,
		}),
	}
}

// Changed takes the changes of a poll; nil drops everything. It is what a
// [Poller] hands them to.
func (c Caches) Changed(changes []store.Change) {
	if changes == nil {
		c.DropAll()
	}
	for _, change := range changes {
		c.Hint(change.Kind, change.Key, 0)
	}
}

// Hint takes one hint; revision 0 is unconditional. A new default quota drops
// every quota, because any of them may be inherited.
func (c Caches) Hint(kind store.Kind, key string, revision int64) {
	switch kind {
	case store.KindQuota:
		c.Quotas.Invalidate(key, revision)
	case store.KindDefaultQuota:
		c.Quotas.DropAll()
	case store.KindOverride:
		c.Overrides.Invalidate(key, 0)
	case store.KindToken:
		c.Tokens.Invalidate(key, revision)
	}
}

// DropAll drops everything, as after a reconnect.
func (c Caches) DropAll() {
	c.Quotas.DropAll()
	c.Overrides.DropAll()
	c.Tokens.DropAll()
}

// Unreadable counts the namespaces in the cache whose quota cannot be read.
func (c Caches) Unreadable() int {
	return c.Quotas.count(func(q Quota) bool { return q.Err != nil })
}

// Close closes the caches.
func (c Caches) Close() {
	c.Quotas.Close()
	c.Overrides.Close()
	c.Tokens.Close()
}
