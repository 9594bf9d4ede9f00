// Package admit decides a group of enqueue calls of one namespace against what
// a backend read under the namespace's lock. It is pure: it says what to write,
// and the backend writes it in the same transaction.
//
// Calls are decided in order, each against the state that those before it leave:
// used signature → repeated call → slot of a schedule → stale quota → depth → rate → unique key and debounce. A call
// that is not admitted changes nothing. (Redis decides in a script with the
// same rules; the conformance suite holds them together.)
package admit

import (
	"time"

	"flexiq/pkg/fault"
	"flexiq/pkg/job"
	"flexiq/pkg/quota"
	"flexiq/pkg/store"
)

// Snapshot is a namespace as read under its lock. Decide changes its maps.
type Snapshot struct {
	Now      time.Time // the store's clock, microseconds
	Stamp    store.Stamp
	Pending  int64
	Made     int64 // jobs that this step of the store made before
	Bucket   quota.Bucket
	Known    map[string]Known    // by id: which of the calls' ids exist, in any state
	Unique   map[string]*job.Job // by key: live holders of the calls' unique keys
	Waiting  map[string]*job.Job // by key: pending holders of the calls' debounce keys
	Standing map[string]Standing // by name: where the schedules of the calls' slots stand
	Used     map[[32]byte]bool   // of the calls' signatures: those that are remembered
}

// Standing is where a schedule stands.
type Standing struct {
	Revision int64
	Paused   bool
	NextAt   time.Time
}

// Stand notes where a schedule stands.
func (s *Snapshot) Stand(schedule string, at Standing) {
	if s.Standing == nil {
		s.Standing = map[string]Standing{}
	}
	s.Standing[schedule] = at
}

// Use notes that a signature is remembered.
func (s *Snapshot) Use(signature [32]byte) {
	if s.Used == nil {
		s.Used = map[[32]byte]bool{}
	}
	s.Used[signature] = true
}

// Known is a job that exists.
type Known struct {
	Job         *job.Job
	Fingerprint [16]byte
	Aside       int64 // bytes of a payload that is kept aside and not in Job
}

// Row is a job to insert, live or as a dead letter.
type Row struct {
	Job         *job.Job
	Fingerprint [16]byte
	Aside       int64 // bytes of a payload that is kept aside already and not in Job
}

// Plan is what to write and what to answer.
type Plan struct {
	Outcomes []store.Outcome // one per call
	Live     []Row           // pending jobs to insert
	Shed     []Row           // dead letters to insert
	Update   []*job.Job      // debounced jobs: new payload, form and run_at
	Bucket   *quota.Bucket   // to store; nil leaves the bucket
	Fired    []*store.Slot   // schedules that move on

	Signatures []*store.Signature // to remember
}

// Writes reports whether the plan changes anything.
func (p *Plan) Writes() bool {
	return len(p.Live) > 0 || len(p.Shed) > 0 || len(p.Update) > 0 || p.Bucket != nil || len(p.Fired) > 0 || len(p.Signatures) > 0
}

// Decide decides calls of one namespace.
func Decide(s *Snapshot, calls []store.Call) *Plan {
	d := &decider{Snapshot: s, plan: &Plan{Outcomes: make([]store.Outcome, len(calls))}, seq: s.Made, fresh: map[string]bool{}}
	if d.Known == nil {
		d.Known = map[string]Known{}
	}
	if d.Unique == nil {
		d.Unique = map[string]*job.Job{}
	}
	if d.Waiting == nil {
		d.Waiting = map[string]*job.Job{}
	}
	for i := range calls {
		d.plan.Outcomes[i] = d.call(&calls[i])
	}
	return d.plan
}

type decider struct {
	*Snapshot
	plan  *Plan
	seq   int64           // jobs made so far: the k-th gets now + k µs, so that arrival order holds
	fresh map[string]bool // ids inserted or updated by this plan
}

