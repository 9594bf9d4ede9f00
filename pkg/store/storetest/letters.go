package storetest

import (
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"flexiq/pkg/fault"
	"flexiq/pkg/job"
	"flexiq/pkg/store"
)

var letterCases = []testcase{
	{"everything but the id and the attempts is kept", replayShape},
	{"what fits moves, the rest stays", replayDepth},
	{"a rate moves what it has tokens for", replayRate},
	{"over a limit stays and is never shed", replayDrop},
	{"a held unique key stays and spends nothing", replayUnique},
	{"a held debounce key stays", replayDebounce},
	{"gone", replayGone},
	{"a stale stamp moves nothing", replayStale},
	{"a shed letter comes to life", replayShed},
	{"each moves once with many handles", replayRace},
	{"depth is exact beside enqueues", replayBeside},
	{"automatic retries are counted through deaths", retriesCounted},
	{"retryable ones, oldest first", retryableOrder},
	{"shed ones do not fill a page", retryableShed},
	{"of equal age, page after page", retryableTies},
	{"deleted for good", deleteDead},
}

// letters are dead letters to be replayed, under new ids.
func (f *fixture) letters(ids ...string) []store.Letter {
	out := make([]store.Letter, len(ids))
	for i, id := range ids {
		out[i] = store.Letter{ID: id, As: f.id()}
	}
	return out
}

// replay replays dead letters under the quota in force.
func (f *fixture) replay(ns string, ids ...string) []store.Replayed {
	f.Helper()
	q, stamp := f.inForce(ns)
	out, err := f.s.Replay(f.ctx, store.Replay{Namespace: ns, Quota: q, Stamp: stamp, Letters: f.letters(ids...), By: "adm1", Audit: &store.Record{
		Namespace: ns, TokenID: "adm1", Door: "nats", Operation: "replay-dead-letters", TargetKind: "dead_letters", Target: "some",
	}})
	f.ok(err)
	if len(out) != len(ids) {
		f.Fatalf("%d outcomes for %d letters", len(out), len(ids))
	}
	return out
}

// fates says in a word what became of each letter.
func fates(out []store.Replayed) []string {
	words := make([]string, len(out))
	for i, r := range out {
		switch {
		case r.Gone:
			words[i] = "gone"
		case r.Err == store.ErrStale:
			words[i] = "stale"
		case r.Err != nil:
			words[i] = string(fault.Of(r.Err).Reason)
		default:
			words[i] = "moved"
		}
	}
	return words
}

// dead makes n dead letters, died one millisecond after another.
func (f *fixture) dead(ns string, n int) []string {
	f.Helper()
	return f.finish(ns, n, job.GivenUp)
}

func replayShape(f *fixture) {
	const ns = "it's"
	for name, payload := range map[string][]byte{"short": []byte("\x00p"), "long": make([]byte, 100_000), "empty": {}} {
		spec := f.spec(func(s *job.Spec) {
			*s = job.Spec{
				ID: s.ID, Queue: "mail", Task: "send", Payload: payload, Form: job.Bytes, Priority: 5,
				MaxAttempts: 3, Timeout: time.Minute, BackoffBase: time.Second, BackoffMax: time.Minute, UniqueKey: "u", Metadata: map[string]string{"a": "b"},
			}
		})
		f.enqueue(ns, spec)
		f.clock.Advance(time.Second)
		first := f.take(ns)
		f.settle(job.GivenUp, first)
		f.clock.Advance(time.Second)
		out := f.replay(ns, spec.ID)
		equal(f, name, fates(out), []string{"moved"})
		id := out[0].Job.ID
		want := job.Job{
			ID: id, Namespace: ns, Queue: "mail", Task: "send", Payload: payload, Form: job.Bytes, State: job.Pending, Priority: 5,
			MaxAttempts: 3, Timeout: time.Minute, BackoffBase: time.Second, BackoffMax: time.Minute,
			CreatedAt: f.clock.Now(), RunAt: f.clock.Now(), UniqueKey: "u", Metadata: map[string]string{"a": "b"},
			Origin: "replay:" + spec.ID, EnqueuedBy: "adm1",
		}
		equal(f, name+": the new job", *f.job(ns, id), want)
		want.Payload = nil
		equal(f, name+": the result", *out[0].Job, want)
		_, err := f.s.Job(f.ctx, ns, spec.ID)
		f.reason(err, fault.NotFound)
		f.holds(ns, counts{Pending: 1})
		equal(f, name+": the old attempt", f.settleOne(ending(first, job.GivenUp)), store.Settled{})
		equal(f, name+": again", fates(f.replay(ns, spec.ID)), []string{"gone"})
		equal(f, name+": a duplicate finds it", f.try(ns, f.spec(withKey("u"))).Results[0].Job.ID, id)
		l := f.take(ns)
		equal(f, name+": what the worker gets", [2]any{l.Job.Attempt, len(l.Job.Payload)}, [2]any{int32(1), len(payload)})
		f.settle(job.Completed, l)
		f.keep(f.term(), ns, store.Archive, 0)
		f.holds(ns, counts{})
	}
}

