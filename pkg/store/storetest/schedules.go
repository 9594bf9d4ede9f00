package storetest

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"flexiq/pkg/fault"
	"flexiq/pkg/job"
	"flexiq/pkg/quota"
	"flexiq/pkg/store"
)

var scheduleCases = []testcase{
	{"put and get", schedulePut},
	{"put compares the revision", scheduleRevision},
	{"put may keep the slot", scheduleKeepNext},
	{"put cannot bring back a slot", schedulePutFired},
	{"delete", scheduleDelete},
	{"list", scheduleList},
	{"due ones, longest first", scheduleDue},
	{"a slot fires once", scheduleFire},
	{"a slot fires once from many handles", scheduleFireRace},
	{"a changed, paused or deleted schedule does not fire", scheduleGone},
	{"a refused slot stays due", scheduleRefused},
	{"a shed slot moves on", scheduleShed},
	{"a duplicate moves on", scheduleDuplicate},
	{"a repeated firing", scheduleRepeat},
	{"neighbours of a slot", scheduleNeighbours},
	{"a refusal is recorded once a slot", schedulePostpone},
}

const minute = time.Minute

// record is one that a door would write.
func auditRecord(ns, operation, target string) store.Record {
	return store.Record{Namespace: ns, TokenID: "adm1", Door: "nats", Operation: operation, TargetKind: "schedule", Target: target, New: "{}"}
}

// schedule puts a schedule that stands at a slot.
func (f *fixture) schedule(ns, name string, next time.Time) store.Schedule {
	f.Helper()
	s, err := f.s.PutSchedule(f.ctx, change(ns, name, next))
	f.ok(err)
	return s
}

func change(ns, name string, next time.Time) store.ScheduleChange {
	return store.ScheduleChange{
		Schedule: store.Schedule{
			Namespace: ns, Name: name, Cron: "* * * * *", TimeZone: "Europe/Berlin", Job: []byte("job\x00of " + name), NextAt: next, UpdatedBy: "adm1",
		},
		Audit: auditRecord(ns, "put-schedule", name),
	}
}

// firing is a call that fires a schedule.
func (f *fixture) firing(s store.Schedule, specs ...job.Spec) store.Call {
	f.Helper()
	c := f.call(s.Namespace, specs...)
	c.Origin = "schedule:" + s.Name
	c.Slot = &store.Slot{Schedule: s.Name, Revision: s.Revision, Due: s.NextAt, At: s.NextAt, Next: s.NextAt.Add(minute)}
	return c
}

// scheduled reads one.
func (f *fixture) scheduled(ns, name string) store.Schedule {
	f.Helper()
	s, err := f.s.Schedule(f.ctx, ns, name)
	f.ok(err)
	return *s
}

func (f *fixture) due(limit int) []string {
	f.Helper()
	d, err := f.s.DueSchedules(f.ctx, limit)
	f.ok(err)
	var names []string
	for _, s := range d.Items {
		names = append(names, s.Namespace+"/"+s.Name)
	}
	return names
}

// gone checks that a call found its schedule elsewhere and wrote nothing.
func (f *fixture) gone(what string, out store.Outcome) {
	f.Helper()
	if !errors.Is(out.Err, store.ErrSlot) || out.Results != nil {
		f.Fatalf("%s: got %+v, want ErrSlot", what, out)
	}
}

// schedulePutFired changes a schedule to stand at a slot which fired since that
// was computed: the slot would make a second job.
func schedulePutFired(f *fixture) {
	slot := epoch.Add(minute)
	s := f.schedule("ns", "s", slot)
	f.clock.Advance(minute)
	f.ok(f.admit(f.firing(s, f.spec()))[0].Err)
	before := f.scheduled("ns", "s")
	_, err := f.s.PutSchedule(f.ctx, change("ns", "s", slot))
	f.reason(err, fault.RevisionMismatch)
	equal(f, "after the refusal", f.scheduled("ns", "s"), before)
	f.schedule("ns", "s", slot.Add(time.Second))
}

