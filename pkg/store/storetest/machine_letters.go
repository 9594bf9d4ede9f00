package storetest

import (
	"errors"
	"fmt"
	"time"

	"pgregory.net/rapid"

	"flexiq/pkg/fault"
	"flexiq/pkg/job"
	"flexiq/pkg/quota"
	"flexiq/pkg/store"
)

// letters draws ids of dead letters, and now and then of none.
func (m *machine) letters(ns string) []string {
	page, err := m.model.ListJobs(m.ctx, ns, store.Filter{State: job.Dead}, "", 1000)
	m.must(err)
	var ids []string
	for _, j := range page.Items {
		if (j.Debounce.Key == "" || m.settled(ns, j.Debounce.Key)) && rapid.Bool().Draw(m.t, "letter") {
			ids = append(ids, j.ID)
		}
	}
	if len(m.specs) > 0 && rapid.IntRange(0, 3).Draw(m.t, "any job") == 0 {
		id := rapid.SampledFrom(m.specs).Draw(m.t, "job").ID
		j, err := m.model.Job(m.ctx, ns, id)
		if fault.Is(err, fault.NotFound) || err == nil && j.State != job.Dead {
			ids = append(ids, id)
		}
	}
	return ids
}

func (m *machine) replay() {
	ns := m.namespace()
	q, a, b := m.both(ns)
	r := store.Replay{Namespace: ns, Quota: q, Stamp: a, By: "adm1", Automatic: rapid.Bool().Draw(m.t, "automatic")}
	for _, id := range m.letters(ns) {
		r.Letters = append(r.Letters, store.Letter{ID: id, As: m.id()})
	}
	if len(r.Letters) == 0 {
		return
	}
	got, err := m.s.Replay(m.ctx, r)
	m.must(err)
	r.Stamp = b
	want, err := m.model.Replay(m.ctx, r)
	m.must(err)
	for i := range want {
		what := fmt.Sprintf("letter %d", i)
		same(m, what+" stale", errors.Is(got[i].Err, store.ErrStale), errors.Is(want[i].Err, store.ErrStale))
		same(m, what+" gone", got[i].Gone, want[i].Gone)
		same(m, what+" moved", got[i].Job, want[i].Job)
		same(m, what+" stays", got[i].Err == nil, want[i].Err == nil)
		if want[i].Err == nil || errors.Is(want[i].Err, store.ErrStale) {
			continue
		}
		e, w := fault.Of(got[i].Err), fault.Of(want[i].Err)
		if _, limited := w.Details[quota.KeyRevision]; limited {
			w.Details[quota.KeyRevision] = fmt.Sprint(a.InForce())
		}
		same(m, what, e.Reason, w.Reason)
		same(m, what, e.Message, w.Message)
		same(m, what, e.Details, w.Details)
	}
}

func (m *machine) bury() {
	ns := m.namespace()
	ids := m.letters(ns)
	got, err := m.s.DeleteDead(m.ctx, ns, ids, store.Record{Namespace: ns})
	m.must(err)
	want, err := m.model.DeleteDead(m.ctx, ns, ids, store.Record{Namespace: ns})
	m.must(err)
	same(m, "deleted", got, want)
}

func (m *machine) retryable() {
	q := store.Retryable{
		Namespace: m.namespace(), Before: m.clock.Now().Add(-time.Duration(rapid.IntRange(0, 20).Draw(m.t, "age")) * time.Second),
		Most: int32(rapid.IntRange(1, 3).Draw(m.t, "most")), Limit: rapid.IntRange(1, 3).Draw(m.t, "limit"),
	}
	var lists [2][]string
	for i, s := range []store.Store{m.s, m.model} {
		q.After = ""
		for round := 0; ; round++ {
			page, err := s.Retryable(m.ctx, q)
			m.must(err)
			lists[i] = append(lists[i], page.Items...)
			if q.After = page.Next; q.After == "" {
				break
			}
			if round == 1000 {
				m.t.Fatal("the listing does not end")
			}
		}
	}
	same(m, "retryable", lists[0], lists[1])
}