func replayDepth(f *fixture) {
	const ns = "hasp"
	ids := f.dead(ns, 5)
	f.put(ns, `{"max_pending":3,"enqueue_rate":"9/h"}`)
	f.enqueue(ns, f.spec(queueOf("q")))
	out := f.replay(ns, ids...)
	equal(f, "fates", fates(out), []string{"moved", "moved", "QUEUE_FULL", "QUEUE_FULL", "QUEUE_FULL"})
	e := fault.Of(out[2].Err)
	equal(f, "message", e.Message, "queue 'default' is full: 3 pending >= max_pending 3")
	equal(f, "asked, fits, hint", []string{e.Details["asked"], e.Details["fits"], e.Details["retry_after_ms"]}, []string{"1", "0", "1000"})
	f.holds(ns, counts{Pending: 3, Dead: 3})
	equal(f, "tokens", f.usage(ns).Bucket.Tokens(), int64(6))
	for _, id := range ids[2:] {
		f.state(ns, id, job.Dead)
	}
	f.clock.Advance(time.Second)
	var order []string
	for _, l := range f.claim(ns, 3) {
		order = append(order, l.Job.Origin)
	}
	equal(f, "order", order, []string{"enqueue", "replay:" + ids[0], "replay:" + ids[1]})
}

func replayRate(f *fixture) {
	const ns = "ns"
	ids := f.dead(ns, 4)
	f.put(ns, `{"enqueue_rate":"2/m"}`)
	out := f.replay(ns, ids...)
	equal(f, "fates", fates(out), []string{"moved", "moved", "RATE_LIMITED", "RATE_LIMITED"})
	equal(f, "the trail", f.trail(ns, store.AuditFilter{Kind: "dead_letters"}, 10), []store.Record{{
		Time: f.clock.Now(), Namespace: ns, TokenID: "adm1", Door: "nats", Operation: "replay-dead-letters",
		TargetKind: "dead_letters", Target: "some", Outcome: "ok", New: `{"moved":2}`,
	}})
	equal(f, "at once again", fates(f.replay(ns, ids[2:]...)), []string{"RATE_LIMITED", "RATE_LIMITED"})
	equal(f, "records of what moved nothing", len(f.trail(ns, store.AuditFilter{Kind: "dead_letters"}, 10)), 1)
	equal(f, "hint", fault.Of(out[2].Err).Details["retry_after_ms"], "30000")
	f.holds(ns, counts{Pending: 2, Dead: 2})
	f.clock.Advance(30 * time.Second)
	equal(f, "half a minute later", fates(f.replay(ns, ids...)), []string{"gone", "gone", "moved", "RATE_LIMITED"})
	equal(f, "tokens", f.usage(ns).Bucket.Tokens(), int64(0))
}

