package storetest

import (
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"flexiq/pkg/fault"
	"flexiq/pkg/job"
	"flexiq/pkg/quota"
	"flexiq/pkg/store"
)

var bucketCases = []testcase{
	{"one capacity after idling", bucketIdle},
	{"continuous refill", bucketRefill},
	{"a batch larger than the bucket", bucketNever},
	{"the advised delay", bucketAdvice},
	{"a clock that steps back", bucketBack},
	{"a clock that steps forward", bucketForward},
	{"another handle continues", bucketRestart},
	{"a raise adds the difference", bucketRaise},
	{"a cut clamps", bucketCut},
	{"clear and set again does not refill", bucketClear},
	{"a change of the rate acts at once", bucketChangeNow},
	{"a rate from the default quota", bucketDefault},
	{"refusals spend nothing", bucketRefused},
	{"duplicates spend, repeats do not", bucketDuplicates},
	{"shed calls spend nothing", bucketShed},
	{"calls of a group share the bucket", bucketGroup},
	{"rate is exact with many handles", bucketRace},
	{"rate is exact with moving rates", bucketMovingRate},
}

// pass makes single calls until one is refused for the rate, at most n, and
// returns how many were admitted.
func (f *fixture) pass(ns string, n int) int {
	f.Helper()
	for i := range n {
		out := f.try(ns, f.spec())
		if out.Err != nil {
			f.refused(out, fault.RateLimited)
			return i
		}
	}
	return n
}

// passes checks how many single calls pass now.
func (f *fixture) passes(ns string, want int) {
	f.Helper()
	equal(f, fmt.Sprintf("single calls admitted at %s", f.clock.Now().Sub(epoch)), f.pass(ns, want+3), want)
}

// bucketIdle: however long it idled, a bucket has one capacity.
func bucketIdle(f *fixture) {
	const ns = "ember"
	f.put(ns, `{"enqueue_rate":"5/s"}`)
	f.clock.Advance(10 * time.Minute)
	first := 0
	for range 100 { // 100 calls in 50 ms
		if f.try(ns, f.spec()).Err == nil {
			first++
		}
		f.clock.Advance(500 * time.Microsecond)
	}
	equal(f, "admitted at once", first, 5)
	for range 95 { // the rest of the first second
		if f.try(ns, f.spec()).Err == nil {
			first++
		}
		f.clock.Advance(10 * time.Millisecond)
	}
	equal(f, "admitted in the first second", first, 9)
}

func bucketRefill(f *fixture) {
	const ns = "ember"
	f.put(ns, `{"enqueue_rate":"5/s"}`)
	f.passes(ns, 5)
	f.clock.Advance(200*time.Millisecond - time.Microsecond)
	f.passes(ns, 0)
	f.clock.Advance(time.Microsecond)
	f.passes(ns, 1)
	f.clock.Advance(500 * time.Millisecond)
	f.passes(ns, 2)
	f.clock.Advance(100 * time.Millisecond) // the half token from before was kept
	f.passes(ns, 1)
	for range 9 { // many looks gain no more than one
		f.clock.Advance(20 * time.Millisecond)
		f.passes(ns, 0)
	}
	f.clock.Advance(20 * time.Millisecond)
	f.passes(ns, 1)
}

// bucketNever: no waiting helps a call larger than the bucket.
func bucketNever(f *fixture) {
	const ns = "bodkin"
	f.put(ns, `{"enqueue_rate":"50/s"}`)
	f.refused(f.try(ns, f.specs(51)...), fault.RateLimited, "retry", "never", "retry_after_ms", "-", "fits", "50", "asked", "51")
	f.enqueue(ns, f.specs(50)...)
	e := f.refused(f.try(ns, f.spec()), fault.RateLimited, "namespace", ns, "limit", "enqueue_rate", "cap", "50", "current", "0",
		"asked", "1", "fits", "0", "retry", "-", "estimate", "-", "revision", fmt.Sprint(f.usage(ns).Stamp.Revision))
	equal(f, "message", e.Message, "rate limit exceeded for: namespace 'bodkin' enqueue_rate 50/s")
	if d, ok := e.RetryAfter(); !ok || d < time.Millisecond || d > 20*time.Millisecond {
		f.Errorf("retry after %s, want 1 to 20 ms", d)
	}
}

// bucketAdvice: after the advised delay the call passes, a millisecond before
// it does not.
func bucketAdvice(f *fixture) {
	const ns = "ns"
	f.put(ns, `{"enqueue_rate":"7/m"}`)
	f.enqueue(ns, f.specs(6)...)
	e := f.refused(f.try(ns, f.specs(3)...), fault.RateLimited, "fits", "1", "current", "1", "retry_after_ms", "17143")
	ms, _ := strconv.Atoi(e.Details[fault.KeyRetryAfterMS])
	f.clock.Advance(time.Duration(ms-1) * time.Millisecond)
	f.refused(f.try(ns, f.specs(3)...), fault.RateLimited, "retry_after_ms", "1")
	f.clock.Advance(time.Millisecond)
	f.enqueue(ns, f.specs(3)...)
}

