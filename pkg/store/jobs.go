package store

import (
	"context"

	"flexiq/pkg/job"
)

// Jobs reads jobs.
type Jobs interface {
	// Job finds a job of any state, with payload and result. A missing one is NOT_FOUND.
	Job(ctx context.Context, ns, id string) (*job.Job, error)

	// ListJobs lists jobs by id upwards, those after the given id, without
	// payloads and results. It examines a bounded number of rows: a page may
	// be short, even empty, while Next is set. A job that exists throughout is
	// listed once, however others move.
	ListJobs(ctx context.Context, ns string, f Filter, after string, limit int) (Page[job.Job], error)

	// Usage reads the counts of namespaces, in order. A namespace that was
	// never used has zero counts.
	Usage(ctx context.Context, namespaces []string) ([]Usage, error)

	// Namespaces lists the names of namespaces, in byte order after the given
	// one: all that ever had a job or a quota.
	Namespaces(ctx context.Context, after string, limit int) (Page[string], error)
}