func replayDrop(f *fixture) {
	const ns = "flail"
	ids := f.dead(ns, 3)
	for _, quota := range []string{
		`{"max_pending":0,"on_excess":"drop"}`, `{"max_pending":0,"on_excess":"reject"}`,
	} {
		f.put(ns, quota)
		equal(f, quota, fates(f.replay(ns, ids...)), []string{"QUEUE_FULL", "QUEUE_FULL", "QUEUE_FULL"})
		f.holds(ns, counts{Dead: 3})
	}
	f.put(ns, `{"enqueue_rate":"1/h","on_excess":"drop"}`)
	f.enqueue(ns, f.spec())
	before := f.usage(ns).Bucket
	equal(f, "rate", fates(f.replay(ns, ids...)), []string{"RATE_LIMITED", "RATE_LIMITED", "RATE_LIMITED"})
	f.holds(ns, counts{Pending: 1, Dead: 3})
	equal(f, "the bucket", f.usage(ns).Bucket, before)
}

func replayUnique(f *fixture) {
	const ns = "quill"
	var ids []string
	for range 2 { // two dead ones of one key
		s := f.spec(withKey("k"))
		f.enqueue(ns, s)
		f.clock.Advance(time.Second)
		f.settle(job.GivenUp, f.take(ns))
		ids = append(ids, s.ID)
	}
	ids = append(ids, f.dead(ns, 1)...)
	holder := f.enqueue(ns, f.spec(withKey("k")))[0]
	f.put(ns, `{"enqueue_rate":"10/h"}`)
	out := f.replay(ns, ids...)
	equal(f, "while it is held", fates(out), []string{"UNIQUE_KEY_HELD", "UNIQUE_KEY_HELD", "moved"})
	equal(f, "holder", fault.Of(out[0].Err).Details["job_id"], holder.ID)
	equal(f, "tokens", f.usage(ns).Bucket.Tokens(), int64(9))
	f.holds(ns, counts{Pending: 2, Dead: 2})
	f.cancel(ns, holder.ID)
	out = f.replay(ns, ids[:2]...)
	equal(f, "once it is free", fates(out), []string{"moved", "UNIQUE_KEY_HELD"})
	equal(f, "the new holder", fault.Of(out[1].Err).Details["job_id"], out[0].Job.ID)
	equal(f, "tokens", f.usage(ns).Bucket.Tokens(), int64(8))
	equal(f, "an enqueue finds it", f.try(ns, f.spec(withKey("k"))).Results[0].Job.ID, out[0].Job.ID)
}

func replayDebounce(f *fixture) {
	const ns = "quill"
	debounced := func(payload string) job.Spec {
		return f.spec(func(s *job.Spec) {
			s.Debounce, s.Payload, s.Form = job.Debounce{Key: "d", Window: time.Second}, []byte(payload), job.Bytes
		})
	}
	first := debounced("old")
	f.enqueue(ns, first)
	f.clock.Advance(2 * time.Second)
	f.settle(job.GivenUp, f.take(ns))
	second := debounced("new")
	f.enqueue(ns, second)
	out := f.replay(ns, first.ID)
	equal(f, "while one gathers", fates(out), []string{"DEBOUNCE_KEY_HELD"})
	equal(f, "its payload", string(f.job(ns, second.ID).Payload), "new")
	f.clock.Advance(2 * time.Second)
	f.settle(job.Completed, f.take(ns))
	out = f.replay(ns, first.ID)
	equal(f, "afterwards", fates(out), []string{"moved"})
	equal(f, "due at once", out[0].Job.RunAt, f.clock.Now())
	update := f.try(ns, debounced("newest"))
	equal(f, "an update finds it", [2]any{update.Results[0].Debounced, update.Results[0].Job.ID}, [2]any{true, out[0].Job.ID})
}

