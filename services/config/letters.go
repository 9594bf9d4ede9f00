package config

import (
	"context"
	"fmt"
	"strings"
	"time"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/fault"
	"flexiq/pkg/job"
	"flexiq/pkg/store"
	"flexiq/pkg/wire"
)

// Names that tie page tokens to what they go on with.
const (
	replayList = "dead letters to replay"
	deleteList = "dead letters to delete"
)

// chosen is which dead letters a call is about: those of the ids, or else those
// that the filter matches.
type chosen struct {
	ids    []string
	filter store.Filter
	asked  *flexiqv1.DeadLetterFilter
}

// chooser is a request that chooses dead letters to do something to. Leaving out
// what is meant must never mean all of them.
type chooser interface {
	GetIds() []string
	GetFilter() *flexiqv1.DeadLetterFilter
	GetPageToken() string
}

func choose(req chooser) (chosen, error) {
	ids, f := req.GetIds(), req.GetFilter()
	switch {
	case len(ids) > 0 && f != nil:
		return chosen{}, fault.Invalid("filter", "must not be given together with ids")
	case len(ids) == 0 && f == nil:
		return chosen{}, fault.Invalid("ids", "ids or filter must be given; an empty filter is all dead letters")
	case len(ids) > store.LettersLimit:
		return chosen{}, fault.Invalid("ids", "must be at most %d, got %d", store.LettersLimit, len(ids))
	case len(ids) > 0 && req.GetPageToken() != "":
		return chosen{}, fault.Invalid("page_token", "must not be given together with ids")
	case f != nil:
		filter, err := letterFilter(f)
		return chosen{filter: filter, asked: f}, err
	}
	c := chosen{ids: make([]string, 0, len(ids))}
	seen := make(map[string]bool, len(ids))
	for i, id := range ids {
		if err := job.CheckID(fmt.Sprintf("ids[%d]", i), id); err != nil {
			return chosen{}, err
		}
		if id = strings.ToLower(id); !seen[id] {
			seen[id] = true
			c.ids = append(c.ids, id)
		}
	}
	return c, nil
}

// letterFilter reads a filter of dead letters.
func letterFilter(p *flexiqv1.DeadLetterFilter) (store.Filter, error) {
	f := store.Filter{State: job.Dead, Queue: p.GetQueue(), Task: p.GetTask()}
	if err := wire.FilterNames("filter.", f.Queue, f.Task); err != nil {
		return f, err
	}
	if p != nil {
		f.Shed = p.Shed
	}
	if before := p.GetBefore(); before != nil {
		var err error
		if f.DiedBefore, err = wire.Time("filter.before", before); err != nil {
			return f, err
		}
	}
	return f, nil
}

// page finds the ids of the next dead letters, and where it goes on after them.
func (c chosen) page(ctx context.Context, jobs store.Jobs, ns, after string, size int) (ids []string, next string, err error) {
	if len(c.ids) > 0 {
		return c.ids, "", nil
	}
	page, err := jobs.ListJobs(ctx, ns, c.filter, after, size)
	if err != nil {
		return nil, "", err
	}
	for i := range page.Items {
		ids = append(ids, page.Items[i].ID)
	}
	return ids, page.Next, nil
}

// lettersRecord begins the record of something done to dead letters. The target
// is the id of the one, or says which they were.
func lettersRecord(ctx context.Context, operation string, c chosen) store.Record {
	r := record(ctx, operation)
	r.TargetKind, r.Target = targetDeadLetters, lettersTarget(c.ids, c.asked)
	return r
}

func lettersTarget(ids []string, f *flexiqv1.DeadLetterFilter) string {
	switch {
	case len(ids) == 1:
		return clip(ids[0])
	case len(ids) > 1:
		return fmt.Sprintf("%d ids", len(ids))
	case f == nil:
		return ""
	}
	v := struct {
		Queue  string     `json:"queue,omitempty"`
		Task   string     `json:"task,omitempty"`
		Shed   *bool      `json:"shed,omitempty"`
		Before *time.Time `json:"before,omitempty"`
	}{Queue: f.GetQueue(), Task: f.GetTask(), Shed: f.Shed}
	if b := f.GetBefore(); b != nil {
		at := b.AsTime()
		v.Before = &at
	}
	return value(v)
}

func (s *Service) deleteDeadLetters(ctx context.Context, req *flexiqv1.DeleteDeadLettersRequest) (*flexiqv1.DeleteDeadLettersResponse, error) {
	ns, err := tenant(ctx)
	if err != nil {
		return nil, err
	}
	c, err := choose(req)
	if err != nil {
		return nil, err
	}
	after, err := wire.ParsePageToken(deleteList, req.GetPageToken())
	if err != nil {
		return nil, err
	}
	audit := lettersRecord(ctx, "delete-dead-letters", c)
	res := &flexiqv1.DeleteDeadLettersResponse{}
	for {
		ids, next, err := c.page(ctx, s.store, ns, after, wire.MaxPageSize)
		if err != nil {
			return nil, err
		}
		n, err := s.store.DeleteDead(ctx, ns, ids, audit)
		if err != nil {
			return nil, err
		}
		s.metrics.letters.WithLabelValues("deleted").Add(float64(n))
		s.board.moved(ns)
		res.Deleted += n
		if next == "" {
			return res, nil
		}
		if after = next; short(ctx) {
			res.NextPageToken = wire.PageToken(deleteList, after)
			return res, nil
		}
	}
}
