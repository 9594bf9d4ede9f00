package admission

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/configcache"
	"flexiq/pkg/fault"
	"flexiq/pkg/job"
	"flexiq/pkg/schedule"
	"flexiq/pkg/store"
	"flexiq/pkg/store/sqlite"
	"flexiq/pkg/store/storetest"
	"flexiq/pkg/testkit"
	"flexiq/pkg/wire"
)

// cuttable is a store that a process may be cut off from.
type cuttable struct {
	store.Store
	cut atomic.Bool
}

func (c *cuttable) down() error {
	if c.cut.Load() {
		return fault.New(fault.StorageUnavailable, "cut off")
	}
	return nil
}

func (c *cuttable) Admit(ctx context.Context, calls []store.Call) ([]store.Outcome, error) {
	if err := c.down(); err != nil {
		return nil, err
	}
	return c.Store.Admit(ctx, calls)
}

func (c *cuttable) DueSchedules(ctx context.Context, limit int) (store.Due, error) {
	if err := c.down(); err != nil {
		return store.Due{}, err
	}
	return c.Store.DueSchedules(ctx, limit)
}

func (c *cuttable) PostponeSchedule(ctx context.Context, p store.Postponement) error {
	if err := c.down(); err != nil {
		return err
	}
	return c.Store.PostponeSchedule(ctx, p)
}

// fleet is processes over one store whose clock is simulated.
type fleet struct {
	*fixture
	clock     *storetest.Clock
	processes []*Service
	ways      []*cuttable
}

func newFleet(t *testing.T, from time.Time, processes int) *fleet {
	t.Helper()
	f := &fleet{fixture: &fixture{T: t, ears: &ears{}, registry: prometheus.NewRegistry(), tokens: map[string]string{}}, clock: &storetest.Clock{}}
	f.clock.Set(from)
	var err error
	f.store, err = sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "flexiq.db"), sqlite.Options{Timeout: testkit.Patience, Now: f.clock.Now})
	f.must(err)
	t.Cleanup(func() { f.store.Close() })
	for range processes {
		way := &cuttable{Store: f.store}
		caches := configcache.NewCaches(f.store, func() bool { return true }, nil)
		s, err := New(DefaultConfig(), Deps{
			Store: way, Jobs: way, Quotas: caches.Quotas, Overrides: caches.Overrides, Hints: f.ears, Log: zerolog.Nop(), Schedules: way, Triggers: way,
		})
		f.must(err)
		t.Cleanup(func() {
			if err := s.Close(context.Background()); err != nil {
				t.Error(err)
			}
			caches.Close()
		})
		f.processes, f.ways = append(f.processes, s), append(f.ways, way)
	}
	return f
}

// put makes a schedule whose first slot comes after now.
func (f *fleet) put(ns, name, cron, zone string, change ...func(*flexiqv1.JobSpec)) {
	f.Helper()
	p := &flexiqv1.JobSpec{Task: name}
	for _, c := range change {
		c(p)
	}
	template, err := wire.EncodeTemplate(p, job.DefaultMaxPayload)
	f.must(err)
	spec, err := schedule.Parse(cron, zone)
	f.must(err)
	_, err = f.store.PutSchedule(f.Context(), store.ScheduleChange{Schedule: store.Schedule{
		Namespace: ns, Name: name, Cron: cron, TimeZone: zone, Job: template, NextAt: spec.Next(f.clock.Now()), UpdatedBy: "adm1",
	}})
	f.must(err)
}

// step moves the clock and lets all processes look at once.
func (f *fleet) step(d time.Duration) {
	f.clock.Advance(d)
	var looks sync.WaitGroup
	for _, s := range f.processes {
		looks.Go(func() { s.fireDue(f.Context()) })
	}
	looks.Wait()
}