func replayGone(f *fixture) {
	const ns = "ns"
	dead := f.dead(ns, 1)[0]
	done := f.complete(ns, 1)[0]
	other := f.dead("other", 1)[0]
	live := f.enqueue(ns, f.spec())[0].ID
	equal(f, "fates", fates(f.replay(ns, f.id(), done, live, other, dead, "no id at all")), []string{"gone", "gone", "gone", "gone", "moved", "gone"})
	f.holds("other", counts{Dead: 1})
	f.holds(ns, counts{Pending: 2, Archived: 1})
	equal(f, "never used", fates(f.replay("fresh", dead)), []string{"gone"})
}

func replayStale(f *fixture) {
	const ns = "ns"
	ids := f.dead(ns, 2)
	q, old := f.inForce(ns)
	f.put(ns, `{"max_pending":0}`)
	out, err := f.s.Replay(f.ctx, store.Replay{Namespace: ns, Quota: q, Stamp: old, Letters: f.letters(append(ids, f.id())...), By: "adm1"})
	f.ok(err)
	equal(f, "fates", fates(out), []string{"stale", "stale", "gone"})
	f.holds(ns, counts{Dead: 2})
}

func replayShed(f *fixture) {
	const ns = "ns"
	f.put(ns, `{"max_pending":0,"on_excess":"drop"}`)
	spec := f.spec(withKey("k"), func(s *job.Spec) { s.Payload, s.Form, s.Delay = []byte("p"), job.Bytes, time.Hour })
	f.try(ns, spec)
	f.put(ns, "")
	f.enqueue(ns, f.spec(withKey("k")))
	out := f.replay(ns, spec.ID)
	equal(f, "its key is gone, so that it is not held", fates(out), []string{"moved"})
	j := f.job(ns, out[0].Job.ID)
	equal(f, "the job", [4]any{j.State, string(j.Payload), j.UniqueKey, j.Shed()}, [4]any{job.Pending, "p", "", false})
	equal(f, "error and finish", [2]any{j.Error, j.FinishedAt}, [2]any{"", time.Time{}})
	f.holds(ns, counts{Pending: 2})
}

// replayRace: however many replay the same letters, each becomes one job.
func replayRace(f *fixture) {
	const ns, letters, handles = "ns", 60, 4
	ids := f.dead(ns, letters)
	q, stamp := f.inForce(ns)
	stores := make([]store.Store, handles)
	for i := range stores {
		stores[i] = f.open()
	}
	var moved, gone atomic.Int64
	together(handles, func(i int) {
		for part := range slices.Chunk(ids, 7) {
			out, err := stores[i].Replay(f.ctx, store.Replay{Namespace: ns, Quota: q, Stamp: stamp, Letters: f.letters(part...), By: fmt.Sprint("adm", i)})
			if err != nil {
				f.Errorf("Replay: %v", err)
				return
			}
			for _, word := range fates(out) {
				switch word {
				case "moved":
					moved.Add(1)
				case "gone":
					gone.Add(1)
				default:
					f.Errorf("a letter is %s", word)
				}
			}
		}
	})
	equal(f, "moved and gone", [2]int64{moved.Load(), gone.Load()}, [2]int64{letters, letters * (handles - 1)})
	f.holds(ns, counts{Pending: letters})
	seen := make(map[string]int)
	for _, j := range f.list(ns, store.Filter{}, 100) {
		seen[j.Origin]++
	}
	for _, id := range ids {
		equal(f, "jobs of "+id, seen["replay:"+id], 1)
	}
}

