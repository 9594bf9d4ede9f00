package config

import (
	"context"
	"fmt"
	"slices"
	"strings"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/fault"
	"flexiq/pkg/job"
	"flexiq/pkg/store"
	"flexiq/pkg/wire"
)

func (s *Service) listDeadLetters(ctx context.Context, req *flexiqv1.ListDeadLettersRequest) (*flexiqv1.ListDeadLettersResponse, error) {
	ns, err := tenant(ctx)
	if err != nil {
		return nil, err
	}
	size, after, err := page("dead letters", req)
	if err != nil {
		return nil, err
	}
	var letters store.Page[job.Job]
	if len(req.GetIds()) > 0 {
		letters, err = s.lettersOf(ctx, ns, req, after, size)
	} else {
		letters, err = s.lettersLike(ctx, ns, req.GetFilter(), after, size)
	}
	if err != nil {
		return nil, err
	}
	res := &flexiqv1.ListDeadLettersResponse{NextPageToken: wire.PageToken("dead letters", letters.Next)}
	for i := range letters.Items {
		res.DeadLetters = append(res.DeadLetters, wire.Bare(&letters.Items[i]))
	}
	return res, nil
}

// lettersLike finds dead letters by a filter.
func (s *Service) lettersLike(ctx context.Context, ns string, p *flexiqv1.DeadLetterFilter, after string, size int) (store.Page[job.Job], error) {
	f, err := letterFilter(p)
	if err != nil {
		return store.Page[job.Job]{}, err
	}
	return s.store.ListJobs(ctx, ns, f, after, size)
}

// lettersOf finds dead letters by their ids, in the order of the ids.
func (s *Service) lettersOf(ctx context.Context, ns string, req *flexiqv1.ListDeadLettersRequest, after string, size int) (store.Page[job.Job], error) {
	var out store.Page[job.Job]
	if len(req.GetIds()) > wire.MaxPageSize {
		return out, fault.Invalid("ids", "must be at most %d, got %d", wire.MaxPageSize, len(req.GetIds()))
	}
	if req.GetFilter() != nil {
		return out, fault.Invalid("filter", "must not be given together with ids")
	}
	ids := make([]string, 0, len(req.GetIds()))
	for i, id := range req.GetIds() {
		if err := job.CheckID(fmt.Sprintf("ids[%d]", i), id); err != nil {
			return out, err
		}
		ids = append(ids, strings.ToLower(id))
	}
	slices.Sort(ids)
	for _, id := range slices.Compact(ids) {
		if id <= after {
			continue
		}
		if len(out.Items) == size {
			out.Next = out.Items[size-1].ID
			break
		}
		switch j, err := s.letter(ctx, ns, id); {
		case err == nil:
			out.Items = append(out.Items, *j)
		case !fault.Is(err, fault.NotFound):
			return out, err
		}
	}
	return out, nil
}

func (s *Service) getDeadLetter(ctx context.Context, req *flexiqv1.GetDeadLetterRequest) (*flexiqv1.GetDeadLetterResponse, error) {
	ns, err := tenant(ctx)
	if err != nil {
		return nil, err
	}
	if err := job.CheckID("id", req.GetId()); err != nil {
		return nil, err
	}
	j, err := s.letter(ctx, ns, strings.ToLower(req.GetId()))
	if err != nil {
		return nil, err
	}
	return &flexiqv1.GetDeadLetterResponse{DeadLetter: wire.Job(j)}, nil
}

// letter finds a dead letter. A job that is not dead is as missing as one that
// does not exist.
func (s *Service) letter(ctx context.Context, ns, id string) (*job.Job, error) {
	j, err := s.store.Job(ctx, ns, id)
	if fault.Is(err, fault.NotFound) || err == nil && j.State != job.Dead {
		return nil, fault.Missing("dead letter")
	}
	return j, err
}
