package storetest

import (
	"fmt"
	"slices"
	"time"

	"flexiq/pkg/fault"
	"flexiq/pkg/job"
	"flexiq/pkg/store"
)

var listCases = []testcase{
	{"each filter", listFilters},
	{"pages without repeats or gaps", listPages},
	{"pages while jobs move", listMoving},
	{"a missing job", listMissing},
	{"usage of many", listUsage},
	{"namespaces", listNamespaces},
}

// listFilters has jobs in every state, in two queues with two tasks each.
func listFilters(f *fixture) {
	const ns = "ns"
	want := map[job.State][]string{}
	var all []string
	for _, queue := range []string{"a", "b"} {
		for _, task := range []string{"x", "y"} {
			for _, state := range job.States {
				s := f.spec(queueOf(queue), func(s *job.Spec) { s.Task, s.Payload, s.Form = task, []byte("p"), job.Bytes })
				f.enqueue(ns, s)
				f.clock.Advance(time.Second)
				f.bring(ns, s.ID, state)
				want[state] = append(want[state], s.ID)
				all = append(all, s.ID)
			}
		}
	}
	f.put(ns, `{"max_pending":0,"on_excess":"drop"}`)
	shed := f.spec(queueOf("b"), func(s *job.Spec) { s.Task = "x" })
	f.try(ns, shed)
	all = append(all, shed.ID)
	dead := append(slices.Clone(want[job.Dead]), shed.ID)

	for name, tt := range map[string]struct {
		filter store.Filter
		want   []string
	}{
		"everything":          {store.Filter{}, all},
		"pending":             {store.Filter{State: job.Pending}, want[job.Pending]},
		"running":             {store.Filter{State: job.Running}, want[job.Running]},
		"complete":            {store.Filter{State: job.Complete}, want[job.Complete]},
		"cancelled":           {store.Filter{State: job.Cancelled}, want[job.Cancelled]},
		"dead":                {store.Filter{State: job.Dead}, dead},
		"shed":                {store.Filter{State: job.Dead, Shed: new(true)}, []string{shed.ID}},
		"dead but not shed":   {store.Filter{State: job.Dead, Shed: new(false)}, want[job.Dead]},
		"died before":         {store.Filter{State: job.Dead, DiedBefore: f.job(ns, want[job.Dead][2]).FinishedAt}, want[job.Dead][:2]},
		"a queue":             {store.Filter{Queue: "b"}, all[10:]},
		"a task":              {store.Filter{Task: "y"}, append(slices.Clone(all[5:10]), all[15:20]...)},
		"a queue and a task":  {store.Filter{Queue: "b", Task: "x"}, append(slices.Clone(all[10:15]), shed.ID)},
		"all three":           {store.Filter{Queue: "b", Task: "x", State: job.Dead}, []string{want[job.Dead][2], shed.ID}},
		"created before":      {store.Filter{CreatedBefore: f.job(ns, all[7]).CreatedAt}, all[:7]},
		"no such queue":       {store.Filter{Queue: "c"}, nil},
		"another case":        {store.Filter{Queue: "B"}, nil},
		"created before then": {store.Filter{CreatedBefore: epoch}, nil},
	} {
		for _, page := range []int{3, 500} {
			got := f.list(ns, tt.filter, page)
			equal(f, fmt.Sprintf("%s in pages of %d", name, page), idsOfJobs(got), tt.want)
			for _, j := range got {
				full := *f.job(ns, j.ID)
				full.Payload, full.Result = nil, nil
				equal(f, "a listed job", j, full)
			}
		}
	}
	equal(f, "of another namespace", len(f.list("other", store.Filter{}, 10)), 0)
}

// bring takes a due pending job of a queue to a state.
func (f *fixture) bring(ns, id string, state job.State) {
	f.Helper()
	switch state {
	case job.Pending:
		return
	case job.Cancelled:
		f.cancel(ns, id)
		return
	}
	var l store.Leased
	claims := f.grant(ns, 100).Jobs
	var back []store.Leased
	for _, c := range claims {
		if c.Job.ID == id {
			l = c
		} else {
			back = append(back, c)
		}
	}
	f.settle(job.Released, back...)
	switch state {
	case job.Complete:
		f.settle(job.Completed, l)
	case job.Dead:
		f.settle(job.GivenUp, l)
	}
}