// replayBeside: replays and enqueues together never pass the cap.
func replayBeside(f *fixture) {
	const ns, room = "ns", 30
	ids := f.dead(ns, 40)
	f.put(ns, fmt.Sprintf(`{"max_pending":%d}`, room))
	q, stamp := f.inForce(ns)
	a, b := f.open(), f.open()
	calls := make([]store.Call, 40)
	for i := range calls {
		calls[i] = f.call(ns, f.spec())
	}
	var moved, admitted atomic.Int64
	together(2, func(i int) {
		for k := range ids {
			if i == 0 {
				out, err := a.Replay(f.ctx, store.Replay{Namespace: ns, Quota: q, Stamp: stamp, Letters: f.letters(ids[k]), By: "adm1"})
				if err != nil {
					f.Errorf("Replay: %v", err)
				} else if out[0].Job != nil {
					moved.Add(1)
				}
				continue
			}
			out, err := b.Admit(f.ctx, calls[k:k+1])
			if err != nil {
				f.Errorf("Admit: %v", err)
			} else if out[0].Err == nil {
				admitted.Add(1)
			}
		}
	})
	equal(f, "moved and admitted", moved.Load()+admitted.Load(), int64(room))
	f.holds(ns, counts{Pending: room, Dead: 40 - moved.Load()})
}

func (f *fixture) retryable(q store.Retryable) []string {
	f.Helper()
	var out []string
	for range 1000 {
		page, err := f.s.Retryable(f.ctx, q)
		f.ok(err)
		if len(page.Items) > q.Limit {
			f.Fatalf("a page of %d has %d letters", q.Limit, len(page.Items))
		}
		out = append(out, page.Items...)
		if q.After = page.Next; q.After == "" {
			return out
		}
	}
	f.Fatal("the listing does not end")
	return nil
}

func retriesCounted(f *fixture) {
	const ns = "ns"
	id := f.dead(ns, 1)[0]
	later := f.clock.Now().Add(time.Hour)
	for n := range int32(3) {
		equal(f, "retried so often", f.job(ns, id).AutoRetries, n)
		equal(f, "one more is allowed", f.retryable(store.Retryable{Namespace: ns, Before: later, Most: n + 1, Limit: 10}), []string{id})
		equal(f, "no more are allowed", f.retryable(store.Retryable{Namespace: ns, Before: later, Most: max(n, 1), Limit: 10}), map[bool][]string{true: {id}}[n == 0])
		q, stamp := f.inForce(ns)
		out, err := f.s.Replay(f.ctx, store.Replay{Namespace: ns, Quota: q, Stamp: stamp, Letters: f.letters(id), Automatic: true})
		f.ok(err)
		equal(f, "fate", fates(out), []string{"moved"})
		id = out[0].Job.ID
		equal(f, "by nobody", [2]any{f.job(ns, id).EnqueuedBy, f.job(ns, id).AutoRetries}, [2]any{"", n + 1})
		f.clock.Advance(time.Second)
		f.settle(job.GivenUp, f.take(ns))
	}
	out := f.replay(ns, id)
	equal(f, "a replay by hand keeps the count", out[0].Job.AutoRetries, int32(3))
	f.clock.Advance(time.Second)
	l := f.take(ns)
	equal(f, "of the running job", l.Job.AutoRetries, int32(3))
	f.settle(job.Completed, l)
	equal(f, "of the archived job", f.job(ns, l.Job.ID).AutoRetries, int32(0))
}

func retryableOrder(f *fixture) {
	const ns = "ns"
	f.enqueue(ns, f.specs(6)...)
	f.clock.Advance(time.Second)
	claims := f.claim(ns, 6)
	var want []string
	for _, i := range []int{3, 0, 5, 1, 4, 2} { // they die in another order than they were born
		f.clock.Advance(time.Second)
		f.settle(job.GivenUp, claims[i])
		want = append(want, claims[i].Job.ID)
	}
	f.complete(ns, 2)
	now := f.clock.Now().Add(time.Second)
	for limit := 1; limit < 8; limit++ {
		equal(f, fmt.Sprint("in pages of ", limit), f.retryable(store.Retryable{Namespace: ns, Before: now, Most: 1, Limit: limit}), want)
	}
	died := f.job(ns, want[3]).FinishedAt
	equal(f, "that died before", f.retryable(store.Retryable{Namespace: ns, Before: died, Most: 1, Limit: 2}), want[:3])
	equal(f, "of another namespace", f.retryable(store.Retryable{Namespace: "other", Before: now, Most: 1, Limit: 2}), nil)
	first, err := f.s.Retryable(f.ctx, store.Retryable{Namespace: ns, Before: now, Most: 1, Limit: 2})
	f.ok(err)
	f.replay(ns, first.Items...)
	equal(f, "after those that moved", f.retryable(store.Retryable{Namespace: ns, Before: now, Most: 1, Limit: 2, After: first.Next}), want[2:])
}

