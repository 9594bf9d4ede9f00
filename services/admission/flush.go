package admission

import (
	"context"
	"time"

	"flexiq/pkg/batch"
	"flexiq/pkg/job"
	"flexiq/pkg/store"
)

// soon is how near a job's run_at must be for a hint. Gates learn of later ones
// in time by themselves: they ask the store for the next due job once a second.
const soon = 2 * time.Second

// flush decides the open calls of many parcels in one store call.
func (s *Service) flush(ctx context.Context, parcels []*parcel) ([][]store.Outcome, error) {
	out := make([][]store.Outcome, len(parcels))
	calls := make([]store.Call, 0, len(parcels))
	for k, p := range parcels {
		out[k] = make([]store.Outcome, len(p.todo))
		// Nobody waits for these any more: written now, they would be ghosts.
		if err := p.ctx.Err(); err != nil {
			for i := range out[k] {
				out[k][i].Err = err
			}
			continue
		}
		for _, i := range p.todo {
			calls = append(calls, p.calls[i])
		}
	}
	if len(calls) == 0 {
		return out, nil
	}
	decided, err := s.store.Admit(store.OnDecided(ctx, func() { batch.Decided(ctx) }), calls)
	if err != nil {
		return nil, err
	}
	s.hint(calls, decided)
	s.tell(calls, decided)
	for k := range parcels {
		if len(out[k]) > 0 && out[k][0].Err == nil {
			decided = decided[copy(out[k], decided):]
		}
	}
	return out, nil
}

// hint tells the gates which namespaces got jobs that are due at once or soon.
func (s *Service) hint(calls []store.Call, outcomes []store.Outcome) {
	var ready []string
	seen := make(map[string]bool)
	for i := range outcomes {
		if ns := calls[i].Namespace; !seen[ns] && bringsWork(&outcomes[i]) {
			seen[ns] = true
			ready = append(ready, ns)
		}
	}
	if len(ready) > 0 {
		s.hints.PublishReady(ready)
	}
}

func bringsWork(o *store.Outcome) bool {
	if o.Err != nil || o.Repeat || o.Shed {
		return false
	}
	for _, r := range o.Results {
		if r.Job != nil && !r.Deduplicated && !r.Debounced &&
			r.Job.State == job.Pending && r.Job.RunAt.Sub(r.Job.CreatedAt) <= soon {
			return true
		}
	}
	return false
}
