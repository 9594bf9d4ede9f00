package storetest

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"pgregory.net/rapid"

	"flexiq/pkg/fault"
	"flexiq/pkg/job"
	"flexiq/pkg/quota"
	"flexiq/pkg/store"
)

func (m *machine) admit() {
	var real, reference []store.Call
	var stamps []store.Stamp
	for range rapid.IntRange(1, 3).Draw(m.t, "calls") {
		ns := m.namespace()
		q, a, b := m.both(ns)
		n := rapid.IntRange(1, 3).Draw(m.t, "jobs")
		c := store.Call{Namespace: ns, Quota: q, Origin: job.OriginEnqueue, By: "tok1"}
		for range n {
			s := m.spec(ns, n == 1)
			if !slices.ContainsFunc(c.Jobs, func(o job.Spec) bool { return o.ID == s.ID }) {
				c.Jobs = append(c.Jobs, s)
			}
		}
		c.Stamp = a
		real = append(real, c)
		c.Stamp = b
		reference = append(reference, c)
		stamps = append(stamps, a)
	}
	got, err := m.s.Admit(m.ctx, real)
	m.must(err)
	want, err := m.model.Admit(m.ctx, reference)
	m.must(err)
	for i := range want {
		what := fmt.Sprintf("outcome of call %d", i)
		same(m, what, outcome(got[i]), outcome(want[i]))
		if e := fault.Of(got[i].Err); e != nil && (e.Reason == fault.QueueFull || e.Reason == fault.RateLimited) {
			w := fault.Of(want[i].Err)
			same(m, what, e.Message, w.Message)
			w.Details[quota.KeyRevision] = fmt.Sprint(stamps[i].InForce())
			same(m, what, e.Details, w.Details)
		}
		same(m, what, [2]bool{got[i].Shed, got[i].Repeat}, [2]bool{want[i].Shed, want[i].Repeat})
		same(m, what, got[i].Results, want[i].Results)
	}
}

func (m *machine) turn() {
	var real, reference []store.Settlement
	random := false
	for range rapid.IntRange(0, 3).Draw(m.t, "settlements") {
		if len(m.claims) == 0 {
			break
		}
		c := rapid.SampledFrom(m.claims).Draw(m.t, "claim")
		s := ending(c.real, rapid.SampledFrom(job.Outcomes).Draw(m.t, "outcome"))
		if (s.Outcome == job.Failed || s.Outcome == job.Released) && rapid.Bool().Draw(m.t, "retry after") {
			s.RetryAfter = new(time.Duration(rapid.IntRange(0, 3).Draw(m.t, "seconds")) * time.Second)
		}
		random = random || s.Outcome == job.Failed && s.RetryAfter == nil
		real = append(real, s)
		s.Lease = c.model.Lease
		reference = append(reference, s)
	}
	if random { // the delays are to be known before jobs are claimed
		m.turnOnce(real, reference, nil, nil)
		real, reference = nil, nil
	}
	var wants, modelWants []store.Want
	for range rapid.IntRange(0, 3).Draw(m.t, "wants") {
		ns := m.namespace()
		q, a, b := m.both(ns)
		w := store.Want{
			Namespace: ns, Max: rapid.IntRange(1, 4).Draw(m.t, "max"), LeaseFor: time.Duration(rapid.IntRange(1, 20).Draw(m.t, "lease")) * time.Second,
			Worker: "w", MaxRunning: q.MaxRunning, Stamp: a,
			Queues: rapid.SampledFrom([][]string{nil, {"q"}, {"Q", "q"}, {"none"}}).Draw(m.t, "queues"),
		}
		if rapid.IntRange(0, 3).Draw(m.t, "bounded") == 0 {
			w.MaxBytes = int64(rapid.IntRange(1, 12).Draw(m.t, "max bytes"))
		}
		wants = append(wants, w)
		w.Stamp = b
		modelWants = append(modelWants, w)
	}
	m.turnOnce(real, reference, wants, modelWants)
}

func (m *machine) turnOnce(real, reference []store.Settlement, wants, modelWants []store.Want) {
	settled, grants, err := m.s.Turn(m.ctx, real, wants)
	m.must(err)
	modelSettled, modelGrants, err := m.model.Turn(m.ctx, reference, modelWants)
	m.must(err)
	same(m, "settled", settled, modelSettled)
	for _, s := range real {
		m.follow(s.Namespace, s.JobID)
	}
	for i, want := range modelGrants {
		got := grants[i]
		same(m, "stale", errors.Is(got.Err, store.ErrStale), errors.Is(want.Err, store.ErrStale))
		if got.Err != nil {
			continue
		}
		if len(got.Jobs) != len(want.Jobs) {
			m.t.Fatalf("want %d got %v, the reference gives %v", i, idsOf(got.Jobs), idsOf(want.Jobs))
		}
		for k := range want.Jobs {
			same(m, "granted job", got.Jobs[k].Job, want.Jobs[k].Job)
			same(m, "end of the lease", got.Jobs[k].ExpiresAt, want.Jobs[k].ExpiresAt)
			m.claims = append(m.claims, pair{got.Jobs[k], want.Jobs[k]})
		}
		same(m, "held", got.Held, want.Held)
		same(m, "next at", got.NextAt, want.NextAt)
	}
}

