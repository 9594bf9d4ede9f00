package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"flexiq/pkg/store"
	"flexiq/pkg/testkit"
)

// listener is a process that obeys changes, by its HTTP door.
type listener struct {
	url, role string
	http      *http.Client
}

// audience is an installation of several processes on one NATS server, all
// behind one link, and a store that is also changed past all doors.
type audience struct {
	t     *testing.T
	opts  *server.Options
	srv   *server.Server
	link  *testkit.Link
	db    store.Store
	procs []*listener
	admin string // a platform token
}

func newAudience(t *testing.T) *audience {
	t.Helper()
	a := &audience{t: t, opts: testkit.NATSOptions(t)}
	a.srv = testkit.StartNATS(t, a.opts)
	a.link = testkit.NewLink(t, a.srv.Addr().String())
	return a
}

// natsFlag lets a process connect through the link.
func (a *audience) natsFlag() string { return "--nats-url=nats://" + a.link.Address() }

func (a *audience) add(url, role string) {
	transport := &http.Transport{MaxIdleConnsPerHost: 16}
	a.t.Cleanup(transport.CloseIdleConnections)
	a.procs = append(a.procs, &listener{url: url, role: role, http: &http.Client{Transport: transport, Timeout: testkit.Patience}})
}

// of are the processes of a role.
func (a *audience) of(role string) (out []*listener) {
	for _, p := range a.procs {
		if p.role == role {
			out = append(out, p)
		}
	}
	return out
}

func (a *audience) call(p *listener, token, method, body string) testkit.Answer {
	return testkit.Post(a.t, p.http, p.url+"/flexiq.v1."+method, token, body)
}

// lively are calls that a process of a role refuses without asking the store,
// once it has let the caller in.
var lively = map[string][2]string{
	admissionService:    {"ProducerService/GetJob", `{"id":"-"}`},
	dispatchgateService: {"WorkerService/Claim", `{"max_jobs":-1}`},
	configService:       {"AdminService/CreateToken", `{"scopes":["nothing"]}`},
}

// letIn tells whether a process lets a token in.
func (a *audience) letIn(p *listener, token string) bool {
	return a.call(p, token, lively[p.role][0], lively[p.role][1]).Status != http.StatusUnauthorized
}

// token makes a token that every process knows.
func (a *audience) token(ns string) string {
	a.t.Helper()
	made := a.call(a.of(configService)[0], a.admin, "AdminService/CreateToken",
		fmt.Sprintf(`{"namespace":%q,"scopes":["produce","work","inspect","admin"]}`, ns))
	token, ok := made.Body["token"].(string)
	if !ok {
		a.t.Fatalf("a token: %+v", made)
	}
	for _, p := range a.procs {
		if !a.letIn(p, token) {
			a.t.Fatalf("%s does not let a new token in", p.role)
		}
	}
	return token
}

// revoke ends a token through a door, which tells every process.
func (a *audience) revoke(ns, token string) {
	a.t.Helper()
	res := a.call(a.of(configService)[0], a.admin, "AdminService/RevokeToken", fmt.Sprintf(`{"namespace":%q,"id":%q}`, ns, idOf(a.t, token)))
	if res.Status != http.StatusOK {
		a.t.Fatalf("revoke: %+v", res)
	}
}

// revokeUnheard ends a token in the store, without a word to anybody.
func (a *audience) revokeUnheard(ns, token string) {
	a.t.Helper()
	if err := a.db.RevokeToken(a.t.Context(), ns, idOf(a.t, token), store.Record{Namespace: ns, Operation: "test"}); err != nil {
		a.t.Fatal(err)
	}
}

// ended changes something that ends a token, and tells how long each process let
// it in from the moment that the change was answered.
func (a *audience) ended(token string, change func()) []time.Duration {
	a.t.Helper()
	change()
	answered := time.Now()
	out := make([]time.Duration, len(a.procs))
	var group sync.WaitGroup
	for i, p := range a.procs {
		group.Go(func() {
			for {
				asked := time.Now()
				if !a.letIn(p, token) {
					out[i] = asked.Sub(answered)
					return
				}
				if asked.Sub(answered) > testkit.Patience {
					a.t.Errorf("%s lets an ended token in after %s", p.role, testkit.Patience)
					return
				}
				time.Sleep(5 * time.Millisecond) // the pace of the looks
			}
		})
	}
	group.Wait()
	return out
}

// restart takes the NATS server away for a while.
func (a *audience) restart(away time.Duration) {
	a.t.Helper()
	a.srv.Shutdown()
	a.srv.WaitForShutdown()
	time.Sleep(away) // the outage is the case
	a.srv = testkit.StartNATS(a.t, a.opts)
}

// setQuota writes a namespace's quota through a door and tells its revision.
func (a *audience) setQuota(token string, maxPending int) int64 {
	a.t.Helper()
	res := a.call(a.of(configService)[0], token, "AdminService/SetQuota", fmt.Sprintf(`{"quota":{"max_pending":%d}}`, maxPending))
	revision, err := strconv.ParseInt(fmt.Sprint(res.Body["revision"]), 10, 64)
	if err != nil {
		a.t.Fatalf("set quota: %+v", res)
	}
	return revision
}

