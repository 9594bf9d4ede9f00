package admission

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/auth"
	"flexiq/pkg/fault"
	"flexiq/pkg/job"
	"flexiq/pkg/store"
	"flexiq/pkg/wire"
)

const (
	// listName ties page tokens to this listing.
	listName = "jobs"

	// cancelBatch is how many jobs of a filter one store call examines.
	cancelBatch = 500

	// cancelMargin is kept of a call's time to answer in.
	cancelMargin = time.Second
)

// tenant returns the caller's namespace. A token without one gets nothing, and
// never everything.
func tenant(ctx context.Context) (string, error) {
	ns := auth.From(ctx).Namespace
	if ns == "" {
		return "", fault.New(fault.PermissionDenied, "the token belongs to no namespace")
	}
	return ns, nil
}

func (s *Service) getJob(ctx context.Context, req *flexiqv1.GetJobRequest) (*flexiqv1.GetJobResponse, error) {
	ns, err := tenant(ctx)
	if err != nil {
		return nil, err
	}
	if err := job.CheckID("id", req.GetId()); err != nil {
		return nil, err
	}
	j, err := s.jobs.Job(ctx, ns, strings.ToLower(req.GetId()))
	if err != nil {
		return nil, fmt.Errorf("job: %w", err)
	}
	return &flexiqv1.GetJobResponse{Job: wire.Job(j)}, nil
}

func (s *Service) listJobs(ctx context.Context, req *flexiqv1.ListJobsRequest) (*flexiqv1.ListJobsResponse, error) {
	ns, err := tenant(ctx)
	if err != nil {
		return nil, err
	}
	f := store.Filter{State: job.State(req.GetStatus()), Queue: req.GetQueue(), Task: req.GetTask()}
	if f.State != "" && !f.State.Valid() {
		return nil, fault.Invalid("status", "must be one of %v", job.States)
	}
	if err := wire.FilterNames("", f.Queue, f.Task); err != nil {
		return nil, err
	}
	size, err := wire.PageSize(req.GetPageSize())
	if err != nil {
		return nil, err
	}
	after, err := wire.ParsePageToken(listName, req.GetPageToken())
	if err != nil {
		return nil, err
	}
	page, err := s.jobs.ListJobs(ctx, ns, f, after, size)
	if err != nil {
		return nil, fmt.Errorf("list of jobs: %w", err)
	}
	res := &flexiqv1.ListJobsResponse{NextPageToken: wire.PageToken(listName, page.Next)}
	for i := range page.Items {
		res.Jobs = append(res.Jobs, wire.Bare(&page.Items[i]))
	}
	return res, nil
}

func (s *Service) cancelJobs(ctx context.Context, req *flexiqv1.CancelJobsRequest) (*flexiqv1.CancelJobsResponse, error) {
	ns, err := tenant(ctx)
	if err != nil {
		return nil, err
	}
	sel, err := selection(req)
	if err != nil {
		return nil, err
	}
	var total store.Cancelled
	for {
		c, err := s.store.Cancel(ctx, ns, sel, cancelBatch)
		if err != nil {
			return nil, fmt.Errorf("cancel: %w", err)
		}
		total.Cancelled += c.Cancelled
		total.Cancelling += c.Cancelling
		total.NotFound += c.NotFound
		s.tellCancelled(c.Ended)
		if c.Cancelled > 0 {
			s.tally.add(ns, wire.AdmissionCounts{}) // whoever watches the limits hears that something moved
		}
		s.metrics.cancelled.Add(float64(c.Cancelled))
		s.metrics.cancelling.Add(float64(c.Cancelling))
		// A batch that changed nothing says that only jobs are left which were
		// told before: there is nothing to wait for.
		if !c.More || len(sel.IDs) > 0 || c.Cancelled+c.Cancelling == 0 {
			break
		}
		if end, ok := ctx.Deadline(); ok && time.Until(end) < cancelMargin {
			return nil, unfinished(total)
		}
	}
	return &flexiqv1.CancelJobsResponse{Cancelled: total.Cancelled, Cancelling: total.Cancelling, NotFound: total.NotFound}, nil
}

// unfinished is the answer of a cancel by filter that ran out of time.
func unfinished(c store.Cancelled) error {
	return fault.New(fault.DeadlineExceeded, "%d jobs were cancelled and %d told to stop; more are left: repeat the call", c.Cancelled, c.Cancelling).
		With("cancelled", strconv.FormatInt(c.Cancelled, 10)).With("cancelling", strconv.FormatInt(c.Cancelling, 10))
}

// selection reads which jobs a request means.
func selection(req *flexiqv1.CancelJobsRequest) (store.Selection, error) {
	ids, f := req.GetIds(), req.GetFilter()
	switch {
	case len(ids) > 0 && f != nil:
		return store.Selection{}, fault.Invalid("filter", "must not be given together with ids")
	case len(ids) == 0 && f == nil:
		return store.Selection{}, fault.Invalid("ids", "ids or filter must be given")
	case len(ids) > job.MaxBatch:
		return store.Selection{}, fault.Invalid("ids", "must be at most %d, got %d", job.MaxBatch, len(ids))
	case f != nil:
		return filtered(f)
	}
	lower := make([]string, len(ids))
	for i, id := range ids {
		if err := job.CheckID(fmt.Sprintf("ids[%d]", i), id); err != nil {
			return store.Selection{}, err
		}
		lower[i] = strings.ToLower(id)
	}
	slices.Sort(lower)
	return store.Selection{IDs: slices.Compact(lower)}, nil
}

func filtered(f *flexiqv1.CancelFilter) (store.Selection, error) {
	sel := store.Selection{Filter: store.Filter{Queue: f.GetQueue(), Task: f.GetTask()}}
	if err := wire.FilterNames("filter.", f.GetQueue(), f.GetTask()); err != nil {
		return store.Selection{}, err
	}
	if f.GetCreatedBefore() != nil {
		at, err := wire.Time("filter.created_before", f.GetCreatedBefore())
		if err != nil {
			return store.Selection{}, err
		}
		sel.Filter.CreatedBefore = at
	}
	return sel, nil
}