func (d *decider) call(c *store.Call) store.Outcome {
	if c.Signature != nil && d.Used[c.Signature.Sum] {
		return store.Outcome{Err: store.ErrSignature}
	}
	if out, done := d.repeated(c); done {
		return out
	}
	if !d.stands(c.Slot) {
		return store.Outcome{Err: store.ErrSlot}
	}
	if c.Stamp != d.Stamp {
		return store.Outcome{Err: store.ErrStale}
	}
	d.anchor()
	ask := quota.Ask{Namespace: c.Namespace, Queue: c.Jobs[0].Queue, Jobs: int64(len(c.Jobs)), Revision: c.Stamp.InForce()}
	v := c.Quota.Decide(quota.Usage{Pending: d.Pending, Bucket: d.Bucket}, ask, d.Now)
	switch v.Decision {
	case quota.Refuse:
		return store.Outcome{Err: v.Fault}
	case quota.Shed:
		d.moveOn(c.Slot)
		d.sign(c.Signature)
		return d.shed(c, v.Error)
	}
	d.moveOn(c.Slot)
	d.sign(c.Signature)
	if c.Quota.EnqueueRate != nil {
		d.Bucket = v.Bucket
		d.plan.Bucket = &d.Bucket
	}
	return d.admit(c)
}

// sign remembers a call's signature.
func (d *decider) sign(s *store.Signature) {
	if s != nil {
		d.Use(s.Sum)
		d.plan.Signatures = append(d.plan.Signatures, s)
	}
}

// stands reports whether a call's schedule, if it has one, stands at its slot.
func (d *decider) stands(s *store.Slot) bool {
	if s == nil {
		return true
	}
	at, found := d.Standing[s.Schedule]
	return found && !at.Paused && at.Revision == s.Revision && at.NextAt.Equal(s.Due)
}

// moveOn takes a call's schedule to its next slot.
func (d *decider) moveOn(s *store.Slot) {
	if s == nil {
		return
	}
	d.Standing[s.Schedule] = Standing{Revision: s.Revision, NextAt: s.Next}
	d.plan.Fired = append(d.plan.Fired, s)
}

// anchor moves the bucket back with a clock that stepped back. This is kept
// even when the call is refused: an empty bucket would otherwise refuse every
// call, and so gain nothing, until the clock has caught up again.
func (d *decider) anchor() {
	if now := d.Now.UnixMicro(); d.Bucket.At > now {
		d.Bucket.At = now
		d.plan.Bucket = &d.Bucket
	}
}

// repeated answers a call whose ids are known.
func (d *decider) repeated(c *store.Call) (store.Outcome, bool) {
	known, conflict := 0, ""
	for i := range c.Jobs {
		sp := &c.Jobs[i]
		k, ok := d.Known[sp.ID]
		switch {
		case ok && k.Fingerprint == sp.Fingerprint:
			known++
		case ok, sp.UniqueKey == "":
			if ok {
				known++
			}
			if conflict == "" || ok {
				conflict = sp.ID
			}
		}
	}
	if known == 0 {
		return store.Outcome{}, false
	}
	if conflict != "" {
		return store.Outcome{Err: Conflict(conflict)}, true
	}
	out := store.Outcome{Repeat: true, Results: make([]store.Result, len(c.Jobs))}
	for i := range c.Jobs {
		if k, ok := d.Known[c.Jobs[i].ID]; ok {
			out.Results[i] = store.Result{Job: bare(k.Job)}
			out.Shed = out.Shed || k.Job.Shed()
		} else {
			out.Results[i] = store.Result{Job: bare(d.Unique[c.Jobs[i].UniqueKey]), Deduplicated: true}
		}
	}
	return out, true
}

// Conflict is the refusal of a call that has the id of a job with other content,
// or a known id together with new ones.
func Conflict(id string) *fault.Error {
	return fault.New(fault.IDConflict, "job id %s: a call with known ids must repeat the same jobs", id).With("job_id", id)
}

