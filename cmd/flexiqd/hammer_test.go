package main

import (
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"flexiq/pkg/store"
	"flexiq/pkg/testkit"
)

// regime is the quota that was answered last, and whether a newer one is being
// written. A decision that began and ended under one regime must be by it.
type regime struct {
	mu     sync.Mutex
	number int // of the last change that began or was answered
	stable bool
	open   bool
	judged map[*listener]int // decisions under this regime
}

func (r *regime) change(open bool, write func()) {
	r.mu.Lock()
	r.number, r.stable = r.number+1, false
	r.mu.Unlock()
	write()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.number, r.stable, r.open, r.judged = r.number+1, true, open, map[*listener]int{}
}

// judge makes a decision, and hands it to check if one regime held all the while.
func (r *regime) judge(p *listener, decide func() (done, known bool), check func(open, done bool)) {
	r.mu.Lock()
	number, open, stable := r.number, r.open, r.stable
	r.mu.Unlock()
	done, known := decide()
	r.mu.Lock()
	defer r.mu.Unlock()
	if known && stable && number == r.number {
		r.judged[p]++
		check(open, done)
	}
}

func (r *regime) judgedBy(procs []*listener, least int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range procs {
		if r.judged[p] < least {
			return false
		}
	}
	return true
}

// TestNoDecisionByAnOldQuota changes a quota again and again between one that lets
// everything through and one that lets nothing, while two admissions and two gates
// decide as fast as they can: from the answer on none decides by the old one,
// whether the hints work, are lost or come late.
func TestNoDecisionByAnOldQuota(t *testing.T) {
	eachStore(t, func(t *testing.T, s kept) {
		a := newAudience(t)
		d := inProcess(t, append([]string{configService, a.natsFlag()}, s.args...)...)
		a.admin, a.db = tokensOf(t, d)["platform"], open(t, s.opts)
		a.add(d.httpURL, configService)
		for _, role := range []string{admissionService, admissionService, dispatchgateService, dispatchgateService} {
			d := inProcess(t, append([]string{role, a.natsFlag()}, s.args...)...)
			a.add(d.httpURL, role)
		}
		for hints, write := range map[string]func(token, ns, document string){
			"working": func(token, _, document string) {
				if res := a.call(a.procs[0], token, "AdminService/SetQuota", `{"quota":`+document+`}`); res.Status != http.StatusOK {
					t.Errorf("set quota: %+v", res)
				}
			},
			"lost": a.write,
			"late": func(token, ns, document string) {
				a.write(token, ns, document)
				time.AfterFunc(20*time.Millisecond, func() { a.hint(ns) }) // being late is the case
			},
		} {
			a.hammer("hints "+hints, write)
		}
	})
}

// write changes a quota in the store alone.
func (a *audience) write(_, ns, document string) {
	_, err := a.db.PutQuota(a.t.Context(), store.QuotaChange{
		Namespace: ns, Raw: []byte(document), Audit: store.Record{Namespace: ns, Operation: "set-quota", TargetKind: "namespace", Target: ns},
	})
	if err != nil {
		a.t.Error(err)
	}
}

// hint tells of a quota's change.
func (a *audience) hint(ns string) {
	nc, err := nats.Connect(a.srv.ClientURL())
	if err != nil {
		return // the test has ended
	}
	defer nc.Close()
	_ = nc.Publish("fqi.v1.config.quota."+ns, []byte("0"))
	_ = nc.Flush()
}

func (a *audience) hammer(what string, write func(token, ns, document string)) {
	const changes, least = 10, 2
	ns := "heron-" + what[len("hints "):]
	token := a.token(ns)
	a.call(a.of(admissionService)[0], token, "ProducerService/EnqueueBatch", `{"jobs":[`+manyJobs(200)+`]}`)
	r := &regime{judged: map[*listener]int{}}
	deciding := append(a.of(admissionService), a.of(dispatchgateService)...)
	done := make(chan struct{})
	var group sync.WaitGroup
	for _, p := range deciding {
		decide := a.enqueues(p, token)
		if p.role == dispatchgateService {
			decide = a.claims(p, token)
		}
		group.Go(func() {
			for {
				r.judge(p, decide, func(open, done bool) {
					if open != done {
						a.t.Errorf("%s: %s decided by an old quota: it let work through: %t, the quota does: %t", what, p.role, done, open)
					}
				})
				select {
				case <-done:
					return
				default:
				}
			}
		})
	}
	for i := range changes {
		open := i%2 == 1
		document := `{"max_pending":0,"max_running":0}`
		if open {
			document = `{"max_pending":1000000,"max_running":1000}`
		}
		r.change(open, func() { write(token, ns, document) })
		testkit.Eventually(a.t, "every process decides under the new quota", func() bool { return r.judgedBy(deciding, least) })
	}
	close(done)
	group.Wait()
}

func manyJobs(n int) string {
	text := `{"task":"t"}`
	for range n - 1 {
		text += `,{"task":"t"}`
	}
	return text
}

// told reports whether a call was decided. On a busy machine the store may be too
// slow for one.
func (a *audience) told(what string, res testkit.Answer) bool {
	switch {
	case res.Status == http.StatusOK, res.Reason == "QUEUE_FULL":
		return true
	case res.Reason != "STORAGE_UNAVAILABLE":
		a.t.Errorf("%s: %+v", what, res)
	}
	return false
}

// enqueues makes a call and tells whether it was admitted.
func (a *audience) enqueues(p *listener, token string) func() (done, known bool) {
	return func() (done, known bool) {
		res := a.call(p, token, "ProducerService/Enqueue", `{"job":{"task":"t"}}`)
		return res.Status == http.StatusOK, a.told("an enqueue", res)
	}
}

// claims asks for a job, gives it back, and tells whether there was one.
func (a *audience) claims(p *listener, token string) func() (done, known bool) {
	return func() (done, known bool) {
		res := a.call(p, token, "WorkerService/Claim", `{"max_jobs":1}`)
		jobs, _ := res.Body["jobs"].([]any)
		for _, j := range jobs {
			a.call(p, token, "WorkerService/Settle", fmt.Sprintf(`{"settlements":[{"job_id":%q,"lease":%q,"outcome":"release"}]}`,
				testkit.Dig(j, "job", "id"), testkit.Dig(j, "lease")))
		}
		return len(jobs) > 0, a.told("a claim", res)
	}
}
