package store

import (
	"cmp"
	"context"
	"slices"
	"time"
)

// Insight shows operators what is going on. It locks nothing; each answer is of
// one moment, and costs a bounded time however much waits.
type Insight interface {
	// Queues lists the queues that have pending or running jobs or an override,
	// in byte order after the given one.
	Queues(ctx context.Context, ns, after string, limit int) (Page[QueueState], error)

	// Holders lists running jobs of a queue and a task, where empty is any, the
	// longest running first, at most limit of them.
	Holders(ctx context.Context, ns, queue, task string, limit int) (Holders, error)

	// Ahead counts the due jobs of a pending job's queue that come before it in
	// the order of dispatch, up to limit. NOT_FOUND when no pending job has the id.
	Ahead(ctx context.Context, ns, id string, limit int) (Ahead, error)
}

// QueueState is what a queue holds.
type QueueState struct {
	Queue     string
	Pending   int64
	Running   int64
	OldestDue time.Time // the first run_at of a due pending job, zero when none is due
	Now       time.Time // the store's clock at the reading
}

// Holders are the jobs that take up slots.
type Holders struct {
	Items []Holder
	Total int64 // how many match, Items included
	Now   time.Time
}

// Holder is a running job.
type Holder struct {
	JobID     string
	Queue     string
	Task      string
	Worker    string
	StartedAt time.Time
	LeaseEnds time.Time
	Cancelled bool // its cancellation was requested
}

// Ahead is how many jobs go first.
type Ahead struct {
	Count int64
	More  bool // it stopped counting there
}

// QueuePage makes a page of the first of some queues. Of two entries of a queue
// the first one counts: backends list queues with jobs before those with an
// override.
func QueuePage(all []QueueState, limit int) Page[QueueState] {
	slices.SortStableFunc(all, func(a, b QueueState) int { return cmp.Compare(a.Queue, b.Queue) })
	page := Page[QueueState]{Items: slices.CompactFunc(all, func(a, b QueueState) bool { return a.Queue == b.Queue })}
	if len(page.Items) > limit {
		page.Items = page.Items[:limit]
		page.Next = page.Items[limit-1].Queue
	}
	return page
}
