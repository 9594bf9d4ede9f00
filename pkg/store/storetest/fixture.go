package storetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"flexiq/pkg/fault"
	"flexiq/pkg/job"
	"flexiq/pkg/quota"
	"flexiq/pkg/store"
)

// caseTimeout ends a case whose store hangs.
const caseTimeout = 5 * time.Minute

// fixture is an empty store and what a case does with it. Its methods fail the
// case when the store reports an error that the case did not ask for.
type fixture struct {
	*testing.T
	ctx     context.Context
	backend Backend
	address string
	clock   *Clock
	s       store.Store

	mu  sync.Mutex
	ids int
}

func start(t *testing.T, b Backend) *fixture {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), caseTimeout)
	t.Cleanup(cancel)
	f := &fixture{T: t, ctx: ctx, backend: b, address: b.Create(t), clock: &Clock{now: epoch}}
	f.s = f.open()
	first := f.s
	t.Cleanup(func() { f.recount(first) })
	return f
}

// open opens one more handle on the case's store, as another process would.
func (f *fixture) open() store.Store {
	f.Helper()
	return f.openWith(f.clock.Now)
}

func (f *fixture) openWith(now func() time.Time) store.Store {
	f.Helper()
	s, err := f.backend.Open(f.ctx, f.address, now)
	f.ok(err)
	f.Cleanup(func() {
		if err := s.Close(); err != nil {
			f.Errorf("Close: %v", err)
		}
	})
	return s
}

// recount compares the kept counts of every namespace with the rows. It uses
// the case's first handle: those opened later are closed by then.
func (f *fixture) recount(s store.Store) {
	after := ""
	for {
		page, err := s.Namespaces(f.ctx, after, 100)
		if err != nil {
			f.Errorf("Namespaces: %v", err)
			return
		}
		for _, ns := range page.Items {
			kept, err := s.Usage(f.ctx, []string{ns})
			if err != nil {
				f.Errorf("Usage: %v", err)
				return
			}
			counted, err := s.Recount(f.ctx, ns)
			if err != nil {
				f.Errorf("Recount: %v", err)
				return
			}
			if diff := cmp.Diff(countsOf(counted), countsOf(kept[0])); diff != "" {
				f.Errorf("namespace %q: the kept counts are not those of the rows (-recount +usage):\n%s", ns, diff)
			}
			switch found, err := s.Examine(f.ctx, ns, false); {
			case err != nil:
				f.Errorf("Examine: %v", err)
				return
			case len(found) > 0:
				f.Errorf("namespace %q: what is kept is not what its jobs say: %+v", ns, found)
			}
		}
		if after = page.Next; after == "" {
			return
		}
	}
}

// ok ends the case on an error.
func (f *fixture) ok(err error) {
	f.Helper()
	if err != nil {
		f.Fatalf("unexpected error: %v", err)
	}
}

// equal compares values exactly; nil and empty slices and maps are the same.
func equal[T any](f *fixture, what string, got, want T) {
	f.Helper()
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		f.Fatalf("%s (-want +got):\n%s", what, diff)
	}
}

// reason ends the case unless err is a fault with the given reason.
func (f *fixture) reason(err error, want fault.Reason) *fault.Error {
	f.Helper()
	var e *fault.Error
	if !errors.As(err, &e) || e.Reason != want {
		f.Fatalf("got the error %v, want %s", err, want)
	}
	return e
}

// id makes a job id. Ids of one case rise.
func (f *fixture) id() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ids++
	return idOf(f.ids)
}

func idOf(n int) string { return fmt.Sprintf("01890a5d-ac96-774b-8000-%012x", n) }

// spec makes a checked job with a new id.
func (f *fixture) spec(options ...func(*job.Spec)) job.Spec {
	f.Helper()
	s := job.Spec{ID: f.id(), Task: "t"}
	for _, o := range options {
		o(&s)
	}
	f.ok(s.Normalize("job", job.LargestMaxPayload))
	return s
}

// specs makes n jobs alike.
func (f *fixture) specs(n int, options ...func(*job.Spec)) []job.Spec {
	f.Helper()
	out := make([]job.Spec, n)
	for i := range out {
		out[i] = f.spec(options...)
	}
	return out
}

// call makes a call under the quota in force.
func (f *fixture) call(ns string, specs ...job.Spec) store.Call {
	f.Helper()
	c, err := under(f.ctx, f.s, ns)
	f.ok(err)
	c.Jobs = specs
	return c
}

