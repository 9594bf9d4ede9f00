package admit

import (
	"time"

	"flexiq/pkg/fault"
	"flexiq/pkg/job"
	"flexiq/pkg/quota"
	"flexiq/pkg/store"
)

// Moves is what to write of a replay, and what to answer.
type Moves struct {
	Outcomes []store.Replayed // one per letter
	Live     []Row            // pending jobs to insert; the payload is as the snapshot had it
	From     []string         // the dead letters that they were, to be deleted
	Bucket   *quota.Bucket    // to store; nil leaves the bucket
}

// Writes reports whether the moves change anything.
func (m *Moves) Writes() bool { return len(m.Live) > 0 || m.Bucket != nil }

// Replay decides some of a replay's letters. Known has the jobs of their ids,
// Unique and Waiting the holders of those jobs' keys. A letter that does not move
// changes nothing, so that one after it is decided as if it were not there.
func Replay(s *Snapshot, r *store.Replay, letters []store.Letter) *Moves {
	m := &Moves{Outcomes: make([]store.Replayed, len(letters))}
	d := &decider{Snapshot: s, plan: &Plan{}, seq: s.Made}
	if d.Unique == nil {
		d.Unique = map[string]*job.Job{}
	}
	if d.Waiting == nil {
		d.Waiting = map[string]*job.Job{}
	}
	q := r.Quota
	q.OnExcess = quota.Reject // a failure is never turned into a shed row
	for i, l := range letters {
		k, found := d.Known[l.ID]
		switch {
		case !found || k.Job.State != job.Dead:
			m.Outcomes[i].Gone = true
			continue
		case r.Stamp != d.Stamp:
			m.Outcomes[i].Err = store.ErrStale
			continue
		}
		d.anchor()
		ask := quota.Ask{Namespace: r.Namespace, Queue: k.Job.Queue, Jobs: 1, Revision: r.Stamp.InForce()}
		v := q.Decide(quota.Usage{Pending: d.Pending, Bucket: d.Bucket}, ask, d.Now)
		if v.Decision != quota.Admit {
			m.Outcomes[i].Err = v.Fault
			continue
		}
		if err := d.held(k.Job); err != nil {
			m.Outcomes[i].Err = err
			continue
		}
		if q.EnqueueRate != nil {
			d.Bucket = v.Bucket
			d.plan.Bucket = &d.Bucket
		}
		j := d.revive(k.Job, l.As, r)
		delete(d.Known, l.ID)
		m.Live, m.From = append(m.Live, Row{Job: j, Fingerprint: k.Fingerprint, Aside: k.Aside}), append(m.From, l.ID)
		m.Outcomes[i].Job = bare(j)
	}
	m.Bucket = d.plan.Bucket
	return m
}

// held tells which key of a dead letter another job has.
func (d *decider) held(j *job.Job) error {
	if holder := d.Unique[j.UniqueKey]; j.UniqueKey != "" && holder != nil {
		return KeyHeld(fault.UniqueKeyHeld, holder.ID)
	}
	if holder := d.Waiting[j.Debounce.Key]; j.Debounce.Key != "" && holder != nil {
		return KeyHeld(fault.DebounceKeyHeld, holder.ID)
	}
	return nil
}

// KeyHeld is why a dead letter stays whose key a live job has.
func KeyHeld(r fault.Reason, holder string) *fault.Error {
	return fault.New(r, "job %s has its key", holder).With("job_id", holder)
}

// revive makes the pending job that a dead letter becomes.
func (d *decider) revive(dead *job.Job, id string, r *store.Replay) *job.Job {
	j := *dead
	at := d.Now.Add(time.Duration(d.seq) * time.Microsecond)
	d.seq++
	j.ID, j.State, j.Attempt, j.RunAt, j.CreatedAt = id, job.Pending, 0, at, at
	j.StartedAt, j.FinishedAt, j.Error, j.DeadMetadata = time.Time{}, time.Time{}, "", nil
	j.Origin, j.EnqueuedBy = job.OriginReplay(dead.ID), r.By
	if r.Automatic {
		j.AutoRetries++
	}
	d.Pending++
	if j.UniqueKey != "" {
		d.Unique[j.UniqueKey] = &j
	}
	if j.Debounce.Key != "" {
		d.Waiting[j.Debounce.Key] = &j
	}
	return &j
}
