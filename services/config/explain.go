package config

import (
	"context"
	"time"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/fault"
	"flexiq/pkg/job"
	"flexiq/pkg/store"
	"flexiq/pkg/wire"
)

const (
	// readHolders bounds the running jobs that are read, and shownHolders those that
	// a finding names.
	readHolders  = 1000
	shownHolders = 20
	// mostQueues bounds the queues of a namespace that are looked at, and mostCaps
	// the overrides.
	mostQueues = 500
	mostCaps   = 200
	// mostAhead is where counting the jobs that go first ends.
	mostAhead = 10_000
)

// scene is everything that an explanation is made from, as of one moment.
type scene struct {
	view
	set      overrides
	queues   []store.QueueState
	running  store.Holders                 // of the namespace, the longest running first
	capped   map[overrideKey]store.Holders // of queues and tasks with a cap
	workers  map[string]sighted
	complete bool      // workers are all known
	heard    time.Time // this process's clock, for what workers told
	finished map[string]int64
}

// overrideKey names a queue or task.
type overrideKey struct {
	kind store.OverrideKind
	name string
}

func (s *Service) explain(ctx context.Context, req *flexiqv1.ExplainRequest) (*flexiqv1.ExplainResponse, error) {
	ns, err := tenant(ctx)
	switch {
	case err != nil:
		return nil, err
	case req.GetJobId() != "" && len(req.GetJobs()) > 0:
		return nil, fault.Invalid("jobs", "must not be given together with job_id")
	case len(req.GetJobs()) > job.MaxBatch:
		return nil, fault.Invalid("jobs", "must be at most %d, got %d", job.MaxBatch, len(req.GetJobs()))
	}
	if id := req.GetJobId(); id != "" {
		return s.explainJob(ctx, ns, id)
	}
	sc, err := s.scene(ctx, ns)
	if err != nil {
		return nil, err
	}
	if len(req.GetJobs()) > 0 {
		return &flexiqv1.ExplainResponse{Findings: sc.call(req.GetJobs())}, nil
	}
	return &flexiqv1.ExplainResponse{Findings: sc.namespace()}, nil
}

func (s *Service) explainJob(ctx context.Context, ns, id string) (*flexiqv1.ExplainResponse, error) {
	if err := job.CheckID("job_id", id); err != nil {
		return nil, err
	}
	for range 3 { // it may move between the readings
		j, err := s.store.Job(ctx, ns, id)
		if err != nil {
			return nil, err
		}
		sc, err := s.scene(ctx, ns)
		if err != nil {
			return nil, err
		}
		if j.State != job.Pending {
			return &flexiqv1.ExplainResponse{Findings: sc.moved(j)}, nil
		}
		ahead, err := s.store.Ahead(ctx, ns, j.ID, mostAhead)
		if fault.Is(err, fault.NotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		return &flexiqv1.ExplainResponse{Findings: sc.waiting(j, ahead)}, nil
	}
	return nil, fault.New(fault.Overloaded, "the job moves faster than it can be explained: ask again")
}

// scene reads what an explanation needs.
func (s *Service) scene(ctx context.Context, ns string) (*scene, error) {
	views, err := s.views(ctx, []string{ns})
	if err != nil {
		return nil, err
	}
	sc := &scene{view: views[0], capped: make(map[overrideKey]store.Holders), heard: time.Now()}
	if sc.set, err = s.overridesOf(ctx, ns); err != nil {
		return nil, err
	}
	queues, err := s.store.Queues(ctx, ns, "", mostQueues)
	if err != nil {
		return nil, err
	}
	sc.queues = queues.Items
	if sc.running, err = s.store.Holders(ctx, ns, "", "", readHolders); err != nil {
		return nil, err
	}
	for i := range sc.set[:min(len(sc.set), mostCaps)] {
		if o := &sc.set[i]; o.MaxConcurrent != nil {
			queue, task := o.Name, ""
			if o.Kind == store.OverrideTask {
				queue, task = "", o.Name
			}
			held, err := s.store.Holders(ctx, ns, queue, task, readHolders)
			if err != nil {
				return nil, err
			}
			sc.capped[overrideKey{o.Kind, o.Name}] = held
		}
	}
	sc.workers, sc.complete = s.crews.of(sc.heard, ns)
	_, sc.finished = s.minute.queues(sc.heard, ns)
	return sc, nil
}

// holders writes running jobs.
func holders(held []store.Holder) []*flexiqv1.SlotHolder {
	out := make([]*flexiqv1.SlotHolder, 0, min(len(held), shownHolders))
	for _, h := range held[:min(len(held), shownHolders)] {
		out = append(out, &flexiqv1.SlotHolder{
			JobId: h.JobID, Worker: h.Worker, Queue: h.Queue, Task: h.Task,
			StartedAt: wire.Stamp(h.StartedAt), LeaseExpiresAt: wire.Stamp(h.LeaseEnds),
		})
	}
	return out
}