// under is a call without jobs under the quota in force, as a service reads it.
func under(ctx context.Context, s store.Store, ns string) (store.Call, error) {
	c := store.Call{Namespace: ns, Origin: job.OriginEnqueue, By: "tok1"}
	docs, err := s.Quotas(ctx, []string{ns})
	if err != nil {
		return c, err
	}
	c.Stamp = docs[0].Stamp
	if docs[0].Raw != nil {
		c.Quota, err = quota.Read(docs[0].Raw)
	}
	return c, err
}

// admit decides calls as one group.
func (f *fixture) admit(calls ...store.Call) []store.Outcome {
	f.Helper()
	out, err := f.s.Admit(f.ctx, calls)
	f.ok(err)
	if len(out) != len(calls) {
		f.Fatalf("%d outcomes for %d calls", len(out), len(calls))
	}
	return out
}

// try makes one call alone, under the quota in force.
func (f *fixture) try(ns string, specs ...job.Spec) store.Outcome {
	f.Helper()
	return f.admit(f.call(ns, specs...))[0]
}

// enqueue makes one call that must be admitted, and returns its jobs.
func (f *fixture) enqueue(ns string, specs ...job.Spec) []*job.Job {
	f.Helper()
	out := f.try(ns, specs...)
	f.ok(out.Err)
	if out.Shed || out.Repeat || len(out.Results) != len(specs) {
		f.Fatalf("got %+v, want %d jobs admitted", out, len(specs))
	}
	jobs := make([]*job.Job, len(specs))
	for i, r := range out.Results {
		jobs[i] = r.Job
	}
	return jobs
}

// refused checks a refusal's reason and details. Details are pairs of key and
// value; the value "-" means that the key must be absent.
func (f *fixture) refused(out store.Outcome, want fault.Reason, details ...string) *fault.Error {
	f.Helper()
	e := f.reason(out.Err, want)
	if out.Results != nil || out.Shed || out.Repeat {
		f.Fatalf("a refused call has results: %+v", out)
	}
	for i := 0; i < len(details); i += 2 {
		got, ok := e.Details[details[i]]
		if want := details[i+1]; ok != (want != "-") || ok && got != want {
			f.Fatalf("detail %s is %q (there: %t), want %q; all: %v", details[i], got, ok, want, e.Details)
		}
	}
	return e
}

// put sets a quota document, or clears it when raw is empty.
func (f *fixture) put(ns, raw string) store.Document {
	f.Helper()
	doc, err := f.s.PutQuota(f.ctx, f.change(ns, raw))
	f.ok(err)
	return doc
}

// change is a change as the config service makes it.
func (f *fixture) change(ns, raw string) store.QuotaChange {
	f.Helper()
	c := store.QuotaChange{Namespace: ns, Audit: store.Record{
		Namespace: ns, TokenID: "adm1", Door: "nats", Operation: "set-quota", TargetKind: "namespace", Target: ns,
	}}
	if raw == "" {
		c.Audit.Operation = "clear-quota"
		return c
	}
	q, err := quota.Parse([]byte(raw))
	f.ok(err)
	c.Raw, c.Rate = []byte(raw), q.EnqueueRate
	return c
}

// setDefault sets the installation's default quota, or clears it.
func (f *fixture) setDefault(raw string) store.Document {
	f.Helper()
	c := f.change("", raw)
	c.Default, c.Audit.Target, c.Audit.TargetKind = true, "", "installation"
	doc, err := f.s.PutQuota(f.ctx, c)
	f.ok(err)
	return doc
}

// counts is what a namespace holds.
type counts struct{ Pending, Running, Archived, Dead, Shed int64 }

func countsOf(u store.Usage) counts {
	return counts{u.Pending, u.Running, u.Archived, u.Dead, u.Shed}
}

// usage reads one namespace's usage.
func (f *fixture) usage(ns string) store.Usage {
	f.Helper()
	u, err := f.s.Usage(f.ctx, []string{ns})
	f.ok(err)
	if len(u) != 1 || u[0].Namespace != ns {
		f.Fatalf("usage of %q: got %+v", ns, u)
	}
	return u[0]
}

// holds checks what a namespace holds.
func (f *fixture) holds(ns string, want counts) {
	f.Helper()
	equal(f, fmt.Sprintf("counts of %q", ns), countsOf(f.usage(ns)), want)
}

// atCap is what a grant says that max_running held back.
var atCap = []store.Hold{{What: store.HoldMaxRunning}}

// together runs fn n times at once and waits.
func together(n int, fn func(i int)) {
	var wg sync.WaitGroup
	gate := make(chan struct{})
	for i := range n {
		wg.Go(func() {
			<-gate
			fn(i)
		})
	}
	close(gate)
	wg.Wait()
}
