package dispatchgate

import (
	"context"
	"encoding/json"
	"sync"
	"time"

	"flexiq/pkg/job"
	"flexiq/pkg/store"
	"flexiq/pkg/wire"
)

// Reports carries away what the gate saw, for operators.
type Reports interface {
	PublishDispatch(report []byte)
}

const (
	reportEvery = time.Second

	// maxReport bounds the bytes of the names in one report, so that it fits into
	// any server's messages.
	maxReport = 256 << 10

	// Workers that wait are told of again and again, because who listens may have
	// begun to listen only now: all of them in each report, or when they are more
	// than fewWorkers, each after retell. No report tells of more than mostWorkers.
	fewWorkers  = 1000
	mostWorkers = 2000
	retell      = 10 * time.Second
)

// workerKey names a worker of a namespace.
type workerKey struct{ ns, worker string }

// presence is what is known of a worker.
type presence struct {
	queues  []string
	slots   int32
	beat    bool // nothing but heartbeats was seen
	waiting int  // its claims that wait here
	news    bool // it was seen since the last report
	left    bool // it has signed off
	told    time.Time
}

// roster remembers which workers are there, and counts finished attempts,
// between two reports. It is safe for concurrent use.
type roster struct {
	out Reports // nil: nothing is kept

	mu       sync.Mutex
	workers  map[workerKey]*presence
	finished map[string]map[string]int64 // by namespace and queue
}

func newRoster(out Reports) *roster {
	return &roster{out: out, workers: make(map[workerKey]*presence), finished: make(map[string]map[string]int64)}
}

func (r *roster) see(k workerKey) *presence {
	p := r.workers[k]
	if p == nil {
		p = &presence{beat: true}
		r.workers[k] = p
	}
	p.news = true
	return p
}

// waits tells that a worker claims; the returned function, that its claim has ended.
func (r *roster) waits(want *store.Want, slots int32) (ended func()) {
	if r.out == nil {
		return func() {}
	}
	k := workerKey{want.Namespace, want.Worker}
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.see(k)
	p.queues, p.slots, p.beat, p.left = want.Queues, slots, false, false
	p.waiting++
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		p.waiting--
		p.news = true
	}
}

// leaves tells that a worker has signed off, here or, when it is known here, at
// another gate.
func (r *roster) leaves(ns, worker string, here bool) {
	k := workerKey{ns, worker}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.out != nil && (here || r.workers[k] != nil) {
		r.see(k).left = true
	}
}

// beats tells that a worker sent a heartbeat.
func (r *roster) beats(ns, worker string) {
	if r.out == nil || worker == "" {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.see(workerKey{ns, worker})
}

// settled counts the attempts that settlements ended.
func (r *roster) settled(items []store.Settlement, settled []store.Settled) {
	if r.out == nil || len(items) == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, s := range settled {
		if s.Accepted && !s.Repeat && s.Err == nil && items[i].Outcome != job.Released {
			r.count(items[i].Namespace, s.Queue)
		}
	}
}

// expired counts the attempts whose leases ended.
func (r *roster) expired(ended []store.Ended) {
	if r.out == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range ended {
		r.count(e.Namespace, e.Queue)
	}
}

func (r *roster) count(ns, queue string) {
	if r.finished[ns] == nil {
		r.finished[ns] = make(map[string]int64)
	}
	r.finished[ns][queue]++
}

// take gathers what is to be told now.
func (r *roster) take(now time.Time) map[string]wire.DispatchCounts {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make(map[string]wire.DispatchCounts)
	for ns, queues := range r.finished {
		out[ns] = wire.DispatchCounts{Finished: queues}
	}
	r.finished = make(map[string]map[string]int64)
	many, told := len(r.workers) > fewWorkers, 0
	for k, p := range r.workers {
		if told == mostWorkers {
			break
		}
		if p.news || p.waiting > 0 && (!many || now.Sub(p.told) >= retell) {
			c := out[k.ns]
			c.Add(wire.DispatchCounts{Workers: map[string]wire.WorkerSighting{
				k.worker: {Queues: p.queues, Slots: p.slots, Beat: p.beat, Waiting: p.waiting, Gone: p.left},
			}})
			out[k.ns] = c
			p.told, p.news = now, false
			told++
		}
		if p.waiting == 0 && !p.news {
			delete(r.workers, k)
		}
	}
	return out
}

// report sends what there is to tell, in as many messages as it takes.
func (r *roster) report(context.Context) {
	if r.out == nil {
		return
	}
	part, size := make(map[string]wire.DispatchCounts), 0
	for ns, c := range r.take(time.Now()) {
		n := weigh(ns, c)
		if size+n > maxReport && len(part) > 0 {
			r.send(part)
			part, size = make(map[string]wire.DispatchCounts), 0
		}
		part[ns] = c
		size += n
	}
	if len(part) > 0 {
		r.send(part)
	}
}

func weigh(ns string, c wire.DispatchCounts) int {
	const frame = 100
	n := 2*len(ns) + frame
	for queue := range c.Finished {
		n += 2*len(queue) + frame
	}
	for name, w := range c.Workers {
		n += 2*len(name) + frame
		for _, q := range w.Queues {
			n += 2 * len(q)
		}
	}
	return n
}

func (r *roster) send(part map[string]wire.DispatchCounts) {
	// Maps of strings to numbers and strings always marshal.
	data, _ := json.Marshal(wire.DispatchReport{Namespaces: part})
	r.out.PublishDispatch(data)
}