// bucketBack: no gain, and no standing still until the clock has caught up.
func bucketBack(f *fixture) {
	const ns = "ember"
	f.put(ns, `{"enqueue_rate":"5/s"}`)
	f.passes(ns, 5)
	f.clock.Advance(-time.Hour)
	f.passes(ns, 0)
	f.clock.Advance(time.Second)
	f.passes(ns, 5)
	f.clock.Advance(-time.Hour)
	f.clock.Advance(time.Second)
	f.passes(ns, 0) // nothing looked at the bucket since the step: it re-anchors here
	f.clock.Advance(400 * time.Millisecond)
	f.passes(ns, 2)
}

func bucketForward(f *fixture) {
	const ns = "ember"
	f.put(ns, `{"enqueue_rate":"5/s"}`)
	f.passes(ns, 5)
	f.clock.Advance(time.Hour)
	f.passes(ns, 5)
	f.clock.Advance(-time.Hour)
	f.passes(ns, 0)
	f.clock.Advance(time.Hour)
	f.passes(ns, 5)
}

// bucketRestart: a new process gains nothing.
func bucketRestart(f *fixture) {
	const ns = "ember"
	f.put(ns, `{"enqueue_rate":"5/s"}`)
	f.passes(ns, 5)
	for range 3 {
		f.s = f.open()
		f.passes(ns, 0)
	}
	f.clock.Advance(600 * time.Millisecond)
	f.s = f.open()
	f.passes(ns, 3)
}

func bucketRaise(f *fixture) {
	const ns = "sorrel"
	f.put(ns, `{"enqueue_rate":"10/h"}`)
	f.enqueue(ns, f.specs(8)...)
	f.put(ns, `{"enqueue_rate":"20/h"}`)
	f.refused(f.try(ns, f.specs(20)...), fault.RateLimited, "current", "12", "fits", "12")
	f.put(ns, `{"enqueue_rate":"20/h","max_running":1}`) // no change of the rate
	f.enqueue(ns, f.specs(12)...)
	f.passes(ns, 0)
	f.put(ns, `{"enqueue_rate":"21/h"}`)
	f.passes(ns, 1)
	f.put(ns, `{"enqueue_rate":"30/m"}`) // counts are capacities, whatever the unit
	f.passes(ns, 9)
	f.clock.Advance(4 * time.Second)
	f.passes(ns, 2)
}

func bucketCut(f *fixture) {
	const ns = "sorrel"
	f.put(ns, `{"enqueue_rate":"20/h"}`)
	f.enqueue(ns, f.specs(5)...)
	f.put(ns, `{"enqueue_rate":"4/h"}`)
	f.passes(ns, 4)
	f.put(ns, `{"enqueue_rate":"20/h"}`)
	f.enqueue(ns, f.specs(13)...)
	f.put(ns, `{"enqueue_rate":"4/h"}`)
	f.passes(ns, 3)
}

func bucketClear(f *fixture) {
	const ns = "sorrel"
	f.put(ns, `{"enqueue_rate":"10/h"}`)
	f.passes(ns, 10)
	f.put(ns, "")
	f.enqueue(ns, f.specs(12)...)
	f.put(ns, `{"enqueue_rate":"10/h"}`)
	f.passes(ns, 0)
	f.put(ns, `{"max_pending":1000}`)
	f.clock.Advance(12 * time.Minute)
	f.put(ns, `{"enqueue_rate":"10/h"}`)
	f.passes(ns, 2)
}

// bucketChangeNow: the tokens of the time before a change come at the old rate.
func bucketChangeNow(f *fixture) {
	const ns = "sorrel"
	f.put(ns, `{"enqueue_rate":"10/h"}`)
	f.passes(ns, 10)
	f.clock.Advance(6 * time.Minute)
	f.put(ns, `{"enqueue_rate":"10/s"}`)
	f.clock.Advance(100 * time.Millisecond)
	f.passes(ns, 2)
	b := f.usage(ns).Bucket
	equal(f, "the bucket at rest", b, quota.Bucket{Rate: quota.Rate{Count: 10, Unit: quota.PerSecond}, Level: 0, At: f.clock.Now().UnixMicro()})
}

func bucketDefault(f *fixture) {
	f.setDefault(`{"enqueue_rate":"4/h"}`)
	f.passes("a", 4)
	f.passes("b", 4) // each namespace has its own
	f.setDefault(`{"enqueue_rate":"6/h"}`)
	f.passes("a", 2)
	f.put("b", `{"enqueue_rate":"5/h"}`)
	f.passes("b", 1)
	f.put("b", "")
	f.passes("b", 1)
	f.passes("c", 6)
}