// slots lists the slots of a schedule's jobs.
func (f *fleet) slots(ns, name string) []string {
	f.Helper()
	var out []string
	for after := ""; ; {
		page, err := f.store.ListJobs(f.Context(), ns, store.Filter{Task: name}, after, 500)
		f.must(err)
		for _, j := range page.Items {
			if j.Origin != "schedule:"+name || j.EnqueuedBy != "adm1" {
				f.Errorf("origin %q, by %q", j.Origin, j.EnqueuedBy)
			}
			out = append(out, j.Metadata[wire.MetadataSlot])
		}
		if after = page.Next; after == "" {
			slices.Sort(out)
			return out
		}
	}
}

// refusals lists the audit records of refused slots.
func (f *fleet) refusals(ns string) []store.Record {
	f.Helper()
	page, err := f.store.ListAudit(f.Context(), ns, store.AuditFilter{Kind: "schedule"}, "", 500)
	f.must(err)
	return slices.DeleteFunc(page.Items, func(r store.Record) bool { return r.Operation != "fire-schedule" })
}

var noon = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

// TestOneJobASlot: several processes look at the same moment, one of them is cut
// off from the store for a while, then all of them.
func TestOneJobASlot(t *testing.T) {
	t.Parallel()
	f := newFleet(t, noon, 3)
	const ns = "gantry"
	f.put(ns, "s", "*/5 * * * * *", "UTC")
	var want []string
	for second := 1; second <= 300; second++ {
		f.ways[0].cut.Store(second > 60 && second <= 85)
		out := second > 150 && second <= 177
		if out {
			for _, w := range f.ways {
				w.cut.Store(true)
			}
		} else {
			f.ways[1].cut.Store(false)
			f.ways[2].cut.Store(false)
		}
		f.step(time.Second)
		if second%5 == 0 && !out || second == 178 { // of those missed only the latest fires
			want = append(want, noon.Add(time.Duration(second/5*5)*time.Second).Format(time.RFC3339))
		}
	}
	if diff := cmp.Diff(want, f.slots(ns, "s")); diff != "" {
		t.Errorf("slots (-want +got):\n%s", diff)
	}
	if r := f.refusals(ns); len(r) > 0 {
		t.Errorf("refusals: %+v", r)
	}
}

// TestSlotsOverClockChanges: the processes run on while a zone's clock is moved.
func TestSlotsOverClockChanges(t *testing.T) {
	t.Parallel()
	york, err := time.LoadLocation("America/New_York")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name      string
		from      time.Time
		half, one string // the slots of 02:30 and of 01:30, local
	}{
		{"spring", time.Date(2026, 3, 8, 0, 0, 0, 0, york), "03:00 EDT", "01:30 EST"},
		{"autumn", time.Date(2026, 11, 1, 0, 0, 0, 0, york), "02:30 EST", "01:30 EDT"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t, c.from.Add(-time.Second), 2)
			const ns = "ns"
			f.put(ns, "half", "30 2 * * *", york.String())
			f.put(ns, "one", "30 1 * * *", york.String())
			f.put(ns, "often", "*/20 * * * *", york.String())
			f.step(time.Second)
			const hours = 6
			for range hours*12 - 1 {
				f.step(5 * time.Minute)
			}
			local := func(name string) string {
				var out []string
				for _, text := range f.slots(ns, name) {
					at, err := time.Parse(time.RFC3339, text)
					f.must(err)
					out = append(out, at.In(york).Format("15:04 MST"))
				}
				return strings.Join(out, ", ")
			}
			if got := local("half"); got != c.half {
				t.Errorf("30 2 * * *: %s, want %s", got, c.half)
			}
			if got := local("one"); got != c.one {
				t.Errorf("30 1 * * *: %s, want %s", got, c.one)
			}
			var want []string
			for i := range 3 * hours {
				want = append(want, c.from.UTC().Add(time.Duration(i)*20*time.Minute).Format(time.RFC3339))
			}
			if diff := cmp.Diff(want, f.slots(ns, "often")); diff != "" {
				t.Errorf("*/20 * * * * (-want +got):\n%s", diff)
			}
		})
	}
}

