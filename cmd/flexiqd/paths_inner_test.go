package main

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/auth"
	"flexiq/pkg/job"
	"flexiq/pkg/namespace"
	"flexiq/pkg/store"
	"flexiq/pkg/testkit"
	"flexiq/pkg/wire"
)

const (
	pathSecret   = "a secret of a trigger"
	lettersQueue = "letters"
)

// everything filters nothing out.
var everything store.Filter

var innerPaths = []producerPath{
	{
		name: "a schedule's run now", from: []string{"rpc RunSchedule", "func config.runSchedule", "store Admit"},
		prepare: func(s *scene) {
			s.admin("PutSchedule", `{"name":"yearly","cron":"0 0 1 1 *","job":{"task":"t","queue":"work a schedule's run now","unique_key":"yearly"}}`)
		},
		try: func(s *scene, _ bool) reply { return overHTTP(s, "RunSchedule", `{"name":"yearly"}`) },
		line: func(s *scene, p *producerPath, got reply) (shed, back int64) {
			want := s.sit.reason
			if s.sit.drop {
				want = "ok"
			}
			if outcomes := s.records("run-schedule", "yearly"); !slices.Equal(outcomes, []string{want}) {
				s.t.Errorf("%s: on record are %q, want %q", p.name, outcomes, want)
			}
			return refused(1)(s, p, got)
		},
	},
	{
		name: "a trigger with its secret", from: []string{"route POST /v1/triggers/{namespace}/{name}", "func admission.pull", "store Admit"},
		prepare: func(s *scene) {
			s.putTrigger("shown", `"http":{"secret":"`+pathSecret+`"}`, "a trigger with its secret")
		},
		try:  func(s *scene, _ bool) reply { return s.trigger("shown", "x", "Fq-Secret", pathSecret) },
		line: refusedTrigger,
	},
	{
		// A refused request's signature may be used again; that of a shed one may not.
		name: "a signed trigger", from: []string{"route POST /v1/triggers/{namespace}/{name}", "func admission.pull", "store Admit"},
		prepare: func(s *scene) { s.putTrigger("signed", `"http":{"secret":"`+pathSecret+`"}`, "a signed trigger") },
		try: func(s *scene, again bool) reply {
			body := `{"n":1}`
			if again && s.sit.drop {
				body = `{"n":2}`
			}
			if len(s.kept["signed"]) == 0 {
				s.kept["signed"] = []string{strconv.FormatInt(time.Now().Unix(), 10)}
			}
			h := hmac.New(sha256.New, []byte(pathSecret))
			h.Write([]byte(s.kept["signed"][0] + "." + body))
			return s.trigger("signed", body, "Fq-Signature", "t="+s.kept["signed"][0]+",v1="+hex.EncodeToString(h.Sum(nil)))
		},
		line: refusedTrigger,
	},
	{
		name: "a trigger by a plain message", from: []string{"subject fqx.v1.*.*", "func admission.hearPlain", "func admission.pull", "store Admit"},
		prepare: func(s *scene) { s.putTrigger("plain", `"nats":{}`, "plain") },
		try: func(s *scene, again bool) reply {
			before, had := s.refusals(), len(s.jobsOf("trigger:plain"))
			s.must(s.nc.Publish(auth.TriggerSubject(s.ns, "plain"), []byte("p")), "publish")
			if !again && !s.sit.drop {
				s.waitFor("the refusal is counted", func() bool { return s.refusals() > before })
				return reply{reason: fmt.Sprint(s.refusals() - before)}
			}
			s.waitFor("the message's job is there", func() bool { return len(s.jobsOf("trigger:plain")) > had })
			return reply{states: s.jobsOf("trigger:plain")[had:]}
		},
		line: untold("trigger:plain", 1),
	},
	{
		name: "a trigger by a message of a stream", from: []string{"func admission.pull", "store Admit"},
		prepare: func(s *scene) {
			_, err := s.stream().CreateStream(s.t.Context(), jetstream.StreamConfig{
				Name: s.streamName(), Subjects: []string{auth.TriggerSubject(s.ns, "durable")}, Storage: jetstream.MemoryStorage,
			})
			s.must(err, "the stream")
			s.putTrigger("durable", `"nats":{"durable_stream":"`+s.streamName()+`"}`, "durable")
		},
		try: (*scene).publishDurable,
		line: func(s *scene, p *producerPath, got reply) (shed, back int64) {
			if s.sit.drop {
				s.waitFor("the shed message is acknowledged", func() bool { return s.unacknowledged() == 0 })
				return refused(1)(s, p, got)
			}
			if n := s.unacknowledged(); n != 1 {
				s.t.Errorf("%s: %d messages are kept, want 1", p.name, n)
			}
			return 0, 0
		},
		after: func(s *scene, _ string) int64 {
			if s.sit.drop {
				if got := s.publishDurable(true); !slices.Equal(got.states, []string{"dead", "pending"}) {
					s.t.Errorf("messages of the stream: %s", got)
				}
				return 0
			}
			s.waitFor("the kept message becomes a job", func() bool { return slices.Equal(s.jobsOf("trigger:durable"), []string{"pending"}) })
			s.waitFor("it is acknowledged", func() bool { return s.unacknowledged() == 0 })
			return 0
		},
	},
	{
		name: "a schedule's slot", from: []string{"func admission.fireSlot", "store Admit"},
		try: func(s *scene, _ bool) reply { return s.fallDue() },
		line: func(s *scene, p *producerPath, _ reply) (shed, back int64) {
			one, err := s.d.store.Schedule(s.t.Context(), s.ns, "due")
			s.must(err, "the schedule")
			records := s.records("fire-schedule", "due")
			if s.sit.drop {
				if !one.NextAt.After(slotDue) || len(records) != 0 || len(s.jobsOf("schedule:due")) != 1 {
					s.t.Errorf("%s: stands at %s, on record are %q", p.name, one.NextAt, records)
				}
				return 1, 0
			}
			if !one.NextAt.Equal(slotDue) || one.Refusal.Reason != s.sit.reason || !slices.Equal(records, []string{s.sit.reason}) {
				s.t.Errorf("%s: stands at %s, refused %+v, on record are %q", p.name, one.NextAt, one.Refusal, records)
			}
			return 0, 0
		},
		after: func(s *scene, _ string) int64 {
			want := []string{"pending"}
			if s.sit.drop {
				want = []string{"dead"}
			}
			s.waitFor("the slot is admitted", func() bool { return slices.Equal(s.jobsOf("schedule:due"), want) })
			return 0
		},
	},
}