func bucketRefused(f *fixture) {
	const ns = "ns"
	f.put(ns, `{"enqueue_rate":"5/h","max_pending":7}`)
	for range 4 {
		f.refused(f.try(ns, f.specs(6)...), fault.RateLimited)
		f.refused(f.try(ns, f.specs(8)...), fault.QueueFull)
	}
	f.enqueue(ns, f.specs(5)...)
	f.clock.Advance(12 * time.Minute)
	f.refused(f.try(ns, f.specs(3)...), fault.QueueFull)
	f.enqueue(ns, f.spec())
	f.passes(ns, 0)
}

// bucketDuplicates: an admitted duplicate spends its tokens and adds no depth;
// a repeated call spends none.
func bucketDuplicates(f *fixture) {
	const ns = "ns"
	f.put(ns, `{"enqueue_rate":"5/h"}`)
	key := func(s *job.Spec) { s.UniqueKey = "inv-88" }
	first := f.call(ns, f.spec(key))
	f.admit(first)
	f.enqueue(ns, f.specs(2, key)...)
	f.holds(ns, counts{Pending: 1})
	equal(f, "tokens", f.usage(ns).Bucket.Tokens(), int64(2))
	for range 5 {
		equal(f, "the first call again", outcome(f.admit(first)[0]), "repeat")
	}
	f.refused(f.try(ns, f.specs(3, key)...), fault.RateLimited)
	f.enqueue(ns, f.specs(2, key)...)
	f.refused(f.try(ns, f.spec(key)), fault.RateLimited)
	equal(f, "the first call at an empty bucket", outcome(f.admit(first)[0]), "repeat")
	f.holds(ns, counts{Pending: 1})
}

func bucketShed(f *fixture) {
	const ns = "ns"
	f.put(ns, `{"enqueue_rate":"5/h","on_excess":"drop"}`)
	out := f.try(ns, f.specs(6)...)
	equal(f, "six of five", outcome(out), "shed")
	equal(f, "error", out.Results[5].Job.Error, "quota: namespace 'ns' is over enqueue_rate 5/h")
	f.enqueue(ns, f.specs(5)...)
	equal(f, "one of none", outcome(f.try(ns, f.spec())), "shed")
	f.holds(ns, counts{Pending: 5, Dead: 7, Shed: 7})
}

func bucketGroup(f *fixture) {
	f.put("a", `{"enqueue_rate":"5/h"}`)
	f.put("b", `{"enqueue_rate":"1/h"}`)
	out := f.admit(f.call("a", f.specs(3)...), f.call("b", f.spec()), f.call("a", f.specs(3)...), f.call("b", f.spec()), f.call("a", f.specs(2)...), f.call("a", f.spec()))
	var got []string
	for _, o := range out {
		got = append(got, outcome(o))
	}
	equal(f, "outcomes", got, []string{"ok", "ok", "RATE_LIMITED", "RATE_LIMITED", "ok", "RATE_LIMITED"})
	equal(f, "fits as the third call saw it", fault.Of(out[2].Err).Details["fits"], "2")
	f.holds("a", counts{Pending: 5})
	f.holds("b", counts{Pending: 1})
}

func bucketRace(f *fixture) {
	const ns, clients = "ns", 16
	f.put(ns, `{"enqueue_rate":"21/h"}`)
	handles := []store.Store{f.s, f.open(), f.open(), f.open()}
	calls := make([]store.Call, clients)
	for i := range calls {
		calls[i] = f.call(ns, f.specs(2)...)
	}
	var admitted atomic.Int64
	together(clients, func(i int) {
		out, err := handles[i%len(handles)].Admit(f.ctx, calls[i:i+1])
		if err != nil {
			f.Errorf("client %d: %v", i, err)
		} else if out[0].Err == nil {
			admitted.Add(1)
		}
	})
	equal(f, "calls admitted", admitted.Load(), 10)
	equal(f, "tokens", f.usage(ns).Bucket.Tokens(), int64(1))
}

// bucketMovingRate: two processes with different documents mint nothing.
func bucketMovingRate(f *fixture) {
	const ns = "ns"
	const low, high, changes = 10, 30, 10
	f.put(ns, fmt.Sprintf(`{"enqueue_rate":"%d/h"}`, low))
	handles := []store.Store{f.open(), f.open()}
	stop := make(chan struct{})
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		together(len(handles), func(i int) {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if err := f.hammer(handles[i], ns); err != nil {
					f.Errorf("client %d: %v", i, err)
					return
				}
			}
		})
	}()
	for i := range changes {
		f.put(ns, fmt.Sprintf(`{"enqueue_rate":"%d/h"}`, []int{high, low}[i%2]))
	}
	close(stop)
	<-finished
	// The bucket's first filling, and the difference for each raise.
	if n, most := f.usage(ns).Pending, int64(low+changes/2*(high-low)); n > most {
		f.Errorf("%d jobs were admitted, %d were lawful", n, most)
	}
}