func retryableShed(f *fixture) {
	const ns = "ns"
	f.put(ns, `{"max_pending":0,"on_excess":"drop"}`)
	for range 3 {
		f.try(ns, f.specs(1000)...)
	}
	f.clock.Advance(time.Second)
	f.put(ns, "")
	ids := f.dead(ns, 3)
	page, err := f.s.Retryable(f.ctx, store.Retryable{Namespace: ns, Before: f.clock.Now().Add(time.Second), Most: 1, Limit: 3})
	f.ok(err)
	equal(f, "the first page", page.Items, ids)
}

func retryableTies(f *fixture) {
	const ns = "ns"
	specs := f.specs(25)
	f.enqueue(ns, specs...)
	f.clock.Advance(time.Second)
	f.settle(job.GivenUp, f.claim(ns, 25)...) // at one instant
	var want []string
	for _, s := range specs {
		want = append(want, s.ID)
	}
	equal(f, "by id", f.retryable(store.Retryable{Namespace: ns, Before: f.clock.Now().Add(time.Second), Most: 1, Limit: 4}), want)
}

func deleteDead(f *fixture) {
	const ns = "ns"
	big := f.spec(func(s *job.Spec) { s.Payload, s.Form = make([]byte, 100_000), job.Bytes })
	f.enqueue(ns, big)
	f.clock.Advance(time.Second)
	f.settle(job.GivenUp, f.take(ns))
	ids := append(f.dead(ns, 3), big.ID)
	done := f.complete(ns, 1)[0]
	live := f.enqueue(ns, f.spec())[0].ID
	other := f.dead("other", 1)[0]
	f.put(ns, `{"max_pending":0,"on_excess":"drop"}`)
	f.try(ns, f.spec())
	f.holds(ns, counts{Pending: 1, Archived: 1, Dead: 5, Shed: 1})
	shed := f.list(ns, store.Filter{Shed: new(true)}, 10)[0].ID
	rec := store.Record{Namespace: ns, TokenID: "adm1", Door: "nats", Operation: "delete-dead-letters", TargetKind: "dead_letters", Target: "some"}
	before := len(f.trail(ns, store.AuditFilter{}, 100))
	n, err := f.s.DeleteDead(f.ctx, ns, []string{ids[0], ids[3], ids[0], f.id(), done, live, other, shed, "no id at all"}, rec)
	f.ok(err)
	equal(f, "deleted", n, int64(3))
	f.holds(ns, counts{Pending: 1, Archived: 1, Dead: 2})
	f.holds("other", counts{Dead: 1})
	equal(f, "left", idsOfJobs(f.list(ns, store.Filter{State: job.Dead}, 10)), ids[1:3])
	n, err = f.s.DeleteDead(f.ctx, ns, ids, rec)
	f.ok(err)
	equal(f, "the rest", n, int64(2))
	n, err = f.s.DeleteDead(f.ctx, "fresh", ids, rec)
	f.ok(err)
	equal(f, "of a namespace that was never used", n, int64(0))
	n, err = f.s.DeleteDead(f.ctx, ns, ids, rec)
	f.ok(err)
	equal(f, "again", n, int64(0))
	rec.Outcome, rec.Time = "ok", f.clock.Now()
	first, second := rec, rec
	first.New, second.New = `{"deleted":3}`, `{"deleted":2}`
	equal(f, "the trail", f.trail(ns, store.AuditFilter{}, 100)[before:], []store.Record{first, second})
	f.put(ns, "")
	equal(f, "the same id again", f.enqueue(ns, big)[0].Attempt, int32(0))
}