// putTrigger makes a trigger.
func (s *scene) putTrigger(name, source, path string) {
	s.t.Helper()
	s.admin("PutTrigger", fmt.Sprintf(`{"name":%q,%s,"job":{"task":"t","queue":%q}}`, name, source, "work "+path))
}

// trigger asks a trigger over HTTP.
func (s *scene) trigger(name, body, header, value string) reply {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), http.MethodPost, s.d.httpURL+wire.TriggerPath(s.ns, name), strings.NewReader(body))
	s.must(err, "a request")
	req.Header.Set(header, value)
	res, err := s.http.Do(req)
	s.must(err, "ask the trigger")
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	s.must(err, "the answer")
	r := reply{status: res.StatusCode}
	s.must(json.Unmarshal(text, &r.body), "the answer")
	if e, _ := r.body["error"].(map[string]any); e != nil {
		r.errorIn(e)
		if r.reason != res.Header.Get("Fq-Reason") {
			s.t.Errorf("the header says %q: %v", res.Header.Get("Fq-Reason"), e)
		}
		r.retry = res.Header.Get("Retry-After") != ""
		return r
	}
	ids, _ := r.body["ids"].([]any)
	for range ids {
		r.states = append(r.states, fmt.Sprint(r.body["status"]))
	}
	return r
}

