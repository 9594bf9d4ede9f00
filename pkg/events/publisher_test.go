package events

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"flexiq/pkg/fault"
	"flexiq/pkg/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// wire is a bus that keeps what is published, and may be slow or down.
type wire struct {
	mu    sync.Mutex
	deaf  bool
	err   error
	gate  chan struct{} // what a publish waits for; nil: nothing
	heard []string      // subject and body
}

func (w *wire) EventHeard(string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.deaf
}

func (w *wire) PublishEvent(subject string, body []byte) error {
	if w.gate != nil {
		<-w.gate
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil {
		w.heard = append(w.heard, subject+" "+string(body))
	}
	return w.err
}

func start(t *testing.T, w *wire) (*Publisher, *prometheus.Registry) {
	t.Helper()
	reg := prometheus.NewRegistry()
	p, err := Start(w, zerolog.Nop(), reg)
	if err != nil {
		t.Fatal(err)
	}
	return p, reg
}

func counter(t *testing.T, reg *prometheus.Registry, name string) float64 {
	t.Helper()
	return testkit.Metric(t, reg, name)
}

func TestEventsComeInOrderAndCarryNoMoreThanTheySay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &wire{}
		p, _ := start(t, w)
		p.Tell(Event{Namespace: "a.b", Type: JobEnqueued, JobID: "1", Queue: "q", Task: "t", Origin: "enqueue"})
		p.Tell(Event{Namespace: "a.b", Type: QuotaChanged, Details: map[string]string{"revision": "7"}})
		p.Close()
		p.Close()
		at := time.Now().UTC().Format(time.RFC3339)
		want := []string{
			`fqe.v1.a=2eb.job.enqueued {"type":"job.enqueued","time":"` + at + `","job_id":"1","queue":"q","task":"t","origin":"enqueue","attempt":0,"reason":"","count":"1","details":{}}`,
			`fqe.v1.a=2eb.quota.changed {"type":"quota.changed","time":"` + at + `","job_id":"","queue":"","task":"","origin":"","attempt":0,"reason":"","count":"1","details":{"revision":"7"}}`,
		}
		if got := strings.Join(w.heard, "\n"); got != strings.Join(want, "\n") {
			t.Errorf("published:\n%s\nwant:\n%s", got, strings.Join(want, "\n"))
		}
	})
}

func TestNothingIsDoneWhileNobodyListens(t *testing.T) {
	w := &wire{deaf: true}
	p, reg := start(t, w)
	p.Tell(Event{Namespace: "a", Type: JobDead})
	p.Refused(Event{Namespace: "a", Reason: fault.QueueFull})
	p.Close()
	if len(w.heard) != 0 || counter(t, reg, metricDropped) != 0 {
		t.Errorf("published %v, dropped %g", w.heard, counter(t, reg, metricDropped))
	}
	var none *Publisher
	none.Tell(Event{Namespace: "a", Type: JobDead})
	none.Refused(Event{Namespace: "a"})
	none.Close()
	if none.Wanted("a", JobDead) || none.Ask()("a", JobDead) {
		t.Error("no publisher wants events")
	}
}

// A server that does not take events holds up nobody: what does not fit is
// dropped and counted, what fits comes later.
func TestAStuckServerHoldsUpNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const more = 1000
		w := &wire{gate: make(chan struct{})}
		p, reg := start(t, w)
		p.Tell(Event{Namespace: "a", Type: JobDead})
		synctest.Wait() // the first is with the server
		before := time.Now()
		for range buffered + more {
			p.Tell(Event{Namespace: "a", Type: JobDead})
		}
		if took := time.Since(before); took != 0 { // in the bubble time passes only for those who wait
			t.Errorf("telling waited for %s", took)
		}
		if got := counter(t, reg, metricDropped); got != more {
			t.Errorf("dropped %g, want %d", got, more)
		}
		close(w.gate)
		p.Close()
		if got := len(w.heard); got != buffered+1 {
			t.Errorf("published %d, want %d", got, buffered+1)
		}
	})
}

func TestWhatTheServerDoesNotTakeIsCounted(t *testing.T) {
	w := &wire{err: errors.New("down")}
	p, reg := start(t, w)
	p.Tell(Event{Namespace: "a", Type: JobDead})
	p.Close()
	if got := counter(t, reg, metricDropped); got != 1 {
		t.Errorf("dropped %g, want 1", got)
	}
}

// A storm of refusals is told of once a second for each reason and namespace,
// and no refusal is missing in the counts.
func TestAStormOfRefusalsIsFewEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &wire{}
		p, _ := start(t, w)
		const seconds, each = 5, 200
		for i := range seconds * each {
			p.Refused(Event{Namespace: "a", Reason: fault.QueueFull, Count: 2, Details: map[string]string{"current": fmt.Sprint(i)}})
			if i%each == 0 {
				p.Refused(Event{Namespace: "b", Reason: fault.RateLimited})
			}
			time.Sleep(time.Second / each)
		}
		p.Close()
		events, jobs := map[string]int{}, map[string]int{}
		last := ""
		for _, text := range w.heard {
			subject, body, _ := strings.Cut(text, " ")
			var e struct {
				Reason  string
				Count   int `json:",string"`
				Details map[string]string
			}
			if err := json.Unmarshal([]byte(body), &e); err != nil {
				t.Fatal(err)
			}
			events[subject]++
			jobs[subject] += e.Count
			if e.Reason == "QUEUE_FULL" {
				last = e.Details["current"]
			}
		}
		if n := events["fqe.v1.a.job.rejected"]; n < seconds || n > seconds+2 {
			t.Errorf("%d events of %d refusals in %d s", n, seconds*each, seconds)
		}
		if n := jobs["fqe.v1.a.job.rejected"]; n != 2*seconds*each {
			t.Errorf("the events count %d refused jobs, want %d", n, 2*seconds*each)
		}
		if n := jobs["fqe.v1.b.job.rejected"]; n != seconds {
			t.Errorf("the neighbour's events count %d, want %d", n, seconds)
		}
		if last != fmt.Sprint(seconds*each-1) {
			t.Errorf("the last event has the details of refusal %s", last)
		}
	})
}

// What is remembered for refusals is bounded, and forgotten when it is quiet.
func TestRefusalsAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, reg := start(t, &wire{})
		for i := range mostRefusals + 5 {
			p.Refused(Event{Namespace: fmt.Sprint("n", i), Reason: fault.QueueFull})
		}
		if got := counter(t, reg, metricDropped); got < 5 {
			t.Errorf("dropped %g, want at least the 5 that are too many", got)
		}
		time.Sleep(3 * refusalEvery)
		synctest.Wait()
		p.mu.Lock()
		n := len(p.refusals)
		p.mu.Unlock()
		if n != 0 {
			t.Errorf("%d refusals are remembered after a while", n)
		}
		p.Close()
	})
}