func schedulePut(f *fixture) {
	const ns, name = "ns: *.>", "näme *"
	c := change(ns, name, epoch.Add(minute))
	got, err := f.s.PutSchedule(f.ctx, c)
	f.ok(err)
	want := c.Schedule
	want.Revision, want.UpdatedAt = got.Revision, epoch
	equal(f, "as answered", got, want)
	equal(f, "as read by another handle", func() store.Schedule { s, err := f.open().Schedule(f.ctx, ns, name); f.ok(err); return *s }(), want)
	if got.Revision < 1 {
		f.Errorf("revision %d", got.Revision)
	}
	_, err = f.s.Schedule(f.ctx, "ns", name)
	f.reason(err, fault.NotFound)

	f.ok(f.admit(f.firing(got, f.spec()))[0].Err)
	f.clock.Advance(time.Hour)
	c.Cron, c.TimeZone, c.Job, c.Paused, c.NextAt = "0 0 1 1 *", "UTC", []byte{}, true, time.Time{}
	next, err := f.s.PutSchedule(f.ctx, c)
	f.ok(err)
	want = c.Schedule
	want.Revision, want.UpdatedAt = next.Revision, epoch.Add(time.Hour)
	want.LastSlot, want.LastAt = got.NextAt, epoch // what is known of its last run stays
	equal(f, "replaced", f.scheduled(ns, name), want)
	if next.Revision <= got.Revision {
		f.Errorf("the revision went from %d to %d", got.Revision, next.Revision)
	}
	equal(f, "records", len(f.trail(ns, store.AuditFilter{Kind: "schedule"}, 10)), 2)
	if names, err := f.s.Namespaces(f.ctx, "", 10); err != nil || len(names.Items) != 1 {
		f.Errorf("namespaces: %v, %v", names, err)
	}
}

func scheduleRevision(f *fixture) {
	const ns = "ns"
	c := change(ns, "s", epoch)
	c.Revision = 7
	_, err := f.s.PutSchedule(f.ctx, c)
	f.reason(err, fault.RevisionMismatch)
	_, err = f.s.Schedule(f.ctx, ns, "s")
	f.reason(err, fault.NotFound)
	first := f.schedule(ns, "s", epoch)
	c.Revision = first.Revision
	second, err := f.s.PutSchedule(f.ctx, c)
	f.ok(err)
	c.Cron = "other"
	_, err = f.s.PutSchedule(f.ctx, c)
	f.reason(err, fault.RevisionMismatch)
	equal(f, "unchanged", f.scheduled(ns, "s"), second)
	equal(f, "records", len(f.trail(ns, store.AuditFilter{}, 10)), 2)
}

func scheduleKeepNext(f *fixture) {
	const ns = "ns"
	s := f.schedule(ns, "s", epoch)
	f.postpone(s, epoch, 1, epoch.Add(minute))
	c := change(ns, "s", epoch.Add(time.Hour))
	c.KeepNext, c.Paused = true, true
	got, err := f.s.PutSchedule(f.ctx, c)
	f.ok(err)
	equal(f, "slot", got.NextAt, epoch)
	equal(f, "tries", got.Refusal.Tries, int64(1))
	f.clock.Advance(time.Hour)
	equal(f, "due while it is paused", f.due(10), nil)
	c.Paused = false
	_, err = f.s.PutSchedule(f.ctx, c)
	f.ok(err)
	equal(f, "due", f.due(10), []string{"ns/s"})
	c = change(ns, "new", epoch)
	c.KeepNext = true
	got, err = f.s.PutSchedule(f.ctx, c)
	f.ok(err)
	equal(f, "nothing to keep", got.NextAt, time.Time{})
	equal(f, "due", f.due(10), []string{"ns/s"})
}

