package config

import (
	"cmp"
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
	// mostQueues bounds the queues of a namespace that are looked at.
	mostQueues = 500
	// mostAhead is where counting the jobs that go first ends.
	mostAhead = 10_000
)

// scene is everything that an explanation is made from, as of one moment.
type scene struct {
	view
	set      overrides
	queues   []store.QueueState
	allKnown bool                          // queues are all there are
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
	concerned := func(*store.Override) bool { return true }
	if len(req.GetJobs()) > 0 {
		concerned = concernedBy(req.GetJobs())
	}
	if err := s.addCaps(ctx, sc, concerned); err != nil {
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
		this := []*flexiqv1.JobSpec{{Queue: j.Queue, Task: j.Task}}
		if err := s.addCaps(ctx, sc, concernedBy(this)); err != nil {
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
	sc.queues, sc.allKnown = queues.Items, queues.Next == ""
	if sc.running, err = s.store.Holders(ctx, ns, "", "", readHolders); err != nil {
		return nil, err
	}
	sc.workers, sc.complete = s.crews.of(sc.heard, ns)
	_, sc.finished = s.minute.queues(sc.heard, ns)
	return sc, nil
}

// concernedBy tells of an override whether it is about the queue or task of a job.
func concernedBy(jobs []*flexiqv1.JobSpec) func(*store.Override) bool {
	about := make(map[overrideKey]bool, 2*len(jobs))
	for _, j := range jobs {
		about[overrideKey{store.OverrideQueue, cmp.Or(j.GetQueue(), job.DefaultQueue)}] = true
		about[overrideKey{store.OverrideTask, j.GetTask()}] = true
	}
	return func(o *store.Override) bool { return about[overrideKey{o.Kind, o.Name}] }
}

// addCaps adds who holds the slots of capped queues and tasks. The store is asked
// only where more jobs run than the scene has.
func (s *Service) addCaps(ctx context.Context, sc *scene, concerned func(*store.Override) bool) (err error) {
	for i := range sc.set {
		o := &sc.set[i]
		if o.MaxConcurrent == nil || !concerned(o) {
			continue
		}
		queue, task := o.Name, ""
		if o.Kind == store.OverrideTask {
			queue, task = "", o.Name
		}
		var held store.Holders
		if sc.running.Total <= int64(len(sc.running.Items)) {
			held = heldOf(sc.running.Items, queue, task)
		} else if held, err = s.store.Holders(ctx, sc.usage.Namespace, queue, task, readHolders); err != nil {
			return err
		}
		sc.capped[overrideKey{o.Kind, o.Name}] = held
	}
	return nil
}

// heldOf picks the running jobs of a queue and a task, where empty is any.
func heldOf(running []store.Holder, queue, task string) (held store.Holders) {
	for _, h := range running {
		if (queue == "" || h.Queue == queue) && (task == "" || h.Task == task) {
			held.Items = append(held.Items, h)
			held.Total++
		}
	}
	return held
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
