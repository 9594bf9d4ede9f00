package config

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/store"
	"flexiq/pkg/wire"
)

const (
	// workerFor is how long a worker is listed after it was last seen.
	workerFor = time.Minute
	// workerKept is how long it is remembered, for those that hold jobs all the time.
	workerKept = time.Hour
	// workersKnown is how long one must have listened to know which workers wait:
	// gates tell of them every second.
	workersKnown = 3 * time.Second
	// mostHolders bounds the running jobs that are read to count them by worker.
	mostHolders = 10_000
)

// sighted is the last that gates told of a worker.
type sighted struct {
	queues  []string
	slots   int32
	waiting int // its claims that waited then
	at      time.Time
}

// takes reports whether the worker takes jobs of a queue.
func (w sighted) takes(queue string) bool {
	return len(w.queues) == 0 || slices.Contains(w.queues, queue)
}

// crews knows the workers of each namespace. The zero value knows none; it is
// safe for concurrent use.
type crews struct {
	mu     sync.Mutex
	since  time.Time // of listening; zero: not yet
	swept  time.Time
	spaces map[string]map[string]sighted
}

// listen begins to know.
func (c *crews) listen(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.since = now
}

// hear takes a report of a gate.
func (c *crews) hear(now time.Time, r wire.DispatchReport) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.spaces == nil {
		c.spaces = make(map[string]map[string]sighted)
	}
	for ns, counts := range r.Namespaces {
		for name, s := range counts.Workers {
			if c.spaces[ns] == nil {
				c.spaces[ns] = make(map[string]sighted)
			}
			if s.Gone {
				delete(c.spaces[ns], name)
				continue
			}
			w := c.spaces[ns][name]
			if !s.Beat {
				w.queues, w.slots, w.waiting = s.Queues, s.Slots, s.Waiting
			}
			w.at = now
			c.spaces[ns][name] = w
		}
	}
	if now.Sub(c.swept) > workerFor {
		c.swept = now
		for ns, workers := range c.spaces {
			maps.DeleteFunc(workers, func(_ string, w sighted) bool { return now.Sub(w.at) > workerKept })
			if len(workers) == 0 {
				delete(c.spaces, ns)
			}
		}
	}
}

// of lists the workers of a namespace, and whether those that wait are all known.
func (c *crews) of(now time.Time, ns string) (workers map[string]sighted, complete bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.spaces[ns]), !c.since.IsZero() && now.Sub(c.since) >= workersKnown
}

// hearDispatch takes a report of a gate.
func (s *Service) hearDispatch(data []byte) {
	r, err := wire.ParseDispatchReport(data)
	if err != nil {
		s.metrics.badReports.Inc()
		s.deps.Log.Debug().Err(err).Msg("bad report")
		return
	}
	now := time.Now()
	s.crews.hear(now, r)
	s.minute.addFinished(now, r)
	s.board.dispatched(r)
}

func (s *Service) listWorkers(ctx context.Context, req *flexiqv1.ListWorkersRequest) (*flexiqv1.ListWorkersResponse, error) {
	const list = "workers"
	ns, err := tenant(ctx)
	if err != nil {
		return nil, err
	}
	size, after, err := page(list, req)
	if err != nil {
		return nil, err
	}
	held, err := s.store.Holders(ctx, ns, "", "", mostHolders)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	seen, _ := s.crews.of(now, ns)
	all := roll(now, seen, held.Items)
	// The cursor is marked, since the empty name is one, too, and the first.
	const mark = "="
	first := slices.IndexFunc(all, func(w *flexiqv1.WorkerInfo) bool { return mark+w.GetWorker() > after })
	if first < 0 {
		first = len(all)
	}
	all = all[first:]
	res := &flexiqv1.ListWorkersResponse{Workers: all}
	if len(all) > size {
		res.Workers = all[:size]
		res.NextPageToken = wire.PageToken(list, mark+all[size-1].GetWorker())
	}
	return res, nil
}

// roll lists the workers that were seen lately or hold jobs, by name.
func roll(now time.Time, seen map[string]sighted, held []store.Holder) []*flexiqv1.WorkerInfo {
	running := make(map[string]int64)
	for _, h := range held {
		running[h.Worker]++
	}
	names := make(map[string]bool)
	for name, w := range seen {
		if now.Sub(w.at) <= workerFor {
			names[name] = true
		}
	}
	for name := range running {
		names[name] = true
	}
	var out []*flexiqv1.WorkerInfo
	for _, name := range slices.Sorted(maps.Keys(names)) {
		w := seen[name]
		out = append(out, &flexiqv1.WorkerInfo{
			Worker: name, Queues: w.queues, Slots: w.slots, Running: running[name], LastSeen: wire.Stamp(w.at),
		})
	}
	return out
}
