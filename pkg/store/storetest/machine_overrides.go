package storetest

import (
	"pgregory.net/rapid"

	"flexiq/pkg/fault"
	"flexiq/pkg/job"
	"flexiq/pkg/store"
)

// override sets or clears what holds a queue or a task.
func (m *machine) override() {
	o := store.Override{Namespace: m.namespace(), UpdatedBy: "adm1"}
	o.Kind = rapid.SampledFrom([]store.OverrideKind{store.OverrideQueue, store.OverrideTask}).Draw(m.t, "kind")
	o.Name = rapid.SampledFrom(machineQueues).Draw(m.t, "queue")
	if o.Kind == store.OverrideTask {
		o.Name = rapid.SampledFrom(machineTasks).Draw(m.t, "task")
	}
	audit := store.Record{Namespace: o.Namespace, Operation: "set-override"}
	if rapid.IntRange(0, 3).Draw(m.t, "clear") == 0 {
		err := m.s.ClearOverride(m.ctx, o.Namespace, o.Kind, o.Name, audit)
		modelErr := m.model.ClearOverride(m.ctx, o.Namespace, o.Kind, o.Name, audit)
		same(m, "not found", fault.Is(err, fault.NotFound), fault.Is(modelErr, fault.NotFound))
		if modelErr == nil {
			m.must(err)
		}
	} else {
		if rapid.IntRange(0, 3).Draw(m.t, "capped") > 0 {
			o.MaxConcurrent = new(int64(rapid.IntRange(0, 3).Draw(m.t, "max_concurrent")))
		}
		if rapid.IntRange(0, 3).Draw(m.t, "pausing") == 0 {
			o.Paused = new(rapid.Bool().Draw(m.t, "paused"))
		}
		m.must(m.s.PutOverride(m.ctx, o, audit))
		m.must(m.model.PutOverride(m.ctx, o, audit))
	}
	got, err := m.s.Overrides(m.ctx, machineNamespaces)
	m.must(err)
	want, err := m.model.Overrides(m.ctx, machineNamespaces)
	m.must(err)
	same(m, "overrides", got, want)
}

func (m *machine) clearOverrides(ns string) {
	all, err := m.s.Overrides(m.ctx, []string{ns})
	m.must(err)
	for _, o := range all[0] {
		m.must(m.s.ClearOverride(m.ctx, ns, o.Kind, o.Name, store.Record{Namespace: ns}))
		m.must(m.model.ClearOverride(m.ctx, ns, o.Kind, o.Name, store.Record{Namespace: ns}))
	}
}

// insight compares what operators are shown.
func (m *machine) insight() {
	ns := m.namespace()
	limit := rapid.IntRange(1, 5).Draw(m.t, "limit")
	queue := rapid.SampledFrom([]string{"", "q", "Q"}).Draw(m.t, "queue")
	task := rapid.SampledFrom([]string{"", "t", "u"}).Draw(m.t, "task")
	id := ""
	page, err := m.model.ListJobs(m.ctx, ns, store.Filter{State: job.Pending}, "", 1000)
	m.must(err)
	if len(page.Items) > 0 {
		id = rapid.SampledFrom(page.Items).Draw(m.t, "job").ID
	}
	var states [2]store.Page[store.QueueState]
	var holders [2]store.Holders
	var ahead [2]store.Ahead
	for i, s := range []store.Store{m.s, m.model} {
		states[i], err = s.Queues(m.ctx, ns, queue, limit)
		m.must(err)
		holders[i], err = s.Holders(m.ctx, ns, queue, task, limit)
		m.must(err)
		if id != "" {
			ahead[i], err = s.Ahead(m.ctx, ns, id, limit)
			m.must(err)
		}
	}
	same(m, "queues", states[0], states[1])
	same(m, "holders", holders[0], holders[1])
	same(m, "ahead", ahead[0], ahead[1])
}
