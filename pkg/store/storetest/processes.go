package storetest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"flexiq/pkg/fault"
	"flexiq/pkg/job"
	"flexiq/pkg/store"
)

var processCases = []testcase{
	{"depth is exact", processDepth},
	{"never over max_running", processRunning},
	{"a killed producer leaves whole calls", processKilledProducer},
	{"a killed worker's jobs run again", processKilledWorker},
	{"a killed replay leaves each letter whole", processKilledReplay},
	{"a killed change of a cap is finished by others", processKilledOverride},
	{"the store's own clock", processClock},
}

// playEnqueue makes calls and reports the ids of each that was admitted.
func playEnqueue(ctx context.Context, s store.Store, p part, tell func(report) error) error {
	for n := range p.Calls {
		var specs []job.Spec
		for i := range p.Jobs {
			spec := job.Spec{ID: idOf(p.First + n*p.Jobs + i), Task: "t", Metadata: map[string]string{"call": fmt.Sprint(p.First, "/", n)}}
			if err := spec.Normalize("job", 1); err != nil {
				return err
			}
			specs = append(specs, spec)
		}
		c, err := under(ctx, s, p.Namespace)
		if err != nil {
			return err
		}
		c.Jobs = specs
		out, err := s.Admit(ctx, []store.Call{c})
		switch {
		case err != nil:
			return err
		case out[0].Err == nil:
			var r report
			for _, result := range out[0].Results {
				r.Admitted = append(r.Admitted, result.Job.ID)
			}
			if err := tell(r); err != nil {
				return err
			}
		case !fault.Is(out[0].Err, fault.QueueFull) && !errors.Is(out[0].Err, store.ErrStale):
			return out[0].Err
		}
	}
	return nil
}

// playWork claims and completes jobs until the namespace has none.
func playWork(ctx context.Context, s store.Store, p part, tell func(report) error) error {
	var r report
	var claims []store.Leased
	for ctx.Err() == nil {
		w, err := wantUnder(ctx, s, p)
		if err != nil {
			return err
		}
		var ends []store.Settlement
		for _, l := range claims {
			ends = append(ends, ending(l, job.Completed))
		}
		settled, grants, err := s.Turn(ctx, ends, []store.Want{w})
		if err != nil {
			return err
		}
		for _, answer := range settled {
			if !answer.Accepted {
				return fmt.Errorf("a settlement was refused: %+v", answer)
			}
			r.Finished++
		}
		if grants[0].Err != nil {
			return grants[0].Err
		}
		claims = grants[0].Jobs
		u, err := s.Usage(ctx, []string{p.Namespace})
		if err != nil {
			return err
		}
		r.Peak = max(r.Peak, u[0].Running)
		if len(claims) == 0 && u[0].Pending == 0 && u[0].Running == 0 {
			return tell(r)
		}
	}
	return ctx.Err()
}

// playHold claims jobs, reports them, and waits to be killed.
func playHold(ctx context.Context, s store.Store, p part, tell func(report) error) error {
	w, err := wantUnder(ctx, s, p)
	if err != nil {
		return err
	}
	_, grants, err := s.Turn(ctx, nil, []store.Want{w})
	if err != nil {
		return err
	}
	if err := tell(report{Admitted: idsOf(grants[0].Jobs)}); err != nil {
		return err
	}
	<-ctx.Done()
	return ctx.Err()
}

func wantUnder(ctx context.Context, s store.Store, p part) (store.Want, error) {
	c, err := under(ctx, s, p.Namespace)
	return store.Want{
		Namespace: p.Namespace, Max: p.Jobs, LeaseFor: lease, Worker: "w", MaxRunning: c.Quota.MaxRunning, Stamp: c.Stamp,
	}, err
}

// processDepth: processes that meet in a namespace that nobody has used yet.
func processDepth(f *fixture) {
	const ns, processes, calls = "hasp", 3, 12
	f.setDefault(`{"max_pending":25}`)
	var all []*process
	for i := range processes {
		all = append(all, f.process(part{Role: "enqueue", Namespace: ns, First: 1000 * (i + 1), Calls: calls, Jobs: 2}))
	}
	for _, p := range all {
		p.start()
	}
	admitted := 0
	for _, p := range all {
		admitted += len(p.rest())
	}
	equal(f, "calls admitted", admitted, 12)
	f.holds(ns, counts{Pending: 24})
}