// refusedTrigger is the line of triggers over HTTP.
func refusedTrigger(s *scene, p *producerPath, got reply) (shed, back int64) {
	want := http.StatusTooManyRequests
	switch {
	case s.sit.drop:
		want = http.StatusAccepted
	case s.sit.unreadable:
		want = http.StatusServiceUnavailable
	}
	if got.status != want {
		s.t.Errorf("%s: status %d, want %d", p.name, got.status, want)
	}
	return refused(1)(s, p, got)
}

// stream is JetStream as an operator reaches it.
func (s *scene) stream() jetstream.JetStream {
	s.t.Helper()
	js, err := jetstream.New(s.d.conn.Raw())
	s.must(err, "JetStream")
	return js
}

func (s *scene) streamName() string {
	return "S" + strings.ReplaceAll(namespace.Encode(s.ns), "=", "_")
}

// unacknowledged is how many messages of the stream are not done with.
func (s *scene) unacknowledged() (n int) {
	s.t.Helper()
	stream, err := s.stream().Stream(s.t.Context(), s.streamName())
	s.must(err, "the stream")
	consumers := stream.ListConsumers(s.t.Context())
	for info := range consumers.Info() {
		n += info.NumAckPending + int(info.NumPending)
	}
	s.must(consumers.Err(), "the consumers")
	return n
}

// publishDurable sends a message to the stream and waits until it has become a
// job, or has been refused and refused again.
func (s *scene) publishDurable(again bool) reply {
	s.t.Helper()
	before, had := s.refusals(), len(s.jobsOf("trigger:durable"))
	s.must(s.nc.Publish(auth.TriggerSubject(s.ns, "durable"), []byte("d")), "publish")
	if !again && !s.sit.drop {
		s.waitFor("the message is refused and tried again", func() bool { return s.refusals() >= before+2 })
		return reply{}
	}
	s.waitFor("the message's job is there", func() bool { return len(s.jobsOf("trigger:durable")) > had })
	return reply{states: s.jobsOf("trigger:durable")}
}

// slotDue is a slot of a yearly schedule that is long over.
var slotDue = time.Date(time.Now().Year(), 1, 1, 0, 0, 0, 0, time.UTC)

// fallDue makes a schedule stand at a slot that is due, and waits until it has
// been refused twice or has gone on.
func (s *scene) fallDue() reply {
	s.t.Helper()
	template, err := wire.EncodeTemplate(&flexiqv1.JobSpec{Task: "t", UniqueKey: "slot"}, job.DefaultMaxPayload)
	s.must(err, "a template")
	_, err = s.d.store.PutSchedule(s.t.Context(), store.ScheduleChange{Schedule: store.Schedule{
		Namespace: s.ns, Name: "due", Cron: "0 0 1 1 *", TimeZone: "UTC", Job: template, NextAt: slotDue,
	}, Audit: store.Record{Namespace: s.ns}})
	s.must(err, "put the schedule")
	s.waitFor("the slot is refused twice or done with", func() bool {
		one, err := s.d.store.Schedule(s.t.Context(), s.ns, "due")
		s.must(err, "the schedule")
		return one.Refusal.Tries >= 2 || one.NextAt.After(slotDue)
	})
	return reply{}
}

