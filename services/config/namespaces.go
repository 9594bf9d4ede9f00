package config

import (
	"context"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/fault"
	"flexiq/pkg/wire"
)

// Orders of ListNamespaces.
const (
	orderName  = "name"
	orderUsage = "usage"
)

// A page of the fullest namespaces is found by reading all candidates, so their
// number is bounded: names are ranked in stretches of stretchPages pages, one
// stretch after the other. Up to stretchPages × stretchPage namespaces the order
// is total; beyond, it is total within each stretch of names.
const (
	stretchPage  = 500
	stretchPages = 20
)

func (s *Service) listNamespaces(ctx context.Context, req *flexiqv1.ListNamespacesRequest) (*flexiqv1.ListNamespacesResponse, error) {
	switch req.GetOrder() {
	case "", orderName:
		return s.namespacesByName(ctx, req)
	case orderUsage:
		return s.namespacesByUsage(ctx, req)
	}
	return nil, fault.Invalid("order", "must be %q or %q, got %q", orderName, orderUsage, clip(req.GetOrder()))
}

func (s *Service) namespacesByName(ctx context.Context, req *flexiqv1.ListNamespacesRequest) (*flexiqv1.ListNamespacesResponse, error) {
	const list = "namespaces by name"
	size, after, err := page(list, req)
	if err != nil {
		return nil, err
	}
	names, err := s.store.Namespaces(ctx, after, size)
	if err != nil {
		return nil, err
	}
	views, err := s.views(ctx, names.Items)
	if err != nil {
		return nil, err
	}
	res := &flexiqv1.ListNamespacesResponse{NextPageToken: wire.PageToken(list, names.Next)}
	for i, v := range views {
		res.Namespaces = append(res.Namespaces, &flexiqv1.NamespaceUsage{Namespace: names.Items[i], Usage: s.show(v)})
	}
	return res, nil
}

func (s *Service) namespacesByUsage(ctx context.Context, req *flexiqv1.ListNamespacesRequest) (*flexiqv1.ListNamespacesResponse, error) {
	const list = "namespaces by usage"
	size, after, err := page(list, req)
	if err != nil {
		return nil, err
	}
	cursor, err := parseRankCursor(after)
	if err != nil {
		return nil, err
	}
	p := &podium{size: size, after: cursor.After}
	next, err := s.rank(ctx, p, cursor.From)
	if err != nil {
		return nil, err
	}
	res := &flexiqv1.ListNamespacesResponse{}
	for _, r := range p.best {
		res.Namespaces = append(res.Namespaces, &flexiqv1.NamespaceUsage{Namespace: r.Name, Usage: s.show(r.view)})
	}
	switch {
	case p.more:
		res.NextPageToken = wire.PageToken(list, rankCursor{From: cursor.From, After: &p.best[size-1].place}.String())
	case next != "":
		res.NextPageToken = wire.PageToken(list, rankCursor{From: next}.String())
	}
	return res, nil
}

// rank shows the podium one stretch of namespaces. It returns where the next
// stretch starts, empty at the end.
func (s *Service) rank(ctx context.Context, p *podium, from string) (next string, err error) {
	for range stretchPages {
		names, err := s.store.Namespaces(ctx, from, stretchPage)
		if err != nil {
			return "", err
		}
		views, err := s.views(ctx, names.Items)
		if err != nil {
			return "", err
		}
		for i, v := range views {
			p.add(ranked{place: place{Full: fullness(v), Name: names.Items[i]}, view: v})
		}
		if from = names.Next; from == "" {
			break
		}
	}
	return from, nil
}