// processRunning: each process looks at the count after each of its claims.
func processRunning(f *fixture) {
	const ns, processes, most, n = "plover", 3, 4, 60
	f.s = f.openWith(nil) // the processes go by the store's own clock
	f.put(ns, fmt.Sprintf(`{"max_running":%d}`, most))
	f.enqueue(ns, f.specs(n)...)
	var all []*process
	for range processes {
		all = append(all, f.process(part{Role: "work", Namespace: ns, Jobs: 3}))
	}
	for _, p := range all {
		p.start()
	}
	finished := 0
	for _, p := range all {
		for _, r := range p.rest() {
			finished += r.Finished
			if r.Peak > most {
				f.Errorf("%d jobs ran at once, at most %d may", r.Peak, most)
			}
		}
	}
	equal(f, "jobs finished", finished, n)
	f.holds(ns, counts{Archived: n})
}

// processKilledProducer: what was answered is there, and no call is there in part.
func processKilledProducer(f *fixture) {
	const ns, size = "ns", 3
	var told []string
	for round := range 2 {
		p := f.process(part{Role: "enqueue", Namespace: ns, First: 100_000 * (round + 1), Calls: 10_000, Jobs: size})
		p.start()
		for range 5 + 3*round {
			told = append(told, p.next().Admitted...)
		}
		f.ok(p.cmd.Process.Kill()) // in the middle of whatever it does
		for _, r := range p.drain() {
			told = append(told, r.Admitted...)
		}
		p.kill()
	}
	there, calls := map[string]bool{}, map[string]int{}
	for _, j := range f.list(ns, store.Filter{}, 500) {
		there[j.ID] = true
		calls[j.Metadata["call"]]++
	}
	for _, id := range told {
		if !there[id] {
			f.Errorf("job %s was answered and is gone", id)
		}
	}
	for call, n := range calls {
		if n != size {
			f.Errorf("call %s has %d of its %d jobs", call, n, size)
		}
	}
	f.holds(ns, counts{Pending: int64(len(there))})
}

// processKilledWorker: nothing stays taken.
func processKilledWorker(f *fixture) {
	const ns, n, most = "plover", 12, 5
	f.s = f.openWith(nil)
	f.put(ns, fmt.Sprintf(`{"max_running":%d}`, most))
	f.enqueue(ns, f.specs(n)...)
	p := f.process(part{Role: "hold", Namespace: ns, Jobs: 10})
	p.start()
	equal(f, "jobs held", len(p.next().Admitted), most)
	p.kill()
	f.holds(ns, counts{Pending: n - most, Running: most})
	f.s = f.openWith(realNow(time.Minute)) // when every lease has ended, and no timeout
	equal(f, "lost", len(f.expire()), most)
	f.holds(ns, counts{Pending: n})
	for range 3 {
		f.settle(job.Completed, f.grant(ns, n).Jobs...)
	}
	f.holds(ns, counts{Archived: n})
}

// playReplay replays dead letters, a few at a time, until there are none, and
// reports the jobs that they became.
func playReplay(ctx context.Context, s store.Store, p part, tell func(report) error) error {
	for next := p.First; ; {
		page, err := s.ListJobs(ctx, p.Namespace, store.Filter{State: job.Dead}, "", p.Jobs)
		if err != nil || len(page.Items) == 0 {
			return err
		}
		r := store.Replay{Namespace: p.Namespace, By: "adm1"}
		for _, j := range page.Items {
			r.Letters = append(r.Letters, store.Letter{ID: j.ID, As: idOf(next)})
			next++
		}
		out, err := s.Replay(ctx, r)
		if err != nil {
			return err
		}
		var told report
		for _, o := range out {
			if o.Err != nil {
				return o.Err
			}
			if o.Job != nil {
				told.Admitted = append(told.Admitted, o.Job.ID)
			}
		}
		if err := tell(told); err != nil {
			return err
		}
	}
}

// processKilledReplay: a letter is dead or it is the job that it became, never
// both and never neither, however often the replay is killed.
func processKilledReplay(f *fixture) {
	const ns, n = "ns", 400
	ids := f.dead(ns, n)
	var told []string
	for round := range 3 {
		p := f.process(part{Role: "replay", Namespace: ns, First: 100_000 * (round + 1), Jobs: 3})
		p.start()
		for range 3 + 2*round {
			told = append(told, p.next().Admitted...)
		}
		f.ok(p.cmd.Process.Kill()) // in the middle of whatever it does
		for _, r := range p.drain() {
			told = append(told, r.Admitted...)
		}
		p.kill()
	}
	there, origins := map[string]bool{}, map[string]int{}
	for _, j := range f.list(ns, store.Filter{}, 500) {
		there[j.ID] = true
		if j.State == job.Dead {
			origins[j.ID]++
		} else {
			origins[strings.TrimPrefix(j.Origin, "replay:")]++
		}
	}
	for _, id := range ids {
		if origins[id] != 1 {
			f.Errorf("letter %s is there %d times", id, origins[id])
		}
	}
	for _, id := range told {
		if !there[id] {
			f.Errorf("job %s was answered and is gone", id)
		}
	}
	u := f.usage(ns)
	equal(f, "pending and dead", u.Pending+u.Dead, int64(n))
}

