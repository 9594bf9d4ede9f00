package config

import (
	"context"
	"time"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/auth"
	"flexiq/pkg/fault"
	"flexiq/pkg/quota"
	"flexiq/pkg/store"
)

// view is a namespace's usage beside its quota.
type view struct {
	usage store.Usage
	quota quota.Quota
	err   error     // the quota cannot be read
	since time.Time // the quota is what it is
}

// views reads namespaces, in order.
func (s *Service) views(ctx context.Context, names []string) ([]view, error) {
	usages, err := s.store.Usage(ctx, names)
	if err != nil {
		return nil, err
	}
	docs, err := s.store.Quotas(ctx, names)
	if err != nil {
		return nil, err
	}
	out := make([]view, len(names))
	for i := range names {
		out[i].usage = usages[i]
		out[i].quota, out[i].err = readDocument(docs[i])
		out[i].since = docs[i].UpdatedAt
	}
	return out, nil
}

// show writes a view as responses do.
func (s *Service) show(v view) *flexiqv1.GetUsageResponse {
	u := v.usage
	res := &flexiqv1.GetUsageResponse{
		Pending: u.Pending, Running: u.Running, Archived: u.Archived, Dead: u.Dead, Shed: u.Shed,
		LastMinute: s.minute.sum(time.Now(), u.Namespace),
		Revision:   u.Stamp.Revision,
		Unreadable: v.err != nil,
		LastSweep:  s.sweeps.of(u.Namespace),
	}
	if v.err == nil {
		res.Limits = limits(v.quota, u)
	}
	return res
}

func (s *Service) getUsage(ctx context.Context, _ *flexiqv1.GetUsageRequest) (*flexiqv1.GetUsageResponse, error) {
	ns, err := tenant(ctx)
	if err != nil {
		return nil, err
	}
	views, err := s.views(ctx, []string{ns})
	if err != nil {
		return nil, err
	}
	return s.show(views[0]), nil
}

// tenant is the caller's namespace.
func tenant(ctx context.Context) (string, error) {
	if ns := auth.From(ctx).Namespace; ns != "" {
		return ns, nil
	}
	return "", fault.New(fault.PermissionDenied,
		"a platform token has no namespace: exchange it for a token of one to act for it")
}
