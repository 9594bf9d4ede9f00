package config

import (
	"math"
	"strings"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/fault"
	"flexiq/pkg/quota"
	"flexiq/pkg/store"
)

// fromProto reads a quota as a caller sent it; nil is one without fields. The
// error names the field as it stands in the request, "quota.max_pending".
func fromProto(p *flexiqv1.NamespaceQuota) (quota.Quota, error) {
	if p == nil {
		return quota.Quota{}, nil
	}
	q, err := limitsOf(p)
	f := fault.Of(err)
	if f == nil {
		return q, nil
	}
	field := f.Details[fault.KeyField]
	return quota.Quota{}, fault.Invalid("quota."+field, "%s", strings.TrimPrefix(f.Message, field+": "))
}

// limitsOf names a wrong field as the document does.
func limitsOf(p *flexiqv1.NamespaceQuota) (quota.Quota, error) {
	q := quota.Quota{
		MaxPending: p.MaxPending, MaxRunning: p.MaxRunning,
		MaxArchivedRows: p.MaxArchivedRows, MaxDeadRows: p.MaxDeadRows,
	}
	if p.OnExcess != nil {
		if q.OnExcess = quota.Excess(*p.OnExcess); q.OnExcess == "" {
			return q, fault.Invalid(quota.OnExcess, "must be %q or %q, got %q", quota.Reject, quota.Drop, "")
		}
	}
	if p.EnqueueRate != nil {
		r, err := quota.ParseRate(*p.EnqueueRate)
		if err != nil {
			return q, err
		}
		q.EnqueueRate = &r
	}
	return q, q.Check()
}

// toProto writes a quota as responses show it.
func toProto(q quota.Quota) *flexiqv1.NamespaceQuota {
	excess := string(q.Excess())
	p := &flexiqv1.NamespaceQuota{
		MaxPending: q.MaxPending, OnExcess: &excess, MaxRunning: q.MaxRunning,
		MaxArchivedRows: q.MaxArchivedRows, MaxDeadRows: q.MaxDeadRows,
	}
	if q.EnqueueRate != nil {
		rate := q.EnqueueRate.String()
		p.EnqueueRate = &rate
	}
	return p
}

// readDocument decodes a stored document; an absent one limits nothing.
func readDocument(d store.Document) (quota.Quota, error) {
	if d.Raw == nil {
		return quota.Quota{}, nil
	}
	return quota.Read(d.Raw)
}

// used is what stands against an integer limit.
func used(u store.Usage, field string) int64 {
	switch field {
	case quota.MaxPending:
		return u.Pending
	case quota.MaxRunning:
		return u.Running
	case quota.MaxArchivedRows:
		return u.Archived
	}
	return u.Dead
}

// limits sets each limit of a quota beside its use, in the order of the
// document's fields.
func limits(q quota.Quota, u store.Usage) []*flexiqv1.LimitUsage {
	var out []*flexiqv1.LimitUsage
	for _, field := range quota.Fields {
		switch limit := q.Int(field); {
		case limit != nil:
			current := used(u, field)
			out = append(out, &flexiqv1.LimitUsage{Field: field, Limit: *limit, Current: current, Over: max(0, current-*limit)})
		case field == quota.EnqueueRate && q.EnqueueRate != nil:
			tokens := u.Bucket.Refill(*q.EnqueueRate, u.Now).Tokens()
			out = append(out, &flexiqv1.LimitUsage{Field: field, Limit: q.EnqueueRate.Count, Current: tokens})
		}
	}
	return out
}

// preview tells what a quota would refuse now, and what the sweeps would delete.
func preview(q quota.Quota, u store.Usage) *flexiqv1.QuotaPreview {
	p := &flexiqv1.QuotaPreview{}
	for _, l := range limits(q, u) {
		switch l.Field {
		case quota.MaxArchivedRows, quota.MaxDeadRows:
			if l.Over > 0 {
				table := map[string]string{quota.MaxArchivedRows: "archived", quota.MaxDeadRows: "dead"}[l.Field]
				p.Delete = append(p.Delete, &flexiqv1.TableExcess{Table: table, Rows: l.Over})
			}
		default:
			if full(l) {
				p.Over = append(p.Over, &flexiqv1.LimitReached{Field: l.Field, Limit: l.Limit, Current: l.Current})
			}
		}
	}
	return p
}

// full reports whether a limit has no room for one more job.
func full(l *flexiqv1.LimitUsage) bool {
	if l.Field == quota.EnqueueRate {
		return l.Current < 1
	}
	return l.Current >= l.Limit
}

// fullness is the largest share of a limit that is in use, 0 without limits. A
// limit of zero has no room: it is full, and over by what stands against it. A
// quota that cannot be read stops its namespace, so it is fuller than any.
func fullness(v view) float64 {
	if v.err != nil {
		return math.MaxFloat64
	}
	most := 0.0
	for _, l := range limits(v.quota, v.usage) {
		current := l.Current
		if l.Field == quota.EnqueueRate {
			current = l.Limit - l.Current
		}
		share := float64(current) / float64(l.Limit)
		if l.Limit == 0 {
			share = 1 + float64(current)
		}
		most = max(most, share)
	}
	return most
}