func listPages(f *fixture) {
	const ns = "ns"
	var want []string
	for _, j := range f.enqueue(ns, f.specs(50)...) {
		want = append(want, j.ID)
	}
	f.clock.Advance(time.Second)
	claims := f.claim(ns, 30)
	f.settle(job.Completed, claims[:10]...)
	f.settle(job.GivenUp, claims[10:20]...)
	for _, size := range []int{1, 7, 49, 50, 51, 500} {
		equal(f, fmt.Sprintf("pages of %d", size), idsOfJobs(f.list(ns, store.Filter{}, size)), want)
	}
	page, err := f.s.ListJobs(f.ctx, ns, store.Filter{}, want[24], 5)
	f.ok(err)
	equal(f, "after an id", idsOfJobs(page.Items), want[25:30])
	page, err = f.s.ListJobs(f.ctx, ns, store.Filter{}, want[49], 5)
	f.ok(err)
	equal(f, "after the last", page, store.Page[job.Job]{})
}

// listMoving: jobs that exist throughout are listed once, while each page is
// followed by jobs that are claimed, settled, cancelled, trimmed and added.
func listMoving(f *fixture) {
	const ns = "ns"
	term := f.term()
	var fixed []string
	for _, j := range f.enqueue(ns, f.specs(60)...) {
		fixed = append(fixed, j.ID)
	}
	f.clock.Advance(time.Second)
	var got []string
	after, trimmed := "", map[string]bool{}
	for step := 0; ; step++ {
		page, err := f.s.ListJobs(f.ctx, ns, store.Filter{}, after, 4)
		f.ok(err)
		got = append(got, idsOfJobs(page.Items)...)
		if after = page.Next; after == "" {
			break
		}
		f.enqueue(ns, f.spec())
		claims := f.grant(ns, 5).Jobs
		outcomes := []job.Outcome{job.Completed, job.GivenUp, job.Released, job.Failed, job.Completed}
		for i, l := range claims {
			f.settle(outcomes[(i+step)%5], l)
		}
		if step == 5 {
			for _, j := range f.list(ns, store.Filter{State: job.Complete}, 100) {
				trimmed[j.ID] = true
			}
			f.keep(term, ns, store.Archive, 0)
		}
	}
	if !slices.IsSorted(got) || len(slices.Compact(slices.Clone(got))) != len(got) {
		f.Errorf("the pages are not in order or have repeats: %v", got)
	}
	for _, id := range fixed {
		if !slices.Contains(got, id) && !trimmed[id] {
			f.Errorf("job %s existed throughout and was not listed", id)
		}
	}
}

func listMissing(f *fixture) {
	spec := f.spec()
	f.enqueue("a", spec)
	for ns, id := range map[string]string{"a": f.id(), "b": spec.ID, "c": "not an id", "A": spec.ID} {
		_, err := f.s.Job(f.ctx, ns, id)
		e := f.reason(err, fault.NotFound)
		equal(f, "message", e.Message, "job not found")
	}
}

func listUsage(f *fixture) {
	f.put("b", `{"enqueue_rate":"10/h"}`)
	f.enqueue("b", f.specs(3)...)
	f.enqueue("a", f.spec())
	f.clock.Advance(time.Second)
	got, err := f.s.Usage(f.ctx, []string{"b", "never used", "a", "b"})
	f.ok(err)
	now := f.clock.Now()
	for i, ns := range []string{"b", "never used", "a", "b"} {
		equal(f, "name, pending and time", [3]any{got[i].Namespace, got[i].Pending, got[i].Now}, [3]any{ns, []int64{3, 0, 1, 3}[i], now})
	}
	equal(f, "tokens", got[0].Bucket.Tokens(), int64(7))
	equal(f, "twice the same", got[3], got[0])
	_, stamp := f.inForce("b")
	equal(f, "stamp", got[0].Stamp, stamp)
	equal(f, "nothing of a namespace that was never used", got[1], store.Usage{Namespace: "never used", Now: now})
	got, err = f.s.Usage(f.ctx, nil)
	f.ok(err)
	equal(f, "of none", len(got), 0)
	counted, err := f.s.Recount(f.ctx, "never used")
	f.ok(err)
	equal(f, "recount of a namespace that was never used", countsOf(counted), counts{})
}

func listNamespaces(f *fixture) {
	for i := range 23 {
		ns := fmt.Sprintf("ns-%02d", (i*7)%23)
		if i%2 == 0 {
			f.put(ns, `{"max_pending":1}`)
		} else {
			f.enqueue(ns, f.spec())
		}
	}
	f.put("ns-03", "") // a namespace stays listed
	var want []string
	for i := range 23 {
		want = append(want, fmt.Sprintf("ns-%02d", i))
	}
	for _, size := range []int{1, 5, 23, 100} {
		var got []string
		for after := ""; ; {
			page, err := f.s.Namespaces(f.ctx, after, size)
			f.ok(err)
			got = append(got, page.Items...)
			if after = page.Next; after == "" {
				break
			}
		}
		equal(f, fmt.Sprintf("pages of %d", size), got, want)
	}
	page, err := f.s.Namespaces(f.ctx, "ns-2", 2)
	f.ok(err)
	equal(f, "after a name that there is none of", page.Items, []string{"ns-20", "ns-21"})
}