func scheduleDelete(f *fixture) {
	const ns = "ns"
	f.reason(f.s.DeleteSchedule(f.ctx, ns, "s", auditRecord(ns, "delete-schedule", "s")), fault.NotFound)
	first := f.schedule(ns, "s", epoch)
	f.reason(f.s.DeleteSchedule(f.ctx, "other", "s", auditRecord("other", "delete-schedule", "s")), fault.NotFound)
	f.ok(f.s.DeleteSchedule(f.ctx, ns, "s", auditRecord(ns, "delete-schedule", "s")))
	_, err := f.s.Schedule(f.ctx, ns, "s")
	f.reason(err, fault.NotFound)
	equal(f, "due", f.due(10), nil)
	records := f.trail(ns, store.AuditFilter{}, 10)
	equal(f, "operations", []string{records[0].Operation, records[1].Operation, records[1].Outcome}, []string{"put-schedule", "delete-schedule", "ok"})
	f.clock.Advance(time.Second)
	if again := f.schedule(ns, "s", epoch); again.Revision <= first.Revision || !again.LastAt.IsZero() {
		f.Errorf("made again: %+v after %+v", again, first)
	}
}

func scheduleList(f *fixture) {
	for i := range 7 {
		f.schedule("ns", fmt.Sprintf("s%d", i), epoch)
	}
	f.schedule("nt", "other", epoch)
	var names []string
	for after := ""; ; {
		page, err := f.s.ListSchedules(f.ctx, "ns", after, 3)
		f.ok(err)
		for _, s := range page.Items {
			names = append(names, s.Name)
			equal(f, "listed", s, f.scheduled("ns", s.Name))
		}
		if after = page.Next; after == "" {
			break
		}
	}
	equal(f, "names", names, []string{"s0", "s1", "s2", "s3", "s4", "s5", "s6"})
	page, err := f.s.ListSchedules(f.ctx, "none", "", 3)
	f.ok(err)
	equal(f, "of an unknown namespace", page, store.Page[store.Schedule]{})
}

func scheduleDue(f *fixture) {
	f.schedule("b", "second", epoch.Add(-minute))
	f.schedule("a", "third", epoch)
	f.schedule("a", "first", epoch.Add(-time.Hour))
	f.schedule("a", "later", epoch.Add(2*minute))
	f.schedule("c", "soon", epoch.Add(minute))
	f.schedule("c", "never", time.Time{})
	paused := change("c", "paused", epoch.Add(-minute))
	paused.Paused = true
	_, err := f.s.PutSchedule(f.ctx, paused)
	f.ok(err)
	equal(f, "due", f.due(10), []string{"a/first", "b/second", "a/third"})
	equal(f, "the first two", f.due(2), []string{"a/first", "b/second"})
	d, err := f.s.DueSchedules(f.ctx, 10)
	f.ok(err)
	equal(f, "the clock", d.Now, epoch)
	equal(f, "the next", d.NextAt, epoch.Add(minute))
	equal(f, "as it is", d.Items[0], f.scheduled("a", "first"))
	f.clock.Advance(minute)
	equal(f, "a minute later", f.due(10), []string{"a/first", "b/second", "a/third", "c/soon"})
}

func scheduleFire(f *fixture) {
	const ns = "ns"
	s := f.schedule(ns, "s", epoch)
	c := f.firing(s, f.spec())
	c.Slot.At, c.Slot.Next = epoch.Add(5*minute), epoch.Add(6*minute) // five slots were missed
	out := f.admit(c)[0]
	f.ok(out.Err)
	equal(f, "origin", f.job(ns, c.Jobs[0].ID).Origin, "schedule:s")
	got := f.scheduled(ns, "s")
	equal(f, "slots", []time.Time{got.NextAt, got.LastSlot, got.LastAt}, []time.Time{epoch.Add(6 * minute), epoch.Add(5 * minute), epoch})
	equal(f, "the revision stays", got.Revision, s.Revision)
	again := f.firing(s, f.spec())
	f.gone("the same slot again", f.admit(again)[0])
	equal(f, "due", f.due(10), nil)
	f.clock.Advance(6 * minute)
	equal(f, "due at the next", f.due(10), []string{"ns/s"})
	last := f.firing(f.scheduled(ns, "s"), f.spec())
	last.Slot.Next = time.Time{}
	f.ok(f.admit(last)[0].Err)
	f.clock.Advance(1000 * time.Hour)
	equal(f, "after the last slot", f.due(10), nil)
	f.holds(ns, counts{Pending: 2})
}