// TestRefusedSlotsOfAFullNamespace: a slot every second finds no room.
func TestRefusedSlotsOfAFullNamespace(t *testing.T) {
	t.Parallel()
	f := newFleet(t, noon, 2)
	const ns, seconds = "flail", 30
	f.quota(ns, `{"max_pending":0}`)
	f.put(ns, "s", "* * * * * *", "UTC")
	for range seconds {
		f.step(time.Second)
	}
	f.wantPending(ns, 0)
	told := map[string]bool{}
	for _, r := range f.refusals(ns) {
		if r.Outcome != "QUEUE_FULL" || r.Target != "s" || told[r.New] {
			t.Errorf("record %+v", r)
		}
		told[r.New] = true
	}
	if len(told) != seconds {
		t.Errorf("%d slots are recorded, want %d", len(told), seconds)
	}
	f.quota(ns, "")
	f.step(time.Second)
	if got := f.slots(ns, "s"); len(got) != 1 || got[0] != noon.Add((seconds+1)*time.Second).Format(time.RFC3339) {
		t.Errorf("once there is room: %v, want the latest slot alone", got)
	}
}

// TestRefusedSlotIsTriedAgain: with growing pauses, until there is room.
func TestRefusedSlotIsTriedAgain(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ document, reason string }{
		"depth":      {`{"max_pending":0}`, "QUEUE_FULL"},
		"rate":       {`{"enqueue_rate":"1/h"}`, "RATE_LIMITED"},
		"unreadable": {`{"max_pending":"many"}`, "QUOTA_UNREADABLE"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t, noon, 2)
			const ns = "ns"
			f.quota(ns, c.document)
			if name == "rate" { // the only token goes elsewhere
				f.put(ns, "first", "0 0 13 * * *", "UTC")
				f.clock.Set(noon.Add(time.Hour - time.Second))
				f.step(time.Second)
				f.clock.Set(noon)
			}
			f.put(ns, "s", "0 0 * * * *", "UTC")
			f.clock.Set(noon.Add(time.Hour))
			var tries []int64
			var last int64
			for second := range int64(120) {
				f.step(0)
				one, err := f.store.Schedule(f.Context(), ns, "s")
				f.must(err)
				if n := one.Refusal.Tries; n != last {
					tries, last = append(tries, second), n
				}
				f.clock.Advance(time.Second)
			}
			if want := []int64{0, 1, 3, 7, 15, 31, 61, 91}; !slices.Equal(tries, want) {
				t.Errorf("tried after %v seconds, want %v", tries, want)
			}
			records := slices.DeleteFunc(f.refusals(ns), func(r store.Record) bool { return r.Target != "s" })
			if len(records) != 1 || records[0].Outcome != c.reason {
				t.Errorf("records: %+v, want one %s", records, c.reason)
			}
			if got := f.slots(ns, "s"); len(got) != 0 {
				t.Errorf("jobs of slots %v", got)
			}
			f.quota(ns, "")
			f.clock.Advance(30 * time.Second)
			// An unreadable quota is believed to be so for a tenth of a second, by the process's own clock.
			testkit.Eventually(t, "the slot is admitted", func() bool {
				f.step(time.Second)
				return len(f.slots(ns, "s")) > 0
			})
			if got, want := fmt.Sprint(f.slots(ns, "s")), fmt.Sprint([]string{noon.Add(time.Hour).Format(time.RFC3339)}); got != want {
				t.Errorf("slots %s, want %s", got, want)
			}
		})
	}
}

// TestShedSlots: with drop each slot leaves one shed dead letter.
func TestShedSlots(t *testing.T) {
	t.Parallel()
	f := newFleet(t, noon, 2)
	const ns = "ns"
	f.quota(ns, `{"max_pending":0,"on_excess":"drop"}`)
	f.put(ns, "s", "* * * * * *", "UTC")
	for range 5 {
		f.step(time.Second)
	}
	if u := f.usage(ns); u.Pending != 0 || u.Shed != 5 || len(f.slots(ns, "s")) != 5 {
		t.Errorf("%+v, slots %v", u, f.slots(ns, "s"))
	}
	if r := f.refusals(ns); len(r) > 0 {
		t.Errorf("refusals: %+v", r)
	}
}