// refusedBy makes a call that the quota refuses, and tells by which revision. It
// reports false when nothing was decided: the quota changed too often meanwhile,
// or the store was too slow.
func (a *audience) refusedBy(p *listener, token string) (revision int64, decided bool) {
	res := a.call(p, token, "ProducerService/EnqueueBatch", `{"jobs":[{"task":"t"},{"task":"t"}]}`)
	if res.Status == http.StatusServiceUnavailable {
		return 0, false
	}
	revision, err := strconv.ParseInt(res.Details["revision"], 10, 64)
	if err != nil {
		a.t.Errorf("a call over the quota: %+v", res)
	}
	return revision, true
}

// limited sets max_pending to a few, and wants the processes together to admit
// exactly so many.
func (a *audience) limited(token string) {
	a.t.Helper()
	const most = 3
	a.setQuota(token, most)
	admitted := 0
	for range 2 * most {
		for _, p := range a.of(admissionService) {
			switch res := a.call(p, token, "ProducerService/Enqueue", `{"job":{"task":"t"}}`); {
			case res.Status == http.StatusOK:
				admitted++
			case res.Reason != "QUEUE_FULL":
				a.t.Errorf("an enqueue: %+v", res)
			}
		}
	}
	if admitted != most {
		a.t.Errorf("%d jobs were admitted, max_pending is %d", admitted, most)
	}
}

// confuse repeats hints of old and of future revisions in any order until it is
// stopped, and tells how many.
func (a *audience) confuse(ns string, revisions int64) (stop func() int) {
	a.t.Helper()
	nc, err := nats.Connect(a.srv.ClientURL())
	if err != nil {
		a.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(a.t.Context())
	sent := make(chan int)
	go func() {
		n := 0
		for ; ctx.Err() == nil; n++ {
			_ = nc.Publish("fqi.v1.config.quota."+ns, strconv.AppendInt(nil, rand.Int64N(revisions+1), 10))
			if n%10 == 0 {
				_ = nc.Flush() // no faster than the server
			}
		}
		nc.Close()
		sent <- n
	}()
	return func() int { cancel(); return <-sent }
}

// neverOlder changes a quota again and again under confusing hints. No process
// decides by an older revision than one that was answered before, or than one
// that it decided by before.
func (a *audience) neverOlder(token, ns string, changes int) (looks int) {
	a.t.Helper()
	stop := a.confuse(ns, int64(changes))
	var mu sync.Mutex
	var answered int64
	done := make(chan struct{})
	var group sync.WaitGroup
	for _, p := range a.of(admissionService) {
		group.Go(func() {
			for last := int64(0); ; {
				mu.Lock()
				least := max(last, answered)
				mu.Unlock()
				if by, decided := a.refusedBy(p, token); decided {
					if by < least {
						a.t.Errorf("a process decided by revision %d after revision %d", by, least)
					}
					mu.Lock()
					last = by
					looks++
					mu.Unlock()
				}
				select {
				case <-done:
					return
				default:
				}
			}
		})
	}
	for i := range changes {
		revision := a.setQuota(token, i%2)
		mu.Lock()
		answered = revision
		mu.Unlock()
	}
	close(done)
	group.Wait()
	if n := stop(); n < changes {
		a.t.Errorf("only %d confusing hints", n)
	}
	return looks
}

// TestChangesReachEveryProcess whatever becomes of the hints: what only the cache
// carries ends everywhere, and what the store decides is exact from the answer on.
func TestChangesReachEveryProcess(t *testing.T) {
	eachStore(t, func(t *testing.T, s kept) {
		a := newAudience(t)
		d := inProcess(t, append([]string{configService, a.natsFlag()}, s.args...)...)
		a.admin, a.db = tokensOf(t, d)["platform"], open(t, s.opts)
		a.add(d.httpURL, configService)
		for _, role := range []string{admissionService, admissionService, dispatchgateService} {
			d := inProcess(t, append([]string{role, a.natsFlag()}, s.args...)...)
			a.add(d.httpURL, role)
		}
		const ns = "heron"
		token, short := a.token(ns), func() string { return a.token(ns) }

		told := short()
		a.ended(told, func() { a.revoke(ns, told) })
		a.limited(token)
		if n := a.neverOlder(token, ns, 20); n < 20 {
			t.Errorf("only %d looks", n)
		}

		lost := short()
		a.link.Hold()
		a.ended(lost, func() { a.revokeUnheard(ns, lost) })
		a.link.Release()

		slow := short()
		a.link.Slow(200)
		stop := a.confuse(ns, 1)
		a.ended(slow, func() { a.revokeUnheard(ns, slow) })
		stop()
		a.link.Release()

		after := short()
		a.restart(0)
		a.ended(after, func() { a.revoke(ns, after) })
		other := a.token("heron after")
		a.limited(other)
	})
}
