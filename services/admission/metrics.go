package admission

import (
	"context"
	"errors"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"

	"flexiq/pkg/auth"
	"flexiq/pkg/fault"
	"flexiq/pkg/job"
	"flexiq/pkg/store"
	"flexiq/pkg/wire"
)

// Names of the metrics. None has a namespace in it.
const (
	metricJobs      = "flexiq_admission_jobs_total"
	metricRefused   = "flexiq_admission_refused_calls_total"
	metricStale     = "flexiq_admission_stale_quota_total"
	metricFired     = "flexiq_admission_slots_fired_total"
	metricSlots     = "flexiq_admission_slots_refused_total"
	metricMessages  = "flexiq_admission_trigger_messages_dropped_total"
	metricCancelled = "flexiq_admission_cancelled_jobs_total"
)

type metrics struct {
	admitted, deduplicated, debounced, repeated, shed, rejected prometheus.Counter // jobs

	refused               *prometheus.CounterVec // calls by reason
	stale                 prometheus.Counter
	cancelled, cancelling prometheus.Counter

	fired, slotsRefused, droppedMessages prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	jobs := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: metricJobs, Help: "Jobs of enqueue calls, by what became of them.",
	}, []string{"outcome"})
	cancelled := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: metricCancelled, Help: "Jobs that a call cancelled at once, or whose workers it told.",
	}, []string{"was"})
	m := &metrics{
		admitted: jobs.WithLabelValues("admitted"), deduplicated: jobs.WithLabelValues("deduplicated"),
		debounced: jobs.WithLabelValues("debounced"), repeated: jobs.WithLabelValues("repeated"),
		shed: jobs.WithLabelValues("shed"), rejected: jobs.WithLabelValues("rejected"),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: metricRefused, Help: "Enqueue calls that failed, by reason.",
		}, []string{"reason"}),
		stale: prometheus.NewCounter(prometheus.CounterOpts{
			Name: metricStale, Help: "Decisions repeated because the quota had changed.",
		}),
		fired: prometheus.NewCounter(prometheus.CounterOpts{
			Name: metricFired, Help: "Slots of schedules that this process made jobs of.",
		}),
		slotsRefused: prometheus.NewCounter(prometheus.CounterOpts{
			Name: metricSlots, Help: "Slots of schedules that were refused when they were first tried.",
		}),
		droppedMessages: prometheus.NewCounter(prometheus.CounterOpts{
			Name: metricMessages, Help: "Messages on subjects of triggers that no job was made of.",
		}),
		cancelled: cancelled.WithLabelValues("pending"), cancelling: cancelled.WithLabelValues("running"),
	}
	if reg == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{jobs, cancelled, m.refused, m.stale, m.fired, m.slotsRefused, m.droppedMessages} {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// count counts the outcome of one call. Of a plain publish this, the debug line
// and an event are all that is told.
func (s *Service) count(ns string, call *store.Call, o *store.Outcome) {
	jobs := len(call.Jobs)
	switch {
	case errors.Is(o.Err, store.ErrSlot), errors.Is(o.Err, store.ErrSignature): // it was decided before
	case o.Err != nil:
		s.refuse(ns, call, o.Err)
	case o.Repeat:
		s.metrics.repeated.Add(float64(jobs))
	case o.Shed:
		s.metrics.shed.Add(float64(jobs))
		s.tally.add(ns, wire.AdmissionCounts{Shed: int64(jobs)})
	default:
		s.countAdmitted(ns, o.Results)
	}
}

func (s *Service) countAdmitted(ns string, results []store.Result) {
	made, dups, moved := 0, 0, 0
	queues := make(map[string]int64, 1)
	for _, r := range results {
		switch {
		case r.Deduplicated:
			dups++
		case r.Debounced:
			moved++
		default:
			made++
			queues[r.Job.Queue]++
		}
	}
	s.metrics.admitted.Add(float64(made))
	s.metrics.deduplicated.Add(float64(dups))
	s.metrics.debounced.Add(float64(moved))
	s.tally.add(ns, wire.AdmissionCounts{Admitted: int64(len(results)), Queues: queues})
}

// refuse counts a failed call, whose jobs may not be known. Only what a limit
// refused is a rejection in the namespace's usage.
func (s *Service) refuse(ns string, call *store.Call, err error) {
	s.tellRefused(ns, call, fault.Of(err))
	s.countRefused(ns, len(call.Jobs), err)
}

func (s *Service) countRefused(ns string, jobs int, err error) {
	reason := fault.Of(err).Reason
	s.metrics.refused.WithLabelValues(string(reason)).Inc()
	s.metrics.rejected.Add(float64(jobs))
	if reason == fault.QueueFull || reason == fault.RateLimited {
		s.tally.add(ns, wire.AdmissionCounts{Rejected: int64(jobs)})
	}
	s.log.Debug().Str("namespace", ns).Str("reason", string(reason)).Int("jobs", jobs).Err(err).Msg("enqueue refused")
}

// malformed counts a call that was refused before any limit was looked at.
func (s *Service) malformed(ctx context.Context, jobs int, err error) {
	ns := auth.From(ctx).Namespace
	s.tellRefused(ns, &store.Call{Origin: job.OriginEnqueue}, fault.Of(err))
	s.countRefused(ns, jobs, err)
}

// refusedAtTheDoor counts a call that never reached a handler.
func (s *Service) refusedAtTheDoor(ctx context.Context, _ string, _ proto.Message, err error) {
	s.malformed(ctx, 0, err)
}