// follow gives the reference the random delay of a retry, once it is seen to
// be within the bounds.
func (m *machine) follow(ns, id string) {
	got, err := m.s.Job(m.ctx, ns, id)
	if fault.Is(err, fault.NotFound) {
		return
	}
	m.must(err)
	want, err := m.model.Job(m.ctx, ns, id)
	m.must(err)
	if want.State != job.Pending || got.RunAt.Equal(want.RunAt) || want.Attempt == 0 {
		return
	}
	now := m.clock.Now()
	least, most := job.Backoff(want.BackoffBase, want.BackoffMax, want.Attempt, 0), job.Backoff(want.BackoffBase, want.BackoffMax, want.Attempt, 1)
	for _, j := range []*job.Job{got, want} {
		if d := j.RunAt.Sub(now); d < least-time.Microsecond || d > most {
			m.t.Fatalf("job %s waits %s after attempt %d, want %s to %s", id, d, want.Attempt, least, most)
		}
	}
	m.model.SetRunAt(ns, id, got.RunAt)
}

func (m *machine) heartbeat() {
	var real, reference []store.Beat
	for range rapid.IntRange(1, 4).Draw(m.t, "beats") {
		if len(m.claims) == 0 {
			return
		}
		c := rapid.SampledFrom(m.claims).Draw(m.t, "claim")
		extend := time.Duration(rapid.IntRange(1, 20).Draw(m.t, "extend")) * time.Second
		real, reference = append(real, beat(c.real, extend)), append(reference, beat(c.model, extend))
	}
	got, err := m.s.Heartbeat(m.ctx, real)
	m.must(err)
	want, err := m.model.Heartbeat(m.ctx, reference)
	m.must(err)
	same(m, "pulses", got, want)
}

func (m *machine) expire() {
	got, err := m.s.Expire(m.ctx, 1000)
	m.must(err)
	want, err := m.model.Expire(m.ctx, 1000)
	m.must(err)
	for _, list := range [][]store.Ended{got, want} {
		slices.SortFunc(list, func(a, b store.Ended) int {
			return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.JobID, b.JobID))
		})
	}
	same(m, "ended", got, want)
	for _, e := range want {
		m.follow(e.Namespace, e.JobID)
	}
}

func (m *machine) cancel() {
	ns := m.namespace()
	var sel store.Selection
	if rapid.Bool().Draw(m.t, "by id") && len(m.specs) > 0 {
		sel.IDs = []string{rapid.SampledFrom(m.specs).Draw(m.t, "spec").ID}
	} else {
		sel.Filter = store.Filter{
			Queue: rapid.SampledFrom([]string{"q", "Q"}).Draw(m.t, "queue"),
			State: rapid.SampledFrom([]job.State{"", job.Pending, job.Running, job.Dead}).Draw(m.t, "state"),
		}
	}
	limit := rapid.IntRange(1, 3).Draw(m.t, "limit")
	var totals [2]store.Cancelled
	for i, s := range []store.Store{m.s, m.model} {
		for more, round := true, 0; more; round++ {
			c, err := s.Cancel(m.ctx, ns, sel, limit)
			m.must(err)
			totals[i].Cancelled += c.Cancelled
			totals[i].Cancelling += c.Cancelling
			totals[i].NotFound += c.NotFound
			if more = c.More; round == 1000 {
				m.t.Fatal("cancelling does not end")
			}
		}
	}
	same(m, "cancelled", totals[0], totals[1])
}