// scheduleFireRace: however many processes see a slot, one job comes of it.
func scheduleFireRace(f *fixture) {
	const ns, slots, processes = "ns", 10, 6
	s := f.schedule(ns, "s", epoch)
	handles := []store.Store{f.s, f.open(), f.open()}
	var fired atomic.Int64
	for range slots {
		calls := make([]store.Call, processes)
		for i := range calls {
			calls[i] = f.firing(s, f.spec())
		}
		together(processes, func(i int) {
			out, err := handles[i%len(handles)].Admit(f.ctx, calls[i:i+1])
			switch {
			case err != nil:
				f.Errorf("Admit: %v", err)
			case out[0].Err == nil:
				fired.Add(1)
			case !errors.Is(out[0].Err, store.ErrSlot):
				f.Errorf("a loser got %v", out[0].Err)
			}
		})
		s = f.scheduled(ns, "s")
	}
	equal(f, "fired", fired.Load(), int64(slots))
	equal(f, "stands at", s.NextAt, epoch.Add(slots*minute))
	f.holds(ns, counts{Pending: slots})
}

func scheduleGone(f *fixture) {
	const ns = "ns"
	s := f.schedule(ns, "s", epoch)
	f.clock.Advance(time.Second)
	f.schedule(ns, "s", epoch)
	f.gone("changed", f.admit(f.firing(s, f.spec()))[0])
	c := change(ns, "s", epoch)
	c.Paused = true
	s, err := f.s.PutSchedule(f.ctx, c)
	f.ok(err)
	f.gone("paused", f.admit(f.firing(s, f.spec()))[0])
	f.ok(f.s.DeleteSchedule(f.ctx, ns, "s", auditRecord(ns, "delete-schedule", "s")))
	f.gone("deleted", f.admit(f.firing(s, f.spec()))[0])
	s = f.schedule("other", "s", epoch)
	stray := f.firing(s, f.spec())
	stray.Namespace = ns
	f.gone("of another namespace", f.admit(stray)[0])
	f.gone("in a namespace that was never used", func() store.Outcome { stray.Namespace = "unused"; return f.admit(stray)[0] }())
	f.holds(ns, counts{})
}

func scheduleRefused(f *fixture) {
	const ns = "ns"
	f.put(ns, `{"max_pending":0,"enqueue_rate":"5/h"}`)
	s := f.schedule(ns, "s", epoch)
	f.refused(f.admit(f.firing(s, f.spec()))[0], fault.QueueFull, "current", "0")
	equal(f, "the schedule", f.scheduled(ns, "s"), s)
	stale := f.firing(s, f.spec())
	f.put(ns, `{"enqueue_rate":"5/h"}`)
	if out := f.admit(stale)[0]; !errors.Is(out.Err, store.ErrStale) {
		f.Fatalf("with a stale stamp: %v", out.Err)
	}
	equal(f, "the schedule", f.scheduled(ns, "s"), s)
	equal(f, "tokens", f.usage(ns).Bucket.Refill(rateOf(f, "5/h"), epoch).Tokens(), int64(5))
	f.ok(f.admit(f.firing(s, f.spec()))[0].Err)
	equal(f, "stands at", f.scheduled(ns, "s").NextAt, epoch.Add(minute))
	f.holds(ns, counts{Pending: 1})
}

func scheduleShed(f *fixture) {
	const ns = "ns"
	f.put(ns, `{"max_pending":0,"on_excess":"drop"}`)
	s := f.schedule(ns, "s", epoch)
	out := f.admit(f.firing(s, f.spec()))[0]
	f.ok(out.Err)
	equal(f, "shed", out.Shed, true)
	got := f.scheduled(ns, "s")
	equal(f, "slots", []time.Time{got.NextAt, got.LastSlot}, []time.Time{epoch.Add(minute), epoch})
	f.gone("again", f.admit(f.firing(s, f.spec()))[0])
	f.holds(ns, counts{Dead: 1, Shed: 1})
}

