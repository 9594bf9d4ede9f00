package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/testkit"
)

// producerPath is a way on which a pending job may come into being, or come back.
type producerPath struct {
	name string
	// from is what of the program the path goes through, as TestEveryProducerPathIsTried
	// finds it: methods, subjects and routes that bring calls, functions that make
	// them, operations of the store.
	from []string

	prepare func(*scene)               // what the attempt needs, before the limit stands; nil: nothing
	try     func(*scene, bool) reply   // once; again tells that the limit is gone
	line    line                       // what comes of it while a limit stands
	after   func(*scene, string) int64 // waits for what comes by itself once the limit is gone; nil: try is called again
}

// line is a line of the table of outcomes: what becomes of an attempt that a
// limit meets, and how many jobs were shed and put back by it.
type line func(*scene, *producerPath, reply) (shed, back int64)

// reply is what an attempt was told.
type reply struct {
	status  int    // HTTP's, or NATS's
	code    string // of an error, as the next four
	reason  string
	message string
	details map[string]string
	retry   bool     // the transport's own means say when to try again
	states  []string // of the jobs that came back
	merged  bool     // a job came back that was there before
	body    map[string]any
}

func (r reply) String() string {
	return fmt.Sprintf("%d %s %s %q %v, jobs %v", r.status, r.code, r.reason, r.message, r.details, r.states)
}

// situation is why there is no room.
type situation struct {
	name, limit  string
	drop         bool
	document     func(pending int64) string
	unreadable   bool
	reason, code string
}

// rateCount is the capacity of the bucket where the rate is what refuses, and
// how many jobs are enqueued to empty it.
const rateCount = 4

var situations = []situation{
	depth("full", false), depth("full, drop", true), rated("no tokens", false), rated("no tokens, drop", true),
	{
		name: "unreadable", unreadable: true, reason: "QUOTA_UNREADABLE", code: "INTERNAL",
		document: func(int64) string { return `{"max_pending":"many","enqueue_rate":"1000/h"}` },
	},
}

func onExcess(drop bool) string {
	if drop {
		return "drop"
	}
	return "reject"
}

func depth(name string, drop bool) situation {
	return situation{
		name: name, limit: "max_pending", drop: drop, reason: "QUEUE_FULL", code: "RESOURCE_EXHAUSTED",
		document: func(pending int64) string {
			return fmt.Sprintf(`{"max_pending":%d,"on_excess":%q,"enqueue_rate":"1000/h"}`, pending, onExcess(drop))
		},
	}
}

func rated(name string, drop bool) situation {
	return situation{
		name: name, limit: "enqueue_rate", drop: drop, reason: "RATE_LIMITED", code: "RESOURCE_EXHAUSTED",
		document: func(int64) string {
			return fmt.Sprintf(`{"on_excess":%q,"enqueue_rate":"%d/h"}`, onExcess(drop), rateCount)
		},
	}
}

// paths are all of them. A plain publish comes first: the log tells of an
// unreadable quota now and then, not each time. What comes back comes last: it
// goes above the limit.
var paths = slices.Concat(plainPaths, callPaths, innerPaths, letterPaths, returnPaths)

// TestEveryProducerPathMeetsTheLimits tries each path on each backend where there
// is no room: each is told so in its own way, nothing is spent, and nothing is
// left behind but what the quota sheds; once there is room, each passes.
func TestEveryProducerPathMeetsTheLimits(t *testing.T) {
	dir := home(t)
	for kind, make := range stores {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			own := dir + "/" + kind
			s := make(t, own)
			var log lockedBuffer
			d, stop := inProcessLogging(t, &log, append(s.args, "--data-dir="+own+"/data", "--log-level=debug",
				"--dead-retry-age=1ms", "--retention-tick=200ms")...)
			for i, sit := range situations {
				t.Run(sit.name, func(t *testing.T) {
					// A name that means something in subjects, keys and patterns.
					newScene(t, d, &log, sit, fmt.Sprintf("flail:%d.*", i)).play()
				})
			}
			stop()
			checkCounts(t, s.opts)
		})
	}
}

// play tries every path while the limit stands, and again when it is gone.
func (s *scene) play() {
	for i := range paths {
		if p := &paths[i]; p.prepare != nil {
			p.prepare(s)
		}
	}
	s.close()
	for i := range paths {
		s.meet(&paths[i])
	}
	s.admin("ClearQuota", `{}`)
	for i := range paths {
		s.pass(&paths[i])
	}
	found, err := s.d.store.Examine(s.t.Context(), s.ns, false)
	if err != nil || len(found) > 0 {
		s.t.Errorf("the store afterwards: %v, %v", found, err)
	}
}