func (d *decider) admit(c *store.Call) store.Outcome {
	out := store.Outcome{Results: make([]store.Result, len(c.Jobs))}
	var last *job.Job // the job made before, and its place in the call
	lastAt := 0
	for i := range c.Jobs {
		sp := &c.Jobs[i]
		if holder := d.Unique[sp.UniqueKey]; sp.UniqueKey != "" && holder != nil {
			out.Results[i] = store.Result{Job: bare(holder), Deduplicated: true}
			continue
		}
		if holder := d.Waiting[sp.Debounce.Key]; sp.Debounce.Key != "" && holder != nil {
			d.debounce(holder, sp)
			out.Results[i] = store.Result{Job: bare(holder), Debounced: true}
			continue
		}
		j := d.make(c, sp)
		j.State, j.RunAt = job.Pending, d.runAt(sp)
		// Jobs of one call keep the call's order even when the caller chose one
		// instant for them and ids that sort otherwise.
		if last != nil && !sp.RunAt.IsZero() && sp.RunAt.Equal(c.Jobs[lastAt].RunAt) && !last.RunAt.Before(j.RunAt) {
			j.RunAt = last.RunAt
			if last.ID > j.ID {
				j.RunAt = j.RunAt.Add(time.Microsecond)
			}
		}
		last, lastAt = j, i
		d.Pending++
		d.plan.Live = append(d.plan.Live, Row{Job: j, Fingerprint: sp.Fingerprint})
		d.Known[sp.ID] = Known{Job: j, Fingerprint: sp.Fingerprint}
		d.fresh[sp.ID] = true
		if sp.UniqueKey != "" {
			d.Unique[sp.UniqueKey] = j
		}
		if sp.Debounce.Key != "" {
			d.Waiting[sp.Debounce.Key] = j
		}
		out.Results[i] = store.Result{Job: bare(j)}
	}
	return out
}

func (d *decider) shed(c *store.Call, text string) store.Outcome {
	out := store.Outcome{Shed: true, Results: make([]store.Result, len(c.Jobs))}
	for i := range c.Jobs {
		sp := &c.Jobs[i]
		j := d.make(c, sp)
		j.State, j.RunAt = job.Dead, d.runAt(sp)
		j.UniqueKey, j.Debounce = "", job.Debounce{} // it must block no later enqueue
		j.FinishedAt, j.Error, j.DeadMetadata = j.CreatedAt, text, job.ShedMetadata()
		d.plan.Shed = append(d.plan.Shed, Row{Job: j, Fingerprint: sp.Fingerprint})
		d.Known[sp.ID] = Known{Job: j, Fingerprint: sp.Fingerprint}
		out.Results[i] = store.Result{Job: bare(j)}
	}
	return out
}

// make fills in everything of a new job but its state.
func (d *decider) make(c *store.Call, sp *job.Spec) *job.Job {
	j := &job.Job{
		ID: sp.ID, Namespace: c.Namespace, Queue: sp.Queue, Task: sp.Task,
		Payload: sp.Payload, Form: sp.Form, Priority: sp.Priority, MaxAttempts: sp.MaxAttempts,
		Timeout: sp.Timeout, BackoffBase: sp.BackoffBase, BackoffMax: sp.BackoffMax,
		CreatedAt: d.Now.Add(time.Duration(d.seq) * time.Microsecond), Metadata: sp.Metadata,
		UniqueKey: sp.UniqueKey, Debounce: sp.Debounce, Origin: c.Origin, EnqueuedBy: c.By,
	}
	d.seq++
	return j
}

// runAt is when a new job is due. A past time becomes now. It is asked after
// make, whose created time it shares.
func (d *decider) runAt(sp *job.Spec) time.Time {
	at := d.Now.Add(time.Duration(d.seq-1) * time.Microsecond)
	switch {
	case sp.RunAt.After(at):
		return sp.RunAt
	case sp.Debounce.Key != "":
		return at.Add(min(sp.Debounce.Window, sp.Debounce.MaxWait))
	}
	return at.Add(sp.Delay)
}

// debounce gives the waiting job the new payload and moves it. The call's
// window and longest wait place it; those kept with the job stay the first call's.
func (d *decider) debounce(holder *job.Job, sp *job.Spec) {
	first := holder.CreatedAt
	at := d.Now.Add(sp.Debounce.Window)
	if latest := first.Add(sp.Debounce.MaxWait); at.After(latest) {
		at = latest
	}
	holder.Payload, holder.Form, holder.RunAt = sp.Payload, sp.Form, at
	if !d.fresh[holder.ID] { // a row of this plan is written with the change
		d.fresh[holder.ID] = true
		d.plan.Update = append(d.plan.Update, holder)
	}
}

// bare is a job as results show it.
func bare(j *job.Job) *job.Job {
	if j == nil {
		return nil
	}
	c := *j
	c.Payload = nil
	return &c
}