// letterPaths bring dead letters back. They are dead since the limit stands, so
// that the automatic retry has not moved them before.
var letterPaths = []producerPath{
	{
		name: "a replay of one dead letter", from: []string{"rpc ReplayDeadLetters", "func config.step", "store Replay"},
		prepare: prepareLetters("one", 1),
		try:     func(s *scene, _ bool) reply { return s.replay(fmt.Sprintf(`{"ids":[%q]}`, s.kept["one"][0])) },
		line:    stays(1), after: replayedOnce("one"),
	},
	{
		name: "a replay of many dead letters", from: []string{"rpc ReplayDeadLetters", "func config.step", "store Replay"},
		prepare: prepareLetters("many", 2),
		try: func(s *scene, _ bool) reply {
			return s.replay(fmt.Sprintf(`{"ids":[%q,%q]}`, s.kept["many"][0], s.kept["many"][1]))
		},
		line: stays(2), after: replayedOnce("many"),
	},
	{
		name: "a replay of dead letters by a filter", from: []string{"rpc ReplayDeadLetters", "func config.step", "store Replay"},
		prepare: prepareLetters("filtered", 1),
		try:     func(s *scene, _ bool) reply { return s.replay(fmt.Sprintf(`{"filter":{"queue":%q}}`, lettersQueue)) },
		line:    stays(4), after: replayedOnce("filtered"),
	},
	{
		name: "the automatic retry of dead letters", from: []string{"func retention.replay", "store Replay"},
		try: (*scene).sweepTwice,
		line: func(s *scene, p *producerPath, _ reply) (shed, back int64) {
			// Another namespace's dead letters are not kept waiting.
			other := newScene(s.t, s.d, s.log, situation{}, "wren of "+s.ns)
			id := other.running("q", "3600s")
			other.settle(id, `"outcome":"dead","error":"boom"`)
			other.waitFor("a neighbour's dead letter is retried", func() bool {
				return slices.Equal(other.jobsOf(job.OriginReplay(id)), []string{"pending"})
			})
			return 0, 0
		},
		after: func(s *scene, _ string) int64 {
			s.waitFor("no dead letter is left", func() bool { c := s.look().counts; return c.dead == c.shed })
			return 0
		},
	},
}

// prepareLetters makes running jobs that die when the limit stands.
func prepareLetters(name string, n int) func(*scene) {
	return func(s *scene) {
		for range n {
			id := s.running(lettersQueue, "3600s")
			s.kept[name], s.kept["letters"] = append(s.kept[name], id), append(s.kept["letters"], id)
		}
	}
}

// replay calls ReplayDeadLetters.
func (s *scene) replay(body string) reply {
	s.t.Helper()
	r := overHTTP(s, "ReplayDeadLetters", body)
	s.kept["trail"] = s.records("replay-dead-letters", "")
	return r
}

// stays is the line of replays: dead letters stay as they are.
func stays(letters int64) line {
	return func(s *scene, p *producerPath, got reply) (shed, back int64) {
		if s.sit.drop {
			want := fmt.Sprintf("0 moved, %d left, 0 gone, %s %d", letters, s.sit.reason, letters)
			told := fmt.Sprintf("%v moved, %v left, %v gone, %v %v", got.body["moved"], got.body["left"], got.body["gone"],
				testkit.Dig(got.body, "reasons", 0, "reason"), testkit.Dig(got.body, "reasons", 0, "count"))
			if told != want {
				s.t.Errorf("%s: %s, want %s", p.name, told, want)
			}
			return 0, 0
		}
		s.isRefusal(p, got, 1, map[string]string{"left": fmt.Sprint(letters)})
		if !slices.Contains(s.kept["trail"], s.sit.reason) {
			s.t.Errorf("%s: on record are %q, want %s", p.name, s.kept["trail"], s.sit.reason)
		}
		return 0, 0
	}
}

// replayedOnce waits until each of them has become one job, by hand or by itself.
func replayedOnce(name string) func(*scene, string) int64 {
	return func(s *scene, path string) int64 {
		for _, id := range s.kept[name] {
			s.admin("ReplayDeadLetters", fmt.Sprintf(`{"ids":[%q]}`, id))
			s.waitFor(path+": it is a job", func() bool { return slices.Equal(s.jobsOf(job.OriginReplay(id)), []string{"pending"}) })
		}
		return 0
	}
}

// sweepTwice waits until two sweeps have met what no limit lets through.
func (s *scene) sweepTwice(bool) reply {
	s.t.Helper()
	met := func() float64 {
		if s.sit.unreadable {
			return testkit.Metric(s.t, s.d.reg, "flexiq_retention_unreadable_quotas_total")
		}
		return testkit.Metric(s.t, s.d.reg, "flexiq_retention_dead_retries_total", "outcome", "blocked") / float64(len(s.kept["letters"]))
	}
	before := met()
	s.waitFor("two sweeps have met it", func() bool { return met() >= before+2 })
	return reply{}
}