// playOverride caps the task "t" at one and reports it.
func playOverride(ctx context.Context, s store.Store, p part, tell func(report) error) error {
	o := store.Override{Namespace: p.Namespace, Kind: store.OverrideTask, Name: "t", UpdatedBy: "adm1"}
	most(1)(&o)
	if err := s.PutOverride(ctx, o, store.Record{Namespace: p.Namespace, Operation: "set-override"}); err != nil {
		return err
	}
	return tell(report{})
}

// processKilledOverride: a process is killed while it moves many jobs under a new
// cap. The cap is obeyed at once, and what was left to do is done by those who go on.
func processKilledOverride(f *fixture) {
	f.s = f.openWith(nil)
	for round := range 5 {
		ns := fmt.Sprint("ns-", round)
		if f.killOverriding(ns, 4) {
			f.obeyAfterKill(ns)
			return
		}
	}
	f.Errorf("the change was always through before its process was killed")
}

// killOverriding reports whether the change had begun, and not ended, as its
// process was killed. The namespace has so many thousand jobs.
func (f *fixture) killOverriding(ns string, thousands int) bool {
	f.Helper()
	for range thousands {
		f.enqueue(ns, append(f.specs(500, taskOf("t")), f.specs(500, taskOf("u"))...)...)
	}
	p := f.process(part{Role: "override", Namespace: ns})
	p.start()
	for begun := false; !begun && f.ctx.Err() == nil; {
		all, err := f.s.Overrides(f.ctx, []string{ns})
		f.ok(err)
		begun = len(all[0]) > 0
	}
	f.ok(p.cmd.Process.Kill())
	told := p.drain()
	p.kill()
	return len(told) == 0
}

func (f *fixture) obeyAfterKill(ns string) {
	f.Helper()
	tasks := func(jobs []store.Leased) (t int) {
		for _, l := range jobs {
			if l.Job.Task == "t" {
				t++
			}
		}
		return t
	}
	first := f.grant(ns, 200).Jobs
	equal(f, "claimed", len(first), 200)
	equal(f, "of the capped task", tasks(first), 1)
	for range 20 { // many more than it takes
		_, err := f.s.Expire(f.ctx, 1)
		f.ok(err)
	}
	next := f.grant(ns, 1000)
	equal(f, "claimed", len(next.Jobs), 1000)
	equal(f, "of the capped task, one of which runs", tasks(next.Jobs), 0)
	f.clearOverride(ns, store.OverrideTask, "t")
	equal(f, "claimed without the cap", tasks(f.grant(ns, 1000).Jobs), 1000)
	for range 20 {
		_, err := f.s.Expire(f.ctx, 1)
		f.ok(err)
	}
	found, err := f.s.Examine(f.ctx, ns, false)
	f.ok(err)
	equal(f, "found", len(found), 0)
}

// processClock: without a clock given to it, a store goes by one that the
// handles share and that moves on.
func processClock(f *fixture) {
	const ns = "ns"
	a, b := f.openWith(nil), f.openWith(nil)
	var last time.Time
	for i := range 6 {
		u, err := []store.Store{a, b}[i%2].Usage(f.ctx, []string{ns})
		f.ok(err)
		now := u[0].Now
		if now.Before(last) || now.Location() != time.UTC || !now.Equal(now.Truncate(time.Microsecond)) {
			f.Errorf("the clock shows %s after %s", now, last)
		}
		if d := time.Since(now); d < -time.Minute || d > time.Minute {
			f.Errorf("the clock shows %s, which is %s off", now, d)
		}
		last = now
	}
	f.s = a
	j := f.enqueue(ns, f.spec())[0]
	if j.CreatedAt.Before(last) || !j.RunAt.Equal(j.CreatedAt) {
		f.Errorf("created %s, run at %s, after %s", j.CreatedAt, j.RunAt, last)
	}
	l := f.take(ns)
	if d := l.ExpiresAt.Sub(l.Job.StartedAt); d != lease {
		f.Errorf("the lease is %s, want %s", d, lease)
	}
	f.settle(job.Completed, l)
}