func (m *machine) trim() {
	if m.terms[0] == 0 || rapid.IntRange(0, 4).Draw(m.t, "new term") == 0 {
		for i, s := range []store.Store{m.s, m.model} {
			term, err := s.NewTerm(m.ctx, "leader")
			m.must(err)
			m.terms[i] = term
		}
	}
	trim := store.Trim{
		Namespace: m.namespace(), Table: rapid.SampledFrom([]store.Table{store.Archive, store.DeadLetters}).Draw(m.t, "table"),
		Limit: rapid.IntRange(1, 4).Draw(m.t, "limit"),
	}
	reference := trim
	if rapid.Bool().Draw(m.t, "keep") {
		_, a, b := m.both(trim.Namespace)
		trim.Keep = new(int64(rapid.IntRange(0, 5).Draw(m.t, "rows")))
		reference.Keep, trim.Stamp, reference.Stamp = trim.Keep, &a, &b
	} else {
		trim.Before = m.clock.Now().Add(-time.Duration(rapid.IntRange(0, 20).Draw(m.t, "age")) * time.Second)
		reference.Before = trim.Before
	}
	late := int64(0)
	if rapid.IntRange(0, 9).Draw(m.t, "late leader") == 0 {
		late = 1
	}
	trim.Term, reference.Term = m.terms[0]-late, m.terms[1]-late
	got, err := m.s.Trim(m.ctx, trim)
	want, modelErr := m.model.Trim(m.ctx, reference)
	same(m, "stale trim", errors.Is(err, store.ErrStale), errors.Is(modelErr, store.ErrStale))
	if modelErr == nil {
		m.must(err)
		same(m, "trimmed", got, want)
	}
}

func (m *machine) ready() {
	var interests []store.Interest
	for _, ns := range machineNamespaces {
		interests = append(interests, store.Interest{Namespace: ns}, store.Interest{Namespace: ns, Queues: []string{"Q"}})
	}
	got, err := m.s.Ready(m.ctx, interests)
	m.must(err)
	want, err := m.model.Ready(m.ctx, interests)
	m.must(err)
	same(m, "ready", got, want)
}

// raw draws a quota document, empty for a clear.
func (m *machine) raw() string {
	q := quota.Quota{}
	limit := func(name string, most int) *int64 {
		if rapid.Bool().Draw(m.t, name) {
			return new(int64(rapid.IntRange(0, most).Draw(m.t, name)))
		}
		return nil
	}
	q.MaxPending, q.MaxRunning = limit("max_pending", 8), limit("max_running", 3)
	if rapid.Bool().Draw(m.t, "enqueue_rate") {
		q.EnqueueRate = &quota.Rate{
			Count: int64(rapid.IntRange(1, 9).Draw(m.t, "count")), Unit: rapid.SampledFrom([]quota.Unit{'s', 'm', 'h'}).Draw(m.t, "unit"),
		}
	}
	q.OnExcess = rapid.SampledFrom([]quota.Excess{quota.Reject, quota.Drop}).Draw(m.t, "on_excess")
	if !q.Limits() {
		return ""
	}
	return string(q.JSON())
}

func (m *machine) quota() { m.set(m.change(m.namespace(), m.raw())) }

func (m *machine) standard() {
	c := m.change("", m.raw())
	c.Default = true
	m.set(c)
}

func (m *machine) set(c store.QuotaChange) {
	if rapid.IntRange(0, 4).Draw(m.t, "if no document") == 0 {
		c.IfRevision = new(int64(0))
	}
	got, err := m.s.PutQuota(m.ctx, c)
	want, modelErr := m.model.PutQuota(m.ctx, c)
	same(m, "refused", fault.Is(err, fault.RevisionMismatch), fault.Is(modelErr, fault.RevisionMismatch))
	if modelErr == nil {
		m.must(err)
	}
	same(m, "document", string(got.Raw), string(want.Raw))
	same(m, "inherited", got.Inherited, want.Inherited)
}

func (m *machine) setting() {
	ns, key := m.namespace(), rapid.SampledFrom([]string{"k", "k/1", "0"}).Draw(m.t, "key")
	what := rapid.IntRange(0, 2).Draw(m.t, "what")
	value := rapid.StringMatching("[a-z é]{0,5}").Draw(m.t, "value")
	var answers [2][]any
	for i, s := range []store.Store{m.s, m.model} {
		var v store.Setting
		var err error
		switch what {
		case 0:
			v, err = s.PutSetting(m.ctx, store.Setting{Namespace: ns, Key: key, Value: value}, settingRecord(ns, "put-setting", key))
		case 1:
			v, err = s.Setting(m.ctx, ns, key)
		case 2:
			err = s.DeleteSetting(m.ctx, ns, key, settingRecord(ns, "delete-setting", key))
		}
		if err != nil && !fault.Is(err, fault.NotFound) {
			m.t.Fatalf("setting: %v", err)
		}
		page, listErr := s.ListSettings(m.ctx, ns, "", 2)
		m.must(listErr)
		answers[i] = []any{v, err == nil, page}
	}
	same(m, "setting", answers[0], answers[1])
}

// erase erases a namespace, now and then: jobs that were claimed are not there
// any more, and what was seen of it is new.
func (m *machine) erase() {
	if rapid.IntRange(0, 3).Draw(m.t, "erase") != 0 {
		return
	}
	ns, limit := m.namespace(), rapid.SampledFrom([]int{1, 3, 100}).Draw(m.t, "limit")
	for _, s := range []store.Store{m.s, m.model} {
		m.fixture.erase(s, ns, limit)
	}
}