// meet tries a path while the limit stands.
func (s *scene) meet(p *producerPath) {
	before := s.look()
	got := p.try(s, false)
	shed, back := p.line(s, p, got)
	after := s.look()
	if after.bucket != before.bucket {
		s.t.Errorf("%s: the bucket was %+v and is %+v", p.name, before.bucket, after.bucket)
	}
	var fresh, changed []string
	for id, now := range after.jobs {
		if was, ok := before.jobs[id]; !ok {
			fresh = append(fresh, now)
			s.waitFor(p.name+": an event tells of the shed job", func() bool {
				return s.events.has(func(e *flexiqv1.Event) bool { return e.GetType() == "job.shed" && e.GetJobId() == id })
			})
		} else if was != now {
			changed = append(changed, was+" became "+now)
		}
	}
	for id, was := range before.jobs {
		if _, ok := after.jobs[id]; !ok {
			changed = append(changed, was+" is gone")
		}
	}
	if int64(len(fresh)) != shed || slices.ContainsFunc(fresh, func(j string) bool { return !strings.HasPrefix(j, "shed ") }) {
		s.t.Errorf("%s: new are %q, want %d shed", p.name, fresh, shed)
	}
	if int64(len(changed)) != back || slices.ContainsFunc(changed, func(j string) bool { return j != "running became pending" }) {
		s.t.Errorf("%s: changed are %q, want %d put back", p.name, changed, back)
	}
	want := before.counts
	want.pending, want.running, want.dead, want.shed = want.pending+back, want.running-back, want.dead+shed, want.shed+shed
	if after.counts != want {
		s.t.Errorf("%s: the namespace holds %+v, want %+v", p.name, after.counts, want)
	}
}

// pass tries a path again when there is room. What was refused has left no key, no
// signature and no slot used.
func (s *scene) pass(p *producerPath) {
	before := s.look().counts.pending
	var made int64
	if p.after != nil {
		made = p.after(s, p.name)
	} else {
		got := p.try(s, true)
		if got.reason != "" || got.merged || slices.ContainsFunc(got.states, func(st string) bool { return st != "pending" }) {
			s.t.Errorf("%s, once there is room: %s, merged %t", p.name, got, got.merged)
		}
		made = int64(len(got.states))
	}
	if made == 0 {
		return // it has been back since the limit stood, or comes by itself
	}
	testkit.Eventually(s.t, fmt.Sprintf("%s: %d jobs more than %d wait", p.name, made, before), func() bool {
		return s.look().counts.pending >= before+made
	})
}

// refused is the line of calls: an error, or jobs that are dead.
func refused(jobs int64) line {
	return func(s *scene, p *producerPath, got reply) (shed, back int64) {
		if s.sit.drop {
			if got.reason != "" || int64(len(got.states)) != jobs || slices.ContainsFunc(got.states, func(st string) bool { return st != "dead" }) {
				s.t.Errorf("%s: %s, want %d dead jobs", p.name, got, jobs)
			}
			return jobs, 0
		}
		s.isRefusal(p, got, jobs, nil)
		return 0, 0
	}
}

// isRefusal compares a refusal with what stands, text and numbers.
func (s *scene) isRefusal(p *producerPath, got reply, asked int64, more map[string]string) {
	s.t.Helper()
	if got.reason != s.sit.reason || got.code != s.sit.code || len(got.states) > 0 {
		s.t.Errorf("%s: %s, want %s %s", p.name, got, s.sit.code, s.sit.reason)
		return
	}
	if s.sit.unreadable {
		if got.retry || got.details["limit"] != "" || got.details["retry_after_ms"] != "" {
			s.t.Errorf("%s: an unreadable quota looks like a limit: %s", p.name, got)
		}
		return
	}
	pending := s.look().counts.pending
	want := map[string]string{
		"namespace": s.ns, "limit": s.sit.limit, "asked": fmt.Sprint(asked), "fits": "0", "revision": s.revision, "retry_after_ms": "1000",
	}
	text := fmt.Sprintf("rate limit exceeded for: namespace '%s' enqueue_rate %d/h", s.ns, rateCount)
	if s.sit.limit == "max_pending" {
		want["cap"], want["current"], want["estimate"] = fmt.Sprint(s.most), fmt.Sprint(pending), "true"
		text = fmt.Sprintf("queue '%s' is full: %d pending >= max_pending %d", queueOf(p), pending, s.most)
	} else {
		want["cap"], want["current"] = fmt.Sprint(rateCount), "0"
		wait, err := time.ParseDuration(got.details["retry_after_ms"] + "ms")
		if most := time.Duration(asked) * time.Hour / rateCount; err != nil || wait <= most-10*time.Minute || wait > most {
			s.t.Errorf("%s: retry after %q (%v), want a little under %s", p.name, got.details["retry_after_ms"], err, most)
		}
		want["retry_after_ms"] = got.details["retry_after_ms"]
	}
	maps.Copy(want, more)
	if got.message != text {
		s.t.Errorf("%s: the text is %q, want %q", p.name, got.message, text)
	}
	if !maps.Equal(got.details, want) {
		s.t.Errorf("%s: the details are %v, want %v", p.name, got.details, want)
	}
	if !got.retry || got.status != 0 && got.status != 429 {
		s.t.Errorf("%s: status %d, told when to try again: %t", p.name, got.status, got.retry)
	}
}

// queueOf is the queue of a path's first job.
func queueOf(p *producerPath) string {
	if strings.Contains(p.name, "dead letter") {
		return lettersQueue
	}
	return "work " + p.name
}