func scheduleDuplicate(f *fixture) {
	const ns = "ns"
	key := func(s *job.Spec) { s.UniqueKey = "k" }
	f.enqueue(ns, f.spec(key))
	s := f.schedule(ns, "s", epoch)
	out := f.admit(f.firing(s, f.spec(key)))[0]
	f.ok(out.Err)
	equal(f, "duplicate", out.Results[0].Deduplicated, true)
	equal(f, "stands at", f.scheduled(ns, "s").NextAt, epoch.Add(minute))
	f.holds(ns, counts{Pending: 1})
}

// scheduleRepeat: who did not hear the answer hears it now.
func scheduleRepeat(f *fixture) {
	const ns = "ns"
	s := f.schedule(ns, "s", epoch)
	c := f.firing(s, f.spec())
	f.ok(f.admit(c)[0].Err)
	out := f.admit(c)[0]
	f.ok(out.Err)
	equal(f, "repeat", out.Repeat, true)
	equal(f, "stands at", f.scheduled(ns, "s").NextAt, epoch.Add(minute))
	f.holds(ns, counts{Pending: 1})
}

func scheduleNeighbours(f *fixture) {
	const ns = "ns"
	f.put(ns, `{"max_pending":3}`)
	a, b := f.schedule(ns, "a", epoch), f.schedule(ns, "b", epoch)
	out := f.admit(f.call(ns, f.spec()), f.firing(a, f.spec()), f.firing(a, f.spec()), f.call(ns, f.spec()), f.firing(b, f.spec()))
	f.ok(out[0].Err)
	f.ok(out[1].Err)
	f.gone("the same slot in one group", out[2])
	f.ok(out[3].Err)
	f.refused(out[4], fault.QueueFull, "current", "3")
	equal(f, "a stands at", f.scheduled(ns, "a").NextAt, epoch.Add(minute))
	equal(f, "b stands at", f.scheduled(ns, "b").NextAt, epoch)
}

// postpone puts off a slot.
func (f *fixture) postpone(s store.Schedule, slot time.Time, tries int64, retry time.Time) {
	f.Helper()
	r := auditRecord(s.Namespace, "fire-schedule", s.Name)
	r.Outcome = "QUEUE_FULL"
	f.ok(f.s.PostponeSchedule(f.ctx, store.Postponement{
		Namespace: s.Namespace, Name: s.Name, Revision: s.Revision, Due: s.NextAt,
		Refusal: store.Refusal{Slot: slot, Reason: "QUEUE_FULL", Tries: tries, RetryAt: retry}, Audit: r,
	}))
}

func schedulePostpone(f *fixture) {
	const ns = "ns"
	s := f.schedule(ns, "s", epoch)
	refusals := func() int {
		n := 0
		for _, r := range f.trail(ns, store.AuditFilter{}, 100) {
			if r.Operation == "fire-schedule" && r.Outcome == "QUEUE_FULL" {
				n++
			}
		}
		return n
	}
	for i := range 4 {
		f.postpone(s, epoch, int64(i+1), epoch.Add(time.Duration(i+1)*time.Second))
	}
	equal(f, "records of one slot", refusals(), 1)
	want := s
	want.Refusal = store.Refusal{Slot: epoch, Reason: "QUEUE_FULL", Tries: 4, RetryAt: epoch.Add(4 * time.Second)}
	equal(f, "the schedule", f.scheduled(ns, "s"), want)
	equal(f, "due before its time", f.due(10), nil)
	f.clock.Advance(4 * time.Second)
	equal(f, "due at its time", f.due(10), []string{"ns/s"})
	f.postpone(s, epoch.Add(minute), 1, epoch.Add(minute))
	equal(f, "records of two slots", refusals(), 2)
	f.ok(f.admit(f.firing(s, f.spec()))[0].Err)
	equal(f, "after it was admitted", f.scheduled(ns, "s").Refusal, store.Refusal{})
	f.postpone(s, epoch.Add(2*minute), 1, epoch.Add(2*minute))
	equal(f, "a late refusal changes nothing", f.scheduled(ns, "s").Refusal, store.Refusal{})
	equal(f, "and records nothing", refusals(), 2)
	s.Name = "missing"
	f.postpone(s, epoch, 1, epoch)
}

func rateOf(f *fixture, text string) quota.Rate {
	f.Helper()
	r, err := quota.ParseRate(text)
	f.ok(err)
	return r
}
