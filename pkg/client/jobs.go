package client

import (
	"context"
	"iter"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
)

// Job reads one job, wherever it stands. NOT_FOUND when the namespace has none
// of that id.
func (c *Client) Job(ctx context.Context, id string) (*flexiqv1.Job, error) {
	res, err := read[flexiqv1.GetJobResponse](ctx, c, "GetJob", &flexiqv1.GetJobRequest{Id: id})
	return res.GetJob(), err
}

// Jobs reads the jobs that the request chooses, by id upwards, page after
// page. An error ends the sequence.
func (c *Client) Jobs(ctx context.Context, req *flexiqv1.ListJobsRequest) iter.Seq2[*flexiqv1.Job, error] {
	return pages(ctx, req, c.ListJobs, (*flexiqv1.ListJobsResponse).GetJobs)
}

// ListJobs reads one page of jobs.
func (c *Client) ListJobs(ctx context.Context, req *flexiqv1.ListJobsRequest) (*flexiqv1.ListJobsResponse, error) {
	return read[flexiqv1.ListJobsResponse](ctx, c, "ListJobs", req)
}

// Cancel cancels jobs by their ids: pending ones at once, running ones through
// their workers. It counts what it did; an id without a live job is no error.
func (c *Client) Cancel(ctx context.Context, ids ...string) (*flexiqv1.CancelJobsResponse, error) {
	return c.cancel(ctx, &flexiqv1.CancelJobsRequest{Ids: ids})
}

// CancelMatching cancels every pending and running job that the filter chooses.
func (c *Client) CancelMatching(ctx context.Context, f *flexiqv1.CancelFilter) (*flexiqv1.CancelJobsResponse, error) {
	return c.cancel(ctx, &flexiqv1.CancelJobsRequest{Filter: f})
}

// cancel is not repeated: its counts would tell of the repeat alone.
func (c *Client) cancel(ctx context.Context, req *flexiqv1.CancelJobsRequest) (*flexiqv1.CancelJobsResponse, error) {
	return write[flexiqv1.CancelJobsResponse](ctx, c, "CancelJobs", req)
}
